"""Each metric of the daemon: its name, what it is, its labels. docs/metrics.md is made from this.

Names follow https://prometheus.io/docs/practices/naming/. A counter's name has no `_total` here:
the text form adds it.
"""

from typing import Literal

from msgspec import Struct


class Metric(Struct, frozen=True):
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name that queries use; a histogram's has `_bucket`, `_sum` or `_count` after it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


METRICS = (
    Metric(
        "sfad_build_info",
        "gauge",
        "Always 1; the labels describe the daemon",
        ("version", "containment"),
    ),
    Metric(
        "sfad_start_time_seconds",
        "gauge",
        "Unix time at which the daemon was started; a re-execution keeps it",
    ),
    Metric("sfad_runs", "gauge", "Live runs", ("status",)),
    Metric("sfad_queued_runs", "gauge", "Trees that wait to start"),
    Metric("sfad_runs_admitted", "counter", "Runs that were admitted"),
    Metric("sfad_runs_ended", "counter", "Runs that have ended", ("status",)),
    Metric("sfad_spawns_refused", "counter", "Spawns that the guard refused", ("rule",)),
    Metric(
        "sfad_limits_exceeded",
        "counter",
        "Breaches of limits and budgets; action is what followed",
        ("limit", "action"),
    ),
    Metric(
        "sfad_limits_exceeded_last_hour",
        "gauge",
        "Breaches of limits and budgets within the last hour",
    ),
    Metric("sfad_alerts", "gauge", "Alerts that are raised, at most 500", ("alert",)),
    Metric(
        "sfad_run_duration_seconds",
        "histogram",
        "Running time of ended runs, without pauses",
        ("type",),
    ),
    Metric("sfad_run_turns", "histogram", "Turns of ended runs of which they are known", ("type",)),
    Metric(
        "sfad_run_cost_usd",
        "histogram",
        "Cost of ended runs of which it is known, without their descendants",
        ("type",),
    ),
    Metric(
        "sfad_run_tokens",
        "counter",
        "Tokens of ended runs; direction is input or output",
        ("type", "direction"),
    ),
    Metric("sfad_user_live_runs", "gauge", "Live runs of a user", ("user",)),
    Metric("sfad_user_runs_ended", "counter", "Runs of a user that have ended", ("user",)),
    Metric(
        "sfad_user_cost_usd",
        "counter",
        "Cost of a user's ended runs, as far as it is known",
        ("user",),
    ),
    Metric(
        "sfad_user_tokens",
        "counter",
        "Tokens of a user's ended runs; direction is input or output",
        ("user", "direction"),
    ),
    Metric(
        "sfad_spawn_duration_seconds",
        "histogram",
        "From a request to the execution of its command, without queueing",
    ),
    Metric(
        "sfad_queue_wait_seconds",
        "histogram",
        "From a request to the execution of its command, of trees that were queued",
    ),
    Metric(
        "sfad_gateway_calls",
        "counter",
        "Model calls that have ended or were not made",
        ("upstream", "outcome"),
    ),
    Metric(
        "sfad_gateway_calls_open", "gauge", "Model calls that wait or are under way", ("state",)
    ),
    Metric(
        "sfad_gateway_first_byte_seconds", "histogram", "Time until an upstream began its reply"
    ),
    Metric(
        "sfad_budget_usd",
        "gauge",
        "Money that a budget has in its present period",
        ("scope", "name"),
    ),
    Metric(
        "sfad_budget_used_usd",
        "gauge",
        "Money that is used of a budget in its present period",
        ("scope", "name"),
    ),
    Metric(
        "sfad_plan_used_ratio",
        "gauge",
        "Part of a subscription's window that is used, where known",
        ("provider", "account", "window"),
    ),
    Metric("sfad_events", "counter", "Events", ("type",)),
    Metric("sfad_events_lost", "counter", "Events and rows that the ledger could not take"),
    Metric(
        "sfad_hook_executions",
        "counter",
        "Executions of hooks and of --on-end that have ended or were dropped",
        ("outcome",),
    ),
    Metric("sfad_connections", "gauge", "Connections of clients"),
    Metric(
        "sfad_slow_clients_dropped",
        "counter",
        "Clients that were dropped because they did not read",
    ),
    Metric(
        "sfad_ledger_commit_duration_seconds", "histogram", "Time of each transaction of the ledger"
    ),
    Metric("sfad_ledger_size_bytes", "gauge", "Size of the ledger"),
    Metric(
        "sfad_ledger_writable",
        "gauge",
        "1 if the ledger can be written, else 0, and nothing new is started",
    ),
)
