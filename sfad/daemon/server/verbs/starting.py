"""Verbs that start runs: `spawn`, `start_session`, and what a peer may do with sessions."""

import os
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import trio
from msgspec.structs import replace

from ....agents.setup_reader import NO_SETUPS, Root, TreeSetups, unknown
from ....core.state.access import Peer
from ....core.state.naming import program_name
from ....core.state.policy import Invalid
from ....core.state.request import SessionAsked
from ....host.descriptors import close_soon
from ....processes.credentials import Credentials
from ....protocol.known import KNOWN_PROGRAMS as KNOWN
from ....protocol.messages import (
    MAX_DESCRIPTORS,
    Continuation,
    OwnProgram,
    Recall,
    Recalled,
    SessionRights,
    SessionRules,
    Spawn,
    StartSession,
)
from ....protocol.types import After, ErrorCode, RunId, RunInfo, Status, Worktree
from ....runs.live import Live
from ....runs.showing import recalled, to_recall
from ...loop.gateway_routing import settings_file
from ...loop.pending_requests import PendingSpawn
from ...loop.worktrees import WorktreeGone, WorktreeImpossible, again
from ..asker import EXPECTED, Asker, answers, answers_about_run, told
from ..continuing import (
    check_ended,
    continued,
    find_agent_session,
    wanted_agent_session,
    with_agent_session,
)
from ..lookup import (
    RequestError,
    bad_request,
    check_limits,
    check_most,
    find_run,
    unavailable,
    wrong_state,
)
from ..lost_runs import continued_with
from ..peers import submitter
from ..spawn_steps import (
    apply_steps,
    asked_of,
    asked_of_server,
    asks_for_gateway,
    check_worktree,
    context_of,
    is_own_program,
    own_command,
    server_call,
)
from .following import check_watch_share, push

# ---- `spawn`: start a run. The guard in the core decides whether the peer may, and records a
# refusal.


T = TypeVar("T")

MAX_AFTER = 64
"""Runs that one run may wait for. Each is looked up."""


def spawn(asker: Asker, request: Spawn, session: SessionAsked | None = None) -> None:
    """Have the core decide about the request once the surroundings of a person's root are known,
    and the session that it continues was found. Raise `RequestError`, `OSError`."""
    descriptors = _take_descriptors(asker, request)
    request = msgspec.structs.replace(request, direct=None, resume_argv=[])
    if _answered_again(asker, request, descriptors):
        return
    if request.continues is None:
        _spawn_by(asker, request, asker.peer, descriptors, session)
        return
    try:
        info, request, peer = _continued(asker, request, session)
        wanted = wanted_agent_session(request, info, peer.uid)
    except RequestError:
        close_soon(descriptors, asker.connection.sender_group)
        raise

    def go_on(found: str) -> None:
        _spawn_by(asker, with_agent_session(request, found), peer, descriptors, session)

    done = _later(asker, descriptors, go_on)
    threads = asker.services.agent_session_checks.setdefault(peer.uid, trio.CapacityLimiter(2))
    asker.runtime.background.run_then(
        lambda: find_agent_session(wanted, info, threads), done, done, EXPECTED
    )


def _answered_again(asker: Asker, request: Spawn, descriptors: list[int]) -> bool:
    """Answer a request whose run was started, but whose client lost the reply. What the first one
    has made of a session or of a worktree would refuse the second."""
    runtime, peer = asker.runtime, asker.peer
    if request.key is None or (request.continues is None and request.worktree is None):
        return False
    callers = [peer.run]
    if (
        request.continues is not None
        and (info := runtime.catalogue.info(request.continues.run)) is not None
    ):
        callers.append(info.parent_id)
    found = (runtime.catalogue.answer_to((peer.uid, caller, request.key)) for caller in callers)
    run = next((each for each in found if each is not None), None)
    if run is None:
        return False
    close_soon(descriptors, asker.connection.sender_group)
    if request.watch:
        check_watch_share(asker)
        push(asker, run)
    runtime.requests.answer_again(run, asker.connection.number if request.tied else None, asker)
    return True


