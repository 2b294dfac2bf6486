"""Verbs that start runs: `spawn`, `start_session`, and what a peer may do with sessions."""

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from ....agents import NO_SETUPS, PROGRAMS, UNREAD, TreeSetups
from ....agents.registered import AgentError, filled_in
from ....agents.setup_reader import Root, unknown
from ....core.state.access import VERBS, Peer
from ....core.state.naming import executes, program_name
from ....core.state.policy import MAX_LABELS, Invalid
from ....core.state.request import SessionAsked, ToolLists, narrowed
from ....hooks.event_hooks import CHANNEL
from ....host.descriptors import close_soon
from ....processes import procfs
from ....processes.credentials import Credentials
from ....protocol.known import PROGRAMS as KNOWN
from ....protocol.messages import MAX_DESCRIPTORS, OwnProgram, Recall, Recalled, SessionRights, SessionRules, Spawn, StartSession
from ....protocol.types import After, Isolation, RunId, RunInfo
from ....runs.live import MOST as MOST_ON_END
from ....runs.live import Live
from ....runs.showing import recalled, to_recall
from ...loop.isolating import IsolationError, IsolationImpossible
from ...loop.leading import check_base_urls, led, settings_file, with_gateway
from ..call import EXPECTED, Call, answers, answers_about_run, told
from ..lookup import RequestError, bad_request, check_limits, check_most, find_run, too_many, unavailable, wrong_state
from ..peers import submitter
from .following import demand_watch, push

# ---- `spawn`: start a run. The guard in the core decides whether the peer may, and records a refusal.


T = TypeVar("T")

MAX_AFTER = 64
"""Runs that one run may wait for. Each is looked up."""

MAX_EXEC = 6 << 20
"""Bytes of argv and environment that execve(2) takes at most (3/4 of `_STK_LIM`), with a pointer and a NUL for each word."""

LARGE = 64 << 10
"""Bytes of argv and environment that are not usual: a login has some 5 KiB. `quotas.queued_per_user` bounds the usual ones."""

MAX_LARGE = 64 << 20
"""Bytes of all large ones of a user's runs that wait, or may start again: the daemon keeps them in memory and on its disk."""


def start(call: Call, request: Spawn, session: SessionAsked | None = None) -> None:
    """Have the core decide about the request once the surroundings of a person's root are known. Raise `RequestError`,
    `OSError`."""
    descriptors, runtime, peer = _claim(call, request), call.runtime, call.peer
    request = msgspec.structs.replace(request, direct=None)
    try:
        request = _with_awaited(call, request)
        user = submitter(call.connection, runtime.launcher.containment)
    except RequestError:
        close_soon(descriptors, call.connection.sender_group)
        raise
    above = runtime.catalogue.live.get(peer.run) if peer.run is not None else None
    if above is not None:
        setups: TreeSetups | None = runtime.catalogue.live[above.run.root.id].setups
    elif peer.unplaced or not _may_use_gateway(request, enabled=runtime.gateways.enabled):
        setups = NO_SETUPS
    else:
        env = [item for item in request.env if not runtime.gateways.is_own(os.fsdecode(item.partition(b"=")[2]))]
        root = Root.of(peer.uid, request.cwd, env)
        setups = None if _is_agent(request) else runtime.setups.known(root)
    file = settings_file(request) if setups is not NO_SETUPS else None
    if setups is not None and file is None:
        _ask(call, request, descriptors, above, setups, session, user)
        return

    async def find() -> tuple[TreeSetups, str | None]:
        why = await runtime.setups.why_around(peer.uid, file) if file is not None else None
        return await runtime.setups.read(root) if setups is None else setups, why

    def ask(found: tuple[TreeSetups, str | None]) -> None:
        found_setups, why = found
        _ask(call, msgspec.structs.replace(request, direct=why), descriptors, above, found_setups, session, user)

    found = _later(call, descriptors, ask)
    runtime.background.answer(find, found, lambda _: found((unknown(), None)), EXPECTED)


