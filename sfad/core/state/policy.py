"""The configured numbers that the core decides by. The shell fills them in from the config."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

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


DURATION, SIZE, COUNT = {"unit": "duration"}, {"unit": "size"}, {"unit": "count"}
"""Mark numbers of the config that may be written with a unit; see `config_values`."""
NAMES = {"unit": "names"}


Learnt = Callable[[int, str | None, str | None], Iterable[Limit]]
"""What a feature has learnt about limits that a run does not ask for: returns those of a user's
runs, by its uid, their type and their name. It is pure."""


class Invalid(Exception):
    """A request holds a value outside its range. The message names the value, the range and what to
    do."""


# ---- Sections of the config


class GuardConfig(Struct, frozen=True, kw_only=True):
    max_depth: Annotated[int, Meta(ge=1, le=1000)] = 5
    max_descendants: Annotated[int, Meta(ge=1, le=1_000_000)] = 64
    depth_ceiling: Annotated[int, Meta(ge=1, le=1000)] = 32
    descendants_ceiling: Annotated[int, Meta(ge=1, le=1_000_000)] = 1024
    allow_detach: bool = False
    unadmitted: Literal["warn", "terminate", "off"] = "warn"
    """What follows if an agent program is started within a run without asking the daemon."""
    unnamed: Literal["child", "loop"] = "child"
    """What a program is that an automatic stand-in starts below a run of the same program: no one
    gave it a name."""
    agent_programs: tuple[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$", extra=NAMES)], ...
    ] = ()
    """Agent programs beside the built-in ones, by the names that they have for the guard."""


class LimitsConfig(Struct, frozen=True, kw_only=True):
    """The largest limits that can be asked for, and what follows near and beyond limits."""

    max_time: Annotated[float, Meta(ge=1, le=31 * 86400, extra=DURATION)] = 3600.0
    max_turns: Annotated[int, Meta(ge=1, le=1_000_000)] = 100
    max_cost: Annotated[float, Meta(ge=0.01, le=1_000_000)] = 100.0
    max_output: Annotated[int, Meta(ge=64 * 1024, extra=SIZE)] = 1024**3
    nearing: Annotated[float, Meta(gt=0, lt=1)] = 0.8
    """The share of a threshold at which `limit_nearing` is published."""
    conclude_reserve: Annotated[float, Meta(gt=0, lt=1)] = 0.1
    """The share of a limit of cost or tokens whose action is `conclude` which is kept for the last
    call."""
    repeats: Annotated[int, Meta(ge=2, le=1_000_000)] = 10
    """Equal tool calls in a row after which `run_repeating` is published."""
    pause_max: Annotated[float, Meta(ge=1, le=31 * 86400, extra=DURATION)] = 86400.0
    approval_timeout: Annotated[float, Meta(ge=1, le=31 * 86400, extra=DURATION)] = 600.0
    waiting: Literal["continue", "pause", "terminate"] = "terminate"
    """What follows a limit of waiting for a person that names no action."""


class StopConfig(Struct, frozen=True, kw_only=True):
    grace: Annotated[float, Meta(ge=0, le=60, extra=DURATION)] = 5.0
    polite: Annotated[float, Meta(ge=0, le=60, extra=DURATION)] = 1.0
    """The part of the grace that the main processes of `Policy.interrupted` have for themselves."""
    kill_wait: Annotated[float, Meta(ge=0.1, le=600, extra=DURATION)] = 10.0
    result_wait: Annotated[float, Meta(ge=0, le=3600, extra=DURATION)] = 30.0
    """How long an agent may stay after it has printed its final result."""


class QuotasConfig(Struct, frozen=True, kw_only=True):
    trees_per_user: Annotated[int, Meta(ge=1, le=100_000)] = 32
    trees: Annotated[int, Meta(ge=1, le=100_000)] = 64
    queued_per_user: Annotated[int, Meta(ge=0, le=100_000)] = 1000
    """Trees of one user that may wait: for a slot, or for other runs."""
    spawns_per_hour: Annotated[int, Meta(ge=1, le=1_000_000)] = 600


class AttemptsConfig(Struct, frozen=True, kw_only=True):
    delay: Annotated[float, Meta(ge=0, le=3600, extra=DURATION)] = 1.0
    delay_max: Annotated[float, Meta(ge=0, le=86400, extra=DURATION)] = 60.0


class SpawnRateLimit(Struct, frozen=True, kw_only=True):
    max_requests: Annotated[int, Meta(ge=1, le=100_000)] = 10
    window_seconds: Annotated[float, Meta(ge=1, le=31 * 86400)] = 3600.0


class SessionsConfig(Struct, frozen=True, kw_only=True):
    """Terms of sessions."""

    enabled: bool = True
    default_timeout_minutes: Annotated[float, Meta(gt=0)] = 5.0
    max_timeout_minutes: Annotated[float, Meta(gt=0)] = 10.0
    max_concurrent_per_user: Annotated[int, Meta(ge=1, le=10_000)] = 3
    max_concurrent_global: Annotated[int, Meta(ge=1, le=10_000)] = 10
    archive_ttl_minutes: Annotated[float, Meta(ge=1, le=3650 * 1440)] = 60.0
    max_tool_calls_per_run: Annotated[int, Meta(ge=1, le=1_000_000)] = 25
    default_token_budget: Annotated[int, Meta(ge=1, extra=COUNT)] = 50_000
    max_token_budget: Annotated[int, Meta(ge=1, extra=COUNT)] = 200_000
    cleanup_interval_seconds: Annotated[float, Meta(ge=1, le=31 * 86400)] = 60.0
    spawn_rate_limit: SpawnRateLimit = SpawnRateLimit()

    @property
    def default_time(self) -> float:
        return self.default_timeout_minutes * 60

    @property
    def max_time(self) -> float:
        return self.max_timeout_minutes * 60


# ---- What the core decides by


_NOT_SET = Bound(value=0, source="")


class Policy(Struct, frozen=True):
    """Times are in seconds. The defaults are those of the config (docs/configuration.md)."""

    enabled: bool = True
    guard: GuardConfig = field(default_factory=GuardConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    quotas: QuotasConfig = field(default_factory=QuotasConfig)
    attempts: AttemptsConfig = field(default_factory=AttemptsConfig)
    sessions: SessionsConfig = field(default_factory=SessionsConfig)
    bypass: Literal["auto", "warn", "terminate"] = "auto"
    """What follows if a run calls its model around the gateway; `auto`: `terminate` where a person
    has set a limit of money."""
    defaults: Mapping[LimitKind, Limit] = field(default_factory=lambda: DEFAULT_LIMITS)
    """In the order of `LimitKind`."""
    program_profile: bool = True
    """Whether a known agent program gets the profile `coding-agent` where its run names none."""
    learnt: Mapping[str, Learnt] = field(default_factory=dict)
    """What features have learnt since the config was read, by their names."""
    watches_clocks: bool = False
    """Features look at runs whose time is at another share of its limit than `limits.nearing`."""
    interrupted: frozenset[str] = frozenset(
        name for name, program in KNOWN_PROGRAMS.items() if program.interrupted
    )
    """Programs (`naming.program_name`) whose main process gets SIGINT alone before their run is
    signalled."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """How many trees a user may have at once in each group."""
    access: AccessRules = OPERATOR_ONLY
    sections: Mapping[str, object] = field(default_factory=dict)
    """The sections of the config that features have declared, by their keys."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The file that sets a config key, by the key."""
    file: str = "the config"
    """Where a key that no file sets would be set."""
    max_depth: Bound = _NOT_SET
    max_descendants: Bound = _NOT_SET
    """Those of the guard, with what sets them: always set by these."""

    def __post_init__(self) -> None:
        for name in ("max_depth", "max_descendants"):
            bound = Bound(value=getattr(self.guard, name), source=self.origin(f"guard.{name}"))
            force_setattr(self, name, bound)

    def origin(self, key: str) -> str:
        """Return the key with the file that sets it; `default` if none does."""
        return f"{key} in {self.files[key]}" if key in self.files else "default"

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
