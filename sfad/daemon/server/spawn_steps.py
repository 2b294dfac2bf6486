"""What a request to start a run becomes before the core decides about it.

`STEPS`, at the end, are the changes to it, in their order, and `CHECKS` what must hold of the
result. `asked_of` translates that into the core's terms.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import convert
from msgspec.structs import replace

from ...agents import (
    AGENT_PROGRAMS,
    OWN_SERVERS,
    UNREAD,
    AgentProgram,
    named,
    session_files_of,
)
from ...agents.own_server import ServerCall, call_of, sentence, words_alone
from ...agents.program import digest, is_session_id
from ...agents.registered import Registered, filled_in, resumed_command
from ...agents.setup_reader import NO_SETUPS, TreeSetups
from ...core.state.access import VERBS, Peer
from ...core.state.naming import (
    AGENT_COMMANDS,
    derive_name,
    executes,
    named_word,
    program_name,
)
from ...core.state.policy import MAX_LABELS, Invalid
from ...core.state.request import (
    Asked,
    Identity,
    Queueing,
    Retries,
    SessionAsked,
    Shown,
    Sources,
    Terms,
    ToolLists,
    narrowed,
)
from ...hooks.event_hooks import CHANNEL
from ...processes import kernel
from ...protocol.known import ANY_PROGRAM, BY_REPORT, NO_METER, TIME_SAID
from ...protocol.messages import OwnServerAsked, Spawn
from ...protocol.requests.subscriptions import Provider
from ...protocol.types import Isolation, LimitKind, RunId, Ship
from ...runs.live import MAX_ON_END, Live
from ...shipping import why_unsafe
from ...usage.metering import program_of
from ..loop.fleet import Fleet
from ..loop.gateway_routing import check_base_urls, routed
from ..loop.gateways import Gateways
from ..loop.isolating import Isolating, IsolationImpossible
from ..loop.own_servers import ServerWatch
from ..loop.runtime import Runtime
from ..loop.shipping import NOT_HERE
from ..loop.worktrees import check_free, shared
from .lookup import bad_request, check_limits, check_most, too_many, unavailable, wrong_state

MAX_EXEC = 6 << 20
"""Bytes of argv and environment that execve(2) takes at most (3/4 of `_STK_LIM`), with a pointer
and a NUL for each word."""

LARGE = 64 << 10
"""Bytes of argv and environment that are not usual: a login has some 5 KiB.
`quotas.queued_per_user` bounds the usual ones."""

MAX_LARGE = 64 << 20
"""Bytes of all large ones of a user's runs that wait, or may start again: the daemon keeps them in
memory and on its disk."""


class SpawnContext(NamedTuple):
    """What steps and checks read beside the request."""

    peer: Peer
    caller: Live | None
    """The run that the peer is in."""
    setups: TreeSetups
    """How agent programs of the tree are routed through the gateway."""
    explicit: bool
    """The client itself asked for the gateway."""
    gateways: Gateways
    isolating: Isolating
    agents: Mapping[str, Registered]
    live: Mapping[RunId, Live]
    fleet: Fleet
    servers: ServerWatch
    client: int
    """The process that asks."""


def context_of(
    runtime: Runtime,
    request: Spawn,
    peer: Peer,
    caller: Live | None,
    setups: TreeSetups,
    client: int,
) -> SpawnContext:
    return SpawnContext(
        peer, caller, setups, bool(request.gateway), runtime.gateways, runtime.isolating,
        runtime.agents, runtime.catalogue.live, runtime.fleet, runtime.server_watch, client,
    )  # fmt: skip


Step = Callable[[Spawn, SpawnContext], Spawn]


def apply_steps(request: Spawn, context: SpawnContext) -> Spawn:
    """Return what the request becomes. Raise `Invalid`, `RequestError`, `OSError`."""
    for step in STEPS if request.placing is None else PLACED_STEPS:
        request = step(request, context)
    for check in CHECKS:
        check(request, context)
    return request


# ---- Steps: what is decided, chosen and filled in


def asks_for_gateway(request: Spawn, *, by_default: bool | None) -> bool:
    """Return whether the request says that its run is to use the gateway. A list of models says so
    too."""
    return (
        request.gateway
        if request.gateway is not None
        else bool(request.allowed_models or by_default)
    )


def decide_gateway(request: Spawn, context: SpawnContext) -> Spawn:
    """Decide whether the run uses the gateway. What is in a run that uses it may not leave it, and
    the other way round."""
    caller = context.caller
    inherited = context.gateways.enabled if caller is None else caller.spawn.gateway
    if request.gateway is None and asks_for_gateway(request, by_default=inherited):
        request = replace(request, gateway=True)
    if not request.gateway and (
        request.allowed_models or (caller is not None and caller.run.birth.models)
    ):
        raise Invalid(
            "only the gateway bounds models: "
            "leave out --no-gateway, because --model-allow was given to this run or one above it"
        )
    if caller is None:
        if request.gateway:
            check_base_urls(context.setups)
        return request
    if request.gateway and caller.spawn.gateway is False:
        raise Invalid(
            f"run {caller.run.id} was started with --no-gateway, which holds for what it starts: "
            "leave out --gateway"
        )
    if request.gateway is None:
        return replace(request, gateway=inherited)
    if not request.gateway and inherited:
        raise Invalid(
            f"run {caller.run.id} uses the gateway, so what it starts may not leave it: "
            "leave out --no-gateway, or start the run from outside any run"
        )
    return request


def check_placeable(request: Spawn, context: SpawnContext) -> Spawn:
    """Refuse what cannot go to another node. What a run above has decided about the gateway holds
    there, too."""
    caller = context.caller
    if request.stdio != "files" or request.stdin == "descriptor":
        raise Invalid(
            "a run with --fleet reads no stdin of this machine, and writes to files of its node: "
            "leave out --stdio"
        )
    if request.detach:
        raise Invalid(
            "--detach and --fleet exclude each other: "
            "a run of another node is a child, or a root that no run started"
        )
    if caller is not None and request.gateway is None and caller.spawn.gateway is not None:
        return replace(request, gateway=caller.spawn.gateway)
    if (
        caller is not None
        and request.gateway is not None
        and caller.spawn.gateway not in {None, request.gateway}
    ):
        raise Invalid(
            f"what run {caller.run.id} has decided about the gateway holds for what it starts"
        )
    return request


def note_files(request: Spawn, context: SpawnContext) -> Spawn:
    """Note from which node the files of a run that is to be placed come."""
    ship = request.ship
    if ship is None:
        return request
    _check_files(ship, context)
    return replace(request, ship=replace(ship, node=context.fleet.node))


def work_in_copy(request: Spawn, context: SpawnContext) -> Spawn:
    """Have a run of another node work in a copy of the files that were sent with it."""
    ship = request.ship
    if ship is None:
        return request
    if request.grant is None and ship.node != context.fleet.node:
        raise bad_request(
            "--ship sends files to the node where a run is placed: "
            "add --fleet or --on, or leave out --ship"
        )
    _check_files(ship, context)
    return replace(request, cwd=context.fleet.shipping.directory(context.peer.uid, ship))


def _check_files(ship: Ship, context: SpawnContext) -> None:
    if (
        ship.within and why_unsafe(os.fsdecode(ship.within)) is not None
    ) or not ship.directory.startswith(b"/"):
        raise bad_request(f"the run cannot work in {ship.within[:80]!r} of {ship.directory[:80]!r}")
    if not ship.author.isprintable():
        raise bad_request(f"a control character in the author of commits: {ship.author[:80]!r}")
    if not context.fleet.shipping.files.is_whole(context.peer.uid, ship.archive):
        raise wrong_state(NOT_HERE.format(os.fsdecode(ship.directory)))


def narrow_tools(request: Spawn, context: SpawnContext) -> Spawn:
    """Narrow the lists of tools by those of the peer's run. To detach is no way out of them."""
    caller = context.caller
    if caller is None or not any(caller.run.asked.terms.tools):
        return request
    own = ToolLists(tuple(request.allowed_tools), tuple(request.blocked_tools))
    tools = narrowed(own, caller.run.asked.terms.tools, f"run {caller.run.id}")
    return replace(request, allowed_tools=list(tools.allowed), blocked_tools=list(tools.blocked))


