"""Runs that wait because of a limit, until a person decides (`limit_requests`) or their time is up."""

from dataclasses import dataclass

from ..protocol.types import Action, LimitKind, Reason, Status
from .breaches import reason_of, words_of
from .context import Context
from .limits import ActiveLimit, Crossing
from .pausing import Pausing
from .run import LimitHold, Run
from .stopping import Stopping
from .vocabulary import ReasonKind, Timer

WAITING = (Action.PAUSE, Action.REQUEST_INCREASE)
"""Actions that let a run wait."""


@dataclass(frozen=True, slots=True)
class LimitHolds:
    _ctx: Context
    _stopping: Stopping
    _pausing: Pausing

    def hold(
        self, run: Run, active: ActiveLimit, reason: Reason, at: float, *, refused: float | None = None, freeze: bool = True
    ) -> None:
        asks = active.action is Action.REQUEST_INCREASE
        wait = self._ctx.policy.approval_timeout if asks else self._ctx.policy.pause_max
        if run.breach is None or asks:
            run.breach = LimitHold(active.limit.kind, reason, at + wait, refused)
        if asks:
            self._ctx.arm(run, Timer.APPROVAL, at + wait)
        if run.status in {Status.RUNNING, Status.PAUSED} and run.paused is None:
            self._pausing.pause(run, at, freeze=freeze)
        # a run between two attempts is frozen as soon as it has been launched

    def resume_unless_held(self, run: Run, at: float) -> None:
        """Resume a run that has been given more room, unless another limit holds it as well."""
        others = holding(run)
        if others:
            crossing = Crossing(others[0], _used(run, others[0].limit.kind, at), exceeded=True)
            self.hold(run, others[0], reason_of(run, crossing, at, words_of(run, crossing, None)), at)
        elif run.paused is not None and run.no_money is None:
            self._pausing.resume(run, at)

    def end_held(self, run: Run, active: ActiveLimit, why: str, at: float) -> None:
        breach = run.breach
        refused = breach.refused if breach is not None and breach.kind == active.limit.kind else None
        crossing = Crossing(active, _used(run, active.limit.kind, at) + (refused or 0), exceeded=True)
        words = f"{words_of(run, crossing, refused)}; {why}"
        self._stopping.stop_for(run, reason_of(run, crossing, at, words, refused=refused is not None), at)

    def approval_due(self, run: Run, at: float) -> None:
        active = run.held_by
        if active is not None and active.action is Action.REQUEST_INCREASE:
            seconds = self._ctx.policy.approval_timeout
            self.end_held(run, active, f"no increase was approved within {seconds:g} s (limits.approval_timeout)", at)

    def pause_due(self, run: Run, at: float) -> None:
        """End a run that was not resumed in time. A run that only a budget pauses waits for that, maybe until next month."""
        paused, active, seconds = run.paused, run.held_by, self._ctx.policy.pause_max
        if paused is None:
            return
        why = f"it was paused for {seconds:g} s (limits.pause_max)"
        if active is not None:
            self.end_held(run, active, why, at)
        elif paused.no_money is not None and not paused.by_hand:
            paused.until = at + seconds
            self._ctx.changed(run)
            self._ctx.arm(run, Timer.PAUSE_MAX, paused.until)
        else:
            self._stopping.stop_for(run, Reason(kind=ReasonKind.LIMIT, message=why, limit_kind="pause_max"), at)

    def hold_again(self, run: Run, at: float) -> None:
        """Arm the timers of a run that an earlier daemon paused or held. After a reboot its wait starts again."""
        policy, paused, breach, active = self._ctx.policy, run.paused, run.breach, run.held_by
        if paused is not None:
            paused.until = at + policy.pause_max if paused.until is None else paused.until
            self._ctx.arm(run, Timer.PAUSE_MAX, paused.until)
        if breach is not None and active is not None and active.action is Action.REQUEST_INCREASE:
            breach.until = at + policy.approval_timeout if breach.until is None else breach.until
            self._ctx.arm(run, Timer.APPROVAL, breach.until)


def holding(run: Run) -> list[ActiveLimit]:
    """Return the exceeded limits that a person has to decide about."""
    return [active for active in run.limits.values() if active.over and active.action in WAITING]


def _used(run: Run, kind: LimitKind, at: float) -> float:
    return run.clock.elapsed(at) if kind is LimitKind.TIME else run.account.used(kind) or 0
