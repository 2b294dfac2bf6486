"""The configured numbers that the core decides by. The shell fills them in from the config."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct, field

from ...protocol.kinds import KINDS
from ...protocol.known import KNOWN_PROGRAMS
from ...protocol.types import Action, Bound, Limit, LimitKind
from .access import OPERATOR_ONLY, AccessRules

T = TypeVar("T", bound=Struct)

MAX_ATTEMPTS = 100
"""Attempts one run may ask for. Back-off grows to its cap, so this many take hours; more is a
scheduler's work."""

MAX_RETRY_DELAY = 3600.0
"""Seconds before the second attempt at most: a run that waits holds its slot, and no clock of its
own ends it."""

MAX_LABELS = 64
"""Labels of a run, inherited ones included, and conditions on labels in one request. Each is part
of a query of the ledger."""


DEFAULT_DEPTH = Bound(value=5, source="default")
DEFAULT_DESCENDANTS = Bound(value=64, source="default")
DEFAULT_LIMITS = {
    kind: Limit(
        kind=kind,
        threshold=float(spec.default),
        action=Action.TERMINATE if spec.acts else Action.WARN,
    )
    for kind, spec in KINDS.items()
    if spec.default is not None
}
"""The limits of a run where neither its request nor the config sets any."""


DURATION = {"unit": "duration"}
"""Marks a number of the config that may be written with a unit of time; see `config_values`."""


Learnt = Callable[[int, str | None, str | None], Iterable[Limit]]
"""What a feature has learnt about limits that a run does not ask for: returns those of a user's
runs, by its uid, their type and their name. It is pure."""


class Invalid(Exception):
    """A request holds a value outside its range. The message names the value, the range and what to
    do."""


class SessionPolicy(Struct, frozen=True):
    """`[sessions]` of the config, with times in seconds."""

    enabled: bool = True
    default_time: float = 300.0
    max_time: float = 600.0
    per_user: int = 3
    """Sessions at once, of a user and of the daemon."""
    total: int = 10
    max_turns: int = 25
    default_tokens: int = 50_000
    max_tokens: int = 200_000
    starts: int = 10
    """So many starts of a user within `window` seconds."""
    window: float = 3600.0


class CallBounds(Struct, frozen=True, kw_only=True):
    """How many model calls a run, or a user, may make. `None`: any number."""

    calls_per_minute: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    concurrent_calls: Annotated[int, Meta(ge=1, le=100_000)] | None = None

    @property
    def any(self) -> bool:
        return self.calls_per_minute is not None or self.concurrent_calls is not None


NO_BOUNDS = CallBounds()


class Policy(Struct, frozen=True):
    """Times are in seconds. The defaults are those of the config (docs/configuration.md)."""

    enabled: bool = True
    max_depth: Bound = DEFAULT_DEPTH
    max_descendants: Bound = DEFAULT_DESCENDANTS
    depth_ceiling: int = 32
    descendants_ceiling: int = 1024
    allow_detach: bool = False
    unadmitted: Literal["warn", "terminate", "off"] = "warn"
    """What follows if an agent program is started within a run without asking."""
    bypass: Literal["auto", "warn", "terminate"] = "auto"
    """What follows if a run calls its model around the gateway; `auto`: `terminate` where a person
    has set a limit of money."""
    unnamed: Literal["child", "loop"] = "child"
    """What a run that no one named is below a run of the same program."""
    defaults: Mapping[LimitKind, Limit] = field(default_factory=lambda: DEFAULT_LIMITS)
    """In the order of `LimitKind`."""
    program_profile: bool = True
    """Whether a known agent program gets the profile `coding-agent` where its run names none."""
    learnt: Mapping[str, Learnt] = field(default_factory=dict)
    """What features have learnt since the config was read, by their names."""
    max_time: float = 3600.0
    """The longest time of a run, whatever its limits' actions."""
    max_turns: int = 100
    max_cost: float = 100.0
    """USD. The largest limits of turns and of each cost that can be asked for."""
    max_output: int = 1024**3
    """Bytes. The largest limit of output that can be asked for."""
    nearing: float = 0.8
    """The share of a threshold at which `limit_nearing` is published."""
    watches_clocks: bool = False
    """Features look at runs whose time is at another share of its limit than `nearing`."""
    repeats: int = 10
    """Equal tool calls in a row after which `run_repeating` is published."""
    pause_max: float = 86400.0
    approval_timeout: float = 600.0
    call_wait: float = 60.0
    """How long a model call waits for others."""
    models: tuple[str, ...] = ()
    """Patterns of models that may be called; all, where there is none."""
    calls_per_run: CallBounds = NO_BOUNDS
    calls_per_user: CallBounds = NO_BOUNDS
    result_wait: float = 30.0
    """How long an agent may stay after it has printed its final result."""
    grace: float = 5.0
    polite: float = 1.0
    """The part of the grace that the main processes of `interrupted` programs have for
    themselves."""
    interrupted: frozenset[str] = frozenset(
        name for name, program in KNOWN_PROGRAMS.items() if program.interrupted
    )
    """Programs (`naming.program_name`) whose main process gets SIGINT alone before their run is
    signalled."""
    kill_wait: float = 10.0
    trees_per_user: int = 32
    trees: int = 64
    queued_per_user: int = 1000
    """Trees of one user that may wait for a slot."""
    spawns_per_hour: int = 600
    groups: Mapping[str, int] = field(default_factory=dict)
    """How many trees a user may have at once in each group."""
    sessions: SessionPolicy = SessionPolicy()
    access: AccessRules = OPERATOR_ONLY
    retry_delay: float = 1.0
    retry_delay_max: float = 60.0
    sections: Mapping[str, object] = field(default_factory=dict)
    """The sections of the config that features have declared, by their keys."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The file that sets a config key, by the key."""
    file: str = "the config"
    """Where a key that no file sets would be set."""

    def section(self, key: str, kind: type[T]) -> T:
        """Return a section of the config that a feature has declared."""
        found = self.sections.get(key)
        if found is None:
            return kind()
        assert isinstance(found, kind)
        return found

    def where_set(self, key: str) -> str:
        """Return the key with the file that sets it or would set it: `limits.max_time in
        /etc/sfad/sfad.toml`."""
        return f"{key} in {self.files.get(key, self.file)}"
