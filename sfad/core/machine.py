"""The machine: one event in, the commands it calls for out. Composes guard, tree, ladder, retry, quotas and access.

Nothing here reads a clock or does I/O. Commands are to be applied in order; the events they cause are fed back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from signal import SIGTERM, Signals
from typing import Any

from ..protocol import types
from ..protocol.errors import ErrorCode
from ..protocol.types import ApiTrouble, Reason, Refusal, RunId, Status, Survivor
from . import commands as c
from . import events as e
from .access import FULL, Peer, Permissions, refuse_target, refuse_verb
from .admission import candidate, check_grace
from .enforcement import MORE, Limiter
from .guard import Question, decide
from .naming import program_name
from .policy import Invalid, Policy
from .quotas import SlidingWindow, Slots
from .retry import backoff
from .run import Exit, Run
from .snapshot import Ticket
from .stop import KILL_AGAIN, Rung, Stop
from .takeover import Recovery
from .tree import Tree

HOUR = 3600.0

REFUSALS_WRITTEN = 10
"""Refusals a minute for the same run and rule that get a row of their own; more are counted in the last one (SPEC section 2)."""

MAX_ADVICE = 1000
"""Types and names that something was learnt about. An agent can invent any number of names; what is forgotten is learnt again."""

ENDINGS = {
    Status.COMPLETED: "run_completed",
    Status.FAILED: "run_failed",
    Status.TIMEOUT: "run_timeout",
    Status.CANCELLED: "run_cancelled",
    Status.LOST: "run_lost",
}


@dataclass(slots=True)
class _Ticket:
    """A stop request that waits for its runs."""

    token: int
    began_at: float
    pending: set[RunId]
    stopped: list[RunId] = field(default_factory=list)
    survivors: dict[int, Survivor] = field(default_factory=dict)
    """By pid: what is in a child is in its parent too."""


@dataclass(slots=True)
class _Refusals:
    window: SlidingWindow
    last: RunId = ""


class Machine:
    """All live runs and every decision about them."""

    def __init__(self, policy: Policy, *, next_number: int = 1, reservations: int = 0) -> None:
        """`reservations`: as many may have been made before; their names are not used again."""
        self.policy = policy
        self.tree = Tree()
        self.slots = Slots(per_user=policy.trees_per_user, total=policy.trees)
        self.draining = False
        self.admitted = 0
        self.refused = 0
        self._number = next_number
        self._rates: dict[str, SlidingWindow] = {}
        self._refusals: dict[tuple[str, str], _Refusals] = {}
        self._tied: dict[int, set[RunId]] = {}
        self._tickets: dict[RunId, list[_Ticket]] = {}
        self._out = c.Outcome()
        self._handlers: dict[type, Callable[[Any], None]] = {
            e.SpawnRequested: self._spawn_requested,
            e.StopRequested: self._stop_requested,
            e.PauseRequested: self._pause_requested,
            e.ResumeRequested: self._resume_requested,
            e.ClientGone: self._client_gone,
            e.Committed: self._committed,
            e.CommitFailed: self._commit_failed,
            e.LaunchSucceeded: self._launch_succeeded,
            e.LaunchFailed: self._launch_failed,
            e.MainExited: self._main_exited,
            e.Emptied: self._emptied,
            e.Frozen: self._frozen,
            e.AgentSaid: self._agent_said,
            e.Surveyed: self._surveyed,
            e.TimerFired: self._timer_fired,
            e.DrainRequested: self._drain_requested,
            e.Reconfigured: self._reconfigured,
            e.AdviceLearned: self._advice_learned,
        }

        self.limiter = Limiter(self, reservations)
        self._recovery = Recovery(self)
        self._handlers |= self.limiter.handlers | self._recovery.handlers
        self._timers: dict[str, Callable[[Run, float], None]] = {
            **self.limiter.timers,
            **self._recovery.timers,
            "result": self._result_due,
            "polite": self._polite_due,
            "grace": self._grace_due,
            "kill": self._kill_due,
            "survey": self._survey_due,
            "retry": self._retry_due,
        }

    def reconfigure(self, policy: Policy) -> None:
        """Decides by other numbers from now on. What was admitted keeps its own bounds."""
        self.policy = policy
        self.slots.per_user, self.slots.total = policy.trees_per_user, policy.trees
        for rate in self._rates.values():
            rate.limit = policy.spawns_per_hour

    def handle(self, event: e.Event) -> c.Outcome:
        """Return what `event` calls for."""
        self._out = out = c.Outcome()
        self._handlers[type(event)](event)
        return out

    def learn(self, event: e.Event) -> None:
        """Handle an event while another one is being handled: its commands come with the other one's."""
        self._handlers[type(event)](event)

    def permissions(self, peer: Peer) -> Permissions:
        """What the run that the peer is in may do; everything, outside any run."""
        if peer.run is None:
            return FULL
        run = self.tree.get(peer.run)
        return run.permissions if run is not None else Permissions(frozenset(), leaf=True)

    def refuse(self, peer: Peer, verb: str, chain: list[RunId] | None = None) -> str | None:
        """Why the peer may not use `verb` (on the run at the end of `chain`), or `None`."""
        refused = refuse_verb(peer, verb, self.permissions(peer))
        if refused is None and chain is not None:
            refused = refuse_target(peer, verb, chain)
        return refused

    # ---- admission

    def _spawn_requested(self, ev: e.SpawnRequested) -> None:
        try:
            run = candidate(
                ev,
                number=self._number,
                policy=self.policy,
                peer_run=self.tree.get(ev.peer.run) if ev.peer.run is not None else None,
                permissions=self.permissions(ev.peer),
            )
        except Invalid as invalid:
            self.reply(ev.token, c.Failed(ErrorCode.BAD_REQUEST, str(invalid)))
            return
        refusal = decide(self._question(ev, run))
        if refusal is not None:
            self._refuse(ev, run, refusal)
            return
        self._admit(ev, run)

    def _question(self, ev: e.SpawnRequested, run: Run) -> Question:
        peer = ev.peer
        parent = self.tree.get(peer.run) if peer.run is not None else None
        if peer.run is not None and parent is None:
            peer = Peer(peer.uid, peer.user, peer.owner, peer.run, unplaced=f"its run {peer.run} has ended")
        policy = self.policy
        return Question(
            at=ev.at,
            enabled=policy.enabled,
            draining=self.draining,
            peer=peer,
            asked=ev.asked,
            identity=run.identity,
            name=run.name,
            parent=parent,
            above=run.parent,
            origin=run.root.origin,
            claimed_depth=run.root.claimed_depth,
            max_depth=run.max_depth,
            allow_detach=policy.allow_detach,
            rate=self._rate(peer.user),
            slots=self.slots,
            exhausted=self.limiter.budgets.exhausted(peer.user),
            place=policy.place,
        )

    def _rate(self, user: str) -> SlidingWindow:
        return self._rates.setdefault(user, SlidingWindow(self.policy.spawns_per_hour, HOUR))

    def spawned_before(self, user: str, at: float) -> None:
        """A root that an earlier daemon admitted: it counts against the rate. To be told oldest first."""
        self._rate(user).take(at)

    def _refuse(self, ev: e.SpawnRequested, run: Run, refusal: Refusal) -> None:
        self.refused += 1
        # a run that has ended is not counted by itself: nothing would ever forget it
        placed = ev.peer.run is not None and self.tree.get(ev.peer.run) is not None
        asker = ev.peer.run if ev.peer.run is not None and placed else f"user {ev.peer.user}"
        seen = self._refusals.setdefault((asker, refusal.kind), _Refusals(SlidingWindow(REFUSALS_WRITTEN, 60.0)))
        if seen.window.full(ev.at):
            self.do(c.CountRefusal(seen.last))
            self.reply(ev.token, c.Refused(refusal, None))
            return
        seen.window.take(ev.at)
        seen.last = run.id
        self._number += 1
        run.admit_token = ev.token
        run.status = refusal.kind.status
        run.ended_at = ev.at
        run.reason = Reason(kind=refusal.kind, message=refusal.message)
        self.do(c.RecordRefusal(run))
        self.publish("run_rejected", run, refusal.detail)
        self.reply(ev.token, c.Refused(refusal, run.id))

    def _admit(self, ev: e.SpawnRequested, run: Run) -> None:
        self._number += 1
        self.admitted += 1
        self.tree.add(run)
        self._keep_above(run)
        run.admit_token = ev.token
        run.tied_to = run.asked.tied_to
        if run.tied_to is not None:
            self.tie(run, run.tied_to)
        if run.parent is None:
            self._rate(run.user).take(ev.at)
            self._take_slot(run)
        self.do(c.Admit(run))

    def _take_slot(self, root: Run) -> None:
        if self.slots.free_for(root.user):
            self.slots.take(root.id, root.user)
        else:
            root.move(Status.QUEUED)
            self.slots.enqueue(root.id, root.user, root.asked.priority)

    def _committed(self, ev: e.Committed) -> None:
        for name in ev.runs:
            run = self.tree.get(name)
            if run is None or run.committed:
                continue
            run.committed = True
            self.changed(run)
            self.publish("run_accepted", run)
            if run.status is Status.QUEUED and self.slots.waits(run.id):
                self.publish("run_queued", run, f"{self.slots.queued} trees wait")
                self._answer_spawn(run)
            elif run.status in {Status.ACCEPTED, Status.QUEUED}:
                self._start(run)

    def _commit_failed(self, ev: e.CommitFailed) -> None:
        for name in ev.runs:
            run = self.tree.get(name)
            if run is None or run.committed:
                continue
            message = f"run {run.id} was not started: the ledger could not record it ({ev.error}); try again when that is fixed"
            if run.admit_token is not None:
                self.reply(run.admit_token, c.Failed(ErrorCode.UNAVAILABLE, message))
                run.admit_token = None
            self._give_back(run)
            if run.status is not Status.STOPPING:
                self._decide_end(run, ev.at, Status.FAILED, Reason(kind="ledger", message=message))
            self._finish(run, ev.at, recorded=False)

    def _give_back(self, run: Run) -> None:
        """What never was costs nothing."""
        self.admitted -= 1
        self.tree.refund(run)
        self._keep_above(run)
        if run.parent is None:
            self._rate(run.user).give_back(run.created_at)

    def _keep_above(self, run: Run) -> None:
        for above in run.lineage[:-1]:
            self.changed(above)

    def _start(self, run: Run) -> None:
        run.move(Status.STARTING)
        run.attempt += 1
        run.exit = None
        if run.said_finished:
            self.do(c.Disarm(run.id, "result"))
        run.said_finished, run.said_failed, run.api_trouble = False, None, None
        self.changed(run)
        self.do(c.Launch(run))

    def admit_waiting(self) -> None:
        """Starts who waits for a place, as far as there are any."""
        while not self.draining and (name := self.slots.next_waiting()) is not None:
            run = self.tree.get(name)
            if run is not None and run.committed:
                self._start(run)

    # ---- the life of a run

    def _launch_succeeded(self, ev: e.LaunchSucceeded) -> None:
        run = self.tree.get(ev.run)
        if run is None:
            return
        run.pid = ev.pid
        if run.started_at is None:
            run.started_at = ev.at
        if run.status is Status.STARTING:
            self.launched(run, ev.pid, ev.at)
        else:
            self.changed(run)

    def launched(self, run: Run, pid: int, at: float) -> None:
        """The command of a run that was starting has been executed."""
        run.pid = pid
        if run.started_at is None:
            run.started_at = at
        run.move(Status.RUNNING)
        if run.standing_still:
            run.move(Status.PAUSED)
            # it was not there yet when its ancestor was frozen, and signals reach only what is there
            self.do(c.Freeze(next(r.id for r in run.lineage if r.frozen)))
        elif run.held_by is None:
            self.limiter.start_clock(run, at)
        self.do(c.Save(run))
        self.publish("run_started", run)
        if run.held_by is not None:
            # in its own name, even where an ancestor is frozen: that one's resume must not let it go on
            self.pause(run, at)
        self._answer_spawn(run)
        if run.parent is None:
            self.limiter.look_at_budgets_of(run, at)

    def _launch_failed(self, ev: e.LaunchFailed) -> None:
        run = self.tree.get(ev.run)
        if run is None:
            return
        if run.status is Status.STARTING:
            # before any retry: a command that is not there will not be there a second later (SPEC section 6)
            reason = Reason(kind=ev.kind, message=ev.error, errno=ev.errno, about=ev.about if ev.kind == "launch" else None)
            if run.children:
                # a foreign process joined this cgroup and asked for them; no run ends before its descendants
                self.begin_stop(run, ev.at, status=Status.FAILED, reason=reason, signal=SIGTERM, grace=self.grace(run))
                return
            self._decide_end(run, ev.at, Status.FAILED, reason)
            self._finish(run, ev.at)

    def _main_exited(self, ev: e.MainExited) -> None:
        run = self.tree.get(ev.run)
        if run is None:
            return
        run.exit = Exit(ev.code, ev.signal)
        run.pid = None
        self.changed(run)
        alone = ev.empty and not run.children
        if run.status is Status.STOPPING:
            if alone:
                self._finish(run, ev.at)
            self._obeyed(run)
        elif run.status is Status.RETRYING:
            pass  # the ladder of the attempt's leftovers reports `Emptied`
        elif run.exit.unknown:
            why = "it outlived the daemon that started it, and the kernel does not tell how it ended"
            self.conclude_unseen(run, ev.at, why, empty=ev.empty)
        elif not _succeeded(run) and run.attempt < run.asked.attempts:
            self._retry(run, ev.at)
        else:
            self._end_by_itself(run, ev.at, alone=alone)

    def _end_by_itself(self, run: Run, at: float, *, alone: bool) -> None:
        assert run.exit is not None
        status = Status.COMPLETED if _succeeded(run) else Status.FAILED
        reason = None if _succeeded(run) else _exit_reason(run.exit, run.said_failed)
        self.conclude(run, at, status, reason, empty=alone)

    def conclude_unseen(self, run: Run, at: float, why: str, *, empty: bool) -> None:
        """End a run whose exit status is lost: as its agent said, if that had printed its final result, else as lost. It is not
        started again in either case: it may have done what it was started for."""
        status, reason = Status.LOST, Reason(kind="daemon", message=why)
        if run.said_finished:
            status = Status.COMPLETED if run.said_failed is None else Status.FAILED
            said = "its final result" if run.said_failed is None else f"that it failed ({run.said_failed})"
            reason = Reason(kind="result", message=f"{why}; before, the agent had printed {said}")
        self.conclude(run, at, status, reason, empty=empty)

    def conclude(self, run: Run, at: float, status: Status, reason: Reason | None, *, empty: bool) -> None:
        """Ends a run whose main process is no more, and stops what it has left. `empty`: nothing is alive in its containment."""
        if empty and not run.children:
            self._decide_end(run, at, status, reason)
            self._finish(run, at)
        else:
            self.begin_stop(run, at, status=status, reason=reason, signal=SIGTERM, grace=self.grace(run))

    def _retry(self, run: Run, at: float) -> None:
        if run.status is Status.PAUSED:
            run.move(Status.RUNNING)
        run.move(Status.RETRYING)
        frozen = _frozen_in(run)
        self._unfreeze(run)
        self._fail_pauses(run, "exited before it was paused")
        self._halt_clock(run, at)
        for child in run.subtree()[1:]:
            self._cancel_with_ancestor(child, run, at)
        run.clearing = True
        self.climb_on(run, at, grace=self.grace(run), frozen=frozen)
        self.do(c.Save(run))

    def _cleared(self, run: Run, at: float) -> None:
        run.clearing = False
        self._disarm_ladder(run)
        run.stop = None
        policy = self.policy
        first = run.asked.retry_delay if run.asked.retry_delay is not None else policy.retry_delay
        run.retry_at = at + backoff(run.id, run.attempt, first=first, cap=max(policy.retry_delay_max, first))
        self.changed(run)
        self.do(c.Arm(run.id, "retry", run.retry_at))
        how = _exit_reason(run.exit, run.said_failed).message if run.exit is not None else "failed"
        wait = run.retry_at - at
        self.publish("run_progress", run, f"attempt {run.attempt} of {run.asked.attempts} {how}; the next begins in {wait:.1f} s")

    def _halt_clock(self, run: Run, at: float) -> None:
        run.clock.halt(at)
        self.do(c.Disarm(run.id, "deadline"))

    # ---- stopping

    def _stop_requested(self, ev: e.StopRequested) -> None:
        try:
            check_grace(ev.grace)
        except Invalid as invalid:
            self.reply(ev.token, c.Failed(ErrorCode.BAD_REQUEST, str(invalid)))
            return
        names = list(dict.fromkeys(ev.runs))
        live = [run for name in names if (run := self.tree.get(name)) is not None]
        if self._denied(ev.token, ev.peer, "stop", live):
            return
        ended = [name for name in names if self.tree.get(name) is None]
        ticket = _Ticket(ev.token, ev.at, {run.id for run in live}, ended)
        for run in live:
            self._tickets.setdefault(run.id, []).append(ticket)
        by = ev.peer.who
        reason = Reason(kind="stop", message=f"stopped by {by} ({_signal_name(ev.signal)})", by=by, signal=ev.signal)
        for run in live:
            self._stop(run, ev.at, reason=reason, signal=ev.signal, grace=ev.grace)
        if not ticket.pending and not live:
            self.reply(ev.token, c.StopDone(tuple(ended), (), 0.0))

    def _stop(self, run: Run, at: float, *, reason: Reason, signal: int, grace: float | None) -> None:
        if self.tree.get(run.id) is None:
            return  # an earlier stop of the same request took an ancestor that had nothing alive
        seconds = self.grace(run, grace)
        if run.status is not Status.STOPPING:
            self.begin_stop(run, at, status=Status.CANCELLED, reason=reason, signal=signal, grace=seconds)
        else:
            self._hasten(run, at, signal=signal, grace=seconds)

    def begin_stop(self, run: Run, at: float, *, status: Status, reason: Reason | None, signal: int, grace: float) -> None:
        """Decides how the run ends, cancels what is below it, and starts the ladder."""
        still = run.parent is not None and run.parent.standing_still
        frozen = _frozen_in(run)
        for child in run.subtree()[1:]:
            self._cancel_with_ancestor(child, run, at)
        self._decide_end(run, at, status, reason)
        if run.attempt == 0:
            self._finish(run, at)
        elif run.stop is None:
            # under a frozen ancestor nothing can use a grace
            self.climb_on(run, at, signal=signal, grace=0.0 if still else grace, frozen=frozen)
        else:
            self._hasten(run, at, signal=signal, grace=grace)

    def _cancel_with_ancestor(self, run: Run, ancestor: Run, at: float) -> None:
        self._unfreeze(run)
        if run.status is not Status.STOPPING:
            message = f"its ancestor {ancestor.id} ('{ancestor.name}') ended or was stopped"
            self._decide_end(run, at, Status.CANCELLED, Reason(kind="ancestor", message=message, by=ancestor.id))

    def _decide_end(self, run: Run, at: float, status: Status, reason: Reason | None) -> None:
        run.move(Status.STOPPING)
        run.outcome = status
        run.reason = _with_trouble(reason, run.api_trouble) if status is not Status.COMPLETED else reason
        run.clearing = False
        self._unfreeze(run)
        self.limiter.release(run)
        if run.said_finished:
            self.do(c.Disarm(run.id, "result"))
        self._halt_clock(run, at)
        self.do(c.Disarm(run.id, "retry"))
        self.changed(run)

    def climb_on(self, run: Run, at: float, *, grace: float, signal: int = SIGTERM, frozen: Sequence[RunId] | None = None) -> None:
        """Begin to empty the run's containment. `frozen`: what was paused in it; `None`: no program is given time of its own."""
        run.stop = Stop(signal=signal, began_at=at, grace_ends_at=at + grace, kill_wait=self.policy.kill_wait)
        polite = min(self.policy.polite, grace)
        asked = self._to_ask(run) if polite > 0 and frozen is not None else frozenset()
        if frozen is None or not asked:
            self.signal_all(run)
        else:
            self._ask(run, asked, at + polite, frozen)

    def _to_ask(self, run: Run) -> frozenset[RunId]:
        """The runs in it whose program wants to be interrupted first, and where nothing was sent to all processes yet."""
        above = len(run.lineage)
        return frozenset(
            each.id
            for each in run.subtree()
            if each.pid is not None
            and program_name(each.asked.argv) in self.policy.interrupted
            and all(below.stop is None or below.stop.rung is Rung.ASKED for below in each.lineage[above:])
        )

    def _ask(self, run: Run, asked: frozenset[RunId], until: float, frozen: Sequence[RunId]) -> None:
        assert run.stop is not None
        # a second SIGINT makes some programs give up at once
        before = {name for each in run.subtree() if each.stop is not None for name in each.stop.asked}
        run.stop.rung, run.stop.asked, run.stop.polite_ends_at = Rung.ASKED, asked, until
        self.changed(run)
        for name in sorted(asked - before):
            self.do(c.Interrupt(name))
        for name in frozen:
            self.do(c.Thaw(name))
        self.do(c.Arm(run.id, "polite", until))

    def signal_all(self, run: Run) -> None:
        """Send the stop signal to every process of a run that is being stopped."""
        assert run.stop is not None
        if run.stop.rung is Rung.ASKED:
            run.stop.rung, run.stop.asked = Rung.SIGNALLED, frozenset()
            self.do(c.Disarm(run.id, "polite"))
        self.changed(run)
        self.do(c.Terminate(run.id, run.stop.signal))
        self.do(c.Arm(run.id, "grace", run.stop.grace_ends_at))

    def _obeyed(self, run: Run) -> None:
        """The main process of a run that is being stopped has ended, perhaps because it was asked to."""
        for above in run.lineage:
            stop = above.stop
            if stop is not None and run.id in stop.asked and self.tree.get(above.id) is above:
                stop.asked -= {run.id}
                if stop.asked:
                    self.changed(above)
                else:
                    self.signal_all(above)

    def _polite_due(self, run: Run, _at: float) -> None:
        if run.stop is not None and run.stop.rung is Rung.ASKED:
            self.signal_all(run)

    def _hasten(self, run: Run, at: float, *, signal: int, grace: float) -> None:
        """A run that is being stopped already was asked to stop again: sooner is possible, later is not."""
        ladders = [(r.id, r.stop) for r in run.lineage if r.stop is not None]
        if run.attempt == 0:
            self._finish(run, at)  # cancelled with an ancestor before it was ever launched
        elif run.stop is not None and run.stop.rung is Rung.ASKED:
            run.stop.grace_ends_at = min(run.stop.grace_ends_at, at + grace)
            self.signal_all(run)
        elif run.stop is not None and run.stop.shorten(at + grace):
            self.changed(run)
            self.do(c.Arm(run.id, "grace", at + grace))
        elif run.stop is None and all(at + grace < stop.grace_ends_at for _, stop in ladders):
            self.climb_on(run, at, signal=signal, grace=grace)
        else:
            # its own ladder answers; without one, any that it stands on
            overdue = [name for name, stop in ladders if stop.overdue and run.stop in (None, stop)]
            if overdue:
                self.do(c.Survey(overdue[-1]))

    def grace(self, run: Run, asked: float | None = None) -> float:
        """Seconds between signal and SIGKILL: as asked now, as the run asked, or as configured."""
        own = run.asked.grace if run.asked.grace is not None else self.policy.grace
        return asked if asked is not None else own

    def _emptied(self, ev: e.Emptied) -> None:
        run = self.tree.get(ev.run)
        if run is not None and run.stop is not None:
            self.emptied(run, ev.at)

    def emptied(self, run: Run, at: float) -> None:
        """Nothing is alive in the containment of a run that is being emptied."""
        if run.clearing:
            for child in reversed(run.subtree()[1:]):
                self._finish(child, at)
            self._cleared(run, at)
            return
        for each in reversed(run.subtree()):
            self._finish(each, at)

    def _finish(self, run: Run, at: float, *, recorded: bool = True) -> None:
        assert run.outcome is not None
        charged = self.limiter.close(run)
        run.move(run.outcome)
        run.ended_at = at
        run.pid = None
        self._disarm_ladder(run)
        if run.tied_to is not None:
            self.do(c.Disarm(run.id, "reconnect"))
        self.tree.remove(run)
        self.changed(run)
        if recorded:
            self.do(c.Save(run))
            self.publish(ENDINGS[run.status], run, run.reason.message if run.reason is not None else "")
        if run.attempt:
            self.do(c.Release(run.id))
        self._forget(run)
        self.do(c.Ended(run))
        self._answer_spawn(run)
        self._fail_pauses(run, "ended before it was paused")
        self._settle(run, at)
        if charged:
            self.limiter.look_at_budgets(at)
        if run.parent is None:
            self.slots.leave(run.id)
            self.admit_waiting()
        if self.draining and not len(self.tree):
            self.do(c.Shutdown())

    def _forget(self, run: Run) -> None:
        if run.tied_to is not None:
            self.untie(run)
        for rule in types.Rule:
            self._refusals.pop((run.id, rule), None)

    def take_over(self, run: Run) -> None:
        """Goes on with a run that an earlier daemon has admitted. A root has its place still, unless it waits for one."""
        self.tree.put(run)
        self._number = max(self._number, run.number + 1)
        if run.parent is None and run.status is not Status.QUEUED:
            self.slots.take(run.id, run.user)

    def tie(self, run: Run, client: int) -> None:
        """The run ends with that connection."""
        self._tied.setdefault(client, set()).add(run.id)

    def untie(self, run: Run) -> None:
        """It does not any more."""
        client = run.tied_to
        if client is not None and client in self._tied:
            self._tied[client].discard(run.id)
            if not self._tied[client]:
                del self._tied[client]

    def tickets(self) -> tuple[Ticket, ...]:
        """Stop requests that wait, for who goes on with them."""
        found = {id(ticket): ticket for tickets in self._tickets.values() for ticket in tickets}
        return tuple(
            Ticket(one.token, one.began_at, frozenset(one.pending), tuple(one.stopped), tuple(one.survivors.values()))
            for one in found.values()
        )

    def take_tickets(self, tickets: tuple[Ticket, ...]) -> None:
        """Goes on with stop requests."""
        for one in tickets:
            survivors = {survivor.pid: survivor for survivor in one.survivors}
            ticket = _Ticket(one.token, one.began_at, set(one.pending), list(one.stopped), survivors)
            for run in one.pending:
                self._tickets.setdefault(run, []).append(ticket)

    def _settle(self, run: Run, at: float, survivors: tuple[Survivor, ...] = ()) -> None:
        for ticket in self._tickets.pop(run.id, ()):
            ticket.pending.discard(run.id)
            ticket.survivors.update((survivor.pid, survivor) for survivor in survivors)
            if not survivors:
                ticket.stopped.append(run.id)
            if not ticket.pending:
                done = c.StopDone(tuple(ticket.stopped), tuple(ticket.survivors.values()), at - ticket.began_at)
                self.reply(ticket.token, done)

    def _surveyed(self, ev: e.Surveyed) -> None:
        run = self.tree.get(ev.run)
        if run is None or run.stop is None or not ev.survivors:
            return
        if not run.stop.overdue:
            run.stop.overdue = True
            self.changed(run)
            listed = ", ".join(f"{s.pid} ({s.why})" for s in ev.survivors[:8])
            self.publish(
                "alert_survivors",
                run,
                f"alive {run.stop.kill_wait:g} s after SIGKILL: {listed}",
                severity="high",
            )
        for each in run.subtree():
            if each is run:
                self._settle(each, ev.at, ev.survivors)
            elif each.stop is None and each.id in self._tickets:
                # it stands on this ladder and has no survey of its own; nothing of it may be left while others are
                below = {r.id for r in each.subtree()}
                self._settle(each, ev.at, tuple(s for s in ev.survivors if s.run_id in below))

    def _drain_requested(self, ev: e.DrainRequested) -> None:
        grace = 0.0 if self.draining else None
        self.draining = True
        if not len(self.tree):
            self.do(c.Shutdown())
        because = f": {ev.cause}" if ev.cause else ""
        reason = Reason(kind="daemon", message=f"the daemon was stopped ({_signal_name(ev.signal)}){because}", signal=ev.signal)
        for root in self.tree.roots():
            self._stop(root, ev.at, reason=reason, signal=SIGTERM, grace=grace)

    def drained_by(self, at: float) -> float:
        """When the last ladder that is climbed has come to its end: what is still alive then may never go."""
        return max([at, *(run.stop.overdue_at for run in self.tree if run.stop is not None)])

    def _reconfigured(self, ev: e.Reconfigured) -> None:
        self.reconfigure(ev.policy)
        self.limiter.look_at_budgets(ev.at)
        self.admit_waiting()

    def _advice_learned(self, ev: e.AdviceLearned) -> None:
        known = self.policy.advice if len(self.policy.advice) < MAX_ADVICE else {}
        self.policy = replace(self.policy, advice={**known, ev.key: ev.thresholds})

    def _client_gone(self, ev: e.ClientGone) -> None:
        reason = Reason(kind="client", message="its foreground client went away (start it with --keep to let it go on)")
        for name in sorted(self._tied.pop(ev.client, ())):
            run = self.tree.get(name)
            if run is not None:
                self.stop_for_client(run, ev.at, reason)

    def stop_for_client(self, run: Run, at: float, reason: Reason) -> None:
        """The client that it was tied to is not there."""
        self._stop(run, at, reason=reason, signal=SIGTERM, grace=None)

    # ---- pause and resume

    def _pause_requested(self, ev: e.PauseRequested) -> None:
        run = self.steered(ev.token, ev.peer, "pause", ev.run)
        if run is None:
            return
        if run.status not in {Status.RUNNING, Status.PAUSED}:
            self.reply(
                ev.token,
                c.Failed(ErrorCode.WRONG_STATE, f"run {run.id} is {run.status}; only a running one can be paused"),
            )
            return
        run.by_hand = run.out_of_money is not None and (run.by_hand or not ev.suspended)
        if run.frozen and not run.pause_tokens:
            self.changed(run)
            self.reply(ev.token, c.Changed(run))
            return
        run.pause_tokens.append(ev.token)
        self.changed(run)
        if not run.frozen:
            run.suspended = ev.suspended
            self.pause(run, ev.at)

    def pause(self, run: Run, at: float, why: str = "") -> None:
        """Freezes a run and everything below it, and stops their clocks."""
        run.frozen = True
        for each in run.subtree():
            if each.status is Status.RUNNING:
                each.move(Status.PAUSED)
                self._halt_clock(each, at)
                self.do(c.Save(each))
        run.frozen_until = at + self.policy.pause_max
        self.changed(run)
        self.do(c.Freeze(run.id))
        self.do(c.Arm(run.id, "pause_max", run.frozen_until))
        self.publish("run_paused", run, why)

    def _unfreeze(self, run: Run) -> None:
        if run.frozen:
            run.frozen, run.frozen_until = False, None
            run.out_of_money, run.by_hand, run.suspended = None, False, False
            self.do(c.Disarm(run.id, "pause_max"))
            self.changed(run)

    def _frozen(self, ev: e.Frozen) -> None:
        run = self.tree.get(ev.run)
        if run is None or not run.frozen:
            return
        for token in run.pause_tokens:
            self.reply(token, c.Changed(run))
        run.pause_tokens.clear()
        self.changed(run)

    def _resume_requested(self, ev: e.ResumeRequested) -> None:
        run = self.steered(ev.token, ev.peer, "resume", ev.run)
        if run is None:
            return
        if ev.suspended:
            self._continue(run, ev.at)
            self.reply(ev.token, c.Changed(run))
        elif run.out_of_money is not None:
            self.reply(ev.token, c.Failed(ErrorCode.WRONG_STATE, f"run {run.id} stays paused: {run.out_of_money.message}; {MORE}"))
        elif not run.frozen and run.held_by is None:
            self.reply(ev.token, c.Failed(ErrorCode.WRONG_STATE, _not_resumable(run)))
        elif self.limiter.make_room(ev.token, ev.peer, run, ev.limits):
            if run.frozen:
                self.resume(run, ev.at)
            self.limiter.recheck(run, ev.at)
            self.reply(ev.token, c.Changed(run))

    def _continue(self, run: Run, at: float) -> None:
        """Undo a suspension, and no pause that a limit or a budget has asked for meanwhile."""
        if run.suspended and run.held_by is None and run.out_of_money is None:
            self.resume(run, at)
        elif run.suspended:
            run.suspended = run.by_hand = False
            self.changed(run)

    def resume(self, run: Run, at: float) -> None:
        """Thaws a run that is frozen itself, and everything below it that no other pause holds."""
        suspended = run.suspended
        self._unfreeze(run)
        if suspended:
            self._recovery.expect_client(run, at)
        self._fail_pauses(run, "was resumed before it stood still")
        self.do(c.Thaw(run.id))
        for each in run.subtree():
            if each.standing_still:
                continue
            if each.status is Status.PAUSED:
                each.move(Status.RUNNING)
                self.limiter.start_clock(each, at)
                self.do(c.Save(each))
            elif each.status is Status.RETRYING and not each.clearing:
                self.do(c.Arm(each.id, "retry", max(at, each.retry_at)))
        self.publish("run_resumed", run)

    # ---- timers

    def _timer_fired(self, ev: e.TimerFired) -> None:
        run = self.tree.get(ev.run)
        if run is not None:
            self._timers[ev.timer](run, ev.at)

    def _agent_said(self, ev: e.AgentSaid) -> None:
        run = self.tree.get(ev.run)
        if run is None or run.status is Status.STOPPING:
            return
        self._hear_of_trouble(run, ev.trouble)
        before, run.said_finished = run.said_finished, ev.finished
        if ev.failed != run.said_failed or ev.finished != before:
            run.said_failed = ev.failed
            self.changed(run)
        if ev.finished == before:
            return
        if ev.finished and not run.asked.interactive:
            self.do(c.Arm(run.id, "result", ev.at + self.policy.result_wait))
        elif not ev.finished:
            self.do(c.Disarm(run.id, "result"))

    def _hear_of_trouble(self, run: Run, trouble: ApiTrouble | None) -> None:
        """Says so when calls of the model begin to fail, whenever twice as many have failed, and when it answers again."""
        before, run.api_trouble = run.api_trouble, trouble
        if trouble == before:
            return
        self.changed(run)
        if trouble is None:
            self.publish("run_progress", run, "the API answers again")
        elif before is None or trouble.count.bit_length() > before.count.bit_length():
            self.publish("run_progress", run, trouble.sentence)

    def _result_due(self, run: Run, at: float) -> None:
        wait = self.policy.result_wait
        if not run.said_finished or run.status not in {Status.STARTING, Status.RUNNING, Status.PAUSED}:
            return
        if run.status is not Status.RUNNING:
            self.do(c.Arm(run.id, "result", at + wait))
            return
        if run.said_failed is not None and run.attempt < run.asked.attempts:
            self._retry(run, at)
            return
        status = Status.COMPLETED if run.said_failed is None else Status.FAILED
        said = "its final result" if run.said_failed is None else f"that it failed ({run.said_failed})"
        message = f"the agent printed {said} and did not exit within {wait:g} s; it was stopped (stop.result_wait)"
        self.begin_stop(
            run, at, status=status, reason=Reason(kind="result", message=message), signal=SIGTERM, grace=self.grace(run)
        )

    def _grace_due(self, run: Run, at: float) -> None:
        if run.stop is not None:
            self.climb_to_kill(run, at)

    def climb_to_kill(self, run: Run, at: float) -> None:
        """Kills what is still there, from now on."""
        assert run.stop is not None
        if run.stop.rung is not Rung.KILLED:
            run.stop.climb(at)
        self.changed(run)
        self.do(c.Kill(run.id))
        self.do(c.Arm(run.id, "kill", at + KILL_AGAIN))
        self.do(c.Arm(run.id, "survey", max(at, run.stop.overdue_at)))

    def _kill_due(self, run: Run, at: float) -> None:
        if run.stop is not None:
            self.do(c.Kill(run.id))
            self.do(c.Arm(run.id, "kill", at + KILL_AGAIN))

    def _survey_due(self, run: Run, at: float) -> None:
        if run.stop is not None and not run.stop.overdue:
            self.do(c.Survey(run.id))
            # the last survivor may be going just now; the answer is then `Emptied`, or survivors the next time
            self.do(c.Arm(run.id, "survey", at + KILL_AGAIN))

    def _retry_due(self, run: Run, _at: float) -> None:
        if run.status is Status.RETRYING and not run.clearing and not run.standing_still:
            self._start(run)

    # ---- small things

    def steered(self, token: int, peer: Peer, verb: str, name: RunId) -> Run | None:
        """The live run of this id if the peer may use `verb` on it; else replies why not."""
        run = self.tree.get(name)
        if run is None:
            self.reply(token, c.Failed(ErrorCode.WRONG_STATE, f"run {name} has ended"))
            return None
        return None if self._denied(token, peer, verb, [run]) else run

    def _denied(self, token: int, peer: Peer, verb: str, runs: list[Run]) -> bool:
        chains: list[list[RunId] | None] = [[r.id for r in run.lineage] for run in runs]
        for chain in chains or [None]:
            refused = self.refuse(peer, verb, chain)
            if refused is not None:
                self.reply(token, c.Failed(ErrorCode.NOT_PERMITTED, refused))
                return True
        return False

    def _disarm_ladder(self, run: Run) -> None:
        if run.stop is not None:
            if run.stop.rung is Rung.ASKED:
                self.do(c.Disarm(run.id, "polite"))
            for timer in ("grace", "kill", "survey"):
                self.do(c.Disarm(run.id, timer))

    def _fail_pauses(self, run: Run, why: str) -> None:
        for token in run.pause_tokens:
            self.reply(token, c.Failed(ErrorCode.WRONG_STATE, f"run {run.id} {why}"))
        run.pause_tokens.clear()

    def _answer_spawn(self, run: Run) -> None:
        if run.admit_token is not None:
            self.reply(run.admit_token, c.Admitted(run))
            run.admit_token = None

    def reply(self, token: int, answer: c.Answer) -> None:
        """Answers the request that `token` names."""
        self.do(c.Reply(token, answer))

    def publish(self, what: str, run: Run, message: str = "", *, severity: Any = None, **fields: Any) -> None:
        """Tells everybody who watches the run or an ancestor."""
        severity = severity or ("medium" if what in {"run_failed", "run_timeout", "run_lost"} else "low")
        event = types.Event(
            type=what,
            severity=severity,
            run_id=run.id,
            root_id=run.root.id,
            agent_name=run.name,
            message=message,
            **fields,
        )
        self.do(c.Publish(event, tuple(r.id for r in run.lineage)))

    def do(self, command: c.Command) -> None:
        """Add to what the present event calls for."""
        self._out.commands.append(command)
        if isinstance(command, c.Save):
            self.changed(command.run)

    def changed(self, run: Run) -> None:
        """Have the run's snapshot saved before any command of the present event is applied."""
        self._out.changed[run.id] = run

    def used_more(self, run: Run) -> None:
        """Have the run's use saved when that is convenient."""
        self._out.used[run.id] = run