def _with_awaited(call: Call, request: Spawn) -> Spawn:
    """Return the request with the ids of the runs that the new one is to wait for. Raise `RequestError`."""
    if not request.after:
        return request
    check_most("runs to wait for", len(request.after), MAX_AFTER)
    catalogue, peer = call.runtime.catalogue, call.peer
    above = catalogue.lineage(peer.run) if peer.run is not None else []
    found: list[After] = []
    for after in request.after:
        run = find_run(catalogue, after.run, call.scope)
        if run not in above:  # else the core says that this would be a circle, or it is detached
            call.permit("wait", catalogue.lineage(run))
        found.append(After(run=run, ok=after.ok))
    return msgspec.structs.replace(request, after=found)


def _may_use_gateway(request: Spawn, *, enabled: bool) -> bool:
    """Return whether a root may become one that uses the gateway."""
    return request.gateway is not False and bool(request.gateway or request.allowed_models or enabled)


def _is_agent(request: Spawn) -> bool:
    return request.agent is not None or program_name([os.fsdecode(word) for word in request.argv[:8]]) in KNOWN


def _ask(
    call: Call,
    request: Spawn,
    descriptors: list[int],
    above: Live | None,
    setups: TreeSetups,
    session: SessionAsked | None,
    user: Credentials | None,
) -> None:
    runtime, peer = call.runtime, call.peer
    explicit = bool(request.gateway)
    try:
        if request.shim and above is not None and _is_own_program(call.connection.sender, above, request):
            close_soon(descriptors, call.connection.sender_group)
            itself = with_gateway(request, above, enabled=True)
            itself = led(itself, setups, runtime.gateways, above.uid, token=runtime.gateways.token(above.run.id))
            call.reply(OwnProgram(id=call.id, argv=itself.argv))
            return
        asked, request = request, _completed(call, request, above, setups, explicit=explicit)
        kept = to_recall(asked, request, above) if session is None else None
        if request.watch:
            demand_watch(call)
    except IsolationImpossible as error:
        close_soon(descriptors, call.connection.sender_group)
        raise unavailable(str(error)) from None
    except (AgentError, IsolationError, Invalid) as error:
        close_soon(descriptors, call.connection.sender_group)
        raise bad_request(str(error)) from None
    except (RequestError, OSError):
        close_soon(descriptors, call.connection.sender_group)
        raise

    def on_admit(run: RunId) -> None:
        if request.watch:
            push(call, run)

    ask = partial(
        runtime.requests.spawn, peer, request, descriptors, call.connection.number, call, on_admit, session, user, setups, kept
    )
    if request.gateway and (explicit or runtime.gateways.always) and above is None:
        runtime.gateways.demand(peer.uid, _once_served(call, ask, descriptors))
        return
    if request.gateway and request.direct is None and _is_agent(request):
        runtime.gateways.demand_soon(peer.uid)
    ask()


def _completed(call: Call, request: Spawn, above: Live | None, setups: TreeSetups, *, explicit: bool) -> Spawn:
    """Return what the request becomes, step by step: its right to the gateway, its tools, the command of its agent, the way through
    the gateway, its sandbox, its channel. Raise `AgentError`, `Invalid`, `IsolationError`, `IsolationImpossible`, `RequestError`,
    `OSError`."""
    runtime, peer = call.runtime, call.peer
    request = with_gateway(request, above, enabled=runtime.gateways.enabled)
    request = _with_tools(request, above)
    if request.gateway and above is None:
        check_base_urls(setups)
    if request.agent is not None:
        request = filled_in(request, runtime.agents, runtime.gateways.of(peer.uid).address() if request.gateway else None)
    request = led(request, setups, runtime.gateways, peer.uid, explicit=explicit)
    request = runtime.isolating.decided(request, above, peer.uid)
    _check(request)
    _check_room(request, peer, runtime.catalogue.live.values())
    request = _of_hook(request, peer, above)
    if request.on_end is not None:
        _check_on_end(request.on_end, peer)
    return request


