"""The attempts of a run: what the launcher tells of them and the agent prints, and what follows.

An attempt succeeds, is followed by another, or fails the run.
"""

import hashlib
from collections.abc import Sequence

from msgspec import Struct

from ...protocol.checks import on_one_line, to_repair
from ...protocol.event_types import EventType
from ...protocol.requests.gateway import EndCall
from ...protocol.texts.units import format_duration
from ...protocol.types import ApiTrouble, Reason, RunId, Status
from .. import commands as c
from .. import events as e
from ..context import Context, grace_of
from ..state.account import Silence
from ..state.run import PATH, Attempt, Ending, FailedBelow, ProcessExit, Run, StageEnd
from ..state.vocabulary import ReasonKind, Timer, signal_name
from .lifecycle import Lifecycle
from .pausing import Pausing
from .stages import (
    CANNOT_EXECUTE,
    failure,
    how_it_failed,
    is_checked,
    next_stage,
    present,
)
from .stopping import Stopping, paused_in

MAX_ERROR = 200
"""Characters of a failed call's error that are shown with its run."""
_INTERRUPTED = Ending(
    Status.CANCELLED,
    Reason(kind=ReasonKind.INTERRUPT, message="interrupted where it was started (Ctrl-C)"),
)
_REFUSALS = frozenset({400, 404, 405, 413, 415, 422})
"""Statuses that say that a request is wrong. To send it again as it is would change nothing."""


