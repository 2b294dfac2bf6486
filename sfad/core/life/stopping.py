"""Stops a run and what is below it: decides the end, and climbs the ladder until the containment is
empty."""

from collections.abc import Iterable, Sequence
from signal import SIGTERM

from msgspec import Struct

from ...protocol.event_types import EventType
from ...protocol.types import ErrorCode, Reason, RunId, Status, Survivor, Unreached
from .. import commands as c
from .. import events as e
from ..context import Context, grace_of
from ..state.naming import program_name
from ..state.policy import Invalid
from ..state.run import SURVEY_AGAIN, Ending, Ladder, Run, Rung, check_grace
from ..state.tree import StopTicket
from ..state.vocabulary import ReasonKind, Timer, signal_name
from .lifecycle import Lifecycle


class Stopping(Struct, frozen=True):
    _ctx: Context
    _lifecycle: Lifecycle

    def stop_or_hasten(
        self,
        run: Run,
        at: float,
        reason: Reason,
        *,
        signal: int = SIGTERM,
        grace: float | None = None,
    ) -> None:
        """Stop a run because a client, the daemon's end or a lost connection asks for it; sooner,
        if it is being stopped."""
        if self._ctx.tree.get(run.id) is None:
            return  # an earlier stop of the same event took it with an ancestor
        if run.status is Status.STOPPING:
            self._hasten(run, at, signal=signal, grace=grace_of(run, self._ctx.policy, grace))
        else:
            self.stop(run, at, Ending(Status.CANCELLED, reason), signal=signal, grace=grace)

    def stop(
        self,
        run: Run,
        at: float,
        ending: Ending,
        *,
        signal: int = SIGTERM,
        grace: float | None = None,
    ) -> None:
        """Decide how the run ends, cancel what is below it, and begin to empty its containment."""
        seconds = grace_of(run, self._ctx.policy, grace)
        still = run.parent is not None and run.parent.frozen_in_lineage
        frozen = paused_in(run)
        self._lifecycle.cancel_below(run, at, ending)
        self._lifecycle.decide_end(run, at, ending)
        if run.attempt == 0 or (run.remote is not None and run.remote.node is None):
            self._lifecycle.finish(run, at)
        elif run.ladder is None:
            # under a frozen ancestor no process can use a grace
            self.begin_ladder(
                run, at, signal=signal, grace=0.0 if still else seconds, frozen=frozen
            )
        else:
            self._hasten(run, at, signal=signal, grace=seconds)

    def stop_for(self, run: Run, reason: Reason, at: float) -> None:
        status = Status.TIMEOUT if reason.limit_kind in ("time", "pause_max") else Status.FAILED
        self.stop(run, at, Ending(status, reason))

    def begin_ladder(
        self,
        run: Run,
        at: float,
        *,
        grace: float,
        signal: int = SIGTERM,
        frozen: Sequence[RunId] | None = None,
    ) -> None:
        """Begin to empty the run's containment. `frozen`: what was paused in it; `None`: no program
        is given time of its own."""
        run.ladder = Ladder(
            signal=signal, grace_ends_at=at + grace, kill_wait=self._ctx.policy.stop.kill_wait
        )
        polite = min(self._ctx.policy.stop.polite, grace)
        first = self._to_interrupt(run) if polite > 0 and frozen is not None else frozenset()
        if frozen is None or not first:
            self.terminate(run)
        else:
            self._interrupt(run, run.ladder, first, at + polite, frozen)

    def _to_interrupt(self, run: Run) -> frozenset[RunId]:
        """Return the runs in it whose program wants to be interrupted first, and where nothing was
        sent to all processes yet."""
        above = len(run.lineage_ids)
        return frozenset(
            each.id
            for each in run.subtree()
            if each.pid is not None
            and program_name(each.asked.shown.argv) in self._ctx.policy.interrupted
            and all(
                below.ladder is None or below.ladder.rung is Rung.INTERRUPTED
                for below in each.lineage[above:]
            )
        )

    def _interrupt(
        self,
        run: Run,
        ladder: Ladder,
        runs: frozenset[RunId],
        until: float,
        frozen: Sequence[RunId],
    ) -> None:
        # a second SIGINT makes some programs give up at once
        before = {
            run_id
            for each in run.subtree()
            if each.ladder is not None
            for run_id in each.ladder.interrupted
        }
        ladder.rung, ladder.interrupted, ladder.polite_ends_at = Rung.INTERRUPTED, runs, until
        self._ctx.changed(run)
        for run_id in sorted(runs - before):
            self._ctx.do(c.Interrupt(run_id))
        for run_id in frozen:
            self._ctx.do(c.Thaw(run_id))
        self._ctx.arm(run, Timer.POLITE, until)

    def terminate(self, run: Run) -> None:
        ladder = run.ladder
        assert ladder is not None
        if ladder.rung is Rung.INTERRUPTED:
            ladder.rung, ladder.interrupted = Rung.SIGNALLED, frozenset()
            self._ctx.disarm(run, Timer.POLITE)
        self._ctx.changed(run)
        self._ctx.do(c.Terminate(run.id, ladder.signal))
        self._ctx.arm(run, Timer.GRACE, ladder.grace_ends_at)

    def kill(self, run: Run, at: float) -> None:
        """Kill what is still alive in the run, from now on."""
        assert run.ladder is not None
        run.ladder.kill(at)
        self._ctx.changed(run)
        self._ctx.do(c.Kill(run.id))
        self._ctx.arm(run, Timer.SURVEY, max(at, run.ladder.overdue_at))

    def _hasten(self, run: Run, at: float, *, signal: int, grace: float) -> None:
        """Stop a run again that is being stopped: sooner is possible, later is not."""
        ladder = run.ladder
        above = [(each.id, each.ladder) for each in run.lineage if each.ladder is not None]
        if run.attempt == 0 or (run.remote is not None and run.remote.node is None):
            self._lifecycle.finish(run, at)  # cancelled with an ancestor before it was launched
        elif ladder is not None and ladder.rung is Rung.INTERRUPTED:
            ladder.grace_ends_at = min(ladder.grace_ends_at, at + grace)
            self.terminate(run)
        elif ladder is not None and ladder.shorten(at + grace):
            self._ctx.changed(run)
            self._ctx.arm(run, Timer.GRACE, at + grace)
        elif ladder is None and all(at + grace < other.grace_ends_at for _, other in above):
            self.begin_ladder(run, at, signal=signal, grace=grace)
        else:
            # its own ladder answers; without one, any that it is on
            overdue = [
                run_id for run_id, other in above if other.overdue and ladder in (None, other)
            ]
            if overdue:
                self._ctx.do(c.Survey(overdue[-1]))

    def main_ended(self, run: Run) -> None:
        """Note that the main process of a run that is being stopped has ended, perhaps because it
        was interrupted."""
        for above in run.lineage:
            ladder = above.ladder
            if ladder is not None and run.id in ladder.interrupted:
                ladder.interrupted -= {run.id}
                if ladder.interrupted:
                    self._ctx.changed(above)
                else:
                    self.terminate(above)

    def still_interrupted(self, ladder: Ladder, at: float) -> bool:
        """Return whether main processes that an earlier daemon interrupted have time left. They are
        not interrupted again."""
        if ladder.rung is not Rung.INTERRUPTED:
            return False
        there = {
            run_id
            for run_id in ladder.interrupted
            if (run := self._ctx.tree.get(run_id)) is not None and run.pid is not None
        }
        ladder.interrupted = frozenset(there)
        return bool(there) and at < ladder.polite_ends_at

    def polite_due(self, run: Run) -> None:
        if run.ladder is not None and run.ladder.rung is Rung.INTERRUPTED:
            self.terminate(run)

    def grace_due(self, run: Run, at: float) -> None:
        if run.ladder is not None:
            self.kill(run, at)

    def survey_due(self, run: Run, at: float) -> None:
        if run.ladder is not None and not run.ladder.overdue:
            self._ctx.do(c.Survey(run.id))
            # the last process may be ending just now: then the answer is `Emptied`, or survivors
            # the next time
            self._ctx.arm(run, Timer.SURVEY, at + SURVEY_AGAIN)

    def drained_at(self, at: float) -> float:
        """Return when the last ladder ends: what is alive then may stay."""
        return max(
            [at, *(run.ladder.overdue_at for run in self._ctx.tree if run.ladder is not None)]
        )


