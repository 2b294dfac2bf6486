"""Keeps runs within their limits: looks at what they use, publishes what is near or exceeded, and
takes the limit's action.

Limits are looked at from the root down, because the outermost breach is the one that is reported. A
breach of several limits at once is answered with the strongest action.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from ...protocol.event_types import EventType
from ...protocol.kinds import KINDS
from ...protocol.types import Action, Event, Limit, LimitKind, Reason, Severity, Status
from .. import events as e
from ..context import Context
from ..life.lifecycle import Lifecycle
from ..life.pausing import Pausing
from ..life.spending import Spending
from ..life.stopping import Stopping
from ..state.limits import (
    NO_NUMBERS,
    ActiveLimit,
    Crossing,
    Numbers,
    all_crossings,
    amount,
    and_reserved,
    bare,
    crossings,
    numbers_of,
)
from ..state.money import to_wire
from ..state.run import LimitHold, Run
from ..state.vocabulary import ReasonKind, Timer

WAITING = (Action.PAUSE, Action.REQUEST_INCREASE)
"""Actions that let a run wait."""


# ---- What is told of a breach: in words, and as the reason of a pause or an end


def words_of(run: Run, crossing: Crossing, refused: float | None) -> str:
    limit, used = crossing.active.limit, crossing.used - crossing.reserved
    kind = limit.kind
    held = and_reserved(kind, crossing.reserved)
    if kind is LimitKind.TIME:
        return f"ran {used:.1f} s; its time limit is {limit.threshold:g} s, set by {limit.source}"
    if kind is LimitKind.SILENCE:
        silent, bound = amount(kind, crossing.used), amount(kind, limit.threshold)
        return (
            f"gave no sign of life for {silent}{run.doing and f' while {run.doing}'}; "
            f"its silence limit is {bound}, set by {limit.source}"
        )
    if kind is LimitKind.WAITING:
        waited, bound = amount(kind, crossing.used), amount(kind, limit.threshold)
        return (
            f"waited for a person for {waited}; its waiting limit is {bound}, set by {limit.source}"
        )
    bound = f"its {kind} limit is {bare(kind, crossing.active.threshold)}, set by {limit.source}"
    if refused is not None and crossing.exceeded:
        so_far = bare(kind, used - refused)
        asked = f"asked for {amount(kind, refused)} on top of {so_far} that it has used"
        return f"{asked}{held}; {bound}"
    whose = (
        " with its descendants"
        if KINDS[kind].scope == "tree" and run.account.below.get(kind)
        else ""
    )
    waits = kind is LimitKind.PLAN and crossing.exceeded and crossing.active.action in WAITING
    then = "; it goes on when the window is reset" if waits else ""
    return f"used {amount(kind, used)}{held}{whose}; {bound}{then}"


_AFTER_A_CUT = {
    Action.TERMINATE: "the next call ends the run",
    Action.PAUSE: "the next call pauses the run",
    Action.REQUEST_INCREASE: "the next call waits for approval",
    Action.REFUSE: "the next call is refused",
    Action.CONCLUDE: "the next call is the last one",
}


def cut_at(tokens: int) -> str:
    return f"its last reply was cut at {tokens:,} tokens".replace(",", " ")


def after_cut(action: Action) -> str:
    """Return what happens next. Until then nothing does: an agent in a terminal shows what it
    has."""
    return _AFTER_A_CUT.get(action, "the next call finds no room")


def reason_of(
    run: Run, crossing: Crossing, at: float, message: str, *, refused: float | None = None
) -> Reason:
    limit, account = crossing.active.limit, run.account
    turns, tokens, cost = (
        account.spent(kind) for kind in (LimitKind.TURNS, LimitKind.TOKENS, LimitKind.COST)
    )
    return Reason(
        kind=ReasonKind.LIMIT,
        message=message,
        limit_kind=limit.kind,
        threshold=limit.threshold,
        **_of(crossing, refused),
        refused=refused is not None,
        turns=None if turns is None else int(turns),
        tokens=None if tokens is None else int(tokens),
        cost_usd=None if cost is None else to_wire(LimitKind.COST, cost),
        elapsed_s=round(run.clock.elapsed(at), 3),
    )


def _of(crossing: Crossing, refused: float | None) -> Numbers:
    kind, reserved = crossing.active.limit.kind, crossing.reserved
    if not crossing.exceeded:
        return numbers_of(kind, crossing.used, reserved, 0, None)
    return numbers_of(kind, crossing.used, reserved, refused or 0, crossing.active.threshold)


# ---- Runs that wait because of a limit, until a person decides (`limit_requests`) or their time is
# up


class LimitHolds(Struct, frozen=True):
    _ctx: Context
    _stopping: Stopping
    _pausing: Pausing

    def hold(
        self,
        run: Run,
        active: ActiveLimit,
        reason: Reason,
        at: float,
        *,
        refused: float | None = None,
        freeze: bool = True,
    ) -> None:
        asks = active.action is Action.REQUEST_INCREASE
        wait = (
            self._ctx.policy.limits.approval_timeout if asks else self._ctx.policy.limits.pause_max
        )
        if run.limit_hold is None and run.paused is not None and not run.resumes_itself:
            run.paused.by_hand = active.limit.kind is LimitKind.PLAN and not run.paused.suspended
        if run.limit_hold is None or asks:
            run.limit_hold = LimitHold(active.limit.kind, reason, at + wait, refused, at)
        if asks:
            self._ctx.arm(run, Timer.APPROVAL, at + wait)
        if run.status in {Status.RUNNING, Status.PAUSED} and run.paused is None:
            self._pausing.pause(run, at, freeze=freeze)
        # a run between two attempts is frozen as soon as it has been launched

    def resume_unless_held(self, run: Run, at: float) -> None:
        """Resume a run that has been given more room, unless another limit holds it as well."""
        others = holding(run)
        if others:
            crossing = _exceeded(run, others[0], at)
            self.hold(
                run, others[0], reason_of(run, crossing, at, words_of(run, crossing, None)), at
            )
        elif run.paused is not None and not run.resumes_itself:
            self._pausing.resume(run, at)

    def end_held(self, run: Run, active: ActiveLimit, why: str, at: float) -> None:
        hold = run.limit_hold
        refused = hold.refused if hold is not None and hold.kind == active.limit.kind else None
        crossing = _exceeded(run, active, at, refused or 0)
        words = f"{words_of(run, crossing, refused)}; {why}"
        self._stopping.stop_for(run, reason_of(run, crossing, at, words, refused=refused), at)

    def approval_due(self, run: Run, at: float) -> None:
        active = run.held_by
        if active is not None and active.action is Action.REQUEST_INCREASE:
            seconds = self._ctx.policy.limits.approval_timeout
            self.end_held(
                run,
                active,
                f"no increase was approved within {seconds:g} s (limits.approval_timeout)",
                at,
            )

    def pause_due(self, run: Run, at: float) -> None:
        """End a run that was not resumed in time. A run that only a purse, a window or its
        `plan` limit pauses waits for that, maybe until next month."""
        paused, active, seconds = run.paused, run.held_by, self._ctx.policy.limits.pause_max
        if paused is None:
            return
        why = f"it was paused for {seconds:g} s (limits.pause_max)"
        if active is not None and not run.held_until_reset:
            self.end_held(run, active, why, at)
        elif (run.held_until_reset or run.resumes_itself) and not paused.by_hand:
            paused.until = at + seconds
            self._ctx.changed(run)
            self._ctx.arm(run, Timer.PAUSE_MAX, paused.until)
        else:
            self._stopping.stop_for(
                run, Reason(kind=ReasonKind.LIMIT, message=why, limit_kind="pause_max"), at
            )

    def hold_again(self, run: Run, at: float) -> None:
        """Arm the timers of a run that an earlier daemon paused or held. After a reboot its wait
        starts again."""
        policy, paused, hold, active = self._ctx.policy, run.paused, run.limit_hold, run.held_by
        if paused is not None:
            paused.until = at + policy.limits.pause_max if paused.until is None else paused.until
            self._ctx.arm(run, Timer.PAUSE_MAX, paused.until)
        if hold is not None and active is not None and active.action is Action.REQUEST_INCREASE:
            hold.until = at + policy.limits.approval_timeout if hold.until is None else hold.until
            self._ctx.arm(run, Timer.APPROVAL, hold.until)


def holding(run: Run) -> list[ActiveLimit]:
    """Return the exceeded limits that a person has to decide about."""
    return [active for active in run.limits.values() if active.over and active.action in WAITING]


def _exceeded(run: Run, active: ActiveLimit, at: float, refused: float = 0) -> Crossing:
    """Return how a limit is exceeded by what counts for it now, and by what was refused."""
    kind, account = active.limit.kind, run.account
    if kind is LimitKind.TIME:
        return Crossing(active, run.clock.elapsed(at) + refused, exceeded=True)
    used = (account.used(kind) or 0) + refused
    return Crossing(active, used, exceeded=True, reserved=account.reserved(kind))


# ---- What is near a limit or above it


STRENGTH = (
    Action.TERMINATE,
    Action.CONCLUDE,
    Action.REFUSE,
    Action.CONTINUE,
    Action.REQUEST_INCREASE,
    Action.PAUSE,
    Action.WARN,
)
"""The strongest action first."""

_ENDING = (Action.TERMINATE, Action.CONCLUDE, Action.REFUSE)
"""What was used cannot be refused any more, and no call is to be made after it."""


class LimitEnforcement(Struct, frozen=True):
    _ctx: Context
    _lifecycle: Lifecycle
    _stopping: Stopping
    _holds: LimitHolds
    _spending: Spending
    _continue: Callable[[Run, float, str], bool]
    """Ends an attempt, and has the next one continue its agent's session; returns whether that is
    possible."""

    def use_seen(self, run: Run, ev: e.UseSeen) -> None:
        if run.account.sources.get(ev.source) != ev.use:
            self._spending.set_use(run, ev.source, ev.use)
            self.enforce(run, ev.at)

    def level_seen(self, run: Run, ev: e.LevelSeen) -> None:
        active = run.limits.get(ev.kind)
        if active is None:
            return
        if ev.over:
            self._over(run, active, ev.at)
            return
        run.doing = ev.doing
        # at the threshold the kernel lets nothing through: what it refused was the next byte or
        # process
        level = max(ev.level, active.threshold + 1) if ev.refused else ev.level
        run.account.levels[ev.kind] = level
        self._ctx.watch(run)
        self.enforce(run, ev.at)
        if ev.kind is LimitKind.SILENCE and run.limit_hold is None:
            run.account.levels.pop(ev.kind, None)  # the next silence begins at zero

    def _over(self, run: Run, active: ActiveLimit, at: float) -> None:
        """Begin at zero, and let the run go on if this limit holds it."""
        kind = active.limit.kind
        run.account.levels.pop(kind, None)
        active.near = active.over = False
        self._ctx.changed(run)
        if run.limit_hold is not None and run.limit_hold.kind == kind:
            self._lifecycle.release_limit_hold(run)
            self._holds.resume_unless_held(run, at)

    def enforce(self, run: Run, at: float) -> None:
        """Compare what the run uses with its own limits and its ancestors'."""
        for limited in run.lineage:
            if limited.status is Status.STOPPING:
                return  # and everything below it ends with it
            self._act_on(
                limited,
                list(
                    all_crossings(limited.limits, limited.account, self._ctx.policy.limits.nearing)
                ),
                at,
            )
            if limited.limit_hold is not None:
                # it stands still with everything below it; `enforce_subtree` looks further when it
                # continues
                return

    def enforce_subtree(self, run: Run, at: float) -> None:
        """Compare what the run and its descendants have used with all their limits again: the run
        continues."""
        for each in run.subtree():
            if each.account.metered:
                self.enforce(each, at)

    def limits_changed(self, run: Run, kinds: set[LimitKind], at: float) -> None:
        """Compare the run's use with its changed limits, and its clock with its changed time."""
        nearing = self._ctx.policy.limits.nearing
        found = list(all_crossings(run.limits, run.account, nearing))
        if LimitKind.TIME in kinds:
            found += crossings(run.limits[LimitKind.TIME], run.clock.elapsed(at), nearing)
        self._act_on(run, found, at)
        if LimitKind.TIME in kinds and run.status is Status.RUNNING:
            self._lifecycle.start_clock(run, at)
        elif LimitKind.TIME in kinds and run.status is Status.STARTING:
            self._ctx.arm(run, Timer.DEADLINE, at + run.allowed_time - run.clock.counted)

    def _act_on(
        self,
        run: Run,
        found: list[Crossing],
        at: float,
        *,
        refused: float | None = None,
        freeze: bool = True,
    ) -> None:
        """Publish what was crossed, and take the strongest action. `refused`: so much was refused
        to a reservation."""
        for crossing in found:
            self._publish_crossing(run, crossing, refused)
        if found:
            self._ctx.changed(run)  # it was published
        breaches = [crossing for crossing in found if crossing.exceeded]
        if not breaches:
            return
        worst = min(breaches, key=lambda crossing: STRENGTH.index(crossing.active.action))
        words = words_of(run, worst, refused)
        if worst.active.action is Action.CONTINUE:
            if self._continue(
                run, at, f"gave no sign of life for {amount(worst.active.limit.kind, worst.used)}"
            ):
                worst.active.near = worst.active.over = False  # so may the next attempt
                return
            words += "; its session cannot be continued"
        if worst.active.action in (*_ENDING, Action.CONTINUE):
            self._stopping.stop_for(run, reason_of(run, worst, at, words, refused=refused), at)
            return
        for crossing in breaches:
            if crossing.active.action is Action.REQUEST_INCREASE:
                what = EventType.INCREASE_REQUESTED
                self.publish_about(
                    what, run, crossing.active, words_of(run, crossing, refused), severity="medium"
                )
        if worst.active.action in WAITING:
            self._holds.hold(
                run,
                worst.active,
                reason_of(run, worst, at, words, refused=refused),
                at,
                refused=refused,
                freeze=freeze,
            )

    def reservation_refused(
        self,
        limited: Run,
        active: ActiveLimit,
        more: float,
        at: float,
        *,
        freeze: bool = True,
    ) -> None:
        """Answer the breach that a refused reservation would have been. `freeze`: a limit that
        holds the run freezes it, too."""
        refused = _exceeded(limited, active, at, more)
        if active.action is not Action.REFUSE:
            # that it comes near is said of what is used, not of what is not
            found = [
                refused for crossing in crossings(active, refused.used, 1.0) if crossing.exceeded
            ]
            self._act_on(limited, found, at, refused=more, freeze=freeze)
        elif not active.refused:
            active.refused = True
            self._publish_crossing(limited, refused, more)
            self._ctx.changed(limited)

    def concluded(
        self, run: Run, limited: Run, active: ActiveLimit, more: float, at: float
    ) -> None:
        """Note that a run makes its last call, because of a limit of its own or of a run above it:
        it cannot be completed any more. `more`: what a usual call would have taken."""
        crossing = _exceeded(limited, active, at, more)
        kept = bare(active.limit.kind, active.kept_back(self._ctx.policy.limits.conclude_reserve))
        words = f"{words_of(limited, crossing, more)}; its last call had {kept} that was kept back"
        if not active.refused:
            active.refused = True
            self._publish_crossing(limited, crossing, more)
            self._ctx.changed(limited)
        reason = reason_of(limited, crossing, at, words, refused=more)
        self.cannot_complete([run], reason, "it makes its last call")

    def reply_cut(
        self, run: Run, limited: Run, active: ActiveLimit, tokens: int, at: float
    ) -> None:
        """Note that a reply of the run ended at the maximum to which a limit had lowered it, its
        own or of a run above it. What is missing is the limit's doing, so no run that the limit
        binds is completed. Nothing is stopped: the next call finds no room, and an agent that makes
        none prints what it has."""
        crossing = _exceeded(limited, active, at)
        words = f"{cut_at(tokens)}; {words_of(limited, crossing, None)}"
        then = after_cut(active.action)
        if run.cut is None:
            self.publish_about(
                EventType.LIMIT_EXCEEDED,
                limited,
                active,
                f"{words}; {then}",
                "medium",
                _of(replace(crossing, exceeded=False), None),
                acts=False,
            )
        bound = [each for each in run.lineage if each is limited or limited in each.ancestors]
        self.cannot_complete(bound, reason_of(limited, crossing, at, words), then)

    def cannot_complete(self, runs: Iterable[Run], reason: Reason, then: str) -> None:
        """Have runs end as failed for a reason, whatever their agents make of it. `then`: what
        follows before that."""
        for run in runs:
            run.cut, run.after_cut = reason, then
            self._ctx.changed(run)

    def _publish_crossing(self, run: Run, crossing: Crossing, refused: float | None) -> None:
        exceeded = crossing.exceeded
        self.publish_about(
            EventType.LIMIT_EXCEEDED if exceeded else EventType.LIMIT_NEARING,
            run,
            crossing.active,
            words_of(run, crossing, refused),
            "medium" if exceeded else "low",
            _of(crossing, refused),
            refused=refused is not None and exceeded,
        )

    def publish_about(
        self,
        what: EventType,
        run: Run,
        active: ActiveLimit,
        message: str,
        severity: Severity = "low",
        numbers: Numbers = NO_NUMBERS,
        *,
        refused: bool = False,
        by: str | None = None,
        acts: bool = True,
    ) -> None:
        """Publish what has become of a limit. `acts`: its action follows."""
        kind = active.limit.kind
        event = Event(
            type=what, severity=severity, message=message, scope=KINDS[kind].scope,
            action=active.action if acts else None, limit_kind=kind,
            threshold=active.limit.threshold, refused=refused, by=by, **numbers,
        )  # fmt: skip
        self._ctx.publish_event(event, run)

    def clock_due(self, run: Run, at: float) -> None:
        if run.status is Status.STARTING and not run.paused_in_lineage:
            self._stopping.stop_for(run, _not_executed(run), at)
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
        self._ctx.watch(run)
        time = run.limits.get(LimitKind.TIME)
        # the sum of two times may miss the mark by a rounding; the timer has said that it is
        # reached
        used = max(mark, run.clock.elapsed(at))
        self._act_on(
            run,
            list(crossings(time, used, self._ctx.policy.limits.nearing))
            if time is not None
            else [],
            at,
        )
        if used >= run.max_time and run.status is not Status.STOPPING and not run.status.terminal:
            limit = Limit(
                kind=LimitKind.TIME,
                threshold=run.max_time,
                action=Action.TERMINATE,
                source="limits.max_time",
            )
            self._act_on(run, list(crossings(ActiveLimit(limit, near=True), used, 1.0)), at)


def _not_executed(run: Run) -> Reason:
    after = run.allowed_time - run.clock.counted
    return Reason(
        kind=ReasonKind.LIMIT,
        message=f"its command was not executed within {after:g} s: its working directory, "
        "a directory of its PATH or the command is on a file system that does not answer",
        limit_kind=LimitKind.TIME,
    )
