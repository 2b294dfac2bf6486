"""Verbs about files that are sent with runs: `put_files`, `fetch_files`, `get_files`."""

from ....protocol.messages import FetchFiles, FilesKept, FilesPacked, FilesPart, GetFiles, PutFiles
from ....protocol.types import ErrorCode, RunInfo
from ....storage.shipped import Shipment, ShipRefused
from ..call import Call, answers, answers_about_run
from ..lookup import RequestError, bad_request, unavailable, wrong_state
from ..peers import submitter


@answers(PutFiles)
def put_files(call: Call, request: PutFiles) -> None:
    runtime, uid = call.runtime, call.peer.uid
    if not runtime.fleet.enabled:
        raise unavailable("this daemon is in no fleet: set fleet.address in its config (docs/fleet.md), or leave out --ship")

    async def put() -> tuple[int, bool]:
        try:
            return await runtime.shipping.put(uid, request)
        except ShipRefused as error:
            raise bad_request(str(error)) from None

    call.later(put, lambda kept: FilesKept(id=call.id, offset=kept[0], whole=kept[1]))


@answers_about_run(FetchFiles)
def fetch_files(call: Call, request: FetchFiles, run: RunInfo) -> None:
    shipment = _of(call, run)
    user = submitter(call.connection, call.runtime.launcher.containment)

    async def pack() -> tuple[str, int]:
        try:
            return await call.runtime.shipping.pack(shipment, user, patch=request.patch)
        except ShipRefused as error:
            raise wrong_state(f"run {run.id}: {error}") from None

    ship = shipment.ship
    call.later(
        pack,
        lambda packed: FilesPacked(
            id=call.id, name=packed[0], size=packed[1], directory=ship.directory, node=ship.node, asked=call.runtime.fleet.node
        ),
    )


@answers_about_run(GetFiles)
def get_files(call: Call, request: GetFiles, run: RunInfo) -> None:
    shipment = _of(call, run)
    call.later(
        lambda: call.runtime.shipping.packed(shipment, request.name, request.offset),
        lambda data: FilesPart(id=call.id, data=data),
    )


def _of(call: Call, run: RunInfo) -> Shipment:
    """Return what is known of the files of a run. Raise `RequestError`."""
    if call.runtime.catalogue.uid(run.id) != call.peer.uid:
        raise RequestError(ErrorCode.NOT_PERMITTED, f"run {run.id} belongs to {run.user}, who alone can fetch its files")
    shipment = call.runtime.shipping.files.of(run.id)
    if shipment is None:
        began = run.started_at is not None or run.status.terminal
        why = "no files were sent with it (--ship), or they are deleted by now" if began else "it has not started yet"
        raise wrong_state(f"run {run.id} has no files to fetch: {why}")
    return shipment
