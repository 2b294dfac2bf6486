"""`spawn`: start a run; `recall`: what it was started with. The guard in the core decides whether
the peer may start one, and records a refusal."""

import os
from functools import partial
from operator import attrgetter

from msgspec.structs import replace

from ....agents import chosen
from ....core.state.access import Peer
from ....core.state.policy import Invalid
from ....core.state.request import SessionAsked
from ....host.linux.descriptors import close_soon
from ....protocol.errors import RequestError, bad_request, check_most, wrong_state
from ....protocol.messages import MAX_DESCRIPTORS, Recall, Recalled, Spawn
from ....protocol.requests.starting import OF_FEATURES
from ....protocol.types import After, ErrorCode, RunId, RunInfo, Status
from ....runs.live import Live, descriptors_of
from ....start.asking import shown
from ....start.continuing import check_ended, continued
from ....start.prepared import Surroundings
from ...lookup import find_run
from ...loop.pending_requests import PendingSpawn
from ..asker import Asker, answers, answers_about_run
from ..peers import submitter
from .following import check_watch_share, push
from .looking import shows_text

_MADE_FOR = attrgetter("continues", *OF_FEATURES)
"""Returns what may be made for a request before its run is started."""
MAX_AFTER = 64
"""Runs that one run may wait for. Each is looked up."""


@answers(Spawn, checked_later=True)
async def spawn(asker: Asker, request: Spawn, session: SessionAsked | None = None) -> None:
    """Prepare what is asked for, and have the core decide about it. Raise `RequestError`,
    `OSError`."""
    descriptors = _take_descriptors(asker, request)
    try:
        if request.key is not None and _answered_again(asker, request):
            return
        runtime, around = asker.runtime, _around(asker, request, session)
        try:
            if around.caller is not None:
                around.prints_in = _prints_in(asker, around.caller, request, descriptors)
                around.printed_as_text = shows_text(request.copies, around.caller)
                # only such a client can be told to start no other run
                if (reply := runtime.parts.instead_of_run(asker.id, around)) is not None:
                    asker.reply(reply)
                    return
            prepared = await runtime.starting.prepare(around)
        except (Invalid, RequestError) as error:
            if not asker.still_wanted() or _answered_again(asker, request):
                return  # the same request came twice, and the other one was faster
            raise error if isinstance(error, RequestError) else bad_request(str(error)) from None
        if asker.is_aside and not asker.still_wanted():
            return
        if request.watch:
            check_watch_share(asker)
        watched = partial(push, asker) if request.watch else None
        handed, descriptors = descriptors, []
        runtime.requests.spawn(PendingSpawn(prepared, around, handed, watched), asker)
    finally:
        if descriptors:
            close_soon(descriptors, asker.connection.sender_group)


def _take_descriptors(asker: Asker, request: Spawn) -> list[int]:
    """Return the descriptors that came with a request. Raise `RequestError`."""
    expected, announced = descriptors_of(request), request.descriptors
    if not expected and not announced:
        return []
    found = asker.connection.take(announced) if announced <= MAX_DESCRIPTORS else None
    if found is not None and len(found) == expected:
        return found
    close_soon(found or [], asker.connection.sender_group)
    raise bad_request(
        f"stdio '{request.stdio}' with stdin '{request.stdin}' takes {expected} "
        f"descriptors; {announced} announced"
    )


def _prints_in(asker: Asker, caller: Live, request: Spawn, descriptors: list[int]) -> RunId | None:
    """Return the run above whose stdout holds what a run to be prints, if a meter reads that.

    What a metered script has behind a pipe, or in a file, it may print later. The events of an
    agent are taken to come there, if the script's own calls pass through the gateway: it has them,
    so nothing is lost where they do not come."""
    if request.stdio == "inherit":
        stdout = f"/proc/self/fd/{descriptors[1]}"
    elif request.copies is not None:
        stdout = f"/proc/{asker.connection.sender}/fd/1"
    else:
        return None
    try:
        path = os.readlink(stdout)
    except OSError:  # the client has ended, or does not let its user look
        return None
    live, output = asker.runtime.catalogue.live, asker.runtime.resources.output
    above = [live[run] for run in caller.lineage_ids if run in live]
    for each in above:
        holds = each.program is not None or each.run.asked.prints_in is not None
        if holds and output.is_stdout(path, each.run.id):
            return each.run.id
    if path.startswith("/dev/") or chosen(tuple(map(shown, request.argv))) is None:
        return None
    for each in reversed(above):
        if each.gated and each.program is not None and chosen(each.run.asked.shown.argv) is None:
            return each.run.id  # a metered script
    return None