def paused_in(run: Run) -> list[RunId]:
    return [each.id for each in run.subtree() if each.paused is not None]


# ---- Requests to stop: of clients, which wait for the answer; of the daemon's own end; and the
# loss of a foreground client

RECONNECT = 10.0
"""Seconds that a client has to come back to a restarted daemon before the runs that are tied to it
are stopped."""

GONE = -1
"""The connection that a run is tied to until its client is back: each daemon numbers connections
from 1."""


class StopRequests:
    def __init__(self, context: Context, stopping: Stopping) -> None:
        self._ctx = context
        self._stopping = stopping
        self._tickets: list[StopTicket] = []

    def stop_requested(self, ev: e.StopRequested) -> None:
        """Stop runs; the answer comes when nothing of them is alive, or something survived."""
        try:
            check_grace(ev.grace)
        except Invalid as invalid:
            self._ctx.fail(ev.token, ErrorCode.BAD_REQUEST, str(invalid))
            return
        run_ids = list(dict.fromkeys(ev.runs))
        live = [run for run_id in run_ids if (run := self._ctx.tree.get(run_id)) is not None]
        if self._ctx.denied(ev, "stop", live):
            return
        ended = tuple(run_id for run_id in run_ids if self._ctx.tree.get(run_id) is None)
        if not live:
            self._ctx.reply(ev.token, c.StopDone(ended, (), 0.0, ended))
            return
        self._tickets.append(
            StopTicket(ev.token, ev.at, {run.id for run in live}, [*ended], ended=ended)
        )
        by = ev.peer.who
        message = f"stopped by {by} ({signal_name(ev.signal)})"
        reason = Reason(kind=ReasonKind.STOP, message=message, by=by, signal=ev.signal)
        for run in live:
            self._stopping.stop_or_hasten(run, ev.at, reason, signal=ev.signal, grace=ev.grace)

    def surveyed(self, run: Run, ev: e.Surveyed) -> None:
        """Tell those who wait for the run, or for one below it, what survives."""
        if run.ladder is None or not ev.survivors:
            return
        if not run.ladder.overdue:
            run.ladder.overdue = True
            self._ctx.changed(run)
            listed = ", ".join(f"{s.pid} ({s.why})" for s in ev.survivors[:8])
            message = f"alive {run.ladder.kill_wait:g} s after SIGKILL: {listed}"
            self._ctx.publish(EventType.SURVIVORS, run, message, severity="high")
        awaited = {run_id for ticket in self._tickets for run_id in ticket.pending}
        for each in run.subtree():
            if each is run:
                self._tell(each, ev.at, ev.survivors)
            elif each.ladder is None and each.id in awaited:
                # it is on this ladder and has no survey of its own
                below = {r.id for r in each.subtree()}
                self._tell(each, ev.at, [s for s in ev.survivors if s.run_id in below])

    @property
    def waiting(self) -> bool:
        """Whether a stop request waits for the end of runs."""
        return bool(self._tickets)

    def tell_ended(self, ended: Iterable[Run], at: float) -> None:
        for run in ended:
            self._tell(run, at)

    def unreached(self, run: Run, at: float) -> None:
        """Tell those who wait for a run that executes elsewhere, or for one above it of which
        nothing else is alive, that its end cannot be known now."""
        for each in run.lineage:
            if each is run or each.waits_for_unreached:
                found = [
                    Unreached(
                        run_id=below.id, node=below.remote.node or "", why=below.remote.unreached
                    )
                    for below in each.subtree()
                    if below.remote is not None and below.remote.unreached
                ]
                for ticket in self._waiting_for(each):
                    ticket.give_up(each.id, found)
                    self._answer(ticket, at)

    def _waiting_for(self, run: Run) -> list[StopTicket]:
        return [ticket for ticket in self._tickets if run.id in ticket.pending]

    def _tell(self, run: Run, at: float, survivors: Iterable[Survivor] = ()) -> None:
        for ticket in self._waiting_for(run):
            ticket.stop_waiting_for(run.id, survivors)
            self._answer(ticket, at)

    def _answer(self, ticket: StopTicket, at: float) -> None:
        """Answer the request, unless it still waits for a run."""
        if ticket.pending:
            return
        self._tickets.remove(ticket)
        done = c.StopDone(
            tuple(ticket.stopped),
            tuple(ticket.survivors),
            at - ticket.began_at,
            ticket.ended,
            tuple(ticket.unreached),
        )
        self._ctx.reply(ticket.token, done)

    def tickets(self) -> tuple[StopTicket, ...]:
        return tuple(self._tickets)

    def restore(self, tickets: Iterable[StopTicket]) -> None:
        """Continue with stop requests of an earlier daemon."""
        self._tickets.extend(tickets)

    def drain_requested(self, ev: e.DrainRequested) -> None:
        grace = 0.0 if self._ctx.draining else None
        self._ctx.drain()
        because = f": {ev.cause}" if ev.cause else ""
        message = f"the daemon was stopped ({signal_name(ev.signal)}){because}"
        reason = Reason(kind=ReasonKind.DAEMON, message=message, signal=ev.signal)
        for root in self._ctx.tree.roots():
            self._stopping.stop_or_hasten(root, ev.at, reason, grace=grace)

    def client_gone(self, ev: e.ClientGone) -> None:
        for run in [run for run in self._ctx.tree if run.tied_to == ev.client]:
            words = _client_gone(run, "went away")
            reason = Reason(kind=ReasonKind.CLIENT, message=words)
            self._stopping.stop_or_hasten(run, ev.at, reason)

    def client_back(self, run: Run, ev: e.ClientBack) -> None:
        run.tied_to = ev.client
        self._ctx.disarm(run, Timer.RECONNECT)
        self._ctx.changed(run)

    def expect_client(self, run: Run, at: float) -> None:
        """Give the client of a run that was tied to an earlier daemon's connection a while to come
        back."""
        if run.tied_to == GONE:
            self._ctx.arm(run, Timer.RECONNECT, at + RECONNECT)

    def expect_no_client(self, run: Run) -> None:
        """Wait for that client no longer: it is stopped, and cannot come back before it is
        continued."""
        if run.tied_to == GONE:
            self._ctx.disarm(run, Timer.RECONNECT)

    def reconnect_due(self, run: Run, at: float) -> None:
        how = f"did not come back within {RECONNECT:g} s of the daemon's restart"
        reason = Reason(kind=ReasonKind.CLIENT, message=_client_gone(run, how))
        self._stopping.stop_or_hasten(run, at, reason)


def _client_gone(run: Run, how: str) -> str:
    """Return why a run ends that was tied to a client."""
    if run.asked.in_program:
        return f"its program {how} without ending it"
    return f"its foreground client {how} (start it with --keep to let it go on)"