def forget_told_time(request: Spawn, context: SpawnContext) -> Spawn:
    """Drop a limit of time that a client has only because the daemon told its run, in the same
    variable, how much that run has. It would replace what an agent or a profile sets. What a person
    has set there for all runs below stays."""
    said = context.caller.run.time_said if context.caller is not None else None
    if said is None or said.source == TIME_SAID:
        return request
    assert context.caller is not None
    told = min(said.threshold, *(run.allowed_time for run in context.caller.run.lineage))
    limits = [
        limit
        for limit in request.limits
        if limit.kind is not LimitKind.TIME or limit.source != TIME_SAID or limit.threshold < told
    ]
    return replace(request, limits=limits)


def fill_in_agent(request: Spawn, context: SpawnContext) -> Spawn:
    """Replace the name of a registered agent by its command, with options for the tools that it may
    use."""
    if request.agent is None:
        return request
    return filled_in(
        request,
        context.agents,
        context.gateways.of(context.peer.uid).address() if request.gateway else None,
    )


def resume_command(request: Spawn, _: SpawnContext) -> Spawn:
    """Replace the command of a run that continues a session by one that does so."""
    continues = request.continues
    if continues is None:
        return request
    session = continues.agent_session
    if not is_session_id(session):
        raise wrong_state(
            f"run {continues.run} cannot be continued: {session[:80]!r} is not the id of a "
            "session. An id has at most 128 of A-Z a-z 0-9 _ - and does not begin with - or _"
        )
    argv = resumed_command(request, session, continues.task)
    if argv is None:
        shown = " ".join(word.decode(errors="backslashreplace") for word in request.argv[:8])[:200]
        raise wrong_state(
            f"run {continues.run} cannot be continued: sfad knows no command that continues its "
            f"session {session}, or cannot tell which words of its command are its task: {shown}"
        )
    return replace(request, argv=argv)


