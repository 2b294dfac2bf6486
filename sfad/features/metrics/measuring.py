"""The daemon's metrics as they are now."""

import math
import time
from collections import Counter
from functools import partial

import trio

from ... import __version__
from ...core.state.access import EVERYTHING, Peer
from ...daemon.loop.seam import Heart
from ...host.counts import Counts, Histogram, Labels, Values
from ...protocol.event_types import EventType
from ...protocol.types import ENDED, Rule, Status

ONCE = (EventType.SURVIVORS, EventType.DISK_FULL)
ALERTS = [kind for kind in EventType if kind.startswith("alert_") and kind not in ONCE]
"""Those that are raised and cleared."""

RECENT = 1.0
"""Seconds."""

_OPERATOR = Peer(0, "root")

ZEROS = {"sfad_hook_executions": ("completed", "failed", "dropped")}
"""Labels that are shown before a feature has counted something for them."""

LIVE = [status for status in Status if not status.terminal]


def _text(values: Values) -> str:
    # prometheus_client takes 3 MiB, which a daemon that is never asked need not have
    from .scrapes import text_of

    return text_of(values)


class Measuring:
    def __init__(self, heart: Heart) -> None:
        self._heart = heart
        self._counts = heart.resources.counts
        self._told = (-math.inf, "")
        """When the text was made last, and the text."""

    async def text(self) -> str:
        """Return the metrics in the text format of Prometheus. Raises `OSError` where no thread can
        be started."""
        text = await self._heart.background.walk(partial(_text, self.values()))
        self._told = trio.current_time(), text
        return text

    async def recent_text(self) -> str:
        """Return `text`, at most `RECENT` seconds old: clients that ask all the time must not keep
        the daemon busy."""
        made, text = self._told
        return text if trio.current_time() < made + RECENT else await self.text()

    def values(self) -> Values:
        return {
            **self._of_daemon(),
            **self._of_runs(),
            **_of_types(self._counts),
            **self._of_users(),
            **self._of_calls(),
        }

    def _of_daemon(self) -> Values:
        began = time.time() - trio.current_time() + self._heart.began
        return {
            "sfad_build_info": {(__version__, self._heart.resources.launcher.containment): 1},
            "sfad_start_time_seconds": _alone(round(began, 3)),
            "sfad_connections": _alone(self._heart.connections()),
            "sfad_slow_clients_dropped": _alone(self._counts.slow_clients),
            **_of_features(self._counts),
            "sfad_events": {(kind,): count for kind, count in self._counts.events.items()},
            "sfad_events_lost": _alone(self._counts.unrecorded),
            "sfad_ledger_commit_duration_seconds": {(): self._counts.commit},
            "sfad_ledger_size_bytes": _alone(self._heart.resources.ledger.records.size_bytes),
            "sfad_ledger_writable": _alone(int(self._heart.storage.unwritable is None)),
        }

    def _of_runs(self) -> Values:
        machine, counts = self._heart.machine, self._counts
        live = Counter(live.run.status for live in self._heart.catalogue.live.values())
        status = self._heart.parts().status(_OPERATOR, EVERYTHING)
        alerts = Counter(alert.type for alert in status.get("alerts", ()))
        breaches: dict[Labels, float] = {
            (kind, action): count
            for kind, actions in counts.hit.items()
            for action, count in actions.items()
        }
        return {
            "sfad_runs": {(status,): live[status] for status in LIVE},
            "sfad_queued_runs": _alone(machine.slots.queued),
            "sfad_runs_admitted": _alone(machine.admitted),
            "sfad_runs_ended": {
                (status,): counts.ended.get(status, 0) for status in Status if status in ENDED
            },
            "sfad_spawns_refused": {(rule,): counts.refused.get(rule, 0) for rule in Rule},
            "sfad_limits_exceeded": breaches,
            "sfad_alerts": {(kind,): alerts[kind] for kind in ALERTS},
            "sfad_limits_exceeded_last_hour": _alone(counts.hit_in_an_hour(time.time())),
            "sfad_spawn_duration_seconds": {(): counts.spawn},
            "sfad_queue_wait_seconds": {(): counts.queue_wait},
            "sfad_plan_used_ratio": {
                (found.provider, found.account, window.window): window.used_ratio
                for found in status.get("plans", ())
                for window in found.windows
                if window.used_ratio is not None
            },
            **self._heart.parts().measured(),
        }

    def _of_users(self) -> Values:
        counts, each = self._counts, self._counts.by_user
        runs = self._heart.catalogue.live.values()
        live = Counter(counts.user_label(one.run.user) for one in runs)
        tokens: dict[Labels, float] = {}
        for user, of in each.items():
            tokens |= {(user, "input"): of.input_tokens, (user, "output"): of.output_tokens}
        return {
            "sfad_user_live_runs": {(user,): live[user] for user in dict.fromkeys([*each, *live])},
            "sfad_user_runs_ended": {(user,): of.ended for user, of in each.items()},
            "sfad_user_cost_usd": {(user,): of.cost_usd for user, of in each.items()},
            "sfad_user_tokens": tokens,
        }

    def _of_calls(self) -> Values:
        machine, runs = self._heart.machine, self._heart.catalogue.live
        waiting = sum(len(machine.waiting_calls(run)) for run in runs)
        under_way = sum(len(machine.calls_under_way(run)) for run in runs)
        calls: dict[Labels, float] = {
            (upstream, outcome): count
            for upstream, outcomes in self._counts.calls.items()
            for outcome, count in outcomes.items()
        }
        return {
            "sfad_gateway_calls": calls,
            "sfad_gateway_calls_open": {("waiting",): waiting, ("under_way",): under_way},
            "sfad_gateway_first_byte_seconds": {(): self._counts.first_byte},
        }


def _of_features(counts: Counts) -> Values:
    return {
        name: {(label,): counts.of_features.get(name, {}).get(label, 0) for label in labels}
        for name, labels in ZEROS.items()
    }


def _of_types(counts: Counts) -> Values:
    each = counts.by_type
    tokens: dict[Labels, float] = {}
    for kind, of in each.items():
        tokens |= {(kind, "input"): of.input_tokens, (kind, "output"): of.output_tokens}
    return {
        "sfad_run_duration_seconds": {(kind,): of.duration for kind, of in each.items()},
        "sfad_run_turns": {(kind,): of.turns for kind, of in each.items()},
        "sfad_run_cost_usd": {(kind,): of.cost for kind, of in each.items()},
        "sfad_run_tokens": tokens,
    }


def _alone(value: float) -> dict[Labels, float | Histogram]:
    return {(): value}
