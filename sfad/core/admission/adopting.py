"""Continues with the runs of an earlier daemon: what lives is under its limits again, and what does
not is ended.

A decision of the earlier daemon stands; each command here may repeat one that it has carried out.
What is not known is never taken for a success, and what may have run is not run again.
"""

from collections.abc import Callable

from msgspec import Struct

from ...protocol.types import Reason, Status
from .. import commands as c
from .. import events as e
from ..context import Context
from ..life.attempts import AttemptTracker
from ..life.lifecycle import Lifecycle
from ..life.pausing import Pausing
from ..life.spending import Spending
from ..life.stages import is_checked
from ..life.stopping import GONE, Stopping, StopRequests
from ..limits.enforcement import LimitHolds
from ..state.run import Ending, Run
from ..state.tree import Remembered
from ..state.vocabulary import ReasonKind, Timer
from .admission import Admission


class Adopting(Struct, frozen=True):
    _ctx: Context
    _lifecycle: Lifecycle
    _spending: Spending
    _stopping: Stopping
    _stop_requests: StopRequests
    _pausing: Pausing
    _attempts: AttemptTracker
    _limit_holds: LimitHolds
    _admission: Admission

    def runs_adopted(self, ev: e.RunsAdopted, learn: Callable[[e.Event], None]) -> None:
        """Continue with these runs. `learn` handles an event within this one."""
        runs = [one.run for one in ev.runs]
        for run in runs:
            self._restore(run, ev)
        self._spending.restore(runs)
        self._stop_requests.restore(ev.tickets)
        for event in ev.learnt:
            learn(event)
        for run in runs:
            if run.paused is not None and run.paused.frozen:
                self._ctx.do(c.Freeze(run.id))
        for run in runs:
            self._ctx.barrier.restore(run, ev.at)
            self._ctx.purses.restore(run)
        # descendants first: no run ends before them
        for one in reversed(ev.runs):
            self._continue(one, ev.why, ev.at)
        self._admission.ended_before(ev.ended, ev.at)
        self._ctx.barrier.look(ev.at)

    def _restore(self, run: Run, ev: e.RunsAdopted) -> None:
        self._admission.restore(run)
        if not ev.continued:
            run.admit_token = None
            run.pause_tokens.clear()
            run.tied_to = GONE if run.tied_to is not None else None
        if not run.suspended:
            # a client that is stopped cannot come back before it is continued
            self._stop_requests.expect_client(run, ev.at)
        if run.told:
            self._ctx.watch(run)
        self._ctx.changed(run)

    def _continue(self, one: Remembered, why: str, at: float) -> None:
        run = one.run
        self._limit_holds.hold_again(run, at)
        if run.remote is not None:
            if not self._ctx.elsewhere.adopt(one, at):
                self._never_launched(run, why, at)
            return
        if run.lease is not None:
            self._ctx.elsewhere.expect(run)
        if run.status is not Status.STOPPING:
            self._attempts.await_exit(run, at)
        match run.status:
            case Status.ACCEPTED if one.begun:  # its first snapshot after this one has its process
                self._unknown(one, why, at)
            case Status.ACCEPTED | Status.QUEUED if not (run.committed and one.startable):
                self._never_launched(run, why, at)
            case Status.STARTING if not one.starting:
                self._continue_launch(one, why, at)
            case Status.RUNNING | Status.PAUSED if run.pid is None:
                message = f"{why} while it ran; how it ended cannot be known"
                self._attempts.conclude_unseen(
                    run, at, message, empty=one.empty, startable=one.startable
                )
            case Status.RUNNING | Status.PAUSED:
                self._thaw(run)
                if run.status is Status.RUNNING:
                    self._lifecycle.start_clock(run, at)
            case Status.RETRYING if not one.startable:
                self._never_retried(one, why, at)
            case Status.RETRYING if not run.clearing:
                self._pausing.await_retry(run, at)
            case Status.RETRYING | Status.STOPPING:
                self._continue_emptying(one, at)

    def _never_launched(self, run: Run, why: str, at: float) -> None:
        missing = "" if not run.committed else ", and what it was to be started with is gone"
        message = f"{why} before it was started{missing}; nothing of it has run"
        self._fail(run, message, at, empty=True)

    def _fail(self, run: Run, message: str, at: float, *, empty: bool) -> None:
        ending = Ending(Status.FAILED, Reason(kind=ReasonKind.DAEMON, message=message))
        self._attempts.conclude(run, at, ending, empty=empty)

    def _continue_launch(self, one: Remembered, why: str, at: float) -> None:
        run = one.run
        if not one.begun and not is_checked(run):
            what = (
                "nothing of it has run"
                if run.attempt == 1
                else f"nothing of attempt {run.attempt} has run"
            )
            self._fail(run, f"{why} while it was being started; {what}", at, empty=one.empty)
        elif run.pid is None:
            self._unknown(one, why, at)
        else:
            self._attempts.launched(run, at)
            self._thaw(run)

    def _unknown(self, one: Remembered, why: str, at: float) -> None:
        message = f"{why} while it was being started; whether it ran cannot be known"
        self._attempts.conclude_unseen(
            one.run, at, message, empty=one.empty, startable=one.startable
        )

    def _thaw(self, run: Run) -> None:
        """A resume, or a stop's freeze, may have been half done."""
        if not run.paused_in_lineage:
            self._ctx.do(c.Thaw(run.id))

    def _never_retried(self, one: Remembered, why: str, at: float) -> None:
        # what its agent said belongs to an attempt that failed
        message = f"{why} between two attempts, and what the next was to be started with is gone"
        ending = Ending(Status.LOST, Reason(kind=ReasonKind.DAEMON, message=message))
        self._attempts.conclude(one.run, at, ending, empty=one.empty)
        if one.run.status is Status.STOPPING:
            self._continue_emptying(one, at)

    def _continue_emptying(self, one: Remembered, at: float) -> None:
        run, ladder = one.run, one.run.ladder
        if ladder is None and any(above.ladder is not None for above in run.lineage):
            return  # it ends with an ancestor
        if one.empty:
            self._attempts.containment_empty(run, at)
        elif ladder is None:
            self._stopping.begin_ladder(run, at, grace=0.0)
        elif self._stopping.still_interrupted(ladder, at):
            self._ctx.arm(run, Timer.POLITE, ladder.polite_ends_at)
        elif at < ladder.grace_ends_at:
            self._stopping.terminate(run)
        else:
            self._stopping.kill(run, at)
            if ladder.overdue:  # a client that has asked since then may have had no answer
                self._ctx.do(c.Survey(run.id))
