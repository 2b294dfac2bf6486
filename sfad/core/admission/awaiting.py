"""Runs that start when others have ended (`spawn --after`): whom each still waits for, and what an end means for them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...protocol.types import After, Reason, RunId, Status
from ..context import Context
from ..life.stopping import Stopping
from ..state.policy import Invalid
from ..state.run import Ending, Run
from ..state.vocabulary import ReasonKind


@dataclass(frozen=True, slots=True)
class Awaiting:
    _ctx: Context
    _stopping: Stopping
    waiters: dict[RunId, list[RunId]] = field(default_factory=dict)
    """By the run that they wait for."""

    def awaited_by(self, run: Run, ended: Mapping[RunId, Status]) -> tuple[After, ...]:
        """Return what a run that is to be admitted has to wait for. `ended`: see `SpawnRequested`. Raise `Invalid` if it could
        never start."""
        for after in run.asked.after:
            if self._ctx.tree.get(after.run) is not None:
                continue
            status = ended.get(after.run)
            if status is None:
                raise Invalid(f"run {after.run} ended while the request was read; send it again")
            if after.ok and status is not Status.COMPLETED:
                raise Invalid(
                    f"run {after.run} ended as {status}, so what waits for its success cannot start (--after {after.words}); "
                    f"with --after {after.run} it starts all the same"
                )
        found = tuple(dict.fromkeys(after for after in run.asked.after if self._ctx.tree.get(after.run) is not None))
        self._refuse_circle(run, found)
        return found

    def _refuse_circle(self, run: Run, awaits: Iterable[After]) -> None:
        """Raise `Invalid` if one of the runs that it waits for, or that these wait for, ends only after it: one above it. No other
        circle is possible, because a run can only wait for runs that were admitted before it."""
        above = {each.id for each in run.ancestors}
        paths = [[after.run] for after in awaits] if above else []
        seen: set[RunId] = set()
        for path in paths:
            last = path[-1]
            if last in above:
                through = " → ".join([f"'{run.name}'", *path])
                raise Invalid(
                    f"it would wait for itself: run {last} is above it and ends only after it ({through}). Wait for another "
                    "run, or start it from outside the tree"
                )
            if last not in seen and (waits := self._ctx.tree.get(last)) is not None:
                seen.add(last)
                paths += [[*path, after.run] for after in waits.awaits]

    def wait(self, run: Run) -> None:
        """Let the run wait for each of `run.awaits`."""
        for after in run.awaits:
            self.waiters.setdefault(after.run, []).append(run.id)

    def ended(self, ends: Mapping[RunId, Status], at: float) -> list[Run]:
        """Take the ends of these runs, and end each run that waited for the success of one that did not complete. Return those that
        wait for no run any more."""
        released: list[Run] = []
        for ended, status in ends.items():
            for waiter in self.waiters.pop(ended, ()):
                run = self._ctx.tree.get(waiter)
                if run is None or run.status is not Status.QUEUED:
                    continue
                if status is not Status.COMPLETED and any(after.ok and after.run == ended for after in run.awaits):
                    message = f"run {ended} ended as {status}, and it was to start only if that completed (--after {ended}:ok)"
                    reason = Reason(kind=ReasonKind.AFTER, message=message, by=ended)
                    self._stopping.stop(run, at, Ending(Status.CANCELLED, reason))
                    continue
                run.awaits = tuple(after for after in run.awaits if after.run != ended)
                self._ctx.changed(run)
                if not run.awaits:
                    released.append(run)
        return released

    def ended_before(self, ends: Mapping[RunId, Status], at: float) -> list[Run]:
        """Do the same for runs that ended before an earlier daemon's runs were adopted. Nothing that is unknown is a success."""
        gone = {run: ends.get(run, Status.LOST) for run in self.waiters if self._ctx.tree.get(run) is None}
        for run in self._ctx.ended:
            gone.pop(run.id, None)  # the end is told in a moment
        return self.ended(gone, at)

    def forget(self, ended: Iterable[Run]) -> None:
        """Forget what runs waited for that have ended themselves."""
        for run in ended:
            for after in run.awaits:
                waiters = self.waiters.get(after.run)
                if waiters is not None and run.id in waiters:
                    waiters.remove(run.id)
                    if not waiters:
                        del self.waiters[after.run]