class AttemptTracker(Struct, frozen=True):
    _ctx: Context
    _lifecycle: Lifecycle
    _stopping: Stopping
    _pausing: Pausing

    def launch_succeeded(self, run: Run, ev: e.LaunchSucceeded) -> None:
        run.latest.pid = ev.pid
        if run.status is Status.STARTING:
            self.launched(run, ev.at)
            return
        run.started_at = ev.at if run.started_at is None else run.started_at
        self._ctx.changed(run)

    def launched(self, run: Run, at: float) -> None:
        """Go on with a run that was starting: its command has been executed."""
        run.started_at = at if run.started_at is None else run.started_at
        run.move(Status.RUNNING)
        if run.latest.stage:
            self._stage_begins(run, at)
        if run.paused_in_lineage:
            run.move(Status.PAUSED)
            # it was not there yet when its ancestor was frozen, and signals reach only what is
            # there
            frozen = [
                each.id for each in run.lineage if each.paused is not None and each.paused.frozen
            ]
            if frozen:
                self._ctx.do(c.Freeze(frozen[0]))
        elif run.limit_hold is None:
            self._lifecycle.start_clock(run, at)
        self._ctx.save_and_record(run)
        if run.latest.exit is None and not run.latest.ended_stages:
            self._ctx.publish(EventType.RUN_STARTED, run)
        if run.latest.stage:
            self._publish_stage(run)
        if run.limit_hold is not None:
            # by itself, even where an ancestor is frozen: that one's resume must not thaw it
            self._pausing.pause(run, at)
        elif run.lease is not None and run.lease.paused and run.paused is None:
            self._pausing.pause(run, at, "paused by the node that granted it", by_giver=True)
        self._lifecycle.answer_spawn(run)

    def launch_failed(self, run: Run, ev: e.LaunchFailed) -> None:
        """End the run without another attempt: a command that is not there will not be there a
        second later."""
        if run.status is not Status.STARTING:
            return
        if run.latest.stage:
            self._stage_failed(run, ev.at, f"it was not executed: {ev.error}", empty=True)
            return
        about = ev.about if ev.kind == "launch" else None
        reason = Reason(kind=ev.kind, message=ev.error, errno=ev.errno, about=about)
        # a foreign process may have joined the cgroup and started runs there; no run ends before
        # its descendants
        self.conclude(run, ev.at, Ending(Status.FAILED, reason), empty=True)

    def main_exited(self, run: Run, ev: e.MainExited) -> None:
        """Take note of how the main process ended, and decide what follows."""
        latest = run.latest
        if latest.stage:
            self._stage_exited(run, ev)
            return
        latest.exit, latest.pid = ProcessExit(ev.code, ev.signal), None
        self._ctx.changed(run)
        if not latest.knows_its_calls or (
            run.status is Status.STOPPING and not latest.said_finished
        ):
            run.miss_calls()
        if run.status is Status.STOPPING:
            if ev.left:
                self._lifecycle.leave_running(run)
            if ev.empty and not run.children:
                self._lifecycle.finish(run, ev.at)
            self._stopping.main_ended(run)
        elif run.status is Status.RETRYING:
            pass  # the ladder that clears the attempt's leftovers reports `Emptied`
        elif latest.exit.unknown:
            why = (
                "it outlived the daemon that started it, and the kernel does not tell how it ended"
            )
            self.conclude_unseen(run, ev.at, why, empty=ev.empty)
        elif latest.succeeded:
            self._succeeded(run, ev.at, empty=ev.empty)
        elif ev.failed is not None:
            reason = Reason(kind=ReasonKind.AGENT, message=ev.failed)
            self.conclude(run, ev.at, Ending(Status.FAILED, reason), empty=ev.empty)
        elif run.asked.inherits and latest.exit.interrupted:
            # the key went to the program and not to sfactl, which would have stopped the run
            self.conclude(run, ev.at, _INTERRUPTED, empty=ev.empty)
        elif run.attempt < run.asked.retries.attempts and run.cut is None:
            self._retry(run, ev.at)
        else:
            self.conclude(
                run,
                ev.at,
                Ending(Status.FAILED, _failure(latest, ev.last_line, run.failed_below)),
                empty=ev.empty,
            )

    def conclude_unseen(
        self, run: Run, at: float, why: str, *, empty: bool, startable: bool = True
    ) -> None:
        """End a run whose exit status is lost: as its agent said, if that had printed its final
        result, else as lost. It is not started again in either case: it may have done what it was
        started for. But its session may be continued, with `Retries.resume`: there the agent sees
        what it has done. `startable`: what it is to be started with is known."""
        if startable and is_checked(run):
            # a check says what is so, whenever it is executed
            self._continue_with(run, at, run.latest.stage, empty=empty)
            return
        if (
            run.asked.retries.resume
            and startable
            and not run.latest.said_finished
            and self._has_another(run)
        ):
            run.latest.exit = ProcessExit(None, None)
            self.retry_in_session(run, at, f"is lost: {why}", empty=empty)
            return
        latest = run.latest
        ending = Ending(Status.LOST, Reason(kind=ReasonKind.DAEMON, message=why))
        if not latest.stage:
            latest.exit = ProcessExit(None, None)
        outcome, said = _said(latest)
        is_over = latest.said_finished and not latest.stage
        if is_over and outcome is Status.COMPLETED and self._goes_on(run):
            if startable:
                self._succeeded(run, at, empty=empty)
                return
        elif is_over:
            ending = Ending(
                outcome,
                Reason(
                    kind=ReasonKind.RESULT, message=f"{why}; before, the agent had printed {said}"
                ),
            )
        self.conclude(run, at, ending, empty=empty)

    # ---- Stages beside the command

    @staticmethod
    def _goes_on(run: Run) -> bool:
        """Return whether a stage follows what has succeeded. A run whose last word was cut by a
        limit has not."""
        return bool(run.asked.stages) and run.cut is None and next_stage(run) is not None

    def _succeeded(self, run: Run, at: float, *, empty: bool) -> None:
        """Go on with a run whose command, or stage, has succeeded: with the next stage, or to its
        end."""
        following = next_stage(run) if run.asked.stages and run.cut is None else None
        if following is None:
            self.conclude(run, at, Ending(Status.COMPLETED, None), empty=empty)
        else:
            self._continue_with(run, at, following, empty=empty)

    def _continue_with(self, run: Run, at: float, stage: int, *, empty: bool) -> None:
        """Have a stage executed, or the command (0), once nothing is alive of what was before."""
        run.latest.next_stage = stage
        self._clear(run, at, empty=empty)

    def _stage_begins(self, run: Run, at: float) -> None:
        latest, allowed = run.latest, present(run).seconds
        latest.stage_from = run.clock.elapsed(at)
        until = latest.stage_from + allowed if allowed is not None else run.allowed_time
        # else its own limit of time ends the run
        latest.stage_until = until if until < run.allowed_time else None

    def _publish_stage(self, run: Run) -> None:
        stage, kinds = present(run), [each.kind for each in run.asked.stages]
        place, count = kinds[: run.latest.stage].count(stage.kind), kinds.count(stage.kind)
        of = f" {place} of {count}" if count > 1 else ""
        words = f"{stage.kind}{of}: {on_one_line(stage.command)}"
        self._ctx.publish(EventType.RUN_PROGRESS, run, words)

    def _stage_exited(self, run: Run, ev: e.MainExited) -> None:
        latest, exit_ = run.latest, ProcessExit(ev.code, ev.signal)
        latest.pid = None
        self._ctx.changed(run)
        if run.status is Status.STOPPING:
            if ev.empty and not run.children:
                self._lifecycle.finish(run, ev.at)
            self._stopping.main_ended(run)
        elif run.status is Status.RETRYING:
            pass  # the ladder that clears it reports `Emptied`
        elif exit_.unknown:
            why = (
                "it outlived the daemon that started it, and the kernel does not tell how it ended"
            )
            self.conclude_unseen(run, ev.at, why, empty=ev.empty)
        elif exit_.success:
            latest.ended_stages.append(
                StageEnd(latest.stage, run.clock.elapsed(ev.at) - latest.stage_from, exit_)
            )
            latest.stage_until = None
            self._succeeded(run, ev.at, empty=ev.empty)
        elif run.asked.inherits and exit_.interrupted:
            self.conclude(run, ev.at, _INTERRUPTED, empty=ev.empty)
        else:
            self._stage_failed(
                run, ev.at, how_it_failed(exit_), exit_, ev.last_lines, empty=ev.empty
            )

    def stage_due(self, run: Run, at: float, lines: Sequence[str]) -> bool:
        """Stop a stage that has taken too long. Return whether it has. `lines`: what it has said
        last."""
        until = run.latest.stage_until
        due = run.clock.reaches(until) if until is not None else None
        if due is None or due > at or run.status is not Status.RUNNING:
            return False
        allowed = present(run).seconds
        assert allowed is not None
        self._stage_failed(
            run, at, f"it took longer than {format_duration(allowed)}", None, lines, empty=False
        )
        return True

    def _stage_failed(
        self,
        run: Run,
        at: float,
        how: str,
        exit_: ProcessExit | None = None,
        lines: Sequence[str] = (),
        *,
        empty: bool,
    ) -> None:
        """Have the agent repair what has failed, where there is another attempt, or end the run. No
        agent can repair the typo of a person, nor what happens before it."""
        latest, stage = run.latest, present(run)
        seconds = max(0.0, run.clock.elapsed(at) - latest.stage_from)
        if run.status is Status.STARTING:
            seconds = 0.0
        end = StageEnd(latest.stage, seconds, exit_, how)
        latest.ended_stages.append(end)
        latest.stage_until = None
        reason = failure(stage, end, lines)
        executed = run.status is not Status.STARTING and (
            exit_ is None or exit_.code not in CANNOT_EXECUTE
        )
        if (
            executed
            and not stage.before
            and run.attempt < run.asked.retries.attempts
            and run.cut is None
        ):
            latest.cut_short = f"failed: {reason.message}"
            latest.tells_next = to_repair(reason)
            self._retry(run, at, empty=empty)
        else:
            self.conclude(run, at, Ending(Status.FAILED, reason), empty=empty)

    # ---- The end of an attempt

    def conclude(self, run: Run, at: float, ending: Ending, *, empty: bool) -> None:
        """End a run whose main process has ended, and stop what it has left. `empty`: nothing is
        alive in its containment."""
        if empty and not run.children:
            self._lifecycle.decide_end(run, at, ending)
            self._lifecycle.finish(run, at)
        else:
            self._stopping.stop(run, at, ending)

    def emptied(self, run: Run, ev: e.Emptied) -> None:
        if run.ladder is not None:
            self.containment_empty(run, ev.at)

    def containment_empty(self, run: Run, at: float) -> None:
        """Nothing is alive in the containment of a run that is being emptied: end it with
        everything below it, or wait for its next attempt. Runs of other nodes that are below it
        have to end before."""
        if run.remote_below:
            if run.ladder is None:
                self._stopping.begin_ladder(run, at, grace=0.0)
            assert run.ladder is not None
            run.ladder.emptied = True
            self._ctx.changed(run)
        elif run.clearing:
            for child in reversed(run.subtree()[1:]):
                self._lifecycle.finish(child, at)
            self._cleared(run, at)
        else:
            for each in reversed(run.subtree()):
                self._lifecycle.finish(each, at)

    def retry_in_session(self, run: Run, at: float, why: str, *, empty: bool = False) -> bool:
        """End the attempt of a run, and have the next one continue its agent's session. `why` goes
        into the event, as in "attempt 1 of 3 was silent for 15m"; `empty`: nothing is alive in its
        containment. Return whether that is possible: else nothing has changed."""
        if run.agent_session is None or not self._has_another(run):
            return False
        run.latest.cut_short = why
        run.latest.next_resumes = True
        self._retry(run, at, empty=empty)
        return True

    @staticmethod
    def _has_another(run: Run) -> bool:
        running = run.status in {Status.RUNNING, Status.PAUSED}
        return (
            running
            and run.agent_session is not None
            and run.attempt < run.asked.retries.attempts
            and run.cut is None
        )

    def agent_session_saved(self, run: Run, ev: e.AgentSessionSaved) -> None:
        """Take note of the session that a further attempt, or another run, can continue."""
        if run.agent_session != ev.session:
            run.agent_session = ev.session
            self._ctx.save_and_record(run)

    def _retry(self, run: Run, at: float, *, empty: bool = False) -> None:
        run.latest.next_resumes |= run.asked.retries.resume
        run.latest.failed_at = at
        self._clear(run, at, empty=empty)

    def _clear(self, run: Run, at: float, *, empty: bool) -> None:
        """Stop what is alive in a run, and below it, before something is executed in it again."""
        if run.status is not Status.RUNNING:
            run.move(Status.RUNNING)
        run.move(Status.RETRYING)
        frozen = paused_in(run)
        self._lifecycle.unpause(run)
        self._lifecycle.fail_pauses(run, "exited before it was paused")
        self._lifecycle.halt_clock(run, at)
        self._lifecycle.cancel_below(run, at, None)
        if empty:  # a signal could arrive late, and end the next attempt
            for child in reversed(run.subtree()[1:]):
                self._lifecycle.finish(child, at)
            self._cleared(run, at)
        else:
            self._stopping.begin_ladder(
                run, at, grace=grace_of(run, self._ctx.policy), frozen=frozen
            )
        self._ctx.save_and_record(run)

    def _cleared(self, run: Run, at: float) -> None:
        self._lifecycle.leave_ladder(run)
        if run.latest.next_stage is not None:
            run.retry_at = at
            self._ctx.changed(run)
            self._ctx.arm(run, Timer.RETRY, at)
            return
        policy = self._ctx.policy
        first = (
            run.asked.retries.retry_delay
            if run.asked.retries.retry_delay is not None
            else policy.attempts.delay
        )
        wait = backoff(run.id, run.attempt, first=first, cap=max(policy.attempts.delay_max, first))
        run.retry_at = at + wait
        self._ctx.changed(run)
        self._ctx.arm(run, Timer.RETRY, run.retry_at)
        how = run.latest.cut_short or (
            _failure(run.latest).message if run.latest.exit is not None else "failed"
        )
        next_ = (
            "the next continues its session"
            if run.latest.next_resumes and run.agent_session is not None
            else "the next begins"
        )
        if run.stopped_children is not None:
            how, run.stopped_children = f"{how}; {run.stopped_children.message}", None
        message = (
            f"attempt {run.attempt} of {run.asked.retries.attempts} {how}; {next_} in {wait:.1f} s"
        )
        self._ctx.publish(EventType.RUN_PROGRESS, run, message)

    def retry_due(self, run: Run) -> None:
        if run.status is Status.RETRYING and not run.clearing and not run.paused_in_lineage:
            self._lifecycle.launch(run)

    def agent_said(self, run: Run, ev: e.AgentSaid) -> None:
        """Take note of the agent's words; an agent that has printed its final result is expected to
        exit."""
        latest = run.latest
        if run.status is Status.STOPPING or latest.stage or latest.next_stage is not None:
            return
        trouble, latest.trouble = latest.known_trouble, ev.trouble
        self._publish_trouble(run, trouble, ev.at)
        before = latest.said_finished
        if (ev.finished, ev.failed) != (before, latest.said_failed):
            latest.said_finished, latest.said_failed = ev.finished, ev.failed
            self._ctx.changed(run)
        if ev.finished and not before:
            self.await_exit(run, ev.at)
        elif before and not ev.finished:
            self._ctx.disarm(run, Timer.RESULT)

    def await_exit(self, run: Run, at: float) -> None:
        """Give an agent that has printed its final result, or made its last call, a while to
        exit."""
        latest = run.latest
        finished = latest.said_finished and not run.asked.takes_input
        if (finished or latest.last_call == "made") and not latest.stage:
            self._ctx.arm(run, Timer.RESULT, at + self._ctx.policy.stop.result_wait)

    def call_ended(self, run: Run, end: EndCall, at: float) -> None:
        """Take note of how a call of the gateway ended."""
        latest = run.latest
        if run.status is Status.STOPPING or not (end.failed or latest.failing):
            return
        before = latest.known_trouble
        if end.failed:
            # an error in the place of an answer may come with 200
            status = end.status if end.status is not None and end.status >= 400 else None
            count = latest.failing.count if latest.failing is not None else 0
            # Claude Code sends a request that was refused at once again, in five other forms: the
            # API has refused one answer
            known = latest.failing.status if latest.failing is not None else None
            if status != known or status not in _REFUSALS:
                count += 1
            latest.failing = ApiTrouble(
                count=count, status=status, error=(end.error or "")[:MAX_ERROR]
            )
        elif end.status is not None:
            latest.failing = None
        self._publish_trouble(run, before, at)

    def call_silent(self, run: Run, name: str, silence: Silence | None) -> None:
        """Take note of a call whose reply does not begin, or has begun late."""
        quiet = not run.account.silences and run.latest.known_trouble is None
        run.account.set_silence(name, silence)
        self._ctx.changed(run)
        if run.status is Status.STOPPING:
            return
        if silence is not None and quiet:
            self._ctx.publish(
                EventType.RUN_PROGRESS,
                run,
                f"the API is silent: no byte has come from {silence.host}",
            )
        elif silence is None and not run.account.silences and run.latest.known_trouble is None:
            self._ctx.publish(EventType.RUN_PROGRESS, run, "the API has begun to answer")

    def _publish_trouble(self, run: Run, before: ApiTrouble | None, at: float) -> None:
        """Publish when calls of the model begin to fail, whenever twice as many have failed, and
        when it answers again."""
        trouble = run.latest.known_trouble
        if trouble == before:
            return
        self._ctx.changed(run)
        if before is None or trouble is None:
            run.latest.failing_since = at if trouble is not None else None
            self._ctx.watch(run)
        if trouble is None:
            self._ctx.publish(EventType.RUN_PROGRESS, run, "the API answers again")
        elif before is None or trouble.count.bit_length() > before.count.bit_length():
            self._ctx.publish(EventType.RUN_PROGRESS, run, trouble.sentence)

    def result_due(self, run: Run, at: float) -> None:
        """Stop a run whose agent has printed its final result, or made its last call, and does not
        exit."""
        latest = run.latest
        if latest.last_call == "made":
            self.end_concluded(run, at)
            return
        if not latest.said_finished or run.status not in {
            Status.STARTING,
            Status.RUNNING,
            Status.PAUSED,
        }:
            return
        if run.status is not Status.RUNNING:
            self._ctx.arm(run, Timer.RESULT, at + self._ctx.policy.stop.result_wait)
            return
        if (
            latest.said_failed is not None
            and run.attempt < run.asked.retries.attempts
            and run.cut is None
        ):
            self._retry(run, at)
            return
        outcome, said = _said(latest)
        if outcome is Status.COMPLETED and self._goes_on(run):
            words = "the agent printed its final result and did not exit; it is being stopped"
            self._ctx.publish(EventType.RUN_PROGRESS, run, words)
            self._succeeded(run, at, empty=False)
            return
        wait = f"{self._ctx.policy.stop.result_wait:g} s"
        message = (
            f"the agent printed {said} and did not exit within {wait}; "
            "it was stopped (stop.result_wait)"
        )
        self._stopping.stop(
            run, at, Ending(outcome, Reason(kind=ReasonKind.RESULT, message=message))
        )

    def last_call_ended(self, run: Run, at: float, *, made: bool) -> None:
        """Take note of the end of a run's last call. `made`: it was answered, else it may be made
        again."""
        run.latest.last_call = "made" if made else None
        if made:
            run.after_cut = (
                f"it is stopped if it has not ended {self._ctx.policy.stop.result_wait:g} s "
            )
            run.after_cut += "after its last call"
            self.await_exit(run, at)
        else:
            run.cut = None
        self._ctx.changed(run)

    def end_concluded(self, run: Run, at: float) -> None:
        """Stop a run that has made its last call."""
        running = run.status in {Status.STARTING, Status.RUNNING, Status.PAUSED}
        if running and run.cut is not None:
            self._stopping.stop_for(run, run.cut, at)