def route(request: Spawn, context: SpawnContext) -> Spawn:
    """Route command and environment through the gateway, or around it."""
    more = (
        routed(replace(request, argv=request.resume_argv), *_way(context)).argv
        if request.resume_argv
        else []
    )
    return replace(routed(request, *_way(context), explicit=context.explicit), resume_argv=more)


def _way(context: SpawnContext) -> tuple[TreeSetups, Gateways, int]:
    return context.setups, context.gateways, context.peer.uid


def keep_alone(request: Spawn, _: SpawnContext) -> Spawn:
    """Have a program do its work itself that would use a server of its own, which a person or
    another run may have started."""
    program, given = _words_after(request)
    if program not in OWN_SERVERS or not (more := words_alone(OWN_SERVERS[program], given)):
        return request
    at = len(request.argv) - len(given)
    return replace(request, argv=[*request.argv[:at], *map(os.fsencode, more), *request.argv[at:]])


def isolate(request: Spawn, context: SpawnContext) -> Spawn:
    """Decide what the run's sandbox has."""
    try:
        return context.isolating.decided(request, context.caller, context.peer.uid)
    except IsolationImpossible as error:
        raise unavailable(str(error)) from None


def share_worktree(request: Spawn, context: SpawnContext) -> Spawn:
    """Have a run work in the worktree of the run above it, if it starts there and asks for none."""
    return shared(request, context.caller)


def mark_hooks(request: Spawn, context: SpawnContext) -> Spawn:
    """Give runs that a hook starts, and what is started in them, the channel of hooks: their events
    start no hook. No other client may hide its runs so."""
    if context.peer.hook or (
        context.caller is not None and context.caller.run.birth.channel == CHANNEL
    ):
        return replace(request, channel=CHANNEL)
    if request.channel == CHANNEL:
        raise bad_request(
            f"the channel '{CHANNEL}' is that of runs which a hook starts; choose another"
        )
    return request


# ---- Checks of what has become of it


def check_size(request: Spawn, context: SpawnContext) -> None:
    """Refuse what execve(2) does not take, and a large request of a user whose live runs have
    enough of them."""
    size, peer = _size(request), context.peer
    if size > MAX_EXEC:
        raise too_many(
            "bytes of argv and environment with 9 more for each word (argument list too long)",
            size,
            MAX_EXEC,
        )
    if size <= LARGE:
        return
    kept = sum(
        other
        for one in context.live.values()
        if one.uid == peer.uid and (other := _size(one.spawn)) > LARGE
    )
    if kept + size > MAX_LARGE:
        raise unavailable(
            f"argv and environment have {size} bytes, and {kept} are kept for "
            f"user {peer.user}'s runs that wait; at most {MAX_LARGE} together: "
            "wait until one of them has started, or start it with a smaller environment"
        )


def _size(request: Spawn) -> int:
    """Return the bytes that execve(2) counts."""
    return (
        sum(map(len, request.argv))
        + sum(map(len, request.env))
        + 9 * (len(request.argv) + len(request.env))
    )


