"""The machine with alerts against the simulated shell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

import msgspec
from hypothesis.stateful import invariant

from sfad.core.watching import NewWatcher
from sfad.features.alerts.feature import NAME
from sfad.features.alerts.measures import SavedAlerts
from sfad.features.alerts.watching import Alerts
from sfad.protocol import types
from tests.core.machine_model import World
from tests.core.test_machine_stateful import SETTINGS, MachineAgainstShell


class WatchedWorld(World):
    """A world whose machine raises alerts."""

    WATCHERS: ClassVar[Mapping[str, NewWatcher]] = {NAME: Alerts}
    saved = msgspec.msgpack.encode(SavedAlerts())

    @property
    def raised(self) -> set[tuple[str, str]]:
        """The alerts that are raised, as published."""
        if not hasattr(self, "_raised"):
            self._raised: set[tuple[str, str]] = set()
        return self._raised

    @property
    def alerts(self) -> Alerts:
        """The half of them in the core."""
        found = self.machine.watching.watcher(NAME)
        assert isinstance(found, Alerts)
        return found

    def standing(self) -> set[tuple[str, str]]:
        """Return the alerts that are raised, as the core knows."""
        of_runs = {(what, run) for run in self.live for what in self.alerts.of(run)}
        return of_runs | set(self.alerts.shared)

    def save_features(self) -> None:
        self.saved = msgspec.msgpack.encode(self.alerts.saved())

    def died(self, *, reboot: bool) -> None:
        self.saved = msgspec.msgpack.encode(SavedAlerts()) if reboot else self.saved

    def restored(self) -> None:
        self.alerts.restore(msgspec.msgpack.decode(self.saved, type=SavedAlerts))
        self._raised = self.standing()

    def published(self, event: types.Event) -> None:
        """Check that an alert is raised and cleared in turn. A budget's at 100 % takes the place of
        that at 80 %."""
        if event.state is None:
            return
        about = (str(event.type), event.run_id or "")
        if (
            whose := re.search(r"(?:user |(team ))(\S+) has used", event.message)
        ) and event.type == "alert_budget":
            about = (event.type, (whose[1] or "") + whose[2])
            assert (event.severity == "high") == (event.state == "raised" and event.threshold == 1)
            if event.severity == "high":
                self.raised.discard(about)
        assert (about in self.raised) == (event.state == "cleared"), (
            f"{about} was {event.state} twice"
        )
        self._raised = self.raised ^ {about}


class AlertsAgainstShell(MachineAgainstShell):
    """The same rules and invariants."""

    WORLD = WatchedWorld

    @invariant()
    def alerts_are_told_as_they_stand(self) -> None:
        """What was published last of an alert is whether it is raised, and one that is held has a
        timer."""
        world = self.world
        assert isinstance(world, WatchedWorld)
        assert world.raised == world.standing()
        for run in world.live:
            if any(alert.over_since is not None for alert in world.alerts.of(run).values()):
                assert (NAME, run) in world.reminders
        if any(alert.over_since is not None for alert in world.alerts.shared.values()):
            assert (NAME, "") in world.reminders


AlertsAgainstShell.TestCase.settings = SETTINGS
TestAlertsAgainstShell = AlertsAgainstShell.TestCase
