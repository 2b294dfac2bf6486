"""The one way from what was asked to what is started: steps and checks, from top to bottom
(`daemon.loop.starting` has their list). A step that has to wait returns what is awaited. Until the
first one does, all is done in one go, in the order in which the requests came.

What is the same is not worked out again: a shell loop, or a program that starts run after run, asks
for the same command, in the same directory, with the same environment.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ..agents.setup_reader import TreeSetups
from ..core.state.access import Peer
from ..protocol.messages import Spawn
from .asking import asked_of
from .checks import LARGE, check_key
from .prepared import Prepared, Surroundings

Look = Callable[[Surroundings], Awaitable[None] | None]
Step = Callable[[Prepared, Surroundings], Awaitable[None] | None]
Check = Callable[[Prepared, Surroundings], None]

MOST_KNOWN = 64
"""Requests. Each has at most `LARGE` bytes of words and variables as it was sent and as it was
prepared, and is small enough for `recall`."""


@dataclass(frozen=True, slots=True)
class _Known:
    order: Spawn
    peer: Peer
    setups: TreeSetups
    beside: object
    prepared: Prepared


class Memory:
    """Keeps what was decided about requests of persons and their programs, from outside any run.

    It is found again for the same user only, by an equal request, and as long as all that was
    decided by is equal: the setups, which are read as often as without it, and what `beside`
    returns of a peer. A request for which more is looked at, or made, is not kept."""

    def __init__(
        self, beside: Callable[[Peer], object], more: Callable[[Spawn], bool] = lambda _: False
    ) -> None:
        """`more`: returns whether something else decides about such a request."""
        self._beside = beside
        self._more = more
        self._known: dict[tuple[int | bytes, ...], _Known] = {}

    def find(self, around: Surroundings) -> Prepared | None:
        known = self._known.get(_key(around))
        if (
            known is None
            or around.caller is not None
            or around.session is not None
            or known.setups != around.setups
            or known.peer != around.peer
            or known.beside != self._beside(around.peer)
            or known.order != _asked(around)
        ):
            return None
        p = known.prepared
        if known.order.tied:  # each to its own connection
            return replace(p, asked=replace(p.asked, tied_to=around.connection))
        return p

    def keep(self, around: Surroundings, p: Prepared) -> None:
        """Keep what was decided without waiting."""
        order, key = around.order, _key(around)
        more = (
            order.agent,  # whose sessions have random ids
            order.continues, order.placing, order.grant, order.ship, around.caller, around.session,
        )  # fmt: skip
        if (
            any(each is not None for each in more)
            or self._more(order)
            or p.for_recall is None
            or p.command.size > LARGE
            or sum(map(len, order.env)) > LARGE
        ):
            return
        self._known.pop(key, None)
        self._known[key] = _Known(
            _asked(around),
            around.peer,
            around.setups,
            self._beside(around.peer),
            p,
        )
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]


def _asked(around: Surroundings) -> Spawn:
    """Return what was asked for, however often it was."""
    return replace(around.order, id=0, key=None)


def _key(around: Surroundings) -> tuple[int | bytes, ...]:
    return (around.peer.uid, around.order.cwd, *around.order.argv)


@dataclass(frozen=True, slots=True)
class Way:
    """What a request passes, from top to bottom."""

    look: Look
    """Reads what is looked at before anything is decided."""
    steps: Sequence[Step]
    checks: Sequence[Check]
    last: Step
    """What waits for what a run may not start without; then the checks are made again."""


async def prepare(around: Surroundings, way: Way, memory: Memory) -> Prepared:
    """Return what is decided about a request, once all that its run may not start without is there.
    Nothing changes it afterwards: an equal request may get the same. Raise `Invalid`,
    `RequestError`, `OSError`."""
    check_key(around.order.key)  # equal requests differ in that
    if (waits := way.look(around)) is not None:
        await waits
    p = memory.find(around)
    if p is None:
        p = await _decided(around, way, memory)
    if (waits := way.last(p, around)) is not None:
        await waits
        for check in way.checks:
            check(p, around)
    return p


async def _decided(around: Surroundings, way: Way, memory: Memory) -> Prepared:
    p, has_waited = Prepared.of(around.order), False
    for step in way.steps:
        if (waits := step(p, around)) is not None:
            has_waited = True
            await waits
    for check in way.checks:
        check(p, around)
    p.asked, p.program = asked_of(
        p,
        around.order,
        connection=around.connection,
        session=around.session,
        setups=around.setups,
        prints_in=around.prints_in,
        printed_as_text=around.printed_as_text,
    )
    if not has_waited:
        memory.keep(around, p)
    return p