def _frozen_in(run: Run) -> list[RunId]:
    return [each.id for each in run.subtree() if each.frozen]


def _succeeded(run: Run) -> bool:
    """Whether the attempt that has just exited did well: an agent may exit with 0 and say that it failed."""
    return run.exit is not None and run.exit.success and run.said_failed is None


def _exit_reason(exit_: Exit, said: str | None) -> Reason:
    if exit_.signal is not None:
        return Reason(kind="signal", message=f"killed by {_signal_name(exit_.signal)}", signal=exit_.signal)
    if exit_.success:
        return Reason(kind="agent", message=f"exited with code 0, but said that it failed: {said}")
    return Reason(kind="exit", message=f"exited with code {exit_.code}{f': {said}' if said else ''}")


def _with_trouble(reason: Reason | None, trouble: ApiTrouble | None) -> Reason | None:
    """The reason of an end while the agent could not reach its model. An agent that failed of that alone says so itself."""
    if reason is None or trouble is None or (trouble.error and trouble.error in reason.message):
        return reason
    return reason.adding(trouble.sentence)


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def _not_resumable(run: Run) -> str:
    for ancestor in reversed(run.lineage[:-1]):
        if ancestor.frozen:
            return f"run {run.id} stands still because its ancestor {ancestor.id} is paused; resume that one"
    return f"run {run.id} is {run.status}, not paused"
