"""Applies what the core decides: one line for each command."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from signal import SIGINT
from typing import assert_never

from ..core import commands as c
from ..core.run import Run
from ..durable.budgets import BudgetKeeper
from ..faults import effect
from ..host.background import Background
from ..host.clock import wall_clock
from ..metering.metering import Metering
from ..runs.catalogue import RunCatalogue
from ..runs.live import Live
from .advising import Adviser
from .announcing import Announcer
from .requests import Requests
from .resources import Resources
from .saving import Saver
from .starting import Arm, Starter

_INTERNAL = c.Arm | c.Disarm
"""These have no effect outside the process: a crash before or after one is equivalent."""


@dataclass(frozen=True, slots=True)
class Applier:
    """Has each command carried out by the part that it is for."""

    resources: Resources
    saver: Saver
    requests: Requests
    starter: Starter
    announcer: Announcer
    catalogue: RunCatalogue
    metering: Metering
    budgets: BudgetKeeper
    adviser: Adviser
    background: Background
    arm: Arm
    shut_down: Callable[[], None]

    def apply(self, outcome: c.Outcome) -> None:
        """Save what has changed, then apply the commands in order."""
        changed = self.saver.save_snapshots(outcome)
        for command in outcome.commands:
            if not isinstance(command, _INTERNAL):
                effect(type(command).__name__)
            try:
                self._apply(command, changed)
            except Exception:  # noqa: BLE001 - what was decided stands: the commands after it, a timer, a reply, must be applied
                self.resources.log.internal_error(command)

    def _apply(self, command: c.Command, changed: Iterable[Live]) -> None:
        match command:
            case c.Publish(event, chain):
                self.announcer.publish(event, chain)
            case c.Arm(run, timer, at):
                self.arm(run, timer, at)
            case c.Disarm(run, timer):
                self.resources.timers.disarm((run, timer))
            case c.Reply(token, answer):
                self.requests.answer(token, answer)
            case c.Save(saved):
                self.saver.save(saved)
            case c.Admit(admitted):
                self._admit(admitted, changed)
            case c.RecordRefusal(refused):
                self._refuse(refused)
            case c.CountRefusal(run):
                self.resources.ledger.count_refusal(run)
            case c.Charge(scope, name, nanos):
                self.budgets.charge(scope, name, nanos)
            case c.Launch(launched):
                self.starter.launch(launched)
            case c.Interrupt(run):
                self.resources.launcher.signal_main(run, SIGINT)  # if it has ended meanwhile, the core will hear of that
            case c.Terminate(run, signal):
                self.resources.launcher.terminate(run, signal)
            case c.Kill(run):
                self.resources.launcher.kill(run)
            case c.Survey(run):
                self.resources.launcher.survey(run)
            case c.Freeze(run):
                self.resources.launcher.freeze(run)
            case c.Thaw(run):
                self.resources.launcher.thaw(run)
            case c.Rebound(bound):
                self.catalogue.live[bound.id].limits_changed()
                self.metering.rebound(bound)
            case c.Release(run):
                self.metering.forget(run)
                self.resources.launcher.release(run)
            case c.Ended(ended):
                self._end(ended)
            case c.Shutdown():
                self.shut_down()
            case _:
                assert_never(command)

    def _admit(self, run: Run, changed: Iterable[Live]) -> None:
        assert run.admit_token is not None
        pending = self.requests.admitted(run.admit_token)
        live = pending.live(run, self.resources.launcher)
        self.catalogue.add(live)
        if live.stdin is not None:
            self.background.start_soon(live.stdin.serve)
        pending.admitted(run.id)
        self.adviser.noticed(run.asked.type, run.name)
        self.saver.admit(live, changed)

    def _refuse(self, run: Run) -> None:
        assert run.admit_token is not None
        now = wall_clock()
        self.saver.refuse(Live(run, self.requests.refused(run.admit_token), self.resources.launcher, now, ended_at=now))

    def _end(self, run: Run) -> None:
        self.adviser.noticed(run.asked.type, run.name)
        self.saver.end(self.catalogue.live[run.id])
