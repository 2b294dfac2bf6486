"""Keeps runs within their limits: looks at what they use, publishes what is near or exceeded, and takes the limit's action.

Limits are looked at from the root down, because the outermost breach is the one that is reported. A breach of several limits at
once is answered with the strongest action. A run that a limit holds waits until a person decides (`room`), or until its time is up.
"""

from dataclasses import dataclass
from typing import Unpack

from ..protocol.kinds import KINDS
from ..protocol.types import Action, Limit, LimitKind, Reason, Status
from . import events as e
from .context import Context, Facts, Severity
from .lifecycle import Lifecycle
from .limits import ActiveLimit, Crossing, all_crossings, amount, bare, crossings
from .money import to_wire
from .pausing import Pausing
from .run import Ending, LimitHold, Run
from .spending import Spending
from .stopping import Stopping
from .vocabulary import EventType, ReasonKind, Timer

STRENGTH = (Action.TERMINATE, Action.REFUSE, Action.REQUEST_INCREASE, Action.PAUSE, Action.WARN)
"""The strongest action first."""

_WAITING = (Action.PAUSE, Action.REQUEST_INCREASE)

_ENDING = (Action.TERMINATE, Action.REFUSE)
"""What was used cannot be refused any more."""

MAX_TOOLS_SAID = 16
"""Forbidden tools of one run that are published."""


