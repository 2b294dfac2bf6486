"""The options of `session delegate` and `session spawn`, and what they print."""

from collections.abc import Callable
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from sfad.features.session.messages import StartSession
from sfad.protocol.types import Limit

from .. import exits, output
from ..options.shared import (
    AGENT,
    LIMIT,
    MODEL,
    NEW_NAME,
    TEXT,
    TIME,
    TOOL,
    Json,
    NewChecks,
    Socket,
    Value,
    flag,
)
from ..options.spawn import Channel, Directory, Limits, NewLabels, NewWorktree
from .asking import SessionRefused, SessionView, headline, order

Task = Annotated[str, Value("TASK").argument("What to do, as one quoted argument")]


class SessionOptions(Struct, frozen=True):
    """The options of `session delegate` and `session spawn`."""

    socket: Socket = None
    json: Json = False
    agent: Annotated[
        str | None, AGENT.option("A registered agent (default: sessions.default_agent)")
    ] = None
    name: Annotated[str | None, NEW_NAME.option("The session's name (default: the agent's)")] = None
    instructions: Annotated[
        str | None, TEXT.option("How to do it: role, rules, form of the answer")
    ] = None
    model: Annotated[
        str | None, MODEL.option("The model that the agent uses (default: its program's)")
    ] = None
    provider: Annotated[
        str | None, NEW_NAME.option("The provider of the model (default: its program's)")
    ] = None
    timeout: Annotated[
        float | None,
        TIME.option("Limit of time, as 90s or 5m (default: sessions.default_timeout_minutes)"),
    ] = None
    limit: Annotated[list[Limit], LIMIT.option("A limit: turns=10, cost=0.50, tokens=100k, …")] = []
    limits: Limits = None
    allow_tool: Annotated[
        list[str], TOOL.option("A tool that the agent may use; all others are then forbidden")
    ] = []
    block_tool: Annotated[list[str], TOOL.option("A tool that the agent may not use")] = []
    nested: Annotated[bool, flag("The session may start sessions itself")] = False
    cwd: Directory = None
    worktree: NewWorktree = None
    check: NewChecks = []
    label: NewLabels = []
    channel: Channel = None

    def order(self, task: str) -> StartSession:
        """Return what the options ask for. Raise `UsageError`."""
        return order(
            task,
            limits=[*self.limit, *(self.limits.limits if self.limits is not None else [])],
            on_limit=self.limits.on_limit if self.limits is not None else None,
            allowed_tools=self.allow_tool,
            blocked_tools=self.block_tool,
            labels=dict(self.label),
            **{name: getattr(self, name) for name in _SAME},
        )


_SAME = (
    "agent", "name", "model", "provider", "instructions", "timeout", "nested", "cwd", "worktree",
    "check", "channel",
)  # fmt: skip
"""Options that `order` takes as they are."""


def started(start: Callable[[], SessionView], *, json: bool) -> SessionView:
    """Return the session that `start` returns. Print a refusal as JSON if that is asked for. Raise
    `Quit`."""
    try:
        return start()
    except SessionRefused as refused:
        if json:
            output.print_json({"refused": refused.refused})
            raise exits.Quit(refused.code) from None
        recorded = f" (recorded as {refused.run})" if refused.run else ""
        raise exits.Quit(refused.code, f"refused: {refused.message}{recorded}") from None


def tell(session: SessionView) -> None:
    """Print on stderr what the caller should know of a new session, and its id in case the caller
    is killed."""
    if not session.ended:
        output.note(f"sfactl: {session.run_id} ({session.name}) has started")
    tell_lowered(session)


def tell_lowered(session: SessionView) -> None:
    for words in session.lowered:
        output.note(f"sfactl: {words}")


def show(session: SessionView, *, json: bool) -> int:
    """Print a session with its result; return the exit code."""
    if not session.ended:
        session = replace(session, exit=exits.ExitCode.UNAVAILABLE)
    if json:
        output.print_json(session)
    elif session.result is not None:
        output.write(session.result.encode())
    elif not session.ended:
        print(f"{session.run_id}  {session.name}  {session.status}")
    if session.ended:
        tell_failure(session)
    else:
        output.note(f"sfactl: {session.run_id} is {session.status}; {session.advice}")
    return session.exit


def tell_failure(session: SessionView) -> None:
    """Print on stderr why a session that has ended did not complete."""
    if session.ended and session.status != "completed":
        output.note(f"sfactl: {output.plain(headline(session))}")
