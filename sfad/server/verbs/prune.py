"""`prune`: remove rows and output of trees that have ended."""

from ...protocol.messages import Prune
from ..call import Call, answers
from ..checks import MAX_SECONDS, bad_request
from .select import own_scope


@answers(Prune)
def prune(call: Call, request: Prune) -> None:
    if request.keep < 0 or not 0 <= (request.older_than or 0) <= MAX_SECONDS:
        raise bad_request(f"keep must be 0 or more, and older_than 0 to {MAX_SECONDS:.0f} seconds")
    runtime, uid, failing = call.runtime, own_scope(call).uid, "not everything was removed: "
    asker = call.connection.groups.all
    call.later(lambda: runtime.maintenance.prune(request, uid, runtime.forget_pruned, asker), lambda found: found, failing=failing)
