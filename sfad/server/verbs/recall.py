"""`recall`: what a run was started with."""

from msgspec.structs import replace

from ...protocol.messages import Recall, Recalled
from ...protocol.types import RunInfo
from ...runs.recalled import recalled
from ..call import Call, answers_about_run
from ..checks import wrong_state


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
    foreign = run.user if run.user != call.peer.user else None
    call.reply(Recalled(id=call.id, run=run.id, request=replace(spawn, labels=run.labels), foreign=foreign))
