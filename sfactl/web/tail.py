"""The output of a run as it grows: an agent's text where its events are known, else the bytes of the file.

Escape sequences stay in: the page makes colours of some and leaves out the others. Long lines are cut here, before they travel.
"""

import codecs
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import trio

from sfad.protocol import messages as m
from sfad.protocol.types import RunId

from ..connection import Client
from ..exits import Quit
from ..follower import FileWatch, Follower, data_from
from .source import Source

BEFORE = 64 * 1024
"""Bytes of earlier output that are shown."""
MOST = 1024 * 1024
"""Bytes that are shown of output which comes faster than it is read: the newest."""
LOOK = 1.0
"""Seconds after which an agent's text is asked for again without a change of its file."""
LONGEST = 4000
"""Characters of a line that are shown."""
CUT = " … [the rest of this line is not shown here]"

Tell = Callable[[str, str], Awaitable[None]]
"""Take text, and the cursor behind it."""


class Lines:
    """Cuts long lines, whatever pieces they come in."""

    def __init__(self) -> None:
        self._length = 0

    def cut(self, text: str) -> str:
        found = []
        for number, part in enumerate(text.split("\n")):
            if number:
                found.append("\n")
                self._length = 0
            room = LONGEST - self._length
            self._length += len(part)
            if room >= 0:
                found.append(part[:room])
                if len(part) > room:
                    found.append(CUT)
                    self._length = LONGEST + 1
        return "".join(found)


async def follow(source: Source, run: RunId, *, stderr: bool, cursor: str, tell: Tell) -> None:
    """Tell the output from `cursor` on (empty: the newest part), until it is cancelled. Errors are told as output."""
    lines, decoder = Lines(), codecs.getincrementaldecoder("utf-8")("replace")
    try:
        with await trio.to_thread.run_sync(source.connect) as client:
            ask = partial(client.ask, m.Logs(id=0, run=run, form="raw" if stderr else "auto"), m.LogFiles)
            files, descriptors = await trio.to_thread.run_sync(ask)
            growth = FileWatch()
            try:
                if not files.kept:
                    await tell("this run keeps no output (--no-log, or --stdio inherit)\n", "")
                file = descriptors[1 if stderr else 0]
                growth.watch(file)
                pieces = _texts(client, run, cursor) if files.text else _bytes(file, cursor)
                async for data, behind in pieces:
                    if text := decoder.decode(data):
                        await tell(lines.cut(text.replace("\r\n", "\n")), _before(behind, decoder))
                    if not data:
                        await _growth(growth)
            finally:
                growth.close()
                for descriptor in descriptors:
                    os.close(descriptor)
    except (Quit, OSError) as error:
        await tell(f"\n[{error.message if isinstance(error, Quit) else error}]\n", "")


async def _growth(growth: FileWatch) -> None:
    """Wait until the file has grown, or it is time to look."""
    with trio.move_on_after(growth.timeout or LOOK):
        if growth.descriptor < 0:
            await trio.sleep_forever()
        await trio.lowlevel.wait_readable(growth.descriptor)
    growth.drain()


def _before(cursor: str, decoder: codecs.IncrementalDecoder) -> str:
    """Return the cursor before the bytes of a character that is not whole yet."""
    return f"b{int(cursor[1:]) - len(decoder.getstate()[0])}" if cursor.startswith("b") else cursor


async def _bytes(file: int, cursor: str) -> AsyncIterator[tuple[bytes, str]]:
    """Yield what the file has more; nothing at its end."""
    notes: list[str] = []
    reader = Follower(file, file, notes.append)
    start = data_from(file, 0) or 0
    reader.offset = max(start, int(cursor[1:])) if cursor[:1] == "b" and cursor[1:].isdecimal() else start
    room = MOST if reader.offset > start else BEFORE
    while True:
        least = os.fstat(file).st_size - room
        if reader.offset < least:
            notes.append(f"earlier output is not shown: {least - start} bytes")
            reader.offset = least
        data = reader.take() if reader.fill() else b""
        noted = "".join(f"[{note}]\n" for note in notes).encode()
        notes.clear()
        yield noted + data, f"b{reader.offset}"
        room = MOST


async def _texts(client: Client, run: RunId, cursor: str) -> AsyncIterator[tuple[bytes, str]]:
    """Yield what the agent's events say; nothing if they say nothing more so far."""
    position, over = b"", False
    if cursor[:1] == "t":
        try:
            position = urlsafe_b64decode(cursor[1:])
        except NotBase64:
            position = b""
    while True:
        part = None
        if not over:
            request = m.Text(id=0, run=run, cursor=position)
            part = await trio.to_thread.run_sync(client.call, request, m.TextPart)
            position, over = part.cursor, part.ended and not part.more
        if part is None or part.text or not part.more:
            yield part.text if part is not None else b"", f"t{urlsafe_b64encode(position).decode()}"
