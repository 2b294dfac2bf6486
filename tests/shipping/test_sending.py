"""An archive on its way to another node: only what that lacks is sent, and a refusal ends it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from sfad.features.fleet.files.kept import ShippedFiles, ShipRefused
from sfad.features.fleet.files.sending import Shipping
from sfad.features.fleet.messages import PIECE, FilesKept, PutFiles
from sfad.protocol.messages import Error
from sfad.protocol.requests.base import Reply, Request
from sfad.protocol.types import ErrorCode, Ship

A = "a" * 32
SHIP = Ship(directory=b"/src", archive=A, size=7)


class Node:
    """The other node. It loses its answers after some pieces."""

    def __init__(self, files: ShippedFiles) -> None:
        self.files = files
        self.sent: list[int] = []
        self.loses: list[int] = []

    async def ask(self, request: Request) -> Reply:
        assert isinstance(request, PutFiles)
        self.sent.append(len(request.data))
        offset, whole = self.files.put(
            1,
            request.archive,
            request.size,
            request.offset,
            request.data,
            last=request.last,
            named=(),
        )
        if len(self.sent) in self.loses:
            raise ConnectionResetError("lost")
        return FilesKept(id=1, offset=offset, whole=whole)


@pytest.fixture
def own(tmp_path: Path) -> ShippedFiles:
    files = ShippedFiles(tmp_path / "own", 8 << 20)
    data = os.urandom(2 * PIECE + 5)
    for at in range(0, len(data), PIECE):
        files.put(0, A, 7, at, data[at : at + PIECE], last=at + PIECE >= len(data), named=())
    return files


def shipping(files: ShippedFiles) -> Shipping:
    return Shipping(files, cast(Any, None), {})


async def test_what_was_sent_before_a_connection_was_lost_is_not_sent_again(
    own: ShippedFiles, tmp_path: Path
) -> None:
    node = Node(ShippedFiles(tmp_path / "other", 8 << 20))
    node.loses = [3]
    with pytest.raises(ConnectionResetError):
        await shipping(own).send(0, SHIP, node.ask)
    await shipping(own).send(0, SHIP, node.ask)
    assert node.sent == [0, PIECE, PIECE, 0, 5]
    assert (node.files.copy_of(1, A) / "archive").read_bytes() == (
        own.copy_of(0, A) / "archive"
    ).read_bytes()
    await shipping(own).send(0, SHIP, node.ask)
    assert node.sent[5:] == [0]


async def test_a_refusal_ends_it_and_trouble_does_not(own: ShippedFiles) -> None:
    async def refuses(_request: Request) -> Reply:
        return Error(
            id=1,
            code=ErrorCode.BAD_REQUEST,
            message="the files have 7 B, and fleet.ship_max is 1 B",
        )

    async def is_short(_request: Request) -> Reply:
        return Error(id=1, code=ErrorCode.UNAVAILABLE, message="no space left on device")

    with pytest.raises(ShipRefused, match="ship_max"):
        await shipping(own).send(0, SHIP, refuses)
    with pytest.raises(ConnectionAbortedError, match="no space left"):
        await shipping(own).send(0, SHIP, is_short)
    with pytest.raises(ShipRefused, match="the files of /src are not here any more"):
        await shipping(own).send(5, SHIP, refuses)
