"""The daemon itself: its state and config."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from ..types import AlertState, BudgetState, QuotaState, RunId
from .base import Reply, Request
from .windows import SubscriptionInfo


class DaemonInfo(Request, tag="status"):
    """Describe the daemon. Answered by `DaemonStatus`."""

    repeats = 1


class GatewayInfo(Struct, frozen=True, kw_only=True):
    """The gateway of a user, which is running (docs/gateway.md#many-users)."""

    user: str
    url: str
    pid: int


class DaemonStatus(Reply, tag="daemon_status"):
    version: str
    pid: int
    uptime_s: float
    socket: str
    state_dir: str
    containment: Literal["cgroup", "tags"]
    containment_detail: str
    """The runs' cgroup, or why there is none."""
    draining: bool
    """The daemon is stopping and starts nothing."""
    live: int
    """Runs in the client's scope, as `queued`."""
    queued: int
    admitted: int | None
    """Starts since the daemon's start; `None`, as `refused` and `connections`, for a client that
    may not know of all runs."""
    refused: int | None
    connections: int | None
    """Including this one."""
    memory_bytes: int
    ledger_bytes: int
    ledger_trouble: str | None = None
    """Why the ledger cannot be written; until then nothing is started."""
    backup_bytes: int | None = None
    backup_at: datetime | None = None
    adopted: int = 0
    """Runs that this daemon adopted."""
    enforcement: dict[str, str] = {}
    """How the kinds `memory`, `pids` and `cpu` are enforced: `kernel`, `watching` or `nothing`."""
    budgets: list[BudgetState] = []
    """Those of the client's user; empty inside a run."""
    linger_command: str | None = None
    """Run this, or logging out ends the daemon."""
    gateway: str | None = None
    """The address of that of the client's user; `None` while there is none."""
    gateway_pid: int | None = None
    """`None` also while it is being started again."""
    shim_dir: str = ""
    """The directory that the PATH of each run begins with, if it has shims."""
    shims: list[str] = []
    """The programs in it."""
    quotas: list[QuotaState] = []
    """Of the client's user; empty inside a run."""
    metrics: str | None = None
    """Where Prometheus reads metrics; `None` if nowhere. What is configured, as this, `otel`,
    `config_files` and `log`, and what is wrong with it, is told to the daemon's own user and root
    only."""
    metrics_trouble: str | None = None
    """Why they are not served there."""
    otel: str | None = None
    """Where spans go; `None` if nowhere."""
    otel_trouble: str | None = None
    """Why they do not arrive there."""
    rejected_config: str | None = None
    """Why the daemon does not use its config files as they are now."""
    alerts: list[AlertState] = []
    """Those that are raised, the oldest first; for a client in a run, those about its subtree."""
    config_files: list[str] | None = None
    """The config files in force, the weakest first. Told, as `log`, to the daemon's own user and
    root only."""
    log: str | None = None
    """Where the daemon's log goes: a file, or `stderr`, or `journal`."""
    hooks: list[HookState] = []
    """Those of the config. Only the operator is told."""
    on_ends: list[OnEndState] = []
    """Commands of `--on-end` that wait or run."""
    cost_usd: float | None = None
    """What runs have cost within the last `window_s`: those of all users, or of the client's user
    if it may not know of others; `None` inside a run."""
    window_s: float = 3600.0
    """`alerts.window` of the config."""
    gateways: list[GatewayInfo] = []
    """Those of other users, which only they and root may ask how they are. Told as `metrics` is."""
    limit_share: float = 0.8
    """`alerts.limit_share` of the config."""
    plans: list[SubscriptionInfo] = []
    """As in `SubscriptionList`."""


class Config(Request, tag="config"):
    """Return the effective configuration and where each value comes from. Answered by
    `ConfigReply`."""

    repeats = 1


class Setting(Struct, frozen=True, kw_only=True):
    """A key of the config, as `guard.max_depth`."""

    key: str
    """Dotted: `guard.max_depth`."""
    value: Any
    """Durations in seconds."""
    source: str
    """The config file, or `built-in`."""


class ConfigReply(Reply, tag="config"):
    settings: list[Setting]
    """Every key."""


class Reload(Request, tag="reload"):
    """Read the config files again and, if another version has been installed, become it, as SIGHUP
    does. Answered by `Reloaded`; `bad_request` if a file is wrong: the old config stays, and the
    message names file, key and allowed values."""

    repeats = 1


class Change(Struct, frozen=True, kw_only=True):
    """A setting that a reload found changed."""

    key: str
    old: Any
    """`None` if the key is new."""
    new: Any
    """`None` if the key is gone."""
    source: str
    """What set the new value: a file, `built-in`, `removed`."""
    waits: bool
    """Takes effect at the daemon's next start."""


class Reloaded(Reply, tag="reloaded"):
    files: list[str]
    """Existing config files, lowest precedence first."""
    changed: list[Change]
    becomes: str | None = None
    """The version that has been installed and that the daemon becomes now, with all its runs."""


class Prune(Request, tag="prune"):
    """Remove ended trees: their rows and events in the ledger, and their output. A tree with a live
    run stays whole. A user other than root removes their own trees only. Answered by `Pruned`;
    `unavailable` if not everything could be removed."""

    older_than: float | None = None
    """Only trees whose last run ended so many seconds ago; at most 100 years."""
    keep: int = 0
    """Spare this many of the newest ended trees."""
    dry_run: bool = False
    """Only count."""


class Pruned(Reply, tag="pruned"):
    trees: int
    runs: int
    events: int
    files: int
    """Files of output."""
    output_bytes: int
    """Disk space of these files."""
    ledger_bytes: int
    """By how much the ledger's file shrank."""


class HookState(Struct, frozen=True, kw_only=True):
    """A hook of the config, and what became of it since the daemon's start
    (docs/hooks.md#hooks)."""

    name: str
    on: list[str]
    command: list[str]
    timeout: float
    waiting: int = 0
    """Events that it has not been started for."""
    running: int = 0
    ended: int = 0
    failed: int = 0
    failing: str | None = None
    """How it ended last, if it failed."""
    dropped: int = 0
    """Events for which it was not started, because too many came."""


class OnEndState(Struct, frozen=True, kw_only=True):
    """The command of `--on-end` of a run that has ended."""

    run_id: RunId
    command: str
    state: Literal["waiting", "running"]
