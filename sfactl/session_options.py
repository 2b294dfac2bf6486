"""The options of `session delegate` and `session spawn`, and what they print."""

from collections.abc import Callable, Sequence
from typing import TypedDict

from msgspec.structs import replace

from sfad.protocol.types import Limit

from . import exits, limits, output, spawn_options
from .options import COMMON, Argument, Option, Parameter, seconds
from .sessions import Order, SessionRefused, SessionView, headline

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    Argument("task", "TASK", "What to do, as one quoted argument"),
    Option(("--agent",), "agent", "A registered agent (default: sessions.default_agent)", "AGENT", complete="agent"),
    Option(("--name",), "name", "The session's name (default: the agent's)", "NAME"),
    Option(("--instructions",), "instructions", "How to do it: role, rules, form of the answer", "TEXT"),
    Option(("--model",), "model", "The model that the agent uses (default: its program's)", "MODEL"),
    Option(("--provider",), "provider", "The provider of the model (default: its program's)", "NAME"),
    Option(("--timeout",), "timeout", "Limit of time, as 90s or 5m (default: sessions.default_timeout_minutes)", "TIME"),
    Option(("--limit",), "limit", "A limit: turns=10, cost=0.50, tokens=100k, …", "KIND=N", many=True, complete="kind of limit"),
    Option(("--limits",), "limits", "Limits as a JSON object (see `sfactl config schema`), or a file with one", "JSON|@FILE"),
    Option(("--allow-tool",), "allow_tool", "A tool that the agent may use; all others are then forbidden", "TOOL", many=True),
    Option(("--block-tool",), "block_tool", "A tool that the agent may not use", "TOOL", many=True),
    Option(("--nested",), "nested", "The session may start sessions itself"),
    Option(("--cwd",), "cwd", "Working directory (default: current)", "DIR"),
    Option(("--worktree",), "worktree", "Work in a new git worktree, on a new branch (default: sfad/NAME-ID)", "BRANCH", alone="-"),
    Option(("--label",), "label", "Label for list, stop and others; children inherit it", "K=V", many=True, complete="label"),
    Option(("--channel",), "channel", "Origin of the request, shown in events (default: the parent's, else cli)", "NAME"),
)


class OrderOptions(TypedDict, total=False):
    agent: str
    name: str
    instructions: str
    model: str
    provider: str
    timeout: str
    limit: Sequence[str]
    limits: str
    allow_tool: Sequence[str]
    block_tool: Sequence[str]
    nested: bool
    cwd: str
    worktree: str
    label: Sequence[str]


def order(task: str, given: OrderOptions) -> Order:
    """Return what the options ask for. Raise `UsageError`."""
    return Order(
        task=task,
        agent=given.get("agent"),
        name=given.get("name"),
        model=given.get("model"),
        provider=given.get("provider"),
        instructions=given.get("instructions"),
        timeout=seconds("--timeout", given.get("timeout")),
        more_limits=_limits(given),
        allowed_tools=given.get("allow_tool", ()),
        blocked_tools=given.get("block_tool", ()),
        nested=given.get("nested", False),
        cwd=given.get("cwd"),
        worktree=given.get("worktree"),
        labels=spawn_options.pairs("--label", given.get("label", ())),
    )


def _limits(given: OrderOptions) -> list[Limit]:
    found = limits.of_flags(given.get("limit", ()))
    if "limits" in given:
        found += limits.of_object(given["limits"])
    return found


def started(start: Callable[[], SessionView], *, json: bool) -> SessionView:
    """Return the session that `start` returns. Print a refusal as JSON if that is asked for. Raise `Quit`."""
    try:
        return start()
    except SessionRefused as refused:
        if json:
            output.print_json({"refused": refused.refused})
            raise exits.Quit(refused.code) from None
        recorded = f" (recorded as {refused.run})" if refused.run else ""
        raise exits.Quit(refused.code, f"refused: {refused.message}{recorded}") from None


def tell(session: SessionView) -> None:
    """Print on stderr what the caller should know of a new session: also its id, for the case that the caller is killed."""
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