def _answered_again(asker: Asker, request: Spawn) -> bool:
    """Answer a request whose run was started, but whose client lost the reply. What the first one
    has made of a session, or what a feature has made for it, would refuse the second."""
    catalogue, peer, callers = asker.runtime.catalogue, asker.peer, [asker.peer.run]
    if request.key is None or not any(_MADE_FOR(request)):
        return False
    if request.continues is not None and (info := catalogue.info(request.continues.run)):
        callers.append(info.parent_id)
    for caller in callers:
        if (run := catalogue.answer_to((peer.uid, caller, request.key))) is not None:
            if request.watch:
                check_watch_share(asker)
                push(asker, run)
            client = asker.connection.number if request.tied else None
            asker.runtime.requests.answer_again(run, client, asker)
            return True
    return False


def _around(asker: Asker, request: Spawn, session: SessionAsked | None) -> Surroundings:
    """Return what is around a client's request. Raise `RequestError`."""
    runtime, peer, earlier = asker.runtime, asker.peer, None
    if request.continues is not None:
        earlier, request, peer = _continued(asker, request, session)
    if request.below is not None:
        peer = runtime.parts.carrier().below(asker, request.below)
    return runtime.starting.around(
        _with_awaited(asker, request) if request.after else request,
        peer,
        submitter(asker.connection, runtime.resources.launcher.containment),
        client=asker.connection.sender,
        connection=asker.connection.number,
        session=session,
        earlier=earlier,
        threads=asker.services.threads_of(peer.uid) if earlier is not None else None,
        waits=asker.put_off,
        aside=asker.aside,
    )


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
            f"run {info.id} belongs to {info.user}, and its command would run as you: "
            f"ask {info.user} to continue it",
        )
    if info.session != (session is not None):
        raise wrong_state(
            f"run {info.id} is a session; to continue it: sfactl session send {info.id} MESSAGE"
            if info.session
            else f"run {info.id} is no session; continue it with: sfactl continue {info.id}"
        )
    check_ended(info)
    if info.continued_by is not None:
        raise wrong_state(
            f"run {info.id} was continued by {info.continued_by} already; to continue that one: "
            f"sfactl continue {info.continued_by}"
        )
    continued_request = continued(request, asker.runtime.starting.started_with(info), info)
    above = catalogue.live.get(info.parent_id) if info.parent_id is not None else None
    if above is not None and not request.detach and above.run.status is not Status.STOPPING:
        peer = replace(peer, run=above.run.id)
    return info, continued_request, peer


def _with_awaited(asker: Asker, request: Spawn) -> Spawn:
    """Return the request with the ids of the runs that the new one is to wait for. Raise
    `RequestError`."""
    check_most("runs to wait for", len(request.after), MAX_AFTER)
    catalogue, peer = asker.runtime.catalogue, asker.peer
    above = catalogue.lineage(peer.run) if peer.run is not None else []
    found: list[After] = []
    for after in request.after:
        if after.at is not None:
            found.append(After(run="", at=after.at))
            continue
        node, _, own = after.run.rpartition("/")
        if node == asker.runtime.parts.keeper().here and node:
            after = replace(after, run=own)
        elif after.elsewhere:
            asker.check_permitted("wait")
            if not asker.runtime.parts.keeper().enabled:
                raise bad_request(
                    f"{after.run!r} names a run of another node, and {asker.runtime.parts.alone}"
                )
            found.append(after)  # what has runs executed elsewhere looks whether it is there
            continue
        run = find_run(catalogue, after.run, asker.scope)
        if run not in above:  # else the core says that this would be a circle, or it is detached
            asker.check_permitted("wait", catalogue.lineage(run))
        found.append(After(run=run, ok=after.ok))
    return replace(request, after=found)


@answers_about_run(Recall)
def recall(asker: Asker, _: Recall, run: RunInfo) -> None:
    if run.session:
        raise wrong_state(
            f"run {run.id} is a session, which has rules of its own; start another: "
            "sfactl session spawn"
        )
    order = replace(asker.runtime.starting.started_with(run), labels=run.labels)
    owner = None if run.user == asker.peer.user else run.user
    asker.reply(Recalled(id=asker.id, run=run.id, request=order, owner=owner))