def _said(attempt: Attempt) -> tuple[Status, str]:
    """Return the outcome of an attempt by its final result, and what the agent printed."""
    if attempt.said_failed is None:
        return Status.COMPLETED, "its final result"
    return Status.FAILED, f"that it failed ({attempt.said_failed})"


def _failure(
    attempt: Attempt, last_line: str | None = None, below: FailedBelow | None = None
) -> Reason:
    """Return why an attempt failed. What its agent says of it is told rather than the last line on
    its stderr, and rather than what `sfactl run` says there of a run below it, the cause of
    that."""
    exit_, said = attempt.exit, attempt.said_failed
    assert exit_ is not None
    if exit_.signal is not None:
        return Reason(
            kind=ReasonKind.SIGNAL,
            message=f"killed by {signal_name(exit_.signal)}",
            signal=exit_.signal,
        )
    if exit_.success:
        return Reason(
            kind=ReasonKind.AGENT, message=f"exited with code 0, but said that it failed: {said}"
        )
    if not said and last_line and below is not None and below.is_told_by(last_line):
        told = f"exited with code {exit_.code}: {PATH.join(below.path)}: {below.cause}"
        return Reason(kind=ReasonKind.EXIT, message=told, below=below.path)
    words = said or last_line
    return Reason(
        kind=ReasonKind.EXIT,
        message=f"exited with code {exit_.code}{f': {words}' if words else ''}",
    )


def backoff(run: RunId, attempt: int, *, first: float, cap: float) -> float:
    """Return the seconds to wait after the failure of attempt number `attempt` (1 is the first).

    They double each time up to `cap`; of that, between half and all is taken, so that runs that
    failed together do not start together. The jitter is a hash of run and attempt, so that the core
    stays reproducible."""
    ceiling = min(cap, first * 2.0 ** min(attempt - 1, 60))
    digest = hashlib.blake2b(f"{run}:{attempt}".encode(), digest_size=8).digest()
    return ceiling * (0.5 + 0.5 * int.from_bytes(digest, "big") / 2**64)
