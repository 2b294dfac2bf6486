"""The daemon itself: its state, config, agents, hooks and metrics."""

from __future__ import annotations

from ..structs import Any, Literal, Struct, datetime
from ..types import AlertState, BudgetState, Kind, QuotaState, RunId
from .base import Reply, Request


class DaemonInfo(Request, tag="status"):
    """Return the state of the daemon. Answered by `DaemonStatus`."""

    repeats = 1


class GatewayInfo(Struct, frozen=True, kw_only=True):
    """The gateway of a user, which is running."""

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
    draining: bool
    live: int
    """Runs in the caller's scope, as `queued`."""
    queued: int
    admitted: int | None
    """The whole daemon's, as `refused` and `connections`: `None` for a caller who may not know of all runs."""
    refused: int | None
    connections: int | None
    memory_bytes: int
    ledger_bytes: int
    ledger_trouble: str | None = None
    backup_bytes: int | None = None
    backup_at: datetime | None = None
    adopted: int = 0
    enforcement: dict[str, str] = {}
    budgets: list[BudgetState] = []
    linger_command: str | None = None
    gateway: str | None = None
    """The address of that of the caller's user; `None` while there is none."""
    gateway_pid: int | None = None
    """`None` also while it is being started again."""
    shim_dir: str = ""
    """The directory that the PATH of each run begins with, if it has shims."""
    shims: list[str] = []
    """The programs in it."""
    quotas: list[QuotaState] = []
    """Of the caller's user; empty inside a run."""
    metrics: str | None = None
    """Where Prometheus reads metrics; `None` if nowhere. What is configured, as this, `otel`, `config_files` and `log`, and
    what is wrong with it, is told to the daemon's own user and root only."""
    metrics_trouble: str | None = None
    """Why they are not served there."""
    otel: str | None = None
    """Where spans go; `None` if nowhere."""
    otel_trouble: str | None = None
    """Why they do not arrive there."""
    rejected_config: str | None = None
    """Why the daemon does not use its config files as they are now."""
    alerts: list[AlertState] = []
    """Those that are raised, the oldest first; for a peer in a run, those about its subtree."""
    config_files: list[str] | None = None
    """Those in force, the weakest first."""
    log: str | None = None
    """Where the daemon's log goes: a file, or `stderr`, or `journal`."""
    hooks: list[HookState] = []
    """Those of the config. Only the operator is told."""
    on_ends: list[OnEndState] = []
    """Commands of `--on-end` that wait or run."""
    cost_usd: float | None = None
    """What runs have cost within the last `window_s`: those of all users, or of the caller's user if it may not know of others;
    `None` inside a run."""
    window_s: float = 3600.0
    """`alerts.window` of the config."""
    gateways: list[GatewayInfo] = []
    """Those of other users, which only they and root may ask how they are. Told as `metrics` is."""
    limit_share: float = 0.8
    """`alerts.limit_share` of the config."""


class TryHook(Request, tag="test_hook"):
    """Execute a hook of the config for an invented event. Answered by `HookTested` once it has ended."""

    name: str
    event: str = ""
    """Its type; empty: `run_failed`, or the first type that starts the hook."""


class HookTested(Reply, tag="hook_tested"):
    how: str
    """How it ended: `exit code 0`."""
    ok: bool
    output: str
    """The end of what it printed."""
    elapsed_s: float


class Metrics(Request, tag="metrics"):
    """Return the daemon's metrics. Answered by `MetricsText`."""

    repeats = 1


class MetricsText(Reply, tag="metrics_text"):
    """`text`: the text format of Prometheus, version 0.0.4."""

    text: str


class Agents(Request, tag="agents"):
    """Return the registered agents. Answered by `AgentList`."""

    repeats = 1


class AgentInfo(Struct, frozen=True, kw_only=True):
    name: str
    description: str
    command: list[str]
    kind: Kind
    type: str | None
    meter: str
    limits: list[str]
    stdin: bool
    source: str
    worktree: bool = False


class AgentList(Reply, tag="agent_list"):
    agents: list[AgentInfo]


class Config(Request, tag="config"):
    """Return the effective configuration and where each value comes from. Answered by `ConfigReply`."""

    repeats = 1


class Setting(Struct, frozen=True, kw_only=True):
    key: str
    value: Any
    source: str


class ConfigReply(Reply, tag="config"):
    settings: list[Setting]


class Reload(Request, tag="reload"):
    """Read the config again, as SIGHUP does. Answered by `Reloaded`; by `Error` if the config is wrong, and then nothing
    changes."""

    repeats = 1


class Change(Struct, frozen=True, kw_only=True):
    key: str
    old: Any
    new: Any
    source: str
    waits: bool


class Reloaded(Reply, tag="reloaded"):
    files: list[str]
    changed: list[Change]


class Prune(Request, tag="prune"):
    """Remove rows and output of ended trees. Answered by `Pruned`. A caller that is not root removes its own trees only."""

    older_than: float | None = None
    keep: int = 0
    dry_run: bool = False


class Pruned(Reply, tag="pruned"):
    trees: int
    runs: int
    events: int
    files: int
    output_bytes: int
    ledger_bytes: int


class HookState(Struct, frozen=True, kw_only=True):
    """A hook of the config, and what became of it since the daemon's start."""

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