def _continued(
    asker: Asker, request: Spawn, session: SessionAsked | None
) -> tuple[RunInfo, Spawn, Peer]:
    """Return the ended run whose session a request continues, what the request becomes, and who
    asks: a live parent of that run, so that the new one is a child again. Raise `RequestError`."""
    assert request.continues is not None
    catalogue, peer = asker.runtime.catalogue, asker.peer
    info = asker.resolve(request.continues.run, "recall")
    if catalogue.uid(info.id) != peer.uid:
        raise RequestError(
            ErrorCode.NOT_PERMITTED,
            (
                f"run {info.id} belongs to {info.user}, and its command would run as you: "
                f"ask {info.user} to continue it"
            ),
        )
    if info.session and session is None:
        raise wrong_state(
            f"run {info.id} is a session; to continue it: sfactl session send {info.id} MESSAGE"
        )
    if session is not None and not info.session:
        raise wrong_state(
            f"run {info.id} is no session; continue it with: sfactl continue {info.id}"
        )
    check_ended(info)
    if info.continued_by is not None:
        raise wrong_state(
            f"run {info.id} was continued by {info.continued_by} already; to continue that one: "
            f"sfactl continue {info.continued_by}"
        )
    continued_request = continued(request, _kept(asker, info), info)
    above = catalogue.live.get(info.parent_id) if info.parent_id is not None else None
    if above is not None and not request.detach and above.run.status is not Status.STOPPING:
        peer = msgspec.structs.replace(peer, run=above.run.id)
    return info, continued_request, peer


def _spawn_by(
    asker: Asker, request: Spawn, peer: Peer, descriptors: list[int], session: SessionAsked | None
) -> None:
    runtime = asker.runtime
    try:
        if request.placing is not None and not runtime.fleet.enabled:
            raise unavailable(
                "this daemon is in no fleet: set fleet.address in its config (docs/fleet.md), "
                "or leave out --fleet and --on"
            )
        request = _with_awaited(asker, request)
        if request.placing is None:
            request = _with_worktree(asker, request, peer)
        elif request.worktree is not None:
            raise bad_request(
                "--worktree and --fleet exclude each other: "
                "a worktree is made where the repository is"
            )
        user = submitter(asker.connection, runtime.launcher.containment)
    except RequestError:
        close_soon(descriptors, asker.connection.sender_group)
        raise
    caller = runtime.catalogue.live.get(peer.run) if peer.run is not None else None
    if caller is not None:
        setups: TreeSetups | None = runtime.catalogue.live[caller.run.root.id].setups
    elif peer.unidentified or not asks_for_gateway(request, by_default=runtime.gateways.enabled):
        setups = NO_SETUPS
    else:
        env = [
            item
            for item in request.env
            if not runtime.gateways.is_own(os.fsdecode(item.partition(b"=")[2]))
        ]
        root = Root.of(peer.uid, request.cwd, env)
        setups = None if _is_agent(request) else runtime.setups.known(root)
    file = settings_file(request) if setups is not NO_SETUPS else None
    if setups is not None and file is None and request.worktree is None:
        _prepare_and_ask(asker, request, request, peer, descriptors, caller, setups, session, user)
        return

    async def find() -> tuple[Spawn, TreeSetups]:
        found_setups = await runtime.setups.read(root) if setups is None else setups
        why = await runtime.setups.why_around(peer.uid, file) if file is not None else None
        in_worktree = (
            await _in_worktree(asker, request, caller, user)
            if request.worktree is not None
            else request
        )
        return replace(in_worktree, direct=why), found_setups

    def go_on(found: tuple[Spawn, TreeSetups]) -> None:
        with_why, found_setups = found
        _prepare_and_ask(
            asker, request, with_why, peer, descriptors, caller, found_setups, session, user
        )

    done = _later(asker, descriptors, go_on)

    def failed(error: Exception) -> None:
        done(error if request.worktree is not None else (request, unknown()))

    runtime.background.run_then(find, done, failed, EXPECTED)