def check_characters(request: Spawn, _: SpawnContext) -> None:
    """Refuse NUL in what the kernel takes; where lists show the text, also control characters and
    such as change the direction of writing."""
    isolation = request.isolation or _NO_ISOLATION
    for what, words in (
        ("argv", request.argv),
        ("env", request.env),
        ("cwd", [request.cwd]),
        (
            "the directory of --ship",
            [] if request.ship is None else [request.ship.directory, request.ship.within],
        ),
        ("a writable path", isolation.writable),
        ("a readable path", isolation.readable),
    ):
        for word in words:
            if b"\0" in word:
                raise bad_request(f"a NUL byte in {what}: {word[:80]!r}")
    for tool in (*request.allowed_tools, *request.blocked_tools):
        if "\0" in tool:
            raise bad_request("a NUL character in the name of a tool")
    labels = [word for pair in request.labels.items() for word in pair]
    for name, texts in (
        ("a label", labels),
        ("--type", [request.run_type]),
        ("--channel", [request.channel]),
    ):
        for text in texts:
            if text is not None and not text.isprintable():
                raise bad_request(f"a control character in {name}: {text[:80]!r}")


def check_bounds(request: Spawn, _: SpawnContext) -> None:
    """Bound what the daemon keeps and shows while it remembers the run. Argv and env are bounded by
    the frame and by execve(2)."""
    isolation = request.isolation or _NO_ISOLATION
    paths = (*isolation.writable, *isolation.readable)
    tools = (*request.allowed_tools, *request.blocked_tools)
    labels = max((len(word) for pair in request.labels.items() for word in pair), default=0)
    for what, value, limit in (
        ("bytes of cwd", len(request.cwd), 4096),
        (
            "bytes of the directory of --ship",
            len(request.ship.directory) if request.ship is not None else 0,
            4096,
        ),
        (
            "characters of the author of commits",
            len(request.ship.author) if request.ship is not None else 0,
            256,
        ),
        ("characters of key", len(request.key or ""), 64),
        ("characters of session", len(request.agent_session or ""), 64),
        ("labels", len(request.labels), MAX_LABELS),
        ("characters of a label", labels, 256),
        ("characters of --type", len(request.run_type or ""), 64),
        ("characters of --channel", len(request.channel or ""), 64),
        (
            "characters of tool names, with 1 more for each",
            sum(map(len, tools)) + len(tools),
            65536,
        ),
        ("characters of patterns of models", sum(map(len, request.allowed_models)), 4096),
        (
            "bytes of writable and readable paths, with 1 more for each",
            sum(map(len, paths)) + len(paths),
            65536,
        ),
        (
            "characters of --egress, with 1 more for each",
            sum(map(len, isolation.egress)) + len(isolation.egress),
            16384,
        ),
        ("names in the claimed chain", len(request.claim.names), 64),
        ("characters of a claimed name", max(map(len, request.claim.names), default=0), 64),
    ):
        if value > limit:  # no call for each: all are right in nearly every request
            raise too_many(what, value, limit)
    if any("," in name or "\0" in name for name in request.claim.names):
        raise bad_request("a comma or a NUL character in a claimed name")


def check_values(request: Spawn, _: SpawnContext) -> None:
    """Refuse values that mean nothing. The core checks those that it decides by."""
    if not 0 <= request.umask <= 0o777:
        raise bad_request(f"umask must be 0 to 0o777, got {request.umask:#o}")
    isolation = request.isolation or _NO_ISOLATION
    for kind, paths in (("writable", isolation.writable), ("readable", isolation.readable)):
        if any(not path.startswith(b"/") for path in paths):
            raise bad_request(f"each {kind} path must be absolute")
    if not request.cwd.startswith(b"/"):
        raise bad_request(f"cwd must be absolute, got {request.cwd!r}")
    check_limits(request.limits)
    unknown = (set(request.allow) | set(request.deny)) - VERBS
    if unknown:
        known = ", ".join(sorted(VERBS))
        raise bad_request(
            f"unknown verb to allow or deny: {', '.join(sorted(unknown))}; choose from: {known}"
        )


def check_worktree(request: Spawn, context: SpawnContext) -> None:
    """Refuse the worktree of an earlier run that another request has taken while git looked at the
    repository."""
    worktree = request.worktree
    if worktree is not None and worktree.of is not None and not worktree.shared:
        check_free(worktree.path, worktree.of, context.live)


def check_meter(request: Spawn, _: SpawnContext) -> None:
    if request.meter is None or request.meter in UNREAD:
        return
    known = [program.name for program in AGENT_PROGRAMS]
    if request.meter not in known:
        names = ", ".join([*known, *UNREAD])
        raise bad_request(f"unknown meter '{request.meter[:80]}'; choose from: {names}")
    if request.stdio != "files" or not request.log:
        raise bad_request(
            f"the meter '{request.meter}' has nothing to read: "
            "this run's output is not kept in files"
        )


