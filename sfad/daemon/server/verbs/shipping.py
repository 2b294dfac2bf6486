"""Verbs about files that are sent with runs: `put_files`, `fetch_files`, `get_files`."""

from ....protocol.errors import RequestError, bad_request, unavailable, wrong_state
from ....protocol.messages import FetchFiles, FilesKept, FilesPacked, FilesPart, GetFiles, PutFiles
from ....protocol.types import ErrorCode, RunInfo
from ....storage.shipped import Shipment, ShipRefused
from ..asker import Asker, answers, answers_about_run
from ..peers import submitter


@answers(PutFiles)
def put_files(asker: Asker, request: PutFiles) -> None:
    runtime, uid = asker.runtime, asker.peer.uid
    if not runtime.fleet.enabled:
        raise unavailable(
            "this daemon is in no fleet: set fleet.address in its config (docs/fleet.md), "
            "or leave out --ship"
        )

    async def put() -> tuple[int, bool]:
        try:
            return await runtime.shipping.put(uid, request)
        except ShipRefused as error:
            raise bad_request(str(error)) from None

    asker.later(put, lambda kept: FilesKept(id=asker.id, offset=kept[0], whole=kept[1]))


@answers_about_run(FetchFiles)
def fetch_files(asker: Asker, request: FetchFiles, run: RunInfo) -> None:
    shipment = _of(asker, run)
    user = submitter(asker.connection, asker.runtime.launcher.containment)

    async def pack() -> tuple[str, int]:
        try:
            return await asker.runtime.shipping.pack(shipment, user, patch=request.patch)
        except ShipRefused as error:
            raise wrong_state(f"run {run.id}: {error}") from None

    ship = shipment.ship
    asker.later(
        pack,
        lambda packed: FilesPacked(
            id=asker.id,
            name=packed[0],
            size=packed[1],
            directory=ship.directory,
            node=ship.node,
            asked=asker.runtime.fleet.node,
        ),
    )


@answers_about_run(GetFiles)
def get_files(asker: Asker, request: GetFiles, run: RunInfo) -> None:
    shipment = _of(asker, run)
    asker.later(
        lambda: asker.runtime.shipping.packed(shipment, request.name, request.offset),
        lambda data: FilesPart(id=asker.id, data=data),
    )


def _of(asker: Asker, run: RunInfo) -> Shipment:
    """Return what is known of the files of a run. Raise `RequestError`."""
    if asker.runtime.catalogue.uid(run.id) != asker.peer.uid:
        raise RequestError(
            ErrorCode.NOT_PERMITTED,
            f"run {run.id} belongs to {run.user}, who alone can fetch its files",
        )
    shipment = asker.runtime.shipping.files.of(run.id)
    if shipment is None:
        began = run.started_at is not None or run.status.terminal
        why = (
            "no files were sent with it (--ship), or they are deleted by now"
            if began
            else "it has not started yet"
        )
        raise wrong_state(f"run {run.id} has no files to fetch: {why}")
    return shipment
