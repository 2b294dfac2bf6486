"""`select`: which runs a command line means. The peer needs the permission for what is to be done to them."""

from collections.abc import Mapping

from ...core.access import OUTSIDE, VERBS, Scope
from ...protocol.messages import Failure, Select, Selected, Stop
from ...protocol.types import RunId, Status
from ...runs.live import Live
from ..call import Call, answers
from ..checks import MAX_CHOSEN, RequestError, bad_request, check_filters, check_most


@answers(Select, checked_later=True)
def select(call: Call, request: Select) -> None:
    if request.verb not in VERBS | OUTSIDE:
        raise bad_request(f"unknown verb '{request.verb[:80]}'")
    call.permit(request.verb)
    check_choice(request)
    named, failed = [], []
    for handle in dict.fromkeys(request.runs):
        try:
            named.append(call.resolve(handle, request.verb).id)
        except RequestError as error:
            failed.append(Failure(run=handle, code=error.code, message=str(error)))
    runs = dict.fromkeys([*named, *filtered(call, request, request.verb)])
    call.reply(Selected(id=call.id, runs=list(runs), failed=failed))


def check_choice(request: Stop | Select) -> None:
    check_most("runs in one request", len(request.runs), MAX_CHOSEN)
    check_filters(request)


_CHANGES = ("stop", "pause", "resume", "limit", "approve", "deny")


def own_scope(call: Call) -> Scope:
    """Return the runs that the peer means where it names none: a member of the admin group must not end the work of all users by
    `stop --all`. The operator and root mean all."""
    return call.scope if call.peer.owner else Scope(call.peer.uid, call.peer.run)


def has_filters(request: Stop | Select) -> bool:
    return request.everything or request.name is not None or bool(request.labels)


def filtered(call: Call, request: Stop | Select, verb: str) -> list[RunId]:
    """Return the live runs that the request's filters choose and `verb` makes sense for, parents first. For a peer inside a run,
    these are the runs below its own."""
    if not has_filters(request):
        return []
    own = call.peer.run
    scope = own_scope(call) if verb in _CHANGES else call.scope
    found = call.runtime.catalogue.live_runs(scope, name=request.name, labels=request.labels)
    if own is not None:
        found.pop(own, None)
    if verb == "pause":
        found = {run: live for run, live in found.items() if live.run.status is Status.RUNNING}
        return [run for run, live in found.items() if not _is_below_any(live, found)]
    return [run for run, live in found.items() if verb != "resume" or live.run.paused is not None]


def _is_below_any(live: Live, found: Mapping[RunId, Live]) -> bool:
    return any(above in found for above in live.lineage_ids[:-1])
