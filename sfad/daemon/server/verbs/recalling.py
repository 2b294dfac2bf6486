"""`recall`: what a run was started with."""

from msgspec.structs import replace

from ....protocol.errors import wrong_state
from ....protocol.messages import Recall, Recalled, Spawn
from ....protocol.types import RunInfo
from ....start.recalling import recalled
from ..asker import Asker, answers_about_run


@answers_about_run(Recall)
def recall(asker: Asker, _: Recall, run: RunInfo) -> None:
    if run.session:
        raise wrong_state(
            f"run {run.id} is a session, which has rules of its own; start another: "
            "sfactl session spawn"
        )
    spawn = kept(asker, run)
    owner = None if run.user == asker.peer.user else run.user
    asker.reply(
        Recalled(id=asker.id, run=run.id, request=replace(spawn, labels=run.labels), owner=owner)
    )


def kept(asker: Asker, run: RunInfo) -> Spawn:
    """Return what a run was started with. Raise `RequestError`."""
    saved = asker.runtime.catalogue.request(run.id)
    spawn = recalled(saved) if saved is not None else None
    if spawn is None:
        raise wrong_state(
            f"what run {run.id} was started with is not kept: "
            "its command was longer than 64 KiB, or its row in the ledger is damaged; "
            "start it again with: sfactl spawn"
        )
    return asker.runtime.parts.again(spawn, run)
