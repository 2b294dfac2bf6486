"""`spawn`: start a run. The guard in the core decides whether the peer may, and records a refusal."""

from ...agents import AgentError, filled_in
from ...core.access import VERBS
from ...core.policy import MAX_LABELS
from ...host.descriptors import close_soon
from ...meters import PROGRAMS, UNREAD
from ...protocol.messages import MAX_DESCRIPTORS, Spawn
from ...protocol.types import RunId
from ..call import Call, answers
from ..checks import RequestError, bad_request, check_limits, check_most
from .watch import demand_watch, push

MAX_EXEC = 6 << 20
"""Bytes of argv and environment that execve(2) takes at most (3/4 of `_STK_LIM`), with a pointer and a NUL for each word."""


@answers(Spawn, permission=None)
def spawn(call: Call, request: Spawn) -> None:
    descriptors = _claim(call, request)
    try:
        if request.agent is not None:
            request = filled_in(request, call.runtime.agents, call.runtime.gateway.address() if request.gateway else None)
        check_spawn(request)
        if request.watch:
            demand_watch(call)
    except AgentError as error:
        close_soon(descriptors)
        raise bad_request(str(error)) from None
    except RequestError:
        close_soon(descriptors)
        raise

    def on_admit(run: RunId) -> None:
        if request.watch:
            push(call, run)

    call.runtime.requests.spawn(call.peer, request, descriptors, call.connection.number, call, on_admit)


def _claim(call: Call, request: Spawn) -> list[int]:
    expected = 3 if request.stdio == "inherit" else 1 if request.stdin == "descriptor" else 0
    descriptors = call.connection.take(request.descriptors) if request.descriptors <= MAX_DESCRIPTORS else None
    if descriptors is not None and len(descriptors) == expected:
        return descriptors
    close_soon(descriptors or [])
    raise bad_request(
        f"stdio '{request.stdio}' with stdin '{request.stdin}' takes {expected} descriptors; {request.descriptors} announced",
    )


def check_spawn(request: Spawn) -> None:
    """Raise `RequestError` for values that no run can be started with."""
    size = sum(map(len, request.argv)) + sum(map(len, request.env)) + 9 * (len(request.argv) + len(request.env))
    check_most("bytes of argv and environment with 9 more for each word (argument list too long)", size, MAX_EXEC)
    for what, words in (("argv", request.argv), ("env", request.env), ("cwd", [request.cwd])):
        for word in words:
            if b"\0" in word:
                raise bad_request(f"a NUL byte in {what}: {word[:80]!r}")
    if not request.cwd.startswith(b"/"):
        raise bad_request(f"cwd must be absolute, got {request.cwd!r}")
    _check_sizes(request)
    check_limits(request.limits)
    _check_meter(request)
    unknown = (set(request.allow) | set(request.deny)) - VERBS
    if unknown:
        known = ", ".join(sorted(VERBS))
        raise bad_request(f"unknown verb to allow or deny: {', '.join(sorted(unknown))}; choose from: {known}")


def _check_sizes(request: Spawn) -> None:
    """What the daemon keeps and shows while it remembers the run is bounded here; argv and env by the frame and by execve(2)."""
    tools = sum(map(len, request.allowed_tools)) + sum(map(len, request.blocked_tools))
    labels = max((len(word) for pair in request.labels.items() for word in pair), default=0)
    for what, value, limit in (
        ("bytes of cwd", len(request.cwd), 4096),
        ("characters of key", len(request.key or ""), 64),
        ("characters of session", len(request.session or ""), 64),
        ("labels", len(request.labels), MAX_LABELS),
        ("characters of a label", labels, 256),
        ("characters of --type", len(request.run_type or ""), 64),
        ("characters of --channel", len(request.channel or ""), 64),
        ("characters of tool names", tools, 65536),
        ("names in the claimed chain", len(request.claim.names), 64),
        ("characters of a claimed name", max(map(len, request.claim.names), default=0), 64),
    ):
        check_most(what, value, limit)


def _check_meter(request: Spawn) -> None:
    known = [program.name for program in PROGRAMS]
    if request.meter is None or request.meter in UNREAD:
        return
    if request.meter not in known:
        names = ", ".join([*known, *UNREAD])
        raise bad_request(f"unknown meter '{request.meter[:80]}'; choose from: {names}")
    if request.stdio != "files" or not request.log:
        raise bad_request(f"the meter '{request.meter}' has nothing to read: this run's output is not kept in files")
