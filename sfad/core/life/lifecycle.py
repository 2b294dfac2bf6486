"""The steps of a run's life that every component takes: launch, count its time, decide its end,
finish.

It knows none of the components above it, which say when.
"""

from collections import Counter

from msgspec import Struct
from msgspec.structs import replace

from ...protocol.event_types import EventType
from ...protocol.texts.units import counted
from ...protocol.types import (
    ENDED,
    Action,
    ApiTrouble,
    ErrorCode,
    LimitKind,
    Reason,
    Severity,
    Status,
    StoppedChildren,
)
from .. import commands as c
from ..context import Context
from ..state.run import Attempt, Ending, FailedBelow, Run, Rung
from ..state.vocabulary import BY_AGENT, BY_BOUND, ReasonKind, Timer
from ..watching import Watching
from .spending import Spending
from .stages import first_stage, told_of_checks

# ---- Launch, clock, end


class Lifecycle(Struct, frozen=True):
    _ctx: Context
    _spending: Spending
    _watching: Watching

    def launch(self, run: Run) -> None:
        if run.remote is not None:
            if run.status is not Status.QUEUED:
                run.move(Status.QUEUED if run.status is Status.ACCEPTED else Status.STARTING)
            self._ctx.changed(run)
            self._ctx.do(c.Place(run))
            return
        run.move(Status.STARTING)
        latest = run.latest
        if latest.said_finished:
            self._ctx.disarm(run, Timer.RESULT)
        run.retry_at = None
        if latest.next_stage is not None:
            latest.stage, latest.next_stage = latest.next_stage, None
        else:
            run.latest = Attempt(
                latest.number + 1, resumes=latest.next_resumes, told=latest.tells_next
            )
            if run.asked.stages and not latest.number:
                run.latest.stage = first_stage(run)
        self._ctx.changed(run)
        self._ctx.do(c.Launch(run))

    def answer_spawn(self, run: Run) -> None:
        """Tell the client that asked for the run how it stands, unless it was told."""
        if run.admit_token is not None:
            self._ctx.reply(run.admit_token, c.SpawnDone(run))
            run.admit_token = None

    def start_clock(self, run: Run, at: float) -> None:
        """Count the run's time from now on, up to the next event or action that it calls for. It
        stands while a window holds a run below: that may take days, and most runs above only
        wait for it."""
        if run.asks or (
            run.children and any(each.window_hold is not None for each in run.subtree())
        ):
            return
        if self._ctx.policy.watches_clocks:
            self._ctx.watch(run)
        run.clock.start(at)
        due = run.clock.reaches(self.next_mark(run))
        assert due is not None
        self._ctx.arm(run, Timer.DEADLINE, due)

    def person_asked(self, run: Run, words: str, at: float) -> None:
        """Let its clock stand while a run asks a person for something."""
        if words == run.asks:
            return
        run.asked_at = None if not words else run.asked_at if run.asks else at
        run.asks = words
        self._ctx.changed(run)
        if run.status is Status.RUNNING and words:
            self.halt_clock(run, at)
        elif run.status is Status.RUNNING:
            self.start_clock(run, at)

    def next_mark(self, run: Run) -> float:
        """Return the seconds at which the run's time calls for an event or an action."""
        time, most = run.limits.get(LimitKind.TIME), run.max_time
        if run.latest.stage_until is not None:
            most = min(most, run.latest.stage_until)
        if time is None or time.over:
            return most
        share = 1.0 if time.near else self._ctx.policy.limits.nearing
        return min(time.limit.threshold * share, most)

    def halt_clock(self, run: Run, at: float) -> None:
        run.clock.halt(at)
        self._ctx.disarm(run, Timer.DEADLINE)

    def unpause(self, run: Run) -> None:
        """Forget that the run is frozen itself. What thaws it is the caller's command."""
        if run.paused is not None:
            run.paused = None
            self._ctx.disarm(run, Timer.PAUSE_MAX)
            self._ctx.changed(run)

    def fail_pauses(self, run: Run, why: str) -> None:
        """Answer the pause requests that wait until the run is frozen, which it will not be."""
        for token in run.pause_tokens:
            self._ctx.fail(token, ErrorCode.WRONG_STATE, f"run {run.id} {why}")
        run.pause_tokens.clear()

    def release_limit_hold(self, run: Run) -> None:
        """No person has to decide about the run any more: it continues, or it ends."""
        if (active := run.held_by) is not None:
            if active.action is Action.REQUEST_INCREASE:
                self._ctx.disarm(run, Timer.APPROVAL)
            run.limit_hold = None

    def leave_ladder(self, run: Run) -> None:
        """The run's containment is empty."""
        if run.ladder is not None:
            if run.ladder.rung is Rung.INTERRUPTED:
                self._ctx.disarm(run, Timer.POLITE)
            for timer in (Timer.GRACE, Timer.SURVEY):
                self._ctx.disarm(run, timer)
            run.ladder = None

    def decide_end(self, run: Run, at: float, ending: Ending) -> None:
        """Decide how the run ends. It is `stopping` until none of its processes is alive."""
        run.move(Status.STOPPING)
        if (
            run.cut is not None
            and ending.outcome in {Status.COMPLETED, Status.FAILED}
            and _by_agent(ending.reason)
        ):
            ending = Ending(Status.FAILED, run.cut)
        run.ending = (
            ending
            if ending.outcome is Status.COMPLETED
            else _with_trouble(ending, run.latest.known_trouble)
        )
        if run.paused is not None:
            self.unpause(run)
        if run.limit_hold is not None:
            self.release_limit_hold(run)
        if run.latest.said_finished:
            self._ctx.disarm(run, Timer.RESULT)
        self.halt_clock(run, at)
        if run.retry_at is not None:
            self._ctx.disarm(run, Timer.RETRY)
        self._ctx.changed(run)

    def leave_running(self, run: Run) -> None:
        """End a run although its program has not ended what it does."""
        reason = run.ending.reason if run.ending is not None else None
        if run.ending is not None and reason is not None:
            said = reason.adding("its program did not end it within the grace: it is left running")
            run.ending = Ending(run.ending.outcome, replace(said, left_running=True))
            self._ctx.changed(run)

    def cancel_below(self, run: Run, at: float, ending: Ending | None) -> None:
        """Decide the end of all that is below a run. `ending`: how the run itself ends; `None` if
        only its attempt does."""
        detached = ", or --detach" if self._ctx.policy.guard.allow_detach else ""
        for each in run.subtree():
            by_itself = each is run and (ending is None or _by_itself(ending))
            ended = ending is not None and ending.outcome is Status.COMPLETED
            advice = "; wait for {}" + detached if by_itself and ended else ""
            found = _stopped_children(each, by_itself=by_itself, advice=advice)
            each.stopped_children = found or each.stopped_children
        reason = Reason(
            kind=ReasonKind.ANCESTOR,
            message=f"its ancestor {run.id} ('{run.name}') ended or was stopped",
            by=run.id,
        )
        for each in run.subtree()[1:]:
            self.unpause(each)
            if each.status is not Status.STOPPING:
                self.decide_end(each, at, Ending(Status.CANCELLED, reason))

    def finish(self, run: Run, at: float, *, recorded: bool = True) -> None:
        """End a run of which no process is alive, as it was decided. `recorded`: the ledger holds
        its admission."""
        assert run.ending is not None
        if run.remote is not None and not run.attempt:
            self._ctx.elsewhere.never_sent(run)
        if run.account.metered:
            self._spending.close(run)
        run.move(run.ending.outcome)
        run.ended_at = at
        run.latest.pid = None
        if run.ladder is not None:
            self.leave_ladder(run)
        if run.tied_to is not None:
            self._ctx.disarm(run, Timer.RECONNECT)
        if run.remote is not None or run.lease is not None:
            self._ctx.disarm(run, Timer.LEASE)
        reason = run.ending.reason
        if reason is not None and reason.kind in BY_BOUND:
            self._ctx.watch(run)
        if run.id in self._ctx.watched:
            self._watching.ending(run)
        if run.parent is not None and reason is not None:
            run.parent.failed_below = FailedBelow(run.id, run.name, reason)
            self._ctx.changed(run.parent)
        self._ctx.end(run)
        self._ctx.changed(run)
        if recorded:
            self._ctx.do(c.Record(run))
            self._ctx.publish(_ENDS[run.status], run, _told(run), severity_of_end(run.status))
        if run.latest.number:
            self._ctx.do(c.Release(run.id))
        self._ctx.do(c.Retire(run))
        if run.admit_token is not None:
            self.answer_spawn(run)
        if run.pause_tokens:
            self.fail_pauses(run, "ended before it was paused")