def _with_tools(request: Spawn, above: Live | None) -> Spawn:
    """Return the request with its lists of tools as the core will narrow them, because the agent's options come from them. Raise
    `Invalid`."""
    if above is None:
        return request
    own = ToolLists(tuple(request.allowed_tools), tuple(request.blocked_tools))
    tools = narrowed(own, above.run.asked.tools, f"run {above.run.id}")
    return msgspec.structs.replace(request, allowed_tools=list(tools.allowed), blocked_tools=list(tools.blocked))


def _of_hook(request: Spawn, peer: Peer, above: Live | None) -> Spawn:
    """Return the request with the channel of hooks where a hook, or what it has started, asks: the events of these runs start no
    hook. No other client may hide its runs so."""
    if peer.hook or (above is not None and above.run.birth.channel == CHANNEL):
        return msgspec.structs.replace(request, channel=CHANNEL)
    if request.channel == CHANNEL:
        raise bad_request(f"the channel '{CHANNEL}' is that of runs which a hook starts; choose another")
    return request


def _check_on_end(command: str, peer: Peer) -> None:
    if peer.run is not None:
        raise bad_request("--on-end is for runs that are started from outside any run: leave it out, and wait for the run instead")
    check_most("characters of --on-end", len(command), MOST_ON_END)
    if "\0" in command:
        raise bad_request("a NUL character in --on-end")


def _is_own_program(shim: int, run: Live, request: Spawn) -> bool:
    """Return whether it is the run's own command that has led to a shim, as `timeout 60 claude` does in the run's PATH: no process
    between the two is the program."""
    program = program_name([os.fsdecode(word) for word in request.argv[:1]])
    if run.main is None or request.name is not None or program_name(run.run.asked.argv) != program:
        return False
    for pid in procfs.ancestry(shim):
        words = [os.fsdecode(word) for word in (procfs.read(f"/proc/{pid}/cmdline") or b"").split(b"\0")]
        if pid != shim and executes(words, program):
            return False
        if pid == run.main.pid:
            return True
    return False


answers(Spawn, checked_later=True)(start)


def _later(call: Call, descriptors: list[int], go_on: Callable[[T], None]) -> Callable[[T], None]:
    """Return what is called with the result of something that the request waits for. If the request is still wanted then, it calls
    `go_on`, which may raise `RequestError` and `OSError`."""
    is_wanted = call.defer()

    def then(result: T) -> None:
        if not is_wanted():
            close_soon(descriptors, call.connection.sender_group)
        elif call.connection.closed:
            close_soon(descriptors, call.connection.sender_group)
            call.end()
        else:
            try:
                go_on(result)
            except (RequestError, OSError) as error:
                call.fail(*told(error))

    return then


def _once_served(call: Call, ask: Callable[[], None], descriptors: list[int]) -> Callable[[str | None], None]:
    """Return what is called once the gateway serves, or cannot be started for a reason."""

    def go_on(trouble: str | None) -> None:
        if trouble is None:
            ask()
            return
        close_soon(descriptors, call.connection.sender_group)
        way_out = ". --no-gateway starts the run without it" if call.peer.run is None else ""
        raise unavailable(f"the gateway cannot be started: {trouble}; the daemon's log says more{way_out}")

    return _later(call, descriptors, go_on)


def _claim(call: Call, request: Spawn) -> list[int]:
    expected = 3 if request.stdio == "inherit" else 1 if request.stdin == "descriptor" else 0
    descriptors = call.connection.take(request.descriptors) if request.descriptors <= MAX_DESCRIPTORS else None
    if descriptors is not None and len(descriptors) == expected:
        return descriptors
    close_soon(descriptors or [], call.connection.sender_group)
    raise bad_request(
        f"stdio '{request.stdio}' with stdin '{request.stdin}' takes {expected} descriptors; {request.descriptors} announced",
    )


