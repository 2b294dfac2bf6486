"""What a request to continue the session of an ended run becomes: the request of that run, with
what was asked for instead."""

import os
from collections.abc import Awaitable, Sequence

import trio
from msgspec.structs import replace

from ..agents.program import AgentProgram, arguments, program_called
from ..agents.registered import going_on, taking_up
from ..core.state.naming import program_name
from ..core.state.vocabulary import ReasonKind
from ..host.clock import wall_clock
from ..host.tasks import in_thread
from ..protocol.checks import to_repair
from ..protocol.errors import bad_request, check_most, unavailable, wrong_state
from ..protocol.kinds import KINDS
from ..protocol.known import KNOWN_PROGRAMS
from ..protocol.limits import format_amount
from ..protocol.messages import Continuation, Spawn
from ..protocol.requests.starting import OF_CLIENT
from ..protocol.types import Limit, LimitKind, RunInfo, Status
from ..usage.resumable import NotResumable, WantedAgentSession
from .prepared import Prepared, Surroundings

CHECK_WAIT = 10.0
"""Seconds that a request waits for the file system on which a session is."""

MAX_TASK = 120_000
"""Bytes. execve(2) takes an argument of 128 KiB at most."""

_OF_REQUEST = (
    "id", "env", "umask", "claim", "key", "tied", "watch", "stdio", "descriptors", "env_set",
    "detach", "after",
)  # fmt: skip
"""Fields that the request alone tells."""

_OF_BOTH = frozenset(
    {*_OF_REQUEST, "argv", "cwd", "agent", "placeholders", "agent_session", "stdin",
     *OF_CLIENT, "limits", "labels", "continues", "log"}
)  # fmt: skip
"""Fields of which not simply the one that differs from its default counts."""

_REST = (LimitKind.TIME, LimitKind.TURNS, LimitKind.MESSAGES, LimitKind.TOKENS, LimitKind.COST,
         LimitKind.PLANNING_COST, LimitKind.EXECUTION_COST)  # fmt: skip
"""Limits of which something is left."""


def continued(request: Spawn, kept: Spawn, info: RunInfo) -> Spawn:
    """Return the request for a run that continues the session of the ended run `info`, which was
    started with `kept`. Raise `RequestError`."""
    asked = request.continues
    assert asked is not None
    if request.argv or request.agent is not None:
        raise bad_request(
            f"a run that continues {info.id} has its command: leave out the agent and the command"
        )
    inherits = request.stdio == "inherit"
    terminal = inherits or (request.terminal or kept.terminal) is not None
    program = resumable_program(info.argv)
    if (
        terminal
        and asked.task is not None
        and program is not None
        and not program.resumes_with_task_in_terminal
    ):
        title = KNOWN_PROGRAMS[program.name].title
        raise bad_request(
            f"{title} takes no task where it continues a session in a terminal: "
            "leave the task out, and type it there"
        )
    if inherits and kept.stdio != "inherit":
        raise bad_request(
            f"run {info.id} did not use a terminal, "
            "so it continues in the background or in the foreground only"
        )
    chosen = {
        name: value
        for name in Spawn.__struct_fields__
        if name not in _OF_BOTH and (value := getattr(request, name)) != getattr(_DEFAULT, name)
    }
    return replace(
        kept,
        **chosen,
        **{name: getattr(request, name) for name in _OF_REQUEST},
        stdin=request.stdin
        if request.stdin != "null" or kept.stdin == "descriptor"
        else kept.stdin,
        log=request.log and (kept.log or kept.stdio == "inherit"),
        labels=info.labels | request.labels,
        limits=[*request.limits, *_others(request, kept, info)],
        continues=replace(asked, run=info.id, task=_task(asked, info, terminal=terminal)),
    )


_DEFAULT = Spawn(id=0, argv=[], cwd=b"", env=[])


def _others(request: Spawn, kept: Spawn, info: RunInfo) -> list[Limit]:
    """Return the limits of the kinds that the request does not name."""
    assert request.continues is not None
    kinds = {limit.kind for limit in request.limits}
    own = [limit for limit in kept.limits if limit.kind not in kinds]
    if not request.continues.rest:
        return own
    rest = []
    for state in info.limits:
        if state.kind not in _REST or state.kind in kinds:
            continue
        left, spec = state.threshold - (state.used or 0), KINDS[state.kind]
        if left < spec.least:
            used = (
                f"{format_amount(state.kind, state.used or 0)} of "
                f"{format_amount(state.kind, state.threshold)}"
            )
            raise bad_request(
                f"too little is left of the limit of {state.kind} of run {info.id}, which has used "
                f"{used}; give it another: --limit {state.kind}=N, or leave out --limit rest"
            )
        rest.append(
            Limit(kind=state.kind, threshold=left, action=state.action, source=f"rest of {info.id}")
        )
    kinds |= {limit.kind for limit in rest}
    return rest + [limit for limit in own if limit.kind not in kinds]