def _with_awaited(asker: Asker, request: Spawn) -> Spawn:
    """Return the request with the ids of the runs that the new one is to wait for. Raise
    `RequestError`."""
    if not request.after:
        return request
    check_most("runs to wait for", len(request.after), MAX_AFTER)
    catalogue, peer = asker.runtime.catalogue, asker.peer
    above = catalogue.lineage(peer.run) if peer.run is not None else []
    found: list[After] = []
    for after in request.after:
        run = find_run(catalogue, after.run, asker.scope)
        if run not in above:  # else the core says that this would be a circle, or it is detached
            asker.check_permitted("wait", catalogue.lineage(run))
        found.append(After(run=run, ok=after.ok))
    return msgspec.structs.replace(request, after=found)


def _with_worktree(asker: Asker, request: Spawn, peer: Peer) -> Spawn:
    """Return the request with what it asks for of a worktree, or what its agent's entry does. Raise
    `RequestError`."""
    asked, catalogue = request.worktree, asker.runtime.catalogue
    caller = catalogue.live.get(peer.run) if peer.run is not None else None
    if asked is None:
        entry = asker.runtime.agents.get(request.agent or "")
        # it stays in its worktree
        isolated = caller is not None and caller.spawn.isolation is not None
        return (
            replace(request, worktree=Worktree())
            if entry is not None and entry.agent.worktree and not isolated
            else request
        )
    of = None
    if asked.of is not None:
        of = find_run(catalogue, asked.of, asker.scope)
        info = catalogue.info(of)
        if info is not None and info.user != asker.peer.user:
            raise bad_request(
                f"run {of} belongs to {info.user}, "
                "and only a run of theirs may work in its worktree"
            )
    check_most("characters of --worktree", len(asked.branch or ""), 200)
    return replace(request, worktree=Worktree(branch=asked.branch, of=of))


async def _in_worktree(
    asker: Asker, request: Spawn, caller: Live | None, user: Credentials | None
) -> Spawn:
    """Return the request with the worktree that its run will work in. Raise `RequestError`."""
    of = request.worktree.of if request.worktree is not None else None
    earlier = asker.runtime.catalogue.info(of) if of is not None else None
    try:
        return await asker.runtime.worktrees.in_worktree(
            request, earlier, caller, asker.peer.uid, user
        )
    except WorktreeGone as error:
        raise wrong_state(str(error)) from None
    except Invalid as error:
        raise bad_request(str(error)) from None
    except (WorktreeImpossible, OSError) as error:
        raise unavailable(str(error)) from None


def _is_agent(request: Spawn) -> bool:
    return (
        request.agent is not None
        or program_name([os.fsdecode(word) for word in request.argv[:8]]) in KNOWN
    )


