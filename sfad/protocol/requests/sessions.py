"""Sessions: runs of registered agents that an agent starts."""

from __future__ import annotations

from ..types import Claim, Limit, RunId, Worktree
from .base import Reply, Request


class StartSession(Request, tag="start_session"):
    """Start a session: a run of a registered agent, with a task, under `[sessions]` of the config. It needs the permission for
    `spawn`, and of a subagent that it is `nested`. Answered by `RunReply` as `Spawn` is, or by `Refused`."""

    repeats = 3

    task: str
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
    allowed_tools: list[str] = []
    blocked_tools: list[str] = []
    nested: bool = False
    """It may start sessions itself. Otherwise it is a leaf."""
    channel: str | None = None
    labels: dict[str, str] = {}
    claim: Claim = Claim()
    key: str | None = None
    """As `Spawn.key`."""
    worktree: Worktree | None = None
    """As `Spawn.worktree`."""
    continues: RunId | None = None
    """The ended session to continue with the task. What made it counts, its agent too."""


class SessionRights(Request, tag="session_rights"):
    """Ask what the peer may do with sessions. Answered by `SessionRules`."""

    repeats = 1


class SessionRules(Reply, tag="session_rules"):
    """`refused`: why the peer may not start sessions, nor stop them; `None` if it may."""

    sync_timeout_s: float
    """How long `delegate` waits for a session."""
    default_timeout_s: float
    max_timeout_s: float
    max_turns: int
    default_tokens: int
    max_tokens: int
    refused: str | None = None
    default_agent: str | None = None


class Transcript(Request, tag="transcript"):
    """Return a run's events and the newest part of its output, made safe for a language model. It needs the permission for `logs`.
    Answered by `TranscriptText`."""

    repeats = 1

    run: str
    tail: int = 100
    """Lines at most."""


class TranscriptText(Reply, tag="transcript_text"):
    run: RunId
    text: str
    truncated: bool
