"""Requests to stop: of clients, which wait for the answer; of the daemon's own end; and the loss of a foreground client."""

from collections.abc import Iterable

from ...protocol.event_types import EventType
from ...protocol.types import ErrorCode, Reason, Survivor
from .. import commands as c
from .. import events as e
from ..context import Context
from ..state.ladder import check_grace
from ..state.policy import Invalid
from ..state.run import Run
from ..state.tree import Ticket
from ..state.vocabulary import ReasonKind, Timer, signal_name
from .stopping import Stopping

RECONNECT = 10.0
"""Seconds that a client has to come back to a restarted daemon before the runs that are tied to it are stopped."""

GONE = -1
"""The connection that a run is tied to until its client is back: each daemon numbers connections from 1."""


class StopRequests:
    def __init__(self, context: Context, stopping: Stopping) -> None:
        self._ctx = context
        self._stopping = stopping
        self._tickets: list[Ticket] = []

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
        self._tickets.append(Ticket(ev.token, ev.at, {run.id for run in live}, [*ended], ended=ended))
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
            self._ctx.publish(EventType.ALERT_SURVIVORS, run, message, severity="high")
        awaited = {run_id for ticket in self._tickets for run_id in ticket.pending}
        for each in run.subtree():
            if each is run:
                self._tell(each, ev.at, ev.survivors)
            elif each.ladder is None and each.id in awaited:
                # it is on this ladder and has no survey of its own
                below = {r.id for r in each.subtree()}
                self._tell(each, ev.at, [s for s in ev.survivors if s.run_id in below])

    def tell_ended(self, ended: Iterable[Run], at: float) -> None:
        for run in ended:
            self._tell(run, at)

    def _tell(self, run: Run, at: float, survivors: Iterable[Survivor] = ()) -> None:
        for ticket in [ticket for ticket in self._tickets if run.id in ticket.pending]:
            ticket.stop_waiting_for(run.id, survivors)
            if not ticket.pending:
                self._tickets.remove(ticket)
                done = c.StopDone(tuple(ticket.stopped), tuple(ticket.survivors), at - ticket.began_at, ticket.ended)
                self._ctx.reply(ticket.token, done)

    def tickets(self) -> tuple[Ticket, ...]:
        return tuple(self._tickets)

    def restore(self, tickets: Iterable[Ticket]) -> None:
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
        message = "its foreground client went away (start it with --keep to let it go on)"
        reason = Reason(kind=ReasonKind.CLIENT, message=message)
        for run in [run for run in self._ctx.tree if run.tied_to == ev.client]:
            self._stopping.stop_or_hasten(run, ev.at, reason)

    def client_back(self, run: Run, ev: e.ClientBack) -> None:
        run.tied_to = ev.client
        self._ctx.disarm(run, Timer.RECONNECT)
        self._ctx.changed(run)

    def expect_client(self, run: Run, at: float) -> None:
        """Give the client of a run that was tied to an earlier daemon's connection a while to come back."""
        if run.tied_to == GONE:
            self._ctx.arm(run, Timer.RECONNECT, at + RECONNECT)

    def reconnect_due(self, run: Run, at: float) -> None:
        message = (
            f"its foreground client did not come back within {RECONNECT:g} s of the daemon's restart "
            "(start it with --keep to let it go on)"
        )
        self._stopping.stop_or_hasten(run, at, Reason(kind=ReasonKind.CLIENT, message=message))