def check_on_end(request: Spawn, context: SpawnContext) -> None:
    if request.on_end is None:
        return
    if context.peer.run is not None:
        raise bad_request(
            "--on-end is for runs that are started from outside any run: "
            "leave it out, and wait for the run instead"
        )
    check_most("characters of --on-end", len(request.on_end), MAX_ON_END)
    if "\0" in request.on_end:
        raise bad_request("a NUL character in --on-end")


_NO_ISOLATION = Isolation()


# ---- Servers of programs, to which they would hand work outside of the run


def _words_after(request: Spawn) -> tuple[str, list[str]]:
    """Return the program of a command and the words after it; none where no word names it."""
    words = [os.fsdecode(word) for word in request.argv]
    program = program_name(words)
    at = named_word(words, program) if program in OWN_SERVERS else None
    return program, [] if at is None else words[at + 1 :]


def server_call(request: Spawn) -> ServerCall | None:
    """Return what a command asks of a server of its program; `None` if it asks nothing."""
    program, given = _words_after(request)
    return call_of(program, OWN_SERVERS.get(program), given) if given else None


def asked_of_server(id_: int, request: Spawn, call: ServerCall) -> OwnServerAsked:
    """Return what a shim is to do in place of the server."""
    words = [os.fsencode(word) for word in call.words]
    background = OWN_SERVERS[program_name([os.fsdecode(request.argv[0])])].background
    if call.act != "start" or background is None:
        return OwnServerAsked(id=id_, act=call.act, what=call.what, argv=words)
    argv = [request.argv[0], *words]
    return OwnServerAsked(id=id_, act=call.act, what=call.what, argv=argv, says=background.says)


def check_own_server(request: Spawn, context: SpawnContext) -> None:
    """Refuse a command that hands its work to a server outside of the run."""
    call = server_call(request)
    if call is None or call.act not in {"start", "outside"}:
        return
    caller = context.caller
    if (
        call.address is not None
        and caller is not None
        and context.servers.serves_in_tree(call.address, caller.run.root.id, context.client)
    ):
        return
    program, _ = _words_after(request)
    raise Invalid(sentence(call, program, for_model=caller is not None))


# ---- Shims: a run's own program that comes to one


def is_own_program(shim: int, run: Live, request: Spawn) -> bool:
    """Return whether it is the run's own command that has led to a shim, as `timeout 60 claude`
    does in the run's PATH: no process between the two is the program."""
    program = program_name([os.fsdecode(word) for word in request.argv[:1]])
    if (
        run.main is None
        or request.name is not None
        or program_name(run.run.asked.shown.argv) != program
    ):
        return False
    for process in kernel.ancestors(shim):
        if process.pid != shim and executes(kernel.command(process.pid), program):
            return False
        if process.pid == run.main.pid:
            return True
    return False


def own_command(request: Spawn, run: Live, context: SpawnContext) -> list[bytes]:
    """Return the command of a run's own program, which starts it in place of the shim. Raise
    `Invalid`, `OSError`."""
    request = decide_gateway(request, context)
    token = context.gateways.token(run.run.id)
    return routed(request, context.setups, context.gateways, run.uid, token=token).argv


# ---- What the core is told of it


def asked_of(
    spawn: Spawn, client: int, session: SessionAsked | None = None, setups: TreeSetups = NO_SETUPS
) -> tuple[Asked, AgentProgram | None]:
    """Return the part of a request that the core decides about, and the program whose output a
    meter reads."""
    argv = tuple(shown(word) for word in spawn.argv)
    derived = derive_name(argv)
    program = program_of(spawn.meter, argv, kept=spawn.log and spawn.stdio == "files")
    # something beside the gateway tells what it uses
    metered = program is not None or spawn.meter == BY_REPORT
    metered = metered or (
        spawn.meter != NO_METER and session_files_of(spawn.meter, argv) is not None
    )
    # derived from the whole command: a hash of its beginning would be the same for several agents
    name = spawn.name
    if name is None:
        name = spawn.agent if spawn.placing is not None and spawn.agent else derived
    asked = Asked(
        Shown(abridged(argv), shown(spawn.cwd), **_placeholders(spawn)),
        replace(
            convert(spawn, Identity, from_attributes=True),
            name=name,
            by_automatic_shim=spawn.automatic and spawn.name is None,
        ),
        convert(spawn, Terms, from_attributes=True),
        convert(spawn, Queueing, from_attributes=True),
        convert(spawn, Retries, from_attributes=True),
        Sources(
            agent_program=derived in AGENT_COMMANDS,
            tells_each_call=spawn.meter == ANY_PROGRAM,
            reports=spawn.meter == BY_REPORT,
            gated=bool(spawn.gateway) and spawn.direct is None,
            metered=metered,
            uncounted=None if metered and not _tells_late(spawn, argv) else _uncounted(spawn),
            direct=spawn.direct,
            logins=_logins(spawn.env, setups),
        ),
        tied_to=client if spawn.tied else None,
        takes_input=spawn.stdin == "pipe",
        inherits=spawn.stdio == "inherit",
        session=session,
        continues=spawn.continues.run if spawn.continues is not None else None,
        placing=spawn.placing,
        grant=spawn.grant,
    )
    return asked, program