def _check_room(request: Spawn, peer: Peer, live: Iterable[Live]) -> None:
    """Refuse a large request of a user whose live runs have enough of them."""
    if (size := _size(request)) <= LARGE:
        return
    kept = sum(other for one in live if one.uid == peer.uid and (other := _size(one.spawn)) > LARGE)
    if kept + size > MAX_LARGE:
        raise unavailable(
            f"argv and environment have {size} bytes, and {kept} are kept for user {peer.user}'s runs that wait; at most "
            f"{MAX_LARGE} together: wait until one of them has started, or start it with a smaller environment"
        )


def _size(request: Spawn) -> int:
    """Return the bytes that execve(2) counts."""
    return sum(map(len, request.argv)) + sum(map(len, request.env)) + 9 * (len(request.argv) + len(request.env))


def _check(request: Spawn) -> None:
    size = _size(request)
    check_most("bytes of argv and environment with 9 more for each word (argument list too long)", size, MAX_EXEC)
    isolation = request.isolation or Isolation()
    shown = (("writable", isolation.writable), ("readable", isolation.readable))
    paths = [(f"a {kind} path", paths) for kind, paths in shown]
    for what, words in (("argv", request.argv), ("env", request.env), ("cwd", [request.cwd]), *paths):
        for word in words:
            if b"\0" in word:
                raise bad_request(f"a NUL byte in {what}: {word[:80]!r}")
    if any("\0" in tool for tool in (*request.allowed_tools, *request.blocked_tools)):
        raise bad_request("a NUL character in the name of a tool")
    _check_characters(request)
    if not 0 <= request.umask <= 0o777:
        raise bad_request(f"umask must be 0 to 0o777, got {request.umask:#o}")
    relative = next((kind for kind, paths in shown if any(not path.startswith(b"/") for path in paths)), None)
    if relative is not None:
        raise bad_request(f"each {relative} path must be absolute")
    if not request.cwd.startswith(b"/"):
        raise bad_request(f"cwd must be absolute, got {request.cwd!r}")
    _check_sizes(request)
    check_limits(request.limits)
    _check_meter(request)
    unknown = (set(request.allow) | set(request.deny)) - VERBS
    if unknown:
        known = ", ".join(sorted(VERBS))
        raise bad_request(f"unknown verb to allow or deny: {', '.join(sorted(unknown))}; choose from: {known}")


def _check_characters(request: Spawn) -> None:
    """Refuse control characters, and such as change the direction of writing, where lists show the text."""
    labels = [word for pair in request.labels.items() for word in pair]
    for what, words in (("a label", labels), ("--type", [request.run_type]), ("--channel", [request.channel])):
        odd = next((word for word in words if word is not None and not word.isprintable()), None)
        if odd is not None:
            raise bad_request(f"a control character in {what}: {odd[:80]!r}")


def _check_sizes(request: Spawn) -> None:
    """What the daemon keeps and shows while it remembers the run is bounded here; argv and env by the frame and by execve(2)."""
    isolation = request.isolation or Isolation()
    shown = (*isolation.writable, *isolation.readable)
    egress = isolation.egress
    tools = sum(len(tool) + 1 for tool in (*request.allowed_tools, *request.blocked_tools))
    labels = max((len(word) for pair in request.labels.items() for word in pair), default=0)
    for what, value, limit in (
        ("bytes of cwd", len(request.cwd), 4096),
        ("characters of key", len(request.key or ""), 64),
        ("characters of session", len(request.session or ""), 64),
        ("labels", len(request.labels), MAX_LABELS),
        ("characters of a label", labels, 256),
        ("characters of --type", len(request.run_type or ""), 64),
        ("characters of --channel", len(request.channel or ""), 64),
        ("characters of tool names, with 1 more for each", tools, 65536),
        ("characters of patterns of models", sum(map(len, request.allowed_models)), 4096),
        ("bytes of writable and readable paths, with 1 more for each", sum(len(path) + 1 for path in shown), 65536),
        ("characters of --egress, with 1 more for each", sum(len(host) + 1 for host in egress), 16384),
        ("names in the claimed chain", len(request.claim.names), 64),
        ("characters of a claimed name", max(map(len, request.claim.names), default=0), 64),
    ):
        if value > limit:  # no call for each: all are right in nearly every request
            raise too_many(what, value, limit)


