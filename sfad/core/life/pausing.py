"""Pauses and resumes runs: freezes a run with everything below it, and halts their clocks."""

from msgspec import Struct

from ...protocol.event_types import EventType
from ...protocol.types import ErrorCode, Reason, Status
from .. import commands as c
from .. import events as e
from ..context import Context
from ..state.run import Paused, Run
from ..state.vocabulary import Timer
from .lifecycle import Lifecycle
from .stopping import StopRequests

REPLY_OUTLIVES = 240.0
"""Seconds for which a reply that is being generated outlives the pause of its agent. After a longer
one the agent makes the call again, and knows nothing of what the first one has used."""


class Pausing(Struct, frozen=True):
    _ctx: Context
    _lifecycle: Lifecycle
    _stop_requests: StopRequests

    def pause_requested(self, run: Run, ev: e.PauseRequested) -> None:
        if run.status not in {Status.RUNNING, Status.PAUSED}:
            message = f"run {run.id} is {run.status}; only a running one can be paused"
            self._ctx.fail(ev.token, ErrorCode.WRONG_STATE, message)
            return
        paused = run.paused
        self._ctx.changed(run)
        if paused is not None:
            goes_on = run.resumes_itself or run.held_until_reset
            paused.by_hand = goes_on and (paused.by_hand or not ev.suspended)
            self.freeze(run, ev.at)
        if paused is not None and not run.pause_tokens:
            self._ctx.reply(ev.token, c.Changed(run))
            return
        run.pause_tokens.append(ev.token)
        if paused is None:
            self.pause(
                run, ev.at, suspended=ev.suspended, told=self._ctx.may_cause_event(ev.peer, ev.at)
            )

    def pause(
        self,
        run: Run,
        at: float,
        why: str = "",
        *,
        suspended: bool = False,
        no_money: Reason | None = None,
        freeze: bool = True,
        told: bool = True,
        by_giver: bool = False,
    ) -> None:
        """Freeze a run and everything below it, unless only its calls are held, and halt their
        clocks. `told`: publish that."""
        run.paused = Paused(
            at + self._ctx.policy.limits.pause_max,
            suspended,
            no_money,
            frozen=freeze,
            frozen_at=at if freeze else None,
            by_giver=by_giver,
            since=at,
        )
        if suspended:
            self._stop_requests.expect_no_client(run)
        for each in run.subtree():
            if each.status is Status.RUNNING:
                each.move(Status.PAUSED)
                self._lifecycle.halt_clock(each, at)
                self._ctx.save_and_record(each)
        self._ctx.changed(run)
        if freeze:
            self._ctx.do(c.Freeze(run.id))
        self._ctx.arm(run, Timer.PAUSE_MAX, at + self._ctx.policy.limits.pause_max)
        if told:
            reason = no_money or (
                run.shown_reason
                if run.limit_hold is not None or run.window_hold is not None
                else None
            )
            self._ctx.publish(
                EventType.RUN_PAUSED, run, why or (reason.message if reason is not None else ""),
                "low" if reason is None else "medium",
            )  # fmt: skip

    def freeze(self, run: Run, at: float) -> None:
        """Freeze a paused run of which only the calls were held."""
        if run.paused is not None and not run.paused.frozen:
            run.paused.frozen, run.paused.frozen_at = True, at
            self._ctx.changed(run)
            self._ctx.do(c.Freeze(run.id))

    def frozen(self, run: Run) -> None:
        """Answer the requests that waited until the run stands still."""
        if run.paused is None:
            return
        for token in run.pause_tokens:
            self._ctx.reply(token, c.Changed(run))
        run.pause_tokens.clear()
        self._ctx.changed(run)

    def resume(self, run: Run, at: float, *, told: bool = True) -> None:
        """Thaw a run that is frozen itself, and everything below it that no other pause holds.
        `told`: publish that."""
        suspended = run.suspended
        if (
            run.paused is not None
            and run.paused.frozen_at is not None
            and at - run.paused.frozen_at >= REPLY_OUTLIVES
        ):
            for each in run.subtree():
                each.miss_calls()
                each.thawed_at = at
                self._ctx.changed(each)
        self._lifecycle.unpause(run)
        if suspended:
            self._stop_requests.expect_client(run, at)
        self._lifecycle.fail_pauses(run, "was resumed before it stood still")
        self._ctx.do(c.Thaw(run.id))
        for each in run.subtree():
            if each.paused_in_lineage:
                continue
            if each.status is Status.PAUSED:
                each.move(Status.RUNNING)
                self._lifecycle.start_clock(each, at)
                self._ctx.save_and_record(each)
            else:
                self.await_retry(each, at)
        if told:
            self._ctx.publish(EventType.RUN_RESUMED, run)

    def end_suspension(self, run: Run, at: float) -> None:
        """Undo a suspension, and no pause that a limit or a purse has asked for meanwhile."""
        paused = run.paused
        if paused is None or not paused.suspended:
            return
        if run.limit_hold is None and not run.resumes_itself:
            self.resume(run, at)
        else:
            paused.suspended = paused.by_hand = False
            self._ctx.changed(run)

    def await_retry(self, run: Run, at: float) -> None:
        """Arm the next attempt of a run that waits for it, unless a pause holds it."""
        if run.status is Status.RETRYING and run.retry_at is not None and not run.paused_in_lineage:
            self._ctx.arm(run, Timer.RETRY, max(at, run.retry_at))