_LOGINS: Mapping[bytes, Provider] = {
    b"ANTHROPIC_API_KEY": "anthropic",
    b"ANTHROPIC_AUTH_TOKEN": "anthropic",
    b"CLAUDE_CODE_OAUTH_TOKEN": "anthropic",
    b"CODEX_API_KEY": "openai",
}
"""Variables with a credential that programs prefer to their login."""
_LOGIN_VARIABLES = tuple(name + b"=" for name in _LOGINS)


def _logins(env: Iterable[bytes], setups: TreeSetups) -> dict[str, str]:
    """Return hashes of the credentials in an environment, and of Codex's login, by provider: they
    tell which subscription a run will use, or that it will use none."""
    # one call of C for each of some hundred variables, of which nearly none is one of these
    found = [item.partition(b"=") for item in env if item.startswith(_LOGIN_VARIABLES)]
    codex = setups.of("codex").account
    own = {"openai": codex} if codex else {}
    return own | {
        _LOGINS[name]: digest(value.decode("latin-1")) for name, _, value in found if value
    }


def _tells_late(spawn: Spawn, argv: Sequence[str]) -> bool:
    """Return whether a run that cannot use the gateway tells too late what it uses, and no person
    has named its meter."""
    program = (
        named(program_name(argv)) if spawn.direct is not None and spawn.meter is None else None
    )
    return program is not None and not program.tells_in_time


def _uncounted(spawn: Spawn) -> str | None:
    """Return why the gateway will not see what a run uses; `None` if it will."""
    if spawn.gateway:
        return spawn.direct
    return "it does not use the gateway, and no meter knows its program"


def _placeholders(spawn: Spawn) -> dict[str, str]:
    """Return what is shown of a registered agent's placeholders."""
    given = dict(spawn.placeholders)
    if spawn.continues is not None and spawn.continues.task is not None:
        given["task"] = spawn.continues.task
    return {
        name: given[name] if len(given[name]) <= MAX_SHOWN else given[name][:MAX_SHOWN] + "…"
        for name in ("task", "model", "provider")
        if name in given
    }


MAX_SHOWN = 4096
"""Characters of a command line, or of a task, that are kept for display. It may have megabytes, and
a thousand runs are in memory."""


def abridged(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command line as it is displayed, cut with `…`."""
    kept: list[str] = []
    room = MAX_SHOWN
    for word in argv:
        if len(word) > room:
            kept.append(word[:room] + "…")
            break
        kept.append(word)
        room -= len(word) + 1
    return tuple(kept)


def shown(raw: bytes) -> str:
    """Return an operating-system string as text. Bytes that are not UTF-8 appear as `\\xNN`."""
    return raw.decode(errors="backslashreplace")


# ---- The whole way


STEPS: tuple[Step, ...] = (
    decide_gateway,
    narrow_tools,
    forget_told_time,  # before an agent's own limits are left out because of it
    fill_in_agent,  # with options for its tools, and the address of the gateway
    work_in_copy,
    share_worktree,
    resume_command,
    route,  # needs the command
    keep_alone,
    isolate,  # shows the sandbox what the command needs
    mark_hooks,
)

PLACED_STEPS: tuple[Step, ...] = (
    check_placeable,
    note_files,
    narrow_tools,
    forget_told_time,
    mark_hooks,
)
"""For a run that is to be placed: the daemon of the node where it executes takes the others."""

CHECKS: tuple[Callable[[Spawn, SpawnContext], None], ...] = (
    check_size,
    check_characters,
    check_bounds,
    check_values,
    check_worktree,
    check_meter,
    check_on_end,
    check_own_server,
)