@dataclass(frozen=True, slots=True)
class LimitEnforcement:
    _ctx: Context
    _lifecycle: Lifecycle
    _stopping: Stopping
    _pausing: Pausing
    _spending: Spending

    # ---- what was used

    def use_seen(self, run: Run, ev: e.UseSeen) -> None:
        if run.account.sources.get(ev.source) != ev.use:
            self._spending.set_use(run, ev.source, ev.use)
            self.enforce(run, ev.at)

    def level_seen(self, run: Run, ev: e.LevelSeen) -> None:
        active = run.limits.get(ev.kind)
        if active is None:
            return
        # at the threshold the kernel lets nothing through: what it refused was the next byte or process
        level = max(ev.level, active.threshold + 1) if ev.refused else ev.level
        run.account.levels[ev.kind] = level
        self.enforce(run, ev.at)

    def tools_called(self, run: Run, ev: e.ToolsCalled) -> None:
        for tool in ev.tools:
            if run.status is Status.STOPPING:
                return
            forbidden = _forbidden(run, tool)
            if forbidden is not None and tool not in run.tools_said and len(run.tools_said) < MAX_TOOLS_SAID:
                run.tools_said.add(tool)
                self._ctx.changed(run)
                self._forbid(run, f"its agent called the tool '{tool}', {forbidden}", ev.at)

    def _forbid(self, run: Run, message: str, at: float) -> None:
        self._ctx.publish(
            EventType.LIMIT_EXCEEDED,
            run,
            message,
            severity="medium",
            scope="run",
            limit_kind="tool",
            threshold=0,
            used=1,
            exceeded_by=1,
        )
        if run.asked.on_limit is not Action.WARN:
            self.end_run(run, Reason(kind=ReasonKind.LIMIT, message=message, limit_kind="tool"), at)

    def enforce(self, run: Run, at: float) -> None:
        """Compare what the run uses with its own limits and its ancestors'."""
        for owner in run.lineage:
            if owner.status is Status.STOPPING:
                return  # and everything below it ends with it
            self._act_on(owner, list(all_crossings(owner.limits, owner.account, self._ctx.policy.nearing)), at)
            if owner.breach is not None:
                return  # it stands still with everything below it; `enforce_subtree` looks further when it continues

    def enforce_subtree(self, run: Run, at: float) -> None:
        """Compare what the run and its descendants have used with all their limits again: the run continues."""
        for each in run.subtree():
            if each.account.metered:
                self.enforce(each, at)

    def limits_changed(self, run: Run, kinds: set[LimitKind], at: float) -> None:
        """Compare the run's use with its changed limits, and its clock with its changed time."""
        nearing = self._ctx.policy.nearing
        found = list(all_crossings(run.limits, run.account, nearing))
        if LimitKind.TIME in kinds:
            found += crossings(run.limits[LimitKind.TIME], run.clock.elapsed(at), nearing)
        self._act_on(run, found, at)
        if LimitKind.TIME in kinds and run.status is Status.RUNNING:
            self._lifecycle.start_clock(run, at)
        elif LimitKind.TIME in kinds and run.status is Status.STARTING:
            self._ctx.arm(run, Timer.DEADLINE, at + run.allowed_time - run.clock.counted)

    # ---- breaches

    def _act_on(self, run: Run, found: list[Crossing], at: float, *, refused: float | None = None) -> None:
        """Publish what was crossed, and take the strongest action. `refused`: so much was refused to a reservation."""
        for crossing in found:
            self._publish(run, crossing, refused)
        if found:
            self._ctx.changed(run)  # it was published
        breaches = [crossing for crossing in found if crossing.exceeded]
        if not breaches:
            return
        worst = min(breaches, key=lambda crossing: STRENGTH.index(crossing.active.action))
        words = _words(run, worst, refused)
        if worst.active.action in _ENDING:
            self.end_run(run, _reason(run, worst, at, words, refused=refused is not None), at)
            return
        for crossing in breaches:
            if crossing.active.action is Action.REQUEST_INCREASE:
                self.publish(EventType.INCREASE_REQUESTED, run, crossing.active, _words(run, crossing, refused))
        if worst.active.action in _WAITING:
            self._hold(run, worst.active, _reason(run, worst, at, words, refused=refused is not None), at)

    def reservation_refused(self, owner: Run, active: ActiveLimit, used: float, more: float, at: float) -> None:
        """Answer the breach that a refused reservation would have been."""
        if active.action is not Action.REFUSE:
            # that it comes near is said of what is used, not of what is not
            found = [crossing for crossing in crossings(active, used + more, 1.0) if crossing.exceeded]
            self._act_on(owner, found, at, refused=more)
        elif not active.refused:
            active.refused = True
            self._publish(owner, Crossing(active, used + more, exceeded=True), more)
            self._ctx.changed(owner)

    def end_run(self, run: Run, reason: Reason, at: float) -> None:
        """Stop a run for a limit or a budget."""
        status = Status.TIMEOUT if reason.limit_kind in ("time", "pause_max") else Status.FAILED
        self._stopping.stop(run, at, Ending(status, reason))

    def end_held(self, run: Run, active: ActiveLimit, why: str, at: float) -> None:
        crossing = Crossing(active, _used(run, active.limit.kind, at), exceeded=True)
        self.end_run(run, _reason(run, crossing, at, f"{_words(run, crossing, None)}; {why}"), at)

    def _hold(self, run: Run, active: ActiveLimit, reason: Reason, at: float) -> None:
        asks = active.action is Action.REQUEST_INCREASE
        wait = self._ctx.policy.approval_timeout if asks else self._ctx.policy.pause_max
        if run.breach is None or asks:
            run.breach = LimitHold(active.limit.kind, reason, at + wait)
        if asks:
            self._ctx.arm(run, Timer.APPROVAL, at + wait)
        if run.status in {Status.RUNNING, Status.PAUSED} and run.paused is None:
            self._pausing.pause(run, at)
        # a run between two attempts is frozen as soon as it has been launched

    def resume_unless_held(self, run: Run, at: float) -> None:
        """Resume a run that has been given more room, unless another limit holds it as well."""
        others = holding(run)
        if others:
            crossing = Crossing(others[0], _used(run, others[0].limit.kind, at), exceeded=True)
            self._hold(run, others[0], _reason(run, crossing, at, _words(run, crossing, None)), at)
        elif run.paused is not None and run.no_money is None:
            self._pausing.resume(run, at)

    def _publish(self, run: Run, crossing: Crossing, refused: float | None) -> None:
        exceeded, kind = crossing.exceeded, crossing.active.limit.kind
        self.publish(
            EventType.LIMIT_EXCEEDED if exceeded else EventType.LIMIT_NEARING,
            run,
            crossing.active,
            _words(run, crossing, refused),
            severity="medium" if exceeded else "low",
            used=_shown(kind, crossing.used),
            exceeded_by=_over(crossing.active, crossing.used) if exceeded else None,
            refused=refused is not None and exceeded,
        )

    def publish(
        self, what: EventType, run: Run, active: ActiveLimit, message: str, severity: Severity = "low", **facts: Unpack[Facts]
    ) -> None:
        """Publish what becomes of a limit of the run."""
        kind, threshold = active.limit.kind, active.limit.threshold
        about = Facts(scope=KINDS[kind].scope, action=active.action, limit_kind=kind, threshold=threshold)
        self._ctx.publish(what, run, message, severity, **(about | facts))

    # ---- time

    def clock_due(self, run: Run, at: float) -> None:
        """Take what the run's time calls for."""
        if run.status is Status.STARTING and not run.standing_still:
            self.end_run(run, _not_executed(run), at)
            return
        mark = self._lifecycle.next_mark(run)
        due = run.clock.reaches(mark)
        if due is None or run.status is not Status.RUNNING:
            return
        if due <= at:
            self._clock_reached(run, mark, at)
        if run.status is Status.RUNNING:
            self._lifecycle.start_clock(run, at)

    def _clock_reached(self, run: Run, mark: float, at: float) -> None:
        time = run.limits.get(LimitKind.TIME)
        # the sum of two times may miss the mark by a rounding; the timer has said that it is reached
        used = max(mark, run.clock.elapsed(at))
        self._act_on(run, list(crossings(time, used, self._ctx.policy.nearing)) if time is not None else [], at)
        if used >= run.max_time and run.status is not Status.STOPPING and not run.status.terminal:
            limit = Limit(kind=LimitKind.TIME, threshold=run.max_time, action=Action.TERMINATE, source="limits.max_time")
            self._act_on(run, list(crossings(ActiveLimit(limit, near=True), used, 1.0)), at)

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
            self.end_run(run, Reason(kind=ReasonKind.LIMIT, message=why, limit_kind="pause_max"), at)

    def wait_on(self, run: Run, at: float) -> None:
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
    return [active for active in run.limits.values() if active.over and active.action in _WAITING]


