"""`prune`: remove rows and output of trees that have ended."""

from __future__ import annotations

from dataclasses import asdict

from ...durable.maintenance import Wanted
from ...protocol.errors import ErrorCode
from ...protocol.messages import Prune, Pruned
from ..call import Call, answers
from ..checks import MAX_SECONDS
from ..errors import RequestError


@answers(Prune)
def prune(call: Call, request: Prune) -> None:
    if request.keep < 0 or not 0 <= (request.older_than or 0) <= MAX_SECONDS:
        raise RequestError(ErrorCode.BAD_REQUEST, f"keep must be 0 or more, and older_than 0 to {MAX_SECONDS:.0f} seconds")
    uid = call.peer.uid or None  # root removes the trees of all users
    wanted = Wanted(older_than=request.older_than, keep=request.keep, uid=uid, dry_run=request.dry_run)
    call.later(
        lambda: call.runtime.prune(wanted),
        lambda found: Pruned(id=call.id, **asdict(found)),
        failing="not everything was removed: ",
    )
