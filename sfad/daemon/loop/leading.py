"""How runs are led to their models: the moment of a gateway, which calls pass through. The heart
takes its steps on the way of a start, and other features ask it, too: a run in a network of its own
reaches it alone, and what a stand-in becomes in place of a child run is led, too."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from ...agents.setup_reader import TreeSetups
from ...core.events import AgentProcess, CallSettled
from ...core.state.policy import Invalid
from ...core.state.run import Run
from ...processes.launcher import LaunchSpec
from ...protocol.errors import bad_request
from ...protocol.types import RunId
from ...runs.live import Live
from ...start.prepared import Check, Prepared, Step, Surroundings

NONE = "this daemon has no gateway"
MISSING = "this sfad has no feature that carries out '{}'"


Look = Callable[[Surroundings], Awaitable[TreeSetups] | None]
"""Sets `Surroundings.setups`, or returns what it becomes."""


class Caller(Protocol):
    """A process that calls pass through."""

    @property
    def uid(self) -> int | None:
        """The user whose runs alone it leads; `None`: it is the service's own."""


def _none(_: object) -> None:
    """Do nothing."""


def _nothing(_: object, _other: object) -> None:
    """Do nothing."""


def _decide(p: Prepared, around: Surroundings) -> None:
    """Refuse what only a gateway could do."""
    for asked in ("gateway", "allowed_models"):
        if getattr(around.order, asked):
            raise bad_request(MISSING.format(asked))
    p.parts.gateway = None


async def _ready(_: int) -> str | None:
    return NONE


def _has_none(_: int) -> int:
    raise Invalid(NONE)


class Leading(Struct, frozen=True, kw_only=True):
    """What leads runs to their models. Without a feature that does, each goes its own way."""

    # ---- the way of a start

    look: Look = _none
    """Finds out how the programs of a new tree reach their models."""
    decide: Check = _decide
    """Decides whether the run is led (`Parts.gateway`)."""
    look_again: Step = _nothing
    """Looks at what the command names, which may lead it elsewhere (`Parts.direct`)."""
    lead: Check = _nothing
    """Changes command and environment accordingly."""
    have: Step = _nothing
    """Waits for what the run may not start without."""
    beside: Callable[[int], object] = _none
    """Returns what else all this depends on, for a user: while that is equal, what was decided
    holds for equal requests."""
    own_command: Callable[[Surroundings, Live], list[bytes]] = lambda around, _: around.order.argv
    """Returns the command of a run's own program, which starts it in place of a stand-in. Raises
    `Invalid`, `OSError`."""

    # ---- the run

    named: Callable[[RunId, LaunchSpec], LaunchSpec] = lambda _, spec: spec
    """Returns what a run is launched with, with what names it to the gateway. Raises `OSError`."""
    launched: Callable[[RunId], object] = _none
    """A run executes its command."""
    agent_seen: Callable[[RunId, AgentProcess], object] = _nothing
    """An agent program was seen in a run."""
    leads: Callable[[AgentProcess], bool] = lambda _: False
    """Returns whether an agent program calls its model so, as far as its command and its variables
    tell."""
    caller_at: Callable[[int], Caller | None] = _none
    """Returns what calls pass through that is this process."""

    # ---- a run that a program carries out

    ready: Callable[[int], Awaitable[str | None]] = _ready
    """Has the gateway of a user started. Returns why that cannot be."""
    address: Callable[[int, RunId], str] = lambda _, _run: ""
    """Returns where a user's run finds it, whose cgroup tells nothing. Raises `OSError`."""

    # ---- a network of a run's own

    port: Callable[[int], int] = _has_none
    """Returns where a user's runs find the gateway on loopback. Raises `OSError`."""
    token: Callable[[RunId], str | None] = _none
    """Returns what names a run there; `None` where its cgroup tells."""
    is_model: Callable[[str], bool] = lambda _: False
    """Returns whether a host is the API of a model."""
    key_files: Callable[[], Iterable[str]] = tuple
    """Returns the files with keys of the operator's, which no run may read."""

    # ---- calls that an earlier daemon has left

    has_gone: Callable[[], bool] = lambda: False
    """Returns whether something has ended that calls may have been under way in."""
    calls_of: Callable[[Sequence[Run]], Iterable[CallSettled]] = lambda _: ()
    """Returns what calls have used that were under way when the last process of these runs
    ended."""
    tell_gone: Callable[[], object] = lambda: None
    """Tells the core what was under way in what has ended."""
    close: Callable[[], object] = lambda: None