def _task(asked: Continuation, info: RunInfo, *, terminal: bool) -> str | None:
    if asked.task is not None:
        check_most("bytes of the task", len(asked.task.encode(errors="surrogateescape")), MAX_TASK)
        if "\0" in asked.task:
            raise bad_request("a NUL character in the task")
        if not asked.task.strip():
            raise bad_request("the task is blank; say what to do, or leave it out")
        return asked.task
    if terminal:
        return None
    if info.reason is not None and info.reason.kind == ReasonKind.CHECK:
        return to_repair(info.reason)
    why = info.reason.message if info.reason is not None else None
    return taking_up(why) if _ended_by_itself(info) else going_on(why)


def _ended_by_itself(info: RunInfo) -> bool:
    """Return whether the agent ended the run by itself. A signal interrupts it."""
    kind = info.reason.kind if info.reason is not None else None
    exited = kind is ReasonKind.EXIT and info.exit_code is not None
    reported = kind in (ReasonKind.AGENT, ReasonKind.RESULT)
    return info.status is Status.COMPLETED or reported or exited


def _wanted(request: Spawn, info: RunInfo, uid: int) -> WantedAgentSession | None:
    """Return the session to look for; `None` if its program is not known, and its agent has a
    command that continues it. Raise `RequestError`."""
    program = resumable_program(info.argv)
    if program is None:
        if info.session_id is None:
            raise wrong_state(
                f"run {info.id} cannot be continued: its command ('{info.argv[0]}') "
                "is no agent program whose sessions sfad knows; "
                f"an agent's entry can say how with `resume`. {_from_the_beginning(info)}"
            )
        return None
    env = dict(os.fsdecode(item).partition("=")[::2] for item in request.env)
    began, ended = info.started_at or info.created_at, info.ended_at or wall_clock()
    return WantedAgentSession(
        program, info.session_id, env, directory(program, info), uid, began, ended
    )


def _from_the_beginning(info: RunInfo) -> str:
    again = "sfactl session spawn" if info.session else f"sfactl rerun {info.id}"
    return f"To start it again from the beginning: {again}"


def directory(program: AgentProgram, info: RunInfo) -> str:
    """Return the directory in which its program worked."""
    words = arguments(info.argv, program.name) or []
    changed = program.directory(words)
    return os.path.join(info.cwd, changed) if changed is not None else info.cwd


def resumable_program(argv: Sequence[str]) -> AgentProgram | None:
    """Return the program of a command if sfad knows how to continue its sessions."""
    name = program_name(argv)
    known = KNOWN_PROGRAMS.get(name)
    program = program_called(name) if known is not None and known.title else None
    return (
        program
        if program is not None and program.resumed([], "0", None, terminal=False) is not None
        else None
    )


def find_agent_session(p: Prepared, around: Surroundings) -> Awaitable[None] | None:
    """A step of `prepare`: find the session that is continued."""
    earlier = around.earlier
    if earlier is None:
        return None
    wanted = _wanted(around.order, earlier, around.peer.uid)
    if wanted is None:
        p.command.continued_session = earlier.session_id
        return None
    return _find_session(p, around, wanted, earlier)


async def _find_session(
    p: Prepared, around: Surroundings, wanted: WantedAgentSession, earlier: RunInfo
) -> None:
    await around.aside()
    try:
        with trio.fail_after(CHECK_WAIT):
            p.command.continued_session = await in_thread(
                wanted.find, abandon=True, limiter=around.threads
            )
    except trio.TooSlowError:
        raise unavailable(
            f"the sessions of run {earlier.id} cannot be read: "
            "their file system has not answered for 10 s"
        ) from None
    except NotResumable as why:
        raise wrong_state(
            f"run {earlier.id} cannot be continued: {why}. {_from_the_beginning(earlier)}"
        ) from None


def check_ended(info: RunInfo) -> None:
    """Raise `RequestError` for a run that lives, or was never started."""
    if not info.status.terminal:
        raise wrong_state(
            f"run {info.id} has not ended: wait for it (sfactl wait {info.id}) or stop it first"
        )
    if info.executes_on is not None:
        node, there = info.executes_on
        raise wrong_state(
            f"run {info.id} executed on node {node}, which has its session: "
            f"there, sfactl continue {there}"
        )
    if info.started_at is None and info.session_id is None:
        raise wrong_state(
            f"run {info.id} was never started, so there is nothing to continue: "
            f"sfactl rerun {info.id}"
        )