def _prepare_and_ask(
    asker: Asker,
    first: Spawn,
    request: Spawn,
    peer: Peer,
    descriptors: list[int],
    caller: Live | None,
    setups: TreeSetups,
    session: SessionAsked | None,
    user: Credentials | None,
) -> None:
    runtime = asker.runtime
    context = context_of(runtime, request, peer, caller, setups, asker.connection.sender)
    try:
        if (
            request.shim
            and caller is not None
            and (call := server_call(request)) is not None
            and call.act != "outside"
        ):
            close_soon(descriptors, asker.connection.sender_group)
            asker.reply(asked_of_server(asker.id, request, call))
            return
        if (
            request.shim
            and caller is not None
            and is_own_program(asker.connection.sender, caller, request)
        ):
            own = OwnProgram(id=asker.id, argv=own_command(request, caller, context))
            close_soon(descriptors, asker.connection.sender_group)
            asker.reply(own)
            return
        request = apply_steps(request, context)
        kept = to_recall(first, request, caller)
        if request.watch:
            check_watch_share(asker)
    except Invalid as error:
        close_soon(descriptors, asker.connection.sender_group)
        raise bad_request(str(error)) from None
    except (RequestError, OSError):
        close_soon(descriptors, asker.connection.sender_group)
        raise

    def on_admit(run: RunId) -> None:
        if request.watch:
            push(asker, run)

    asked, program = asked_of(request, asker.connection.number, session, setups)
    asked = replace(asked, prints_in=_prints_in(asker, caller, request, descriptors))
    pending = PendingSpawn(
        request,
        setups,
        descriptors,
        on_admit,
        program,
        caller=peer.run,
        user=user,
        for_recall=kept,
        sender=peer.who,
    )
    if session is None:
        pending.continued_with = continued_with(runtime, first, request, pending, peer)

    def ask_core() -> None:
        try:
            check_worktree(request, context)  # the gateway may have been waited for
        except Invalid as error:
            pending.close()
            raise bad_request(str(error)) from None
        runtime.requests.spawn(peer, asked, pending, asker)

    if request.gateway and (context.explicit or runtime.gateways.always) and caller is None:
        runtime.gateways.start_for_run(peer.uid, _once_served(asker, ask_core, descriptors))
        return
    is_agent = request.agent is not None or asked.sources.agent_program
    if request.gateway and request.direct is None and is_agent:
        runtime.gateways.start_ahead(peer.uid)
    ask_core()


answers(Spawn, checked_later=True)(spawn)


def _later(
    asker: Asker, descriptors: list[int], go_on: Callable[[T], None]
) -> Callable[[T | Exception], None]:
    """Return what is called with the result of something that the request waits for, or with why
    there is none. If the request is still wanted then, it calls `go_on`, which may raise
    `RequestError` and `OSError`, or tells the client why it failed."""
    is_wanted = asker.defer()

    def then(result: T | Exception) -> None:
        if not is_wanted():
            close_soon(descriptors, asker.connection.sender_group)
        elif asker.connection.closed:
            close_soon(descriptors, asker.connection.sender_group)
            asker.end()
        elif isinstance(result, Exception):
            close_soon(descriptors, asker.connection.sender_group)
            asker.fail(*told(result))
        else:
            try:
                go_on(result)
            except Exception as error:  # noqa: BLE001 - who asked must be told of a bug too; the descriptors may be the run's by then
                if not isinstance(error, EXPECTED):
                    asker.runtime.log.internal_error(go_on)
                asker.fail(*told(error))

    return then


def _once_served(
    asker: Asker, ask: Callable[[], None], descriptors: list[int]
) -> Callable[[str | None], None]:
    """Return what is called once the gateway serves, or cannot be started for a reason."""

    def go_on(trouble: str | None) -> None:
        if trouble is None:
            ask()
            return
        close_soon(descriptors, asker.connection.sender_group)
        way_out = ". --no-gateway starts the run without it" if asker.peer.run is None else ""
        raise unavailable(
            f"the gateway cannot be started: {trouble}; the daemon's log says more{way_out}"
        )

    return _later(asker, descriptors, go_on)


def _prints_in(
    asker: Asker, caller: Live | None, request: Spawn, descriptors: Sequence[int]
) -> RunId | None:
    """Return the run above whose metered stdout is that of a run to be, too."""
    if caller is None or request.stdio != "inherit":
        return None
    live, output = asker.runtime.catalogue.live, asker.runtime.output
    metered = [run for run in caller.lineage_ids if run in live and live[run].program is not None]
    return next((run for run in metered if output.is_stdout(descriptors[1], run)), None)


def _take_descriptors(asker: Asker, request: Spawn) -> list[int]:
    expected = 3 if request.stdio == "inherit" else 1 if request.stdin == "descriptor" else 0
    descriptors = (
        asker.connection.take(request.descriptors)
        if request.descriptors <= MAX_DESCRIPTORS
        else None
    )
    if descriptors is not None and len(descriptors) == expected:
        return descriptors
    close_soon(descriptors or [], asker.connection.sender_group)
    raise bad_request(
        (
            f"stdio '{request.stdio}' with stdin '{request.stdin}' takes {expected} "
            f"descriptors; {request.descriptors} announced"
        ),
    )


