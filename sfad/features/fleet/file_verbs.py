"""Verbs about files that are sent with runs: `put_files`, `fetch_files`, `get_files`; and requests
that are answered on the node where a run executes."""

import math
from collections.abc import Mapping
from typing import Any

import trio
from msgspec import Struct
from msgspec.structs import replace

from ...daemon.loop.seam import Answer, Heart
from ...daemon.server.asker import Asker
from ...daemon.server.peers import submitter
from ...protocol import messages as m
from ...protocol.errors import RequestError, bad_request, unavailable, wrong_state
from ...protocol.requests.base import Request
from ...protocol.types import ErrorCode, RunInfo
from .answers.remains import Remains
from .files.kept import Shipment, ShipRefused
from .files.sending import PACK_SECONDS, Shipping
from .messages import FetchFiles, FilesKept, FilesPacked, FilesPart, GetFiles, PutFiles
from .node import NOT_JOINED, PASSED_ON, Fleet
from .nodes import SILENT
from .pace import LEAST

SILENT_FOR = 1.0
"""Seconds for which a node that has not answered is not asked again if something is left here:
output is read in several pieces."""


class FileVerbs(Struct, frozen=True):
    _fleet: Fleet
    _shipping: Shipping
    _heart: Heart
    _remains: Remains
    _silent: dict[str, float] = {}
    """When each node has last not answered."""

    def all(self) -> Mapping[type[Request], Answer]:
        return {
            PutFiles: self._put_files,
            FetchFiles: self._fetch_files,
            GetFiles: self._get_files,
        }

    def _put_files(self, asker: Asker, request: PutFiles) -> None:
        uid = asker.peer.uid
        if not self._fleet.enabled:
            raise unavailable(f"{NOT_JOINED}, or leave out --ship")

        async def put() -> tuple[int, bool]:
            try:
                return await self._shipping.put(uid, request)
            except ShipRefused as error:
                raise bad_request(str(error)) from None

        asker.later(put, lambda kept: FilesKept(id=asker.id, offset=kept[0], whole=kept[1]))

    def _fetch_files(self, asker: Asker, request: FetchFiles) -> None:
        run = asker.resolve(request.run)
        if self.answer_there(asker, request, run):
            return
        shipment = self._of(asker, run)
        user = submitter(asker.connection, self._heart.resources.launcher.containment)

        async def pack() -> tuple[str, int]:
            try:
                return await self._shipping.pack(shipment, user, patch=request.patch)
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
                asked=self._fleet.node,
            ),
        )

    def _get_files(self, asker: Asker, request: GetFiles) -> None:
        run = asker.resolve(request.run)
        if self.answer_there(asker, request, run):
            return
        shipment = self._of(asker, run)
        asker.later(
            lambda: self._shipping.packed(shipment, request.name, request.offset),
            lambda data: FilesPart(id=asker.id, data=data),
        )

    def _of(self, asker: Asker, run: RunInfo) -> Shipment:
        """Return what is known of the files of a run. Raise `RequestError`."""
        if self._heart.catalogue.uid(run.id) != asker.peer.uid:
            raise RequestError(
                ErrorCode.NOT_PERMITTED,
                f"run {run.id} belongs to {run.user}, who alone can fetch its files",
            )
        shipment = self._shipping.files.of(run.id)
        if shipment is None:
            began = run.started_at is not None or run.status.terminal
            why = (
                "no files were sent with it (--ship), or they are deleted by now"
                if began
                else "it has not started yet"
            )
            raise wrong_state(f"run {run.id} has no files to fetch: {why}")
        return shipment

    def answer_there(self, asker: Asker, request: Any, run: RunInfo) -> bool:
        """Have the node answer where the run executes. The peer was permitted to ask."""
        place = run.fleet
        if place is None or not place.run:
            return False
        node = place.node
        assert node is not None
        if isinstance(request, m.Logs):
            raise wrong_state(
                f"the output of run {run.id} is on node {node}, and no file can be handed out from "
                "there: name the run alone, or read it in pieces"
            )
        if not request.answered_there:
            return False
        there = replace(request, id=1, run=place.run)
        within = max(LEAST, self._fleet.pace.patience(node))
        if isinstance(request, FetchFiles | m.Send):
            within = PACK_SECONDS if isinstance(request, FetchFiles) else PASSED_ON

        async def ask() -> m.Reply:
            silent = trio.current_time() - self._silent.get(node, -math.inf) < SILENT_FOR
            if silent and (left := self._remains.answer(request, run, f"node {node} {SILENT}")):
                return left
            try:
                reply = await self._fleet.pass_on(node, there, within)
            except OSError as error:
                self._silent[node] = trio.current_time()
                if (left := self._remains.answer(request, run, str(error))) is not None:
                    return left
                raise
            if isinstance(reply, m.Error) and reply.code is ErrorCode.NO_SUCH_RUN:
                why = f"node {node} came back without it"
                return self._remains.answer(request, run, why) or reply
            return reply

        def here(reply: m.Reply) -> m.Reply:
            more = {"asked": self._fleet.node} if isinstance(reply, FilesPacked) else {}
            if isinstance(getattr(reply, "run", None), str):
                more["run"] = run.id  # what the client asks next about it comes here
            return replace(reply, id=asker.id, **more)

        asker.later(ask, here)
        return True