def _used(run: Run, kind: LimitKind, at: float) -> float:
    return run.clock.elapsed(at) if kind is LimitKind.TIME else run.account.used(kind) or 0


def _not_executed(run: Run) -> Reason:
    after = run.allowed_time - run.clock.counted
    return Reason(
        kind=ReasonKind.LIMIT,
        message=f"its command was not executed within {after:g} s: its working directory, a directory of its PATH "
        "or the command is on a file system that does not answer",
        limit_kind=LimitKind.TIME,
    )


def _words(run: Run, crossing: Crossing, refused: float | None) -> str:
    limit, used = crossing.active.limit, crossing.used
    kind = limit.kind
    if kind is LimitKind.TIME:
        return f"ran {used:.1f} s; its time limit is {limit.threshold:g} s, set by {limit.source}"
    bound = f"its {kind} limit is {bare(kind, crossing.active.threshold)}, set by {limit.source}"
    if refused is not None and crossing.exceeded:
        return f"was refused {amount(kind, refused)} on top of {bare(kind, used - refused)}; {bound}"
    whose = " with its descendants" if KINDS[kind].scope == "tree" and run.account.below.get(kind) else ""
    return f"used {amount(kind, used)}{whose}; {bound}"


def _reason(run: Run, crossing: Crossing, at: float, message: str, *, refused: bool = False) -> Reason:
    limit, account = crossing.active.limit, run.account
    turns, tokens, cost = (account.used(kind) for kind in (LimitKind.TURNS, LimitKind.TOKENS, LimitKind.COST))
    return Reason(
        kind=ReasonKind.LIMIT,
        message=message,
        limit_kind=limit.kind,
        threshold=limit.threshold,
        used=_shown(limit.kind, crossing.used),
        exceeded_by=_over(crossing.active, crossing.used),
        refused=refused,
        turns=None if turns is None else int(turns),
        tokens=None if tokens is None else int(tokens),
        cost_usd=None if cost is None else to_wire(LimitKind.COST, cost),
        elapsed_s=round(run.clock.elapsed(at), 3),
    )


def _shown(kind: LimitKind, used: float) -> float:
    return round(to_wire(kind, used), 6)


def _over(active: ActiveLimit, used: float) -> float:
    return _shown(active.limit.kind, max(0, used - active.threshold))


def _forbidden(run: Run, tool: str) -> str | None:
    """Return why the run may not use a tool. The agent itself keeps a pattern such as `Bash(git:*)`; here its name counts."""
    blocked = {name for name in run.asked.blocked_tools if "(" not in name}
    allowed = {name.partition("(")[0] for name in run.asked.allowed_tools}
    if tool in blocked:
        return "which --block-tool forbids"
    return "which --allow-tool does not name" if allowed and tool not in allowed else None
