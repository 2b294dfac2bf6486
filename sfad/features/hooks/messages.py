"""The request of `sfactl hooks try`."""

from ...protocol.requests.base import Reply, Request


class TryHook(Request, tag="test_hook"):
    """Execute a hook of the config for an invented event (docs/hooks.md#hooks). Answered by
    `HookTested` once it has ended."""

    name: str
    event: str = ""
    """Its type; empty: `run_failed`, or the first type that starts the hook."""


class HookTested(Reply, tag="hook_tested"):
    how: str
    """How it ended: `exit code 0`."""
    ok: bool
    """It exited with 0."""
    output: str
    """The end of what it printed."""
    elapsed_s: float