_ENDS = {status: EventType(f"run_{status}") for status in ENDED}


def _by_agent(reason: Reason | None) -> bool:
    """Return whether a run ended by its agent's own doing, well or not."""
    return reason is None or reason.kind in BY_AGENT


def _by_itself(ending: Ending) -> bool:
    """Return whether no other has ended the run."""
    return ending.outcome is Status.LOST or _by_agent(ending.reason)


def _told(run: Run) -> str:
    """Return why a run has ended, how it was checked, and what its end has stopped."""
    reason = run.ending.reason if run.ending is not None else None
    stopped = run.stopped_children
    checked = run.status is Status.COMPLETED and (run.asked.stages or run.remote is not None)
    if reason is None and stopped is None and not checked:
        return ""
    told = [
        told_of_checks(run) if checked else "",
        reason.message if reason is not None else "",
        stopped.message if stopped is not None else "",
    ]
    return "; ".join(filter(None, told))


NAMED = 3
"""Names of stopped children in a sentence."""
_STILL = {
    Status.PAUSED: "paused",
    Status.QUEUED: "queued",
    Status.STARTING: "running",
    Status.RUNNING: "running",
    Status.RETRYING: "running",
}


def _stopped_children(run: Run, *, by_itself: bool, advice: str) -> StoppedChildren | None:
    """Return the children that the end of a run stops. `by_itself`: nothing else has ended the run;
    `advice`: how it would have kept them."""
    children = [child for child in run.children.values() if child.status is not Status.STOPPING]
    if not children:
        return None
    one = len(children) == 1
    names = Counter(child.name for child in children)
    shown = [name if count == 1 else f"{name} ({count})" for name, count in names.items()][:NAMED]
    others = len(children) - sum(list(names.values())[:NAMED])
    states = {_STILL.get(child.status, "queued") for child in children}
    how = " with it"
    if by_itself and len(states) > 1:
        how = " that had not ended"
    elif by_itself:
        how = f" that {'was' if one else 'were'} still {states.pop()}"
    message = (
        f"stopped {counted(len(children), 'child', 'children')}{how}: {', '.join(shown)}"
        + (f" and {others} more" if others else "")
        + advice.format("it" if one else "them")
    )
    return StoppedChildren(count=len(children), names=list(names)[:NAMED], message=message)


def _with_trouble(ending: Ending, trouble: ApiTrouble | None) -> Ending:
    """Add to the reason that the agent could not reach its model. An agent that failed of that
    alone says so itself."""
    reason = ending.reason
    if reason is None or trouble is None or (trouble.error and trouble.error in reason.message):
        return ending
    return Ending(ending.outcome, reason.adding(trouble.sentence))


def severity_of_end(status: Status) -> Severity:
    return "medium" if status in {Status.FAILED, Status.TIMEOUT, Status.LOST} else "low"
