"""The part in a daemon: shows the alerts that are raised, and saves them."""

from collections.abc import Mapping

import trio

from ...core.state.access import EVERYTHING, Peer, Scope
from ...core.state.money import to_usd
from ...daemon.loop.seam import Heart, OwnState, Part
from ...durable.snapshots import Changes
from ...host.clock import wall_clock
from ...protocol.texts.units import counted
from ...protocol.types import AlertState
from .feature import NAME, AlertsConfig
from .measures import subject_of
from .saved import changes, earlier
from .showing import of_run, together
from .watching import Alerts


def part(heart: Heart) -> Part:
    alerts = heart.machine.watching.watcher(NAME)
    assert isinstance(alerts, Alerts)
    now, store, lives = trio.current_time, heart.resources.spool.values, heart.catalogue.live
    if (before := earlier(store, wall_clock(), now())) is not None:
        alerts.restore(before)

    def show() -> None:
        """Show the alerts of runs where others are raised than before."""
        for run in alerts.told:
            if (live := lives.get(run)) is not None:
                live.shown[NAME] = of_run(run, alerts.of(run), now())
        alerts.told.clear()

    def state() -> Changes:
        show()
        return changes(alerts.saved(), wall_clock(), now())

    def status(peer: Peer, scope: Scope) -> Mapping[str, object]:
        config = heart.section(NAME, AlertsConfig)
        cost = alerts.cost(None if scope.uid is None else peer.user, now())
        return {
            "alerts": raised(peer, scope),
            "cost_usd": round(to_usd(cost), 6) if scope.run is None else None,
            "window_s": config.window,
            "limit_share": config.limit_share,
        }

    def raised(peer: Peer, scope: Scope) -> list[AlertState]:
        """Return the alerts about the peer's own runs, and about all runs or the runs of a user
        where that concerns the peer."""
        shared = alerts.shared
        if scope != EVERYTHING:
            teams = heart.machine.teams_of(peer.user)
            own = {("user", peer.user), *(("team", team) for team in teams)}
            own = own if scope.run is None else set()
            shared = {key: alert for key, alert in shared.items() if subject_of(key) in own}
        mine = heart.catalogue.live_runs(scope).values()
        of_runs = (alert for live in mine for alert in live.shown.get(NAME, ()))
        return together(of_runs, shared, now())

    def notice() -> str:
        found = len(alerts.shared) + sum(len(alerts.of(run)) for run in lives)
        return counted(found, "alert") if found else ""

    return Part(begin=show, state=OwnState(state), status=status, notice=notice)
