"""The live runs by id and by ancestry, and the bounds that a lineage shares."""

from collections.abc import Iterable, Iterator
from dataclasses import replace as dataclass_replace

from msgspec import Struct, field
from msgspec.structs import replace

from ...protocol.types import Bound, RunId, Survivor, Unreached
from .limits import NEED_COUNTING, ActiveLimit
from .run import Birth, Clock, Run, State, Token


class Tree:
    """All live runs. A run leaves when it is terminal; its ancestors' counters keep it."""

    def __init__(self) -> None:
        self._runs: dict[RunId, Run] = {}
        self.get = self._runs.get
        """Returns the live run of an id, or `None`."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def roots(self) -> list[Run]:
        return [run for run in self if run.parent is None]

    def add(self, run: Run) -> None:
        """Attach an admitted run, and count it as a descendant of each ancestor."""
        self.put(run)
        for above in run.ancestors:
            above.admitted += run.share

    def put(self, run: Run) -> None:
        """Attach a run that was counted before, by the daemon that admitted it."""
        self._runs[run.id] = run
        if run.parent is not None:
            run.parent.children[run.id] = run

    def refund(self, run: Run) -> None:
        """Undo the count of `add`, because the run could not be recorded."""
        for above in run.ancestors:
            above.admitted -= run.share

    def remove(self, run: Run) -> None:
        """Detach a terminal run. Its descendants have left before it."""
        assert not run.children, f"run {run.id} left the tree before its children"
        del self._runs[run.id]
        if run.parent is not None:
            del run.parent.children[run.id]


def full_ancestor(parent: Run | None) -> tuple[Run, Bound] | None:
    """Return the outermost ancestor that may have no more descendants, and its bound."""
    if parent is None:
        return None
    for run in parent.lineage:
        if run.admitted >= run.birth.max_descendants.value:
            return run, run.birth.max_descendants
    return None


def typed_bounds(run: Run) -> Iterator[tuple[Run, ActiveLimit]]:
    """Yield the limits of money or tokens that bind a run and that a person has typed, with the run
    that each is of: the run itself, then those above it."""
    for each in reversed(run.lineage):
        grant = each.asked.grant
        typed = (
            {limit.kind for limit in each.asked.terms.limits if limit.typed}
            if grant is None
            else set(grant.typed)
        )
        for kind in NEED_COUNTING:
            if kind in typed and kind in each.limits and each.limits[kind].binds:
                yield each, each.limits[kind]


def narrower(asked: Bound | None, inherited: Bound) -> Bound:
    """Return the bound of a run below a root: it only narrows. Of equal ones the inherited one is
    named."""
    if asked is None or asked.value <= 0 or asked.value >= inherited.value:
        return inherited
    return asked


# ---- What a daemon finds of an earlier one: saved runs, what there is of them now, and stop
# requests that wait
#
# A run is saved as its `Birth`, once, and its `State`, after each change. `State` is the run's own
# part, not a copy: it is encoded before the next event is handled. Times are those of the core's
# clock, which starts again after a reboot (`rebased`).


def rebased(birth: Birth, state: State, at: float) -> tuple[Birth, State]:
    """Return both for a clock that has started again since, at `at`: what was to happen later
    happens now. How long the run had been running when the machine went down is not known."""
    ladder = state.ladder
    if ladder is not None:
        ladder = replace(
            ladder, grace_ends_at=at, killed_at=None if ladder.killed_at is None else at
        )
    return replace(birth, created_at=at), dataclass_replace(
        state,
        clock=Clock(counted=state.clock.counted),
        ladder=ladder,
        retry_at=at if state.retry_at is not None else None,
        started_at=at if state.started_at is not None else None,
        latest=replace(state.latest, failed_at=None),
        queued_at=None,
        paused=replace(state.paused, until=None, since=None) if state.paused is not None else None,
        limit_hold=replace(state.limit_hold, until=None, since=None)
        if state.limit_hold is not None
        else None,
        window_hold=replace(state.window_hold, resets_at=None)
        if state.window_hold is not None
        else None,
        remote=replace(state.remote, heard_at=at, lease_from=at)
        if state.remote is not None
        else None,
        lease=replace(state.lease, until=at)
        if state.lease is not None and state.lease.until is not None
        else state.lease,
    )


class Remembered(Struct, frozen=True):
    """A live run of an earlier daemon, and what there is of it now."""

    run: Run
    """As it was last saved, but for its main process (`Run.adopt`)."""
    empty: bool = True
    """No process is alive in its containment, child runs included."""
    starting: bool = False
    """Its launch is in flight, and will be reported."""
    startable: bool = False
    """What it takes to start it is there: command, environment, descriptors."""
    begun: bool = True
    """The main process of its latest attempt was saved, or may have been, and that is lost.
    Otherwise that has executed nothing."""


class StopTicket(Struct):
    """A stop request that waits for its runs."""

    token: Token
    began_at: float
    pending: set[RunId]
    stopped: list[RunId] = field(default_factory=list)
    survivors: list[Survivor] = field(default_factory=list)
    ended: tuple[RunId, ...] = ()
    """Those of `stopped` that had ended before the request."""
    unreached: list[Unreached] = field(default_factory=list)

    def stop_waiting_for(self, run: RunId, survivors: Iterable[Survivor] = ()) -> None:
        """It has ended, or has survivors; a process may have been told before, of its child run."""
        self.pending.discard(run)
        found = {survivor.pid: survivor for survivor in survivors}
        self.survivors = list({**{each.pid: each for each in self.survivors}, **found}.values())
        if not found:
            self.stopped.append(run)

    def give_up(self, run: RunId, unreached: Iterable[Unreached]) -> None:
        """Whether it is gone cannot be known now, because of these."""
        self.pending.discard(run)
        self.unreached += [each for each in unreached if each not in self.unreached]
