"""The output of a run as it grows, in pieces, for `top` and the console: bytes, and the position
behind them. A piece is empty when there is nothing more so far."""

import os
from collections.abc import Iterator
from typing import Literal

from sfad.protocol import messages as m
from sfad.protocol.types import RunId

from ..connecting.connection import Client
from .follower import Follower, data_from

BEFORE = 64 * 1024
"""Bytes of earlier output that are shown."""
MOST = 1024 * 1024
"""Bytes that are shown of output which comes faster than it is read: the newest."""
LOOK = 1.0
"""Seconds after which an agent's text is asked for again without a change of its file."""


def of_file(file: int, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield what a file has from `offset` on, the newest part if that is 0."""
    notes: list[str] = []
    reader = Follower(file, file, notes.append)
    start = data_from(file, 0) or 0
    reader.offset = max(start, offset)
    room = MOST if reader.offset > start else BEFORE
    while True:
        least = os.fstat(file).st_size - room
        if reader.offset < least:
            notes.append(f"earlier output is not shown: {least - start} bytes")
            reader.offset = least
        data = reader.take() if reader.fill() else b""
        noted = "".join(f"[{note}]\n" for note in notes).encode()
        notes.clear()
        yield noted + data, reader.offset
        room = MOST


def of_text(client: Client, run: RunId, cursor: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Yield what the agent's events say. Raise `Quit`."""
    while True:
        part = client.call(m.Text(id=0, run=run, cursor=cursor), m.TextPart)
        cursor = part.cursor
        if part.text or not part.more:
            yield part.text, cursor
        while part.ended and not part.more:
            yield b"", cursor


def of_node(
    client: Client, run: RunId, stream: Literal["stdout", "stderr"], offset: int = -BEFORE
) -> Iterator[tuple[bytes, int]]:
    """Yield the output of a run that may be on another node, to its end. Raise `Quit`."""
    ended = False
    while not ended:
        request = m.ReadOutput(id=0, run=run, stream=stream, offset=offset)
        part = client.call(request, m.OutputPart)
        skipped = part.offset - max(offset, 0)
        note = f"[earlier output is not shown: {skipped} bytes]\n".encode() if skipped > 0 else b""
        offset, ended = part.offset + len(part.data), part.ended
        yield note + part.data, offset