# ---- `recall`: what a run was started with


@answers_about_run(Recall)
def recall(asker: Asker, _: Recall, run: RunInfo) -> None:
    if run.session:
        raise wrong_state(
            f"run {run.id} is a session, which has rules of its own; start another: "
            "sfactl session spawn"
        )
    spawn = _kept(asker, run)
    owner = None if run.user == asker.peer.user else run.user
    asker.reply(
        Recalled(id=asker.id, run=run.id, request=replace(spawn, labels=run.labels), owner=owner)
    )


def _kept(asker: Asker, run: RunInfo) -> Spawn:
    """Return what a run was started with. Raise `RequestError`."""
    kept = asker.runtime.catalogue.request(run.id)
    spawn = recalled(kept) if kept is not None else None
    if spawn is None:
        raise wrong_state(
            f"what run {run.id} was started with is not kept: "
            "an earlier version of sfad started it, its command was longer than 64 KiB, "
            "or its row in the ledger is damaged; start it again with: sfactl spawn"
        )
    return again(spawn, run, asker.runtime.agents)


# ---- `start_session`: start a registered agent with a task, under `[sessions]`. The guard decides
# whether the peer may.


MAX_TEXT = 120_000
"""Bytes of a task or of instructions. execve(2) takes an argument of 128 KiB at most, with what the
command adds to it."""


@answers(StartSession, checked_later=True)
def start_session(asker: Asker, request: StartSession) -> None:
    runtime = asker.runtime
    texts = {
        "task": request.task,
        "model": request.model,
        "provider": request.provider,
        "instructions": request.instructions,
    }
    given = {name: text for name, text in texts.items() if text is not None}
    for name, text in given.items():
        check_most(f"bytes of {name}", len(text.encode()), MAX_TEXT)
        if "\0" in text:
            raise bad_request(f"a NUL character in {name}")
    if not request.task.strip():
        raise bad_request("the task is blank; say what to do")
    limits = check_limits(request.limits)
    if request.continues is not None:
        spawn(asker, _spawn(request, None, {}), SessionAsked(limits, time.time()))
        return
    agent = request.agent or runtime.config.sessions.default_agent
    if agent is None:
        key = runtime.machine.policy.where_set("sessions.default_agent")
        raise bad_request(
            f"no agent was named, and {key} is not set; choose one: {', '.join(runtime.agents)}"
        )
    if agent not in runtime.agents:
        raise bad_request(
            f"there is no agent {agent[:64]!r}; choose from: {', '.join(runtime.agents)}"
        )
    spawn(asker, _spawn(request, agent, given), SessionAsked(limits, time.time()))


def _spawn(request: StartSession, agent: str | None, placeholders: dict[str, str]) -> Spawn:
    return Spawn(
        id=request.id,
        argv=[],
        cwd=request.cwd,
        env=request.env,
        umask=request.umask,
        agent=agent,
        placeholders=placeholders,
        name=request.name,
        on_limit=request.on_limit,
        leaf=not request.nested,
        nested=request.nested,
        worktree=request.worktree,
        labels=request.labels,
        channel=request.channel,
        allowed_tools=request.allowed_tools,
        blocked_tools=request.blocked_tools,
        claim=request.claim,
        key=request.key,
        continues=Continuation(run=request.continues, task=request.task)
        if request.continues is not None
        else None,
    )


# ---- `session_rights`: what the peer may do with sessions


@answers(SessionRights, checked_later=True)
def session_rights(asker: Asker, _request: SessionRights) -> None:
    runtime = asker.runtime
    rules, config = runtime.machine.policy.sessions, runtime.config.sessions
    refused = runtime.machine.why_sessions_refused(asker.peer)
    if refused is None and not rules.enabled:
        refused = (
            f"sessions are off: set {runtime.machine.policy.where_set('sessions.enabled')} to "
            "true, then run: sfactl reload"
        )
    asker.reply(
        SessionRules(
            id=asker.id,
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
