"""The requests of `sfactl session` and of tools, and their replies."""

from __future__ import annotations

from ...protocol.requests.base import Reply, Request
from ...protocol.types import Action, Checks, Claim, Limit, RunId, Worktree


class StartSession(Request, tag="start_session"):
    """Start a session (docs/sessions.md): a run of a registered agent, with a task, under
    `[sessions]` of the config. It needs the permission for `spawn`. Answered as `Spawn` is, with
    `lowered` where limits are lower than asked for; `bad_request` for an unknown agent, and for
    more time or tool calls than a session may have. Fields that `Spawn` has too mean the same."""

    repeats = 3

    task: str
    """A placeholder of the agent, as `model`, `provider` and `instructions`
    (docs/agents.md#placeholders). At most 120 000 bytes.
    """
    cwd: bytes
    env: list[bytes]
    umask: int = 0o022
    agent: str | None = None
    """`None`: `sessions.default_agent`."""
    name: str | None = None
    model: str | None = None
    provider: str | None = None
    instructions: str | None = None
    limits: list[Limit] = []
    on_limit: Action | None = None
    """As in `Spawn`. `warn` changes nothing: each limit of a session is kept."""
    allowed_tools: list[str] = []
    blocked_tools: list[str] = []
    nested: bool = False
    """It may start sessions itself. Otherwise it is a leaf."""
    channel: str | None = None
    labels: dict[str, str] = {}
    claim: Claim = Claim()
    key: str | None = None
    """As in `Spawn`."""
    worktree: Worktree | None = None
    """As in `Spawn`."""
    check: Checks | None = None
    """As in `Spawn`."""
    continues: RunId | None = None
    """The ended session that is continued with the task. Its agent and its other fields count."""


class SessionRights(Request, tag="session_rights"):
    """Ask what the client may do with sessions. Answered by `SessionRules`."""

    repeats = 1


class SessionRules(Reply, tag="session_rules"):
    sync_timeout_s: float
    """How long a tool should wait for a session, in seconds."""
    default_timeout_s: float
    """From `[sessions]`, as the next four fields."""
    max_timeout_s: float
    max_turns: int
    default_tokens: int
    max_tokens: int
    refused: str | None = None
    """Why it may neither start nor stop sessions; `None` if it may."""
    default_agent: str | None = None
    """The agent of a session that names none."""
