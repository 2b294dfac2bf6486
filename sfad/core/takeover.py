"""Goes on with what an earlier daemon held (SPEC section 10): what lives is under its limits again, what does not is closed.

A part of the machine in a file of its own. Whatever had been decided is decided still; every command here may repeat one that
the earlier daemon carried out. What is not known is never taken for a success, and what may have run is never run again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..protocol.types import Action, Reason, Status
from . import commands as c
from . import events as e
from .run import Exit, Run
from .snapshot import Remembered
from .stop import Rung

if TYPE_CHECKING:
    from .machine import Machine

RECONNECT = 10.0
"""Seconds that a client has to come back before what is tied to it is stopped (SPEC section 6)."""

NOBODY = -1
"""The connection that a run is tied to until its client is back: of numbers, every daemon begins anew."""


class Recovery:
    """Takes runs over, and ties them to clients that come back."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._why = ""
        self._at = 0.0
        self.handlers: dict[type, Callable[[Any], None]] = {
            e.Recovered: self._recovered,
            e.ClientBack: self._client_back,
        }
        self.timers: dict[str, Callable[[Run, float], None]] = {"reconnect": self._reconnect_due}

    def _recovered(self, ev: e.Recovered) -> None:
        self._why, self._at = ev.why, ev.at
        runs = [one.run for one in ev.runs]
        for run in runs:
            self._put(run, continued=ev.continued)
        self._machine.limiter.restore(runs)
        self._machine.take_tickets(ev.tickets)
        for event in ev.learnt:
            self._machine.learn(event)
        for run in runs:
            if run.frozen:
                self._machine.do(c.Freeze(run.id))
        # what is below another first: no run ends before its descendants
        for run, one in reversed(list(zip(runs, ev.runs, strict=True))):
            self._go_on(run, one)
        # only now: an end further up would have started one of them before it was looked at
        for run in runs:
            if run.status is Status.QUEUED:
                self._machine.slots.enqueue(run.id, run.user, run.asked.priority)
        self._machine.admit_waiting()

    def _put(self, run: Run, *, continued: bool) -> None:
        machine = self._machine
        machine.take_over(run)
        if not continued:
            run.admit_token = None
            run.pause_tokens.clear()
            run.tied_to = NOBODY if run.tied_to is not None else None
        if run.tied_to not in (None, NOBODY):
            machine.tie(run, run.tied_to)
        elif not run.suspended:
            # a client that is stopped cannot come back before it is continued
            self.expect_client(run, self._at)
        machine.changed(run)

    def expect_client(self, run: Run, at: float) -> None:
        """Gives the client of a run that was tied to an earlier daemon's connection a while to come back."""
        if run.tied_to == NOBODY:
            self._machine.do(c.Arm(run.id, "reconnect", at + RECONNECT))

    # ---- one run

    def _go_on(self, run: Run, one: Remembered) -> None:
        self._wait_on(run)
        match run.status:
            case Status.ACCEPTED | Status.QUEUED if not (run.committed and one.startable):
                self._never_started(run)
            case Status.STARTING if not one.starting:
                self._was_starting(run, one)
            case Status.RUNNING | Status.PAUSED:
                self._was_running(run, one)
            case Status.RETRYING if not one.startable:
                self._not_again(run, one)
            case Status.RETRYING if not run.clearing:
                self._was_waiting(run)
            case Status.RETRYING | Status.STOPPING:
                self._was_emptied(run, one)

    def _never_started(self, run: Run) -> None:
        missing = "" if not run.committed else ", and what it was to be started with is gone"
        reason = Reason(kind="daemon", message=f"{self._why} before it was started{missing}; nothing of it has run")
        self._machine.conclude(run, self._at, Status.FAILED, reason, empty=True)

    def _was_starting(self, run: Run, one: Remembered) -> None:
        if not one.begun:
            what = "nothing of it has run" if run.attempt == 1 else f"nothing of attempt {run.attempt} has run"
            reason = Reason(kind="daemon", message=f"{self._why} while it was being started; {what}")
            self._machine.conclude(run, self._at, Status.FAILED, reason, empty=one.empty)
        elif run.pid is None:
            self._gone(run, one, "while it was being started; whether it ran cannot be known")
        else:
            self._machine.launched(run, run.pid, self._at)
            self._let_go(run)

    def _was_running(self, run: Run, one: Remembered) -> None:
        if run.pid is None:
            self._gone(run, one, "while it ran; how it ended cannot be known")
            return
        self._let_go(run)
        if run.status is Status.RUNNING:
            self._machine.limiter.start_clock(run, self._at)

    def _wait_on(self, run: Run) -> None:
        """What was to be waited for no longer than so long. After a reboot that begins anew."""
        do, policy, at = self._machine.do, self._machine.policy, self._at
        if run.frozen:
            run.frozen_until = at + policy.pause_max if run.frozen_until is None else run.frozen_until
            do(c.Arm(run.id, "pause_max", run.frozen_until))
        if run.held_by is not None and run.held_by.action is Action.REQUEST_INCREASE:
            run.held_until = at + policy.approval_timeout if run.held_until is None else run.held_until
            do(c.Arm(run.id, "approval", run.held_until))
        if run.said_finished and not run.asked.interactive and run.status is not Status.STOPPING:
            do(c.Arm(run.id, "result", at + policy.result_wait))

    def _let_go(self, run: Run) -> None:
        """A resume, or a stop's freeze, may have been half done."""
        if not run.standing_still:
            self._machine.do(c.Thaw(run.id))

    def _was_waiting(self, run: Run) -> None:
        if not run.standing_still:
            self._machine.do(c.Arm(run.id, "retry", max(self._at, run.retry_at)))

    def _not_again(self, run: Run, one: Remembered) -> None:
        self._gone(run, one, "between two attempts, and what the next was to be started with is gone")
        if run.status is Status.STOPPING:
            self._was_emptied(run, one)

    def _was_emptied(self, run: Run, one: Remembered) -> None:
        if run.stop is None and any(above.stop is not None for above in run.lineage):
            return  # it ends with an ancestor
        if one.empty:
            self._machine.emptied(run, self._at)
        elif run.stop is None:
            self._machine.climb_on(run, self._at, grace=0.0)
        elif self._asked(run):
            self._machine.do(c.Arm(run.id, "polite", run.stop.polite_ends_at))
        elif self._at < run.stop.grace_ends_at:
            self._machine.signal_all(run)
        else:
            self._machine.climb_to_kill(run, self._at)
            if run.stop.overdue:  # who has asked since then may have had no answer
                self._machine.do(c.Survey(run.id))

    def _asked(self, run: Run) -> bool:
        """Whether main processes that were interrupted have time left. They are not interrupted again: a second SIGINT makes some
        programs give up at once."""
        stop, tree = run.stop, self._machine.tree
        if stop is None or stop.rung is not Rung.ASKED:
            return False
        stop.asked = frozenset(name for name in stop.asked if (each := tree.get(name)) is not None and each.pid is not None)
        return bool(stop.asked) and self._at < stop.polite_ends_at

    def _gone(self, run: Run, one: Remembered, when: str) -> None:
        """Its main process has ended while nobody looked. It is not started again: it may have done what it was started for."""
        why = f"{self._why} {when}"
        if run.status is Status.RETRYING:  # what its agent said belongs to an attempt that failed
            self._machine.conclude(run, self._at, Status.LOST, Reason(kind="daemon", message=why), empty=one.empty)
        else:
            run.exit = Exit(None, None)
            self._machine.conclude_unseen(run, self._at, why, empty=one.empty)

    # ---- clients

    def _client_back(self, ev: e.ClientBack) -> None:
        run = self._machine.tree.get(ev.run)
        if run is not None:
            self._machine.untie(run)
            run.tied_to = ev.client
            self._machine.tie(run, ev.client)
            self._machine.do(c.Disarm(run.id, "reconnect"))
            self._machine.changed(run)

    def _reconnect_due(self, run: Run, at: float) -> None:
        reason = Reason(
            kind="client",
            message=f"its foreground client did not come back within {RECONNECT:g} s of the daemon's restart "
            "(start it with --keep to let it go on)",
        )
        self._machine.stop_for_client(run, at, reason)