def _check_meter(request: Spawn) -> None:
    known = [program.name for program in PROGRAMS]
    if request.meter is None or request.meter in UNREAD:
        return
    if request.meter not in known:
        names = ", ".join([*known, *UNREAD])
        raise bad_request(f"unknown meter '{request.meter[:80]}'; choose from: {names}")
    if request.stdio != "files" or not request.log:
        raise bad_request(f"the meter '{request.meter}' has nothing to read: this run's output is not kept in files")


# ---- `recall`: what a run was started with


@answers_about_run(Recall)
def recall(call: Call, _: Recall, run: RunInfo) -> None:
    if run.session:
        raise wrong_state(f"run {run.id} is a session, which has rules of its own; start another: sfactl session start")
    kept = call.runtime.catalogue.request(run.id)
    spawn = recalled(kept) if kept is not None else None
    if spawn is None:
        raise wrong_state(
            f"what run {run.id} was started with is not kept: an earlier version of sfad started it, its command was longer than "
            "64 KiB, or its row in the ledger is damaged; start it again with: sfactl spawn"
        )
    owner = None if run.user == call.peer.user else run.user
    call.reply(Recalled(id=call.id, run=run.id, request=replace(spawn, labels=run.labels), owner=owner))


# ---- `start_session`: start a registered agent with a task, under `[sessions]`. The guard decides whether the peer may.


MAX_TEXT = 120_000
"""Bytes of a task or of instructions. execve(2) takes an argument of 128 KiB at most, with what the command adds to it."""


@answers(StartSession, checked_later=True)
def start_session(call: Call, request: StartSession) -> None:
    runtime = call.runtime
    texts = {"task": request.task, "model": request.model, "provider": request.provider, "instructions": request.instructions}
    given = {name: text for name, text in texts.items() if text is not None}
    for name, text in given.items():
        check_most(f"bytes of {name}", len(text.encode()), MAX_TEXT)
        if "\0" in text:
            raise bad_request(f"a NUL character in {name}")
    if not request.task.strip():
        raise bad_request("the task is blank; say what to do")
    limits = check_limits(request.limits)
    agent = request.agent or runtime.config.sessions.default_agent
    if agent is None:
        key = runtime.machine.policy.where_set("sessions.default_agent")
        raise bad_request(f"no agent was named, and {key} is not set; choose one: {', '.join(runtime.agents)}")
    if agent not in runtime.agents:
        raise bad_request(f"there is no agent {agent[:64]!r}; choose from: {', '.join(runtime.agents)}")
    start(call, _spawn(request, agent, given), SessionAsked(limits, time.time()))


def _spawn(request: StartSession, agent: str, placeholders: dict[str, str]) -> Spawn:
    return Spawn(
        id=request.id,
        argv=[],
        cwd=request.cwd,
        env=request.env,
        umask=request.umask,
        agent=agent,
        placeholders=placeholders,
        name=request.name,
        leaf=not request.nested,
        nested=request.nested,
        labels=request.labels,
        channel=request.channel,
        allowed_tools=request.allowed_tools,
        blocked_tools=request.blocked_tools,
        claim=request.claim,
        key=request.key,
    )


# ---- `session_rights`: what the peer may do with sessions


@answers(SessionRights, checked_later=True)
def session_rights(call: Call, _request: SessionRights) -> None:
    runtime = call.runtime
    rules, config = runtime.machine.policy.sessions, runtime.config.sessions
    refused = runtime.machine.refuse_sessions(call.peer)
    if refused is None and not rules.enabled:
        refused = f"sessions are off: set {runtime.machine.policy.where_set('sessions.enabled')} to true, then run: sfactl reload"
    call.reply(
        SessionRules(
            id=call.id,
            refused=refused,
            default_agent=config.default_agent,
            sync_timeout_s=config.sync_timeout_seconds,
            default_timeout_s=rules.default_time,
            max_timeout_s=rules.max_time,
            max_turns=rules.max_turns,
            default_tokens=rules.default_tokens,
            max_tokens=rules.max_tokens,
        )
    )
