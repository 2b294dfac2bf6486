"""The daemon's metrics as they are now."""

import time
from collections import Counter

import trio

from .. import __version__
from ..core.money import to_usd
from ..core.run import Run
from ..observe.counts import Counts, Histogram
from ..observe.metrics import Labels, Values
from ..protocol.types import ENDED, Rule, Status
from .runtime import Runtime

LIVE = [status for status in Status if not status.terminal]


def measured(runtime: Runtime, connections: int) -> Values:
    """Return the value of each metric."""
    return {**_of_daemon(runtime, connections), **_of_runs(runtime), **_of_types(runtime.counts), **_of_calls(runtime)}


def _of_daemon(runtime: Runtime, connections: int) -> Values:
    ledger, counts = runtime.ledger, runtime.counts
    began = time.time() - trio.current_time() + runtime.began
    return {
        "sfad_build_info": {(__version__, runtime.launcher.containment): 1},
        "sfad_start_time_seconds": _alone(round(began, 3)),
        "sfad_connections": _alone(connections),
        "sfad_slow_clients_dropped": _alone(counts.slow_clients),
        "sfad_events": {(kind,): count for kind, count in counts.events.items()},
        "sfad_events_lost": _alone(counts.unrecorded),
        "sfad_ledger_commit_duration_seconds": {(): counts.commit},
        "sfad_ledger_size_bytes": _alone(ledger.records.size_bytes),
        "sfad_ledger_writable": _alone(int(runtime.storage.unwritable is None)),
    }


def _of_runs(runtime: Runtime) -> Values:
    machine, counts = runtime.machine, runtime.counts
    live = Counter(run.status for run in _runs(runtime))
    budgets = list(machine.budgets)
    return {
        "sfad_runs": {(status,): live[status] for status in LIVE},
        "sfad_queued_runs": _alone(machine.slots.queued),
        "sfad_runs_admitted": _alone(machine.admitted),
        "sfad_runs_ended": {(status,): counts.ended.get(status, 0) for status in Status if status in ENDED},
        "sfad_spawns_refused": {(rule,): counts.refused.get(rule, 0) for rule in Rule},
        "sfad_limits_exceeded": {
            (kind, action): count for kind, actions in counts.hit.items() for action, count in actions.items()
        },
        "sfad_limits_exceeded_last_hour": _alone(counts.hit_in_an_hour(time.time())),
        "sfad_spawn_duration_seconds": {(): counts.spawn},
        "sfad_queue_wait_seconds": {(): counts.queue_wait},
        "sfad_budget_usd": {(budget.scope, budget.name): to_usd(budget.allowed) for budget in budgets},
        "sfad_budget_used_usd": {(budget.scope, budget.name): to_usd(budget.charged) for budget in budgets},
    }


def _runs(runtime: Runtime) -> list[Run]:
    return [live.run for live in runtime.catalogue.live.values()]


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


def _of_calls(runtime: Runtime) -> Values:
    counts, machine = runtime.counts, runtime.machine
    waiting = under_way = 0
    for run in runtime.catalogue.live:
        waiting += len(machine.waiting_calls(run))
        under_way += len(machine.calls_under_way(run))
    return {
        "sfad_gateway_calls": {
            (upstream, outcome): count for upstream, outcomes in counts.calls.items() for outcome, count in outcomes.items()
        },
        "sfad_gateway_calls_open": {("waiting",): waiting, ("under_way",): under_way},
        "sfad_gateway_first_byte_seconds": {(): counts.first_byte},
    }


def _alone(value: float) -> dict[Labels, float | Histogram]:
    return {(): value}
