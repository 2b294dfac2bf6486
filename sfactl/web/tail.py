"""The output of a run as it grows: an agent's text where its events are known, else the bytes of
the file.

Escape sequences stay in: the page makes colours of some and leaves out the others. Long lines are
cut here, before they travel.
"""

import codecs
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Literal

import trio

from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode, RunId

from ..connection import Client, DaemonError, Unreachable
from ..exits import Quit
from ..fleet import ANSWER
from ..follower import FileWatch, Follower, data_from
from . import views
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
    """Tell the output from `cursor` on (empty: the newest part), until it is cancelled. Errors are
    told as output."""
    try:
        node, run = await source.find(run)
        if node != source.own:
            await _follow_there(source, node, run, stderr, cursor, tell)
            return
        with await trio.to_thread.run_sync(source.connect, node) as client:
            await _follow_here(client, run, stderr, cursor, tell)
    except (Quit, OSError) as error:
        await tell(f"\n[{error.message if isinstance(error, Quit) else error}]\n", "")


async def _follow_here(client: Client, run: RunId, stderr: bool, cursor: str, tell: Tell) -> None:
    ask = partial(client.ask, m.Logs(id=0, run=run, form="raw" if stderr else "auto"), m.LogFiles)
    files, descriptors = await trio.to_thread.run_sync(ask)
    growth = FileWatch()
    try:
        if not files.kept:
            await tell("this run keeps no output (--no-log, or --stdio inherit)\n", "")
        file = descriptors[1 if stderr else 0]
        growth.watch(file)
        pieces = _texts(client, run, cursor) if files.text else _bytes(file, cursor)
        await _pass_on(pieces, partial(_growth, growth), tell)
    finally:
        growth.close()
        for descriptor in descriptors:
            os.close(descriptor)


async def _pass_on(
    pieces: AsyncIterator[tuple[bytes, str]], rest: Callable[[], Awaitable[None]], tell: Tell
) -> None:
    """Tell what comes. `rest` is called when there is nothing more so far."""
    lines, decoder = Lines(), codecs.getincrementaldecoder("utf-8")("replace")
    async for data, behind in pieces:
        if text := decoder.decode(data):
            await tell(lines.cut(text.replace("\r\n", "\n")), _before(behind, decoder))
        if not data:
            await rest()


async def _growth(growth: FileWatch) -> None:
    """Wait until the file has grown, or it is time to look."""
    with trio.move_on_after(growth.timeout or LOOK):
        if growth.descriptor < 0:
            await trio.sleep_forever()
        await trio.lowlevel.wait_readable(growth.descriptor)
    growth.drain()


def _offset(cursor: str) -> int | None:
    """Return the position in a file of bytes that a cursor names."""
    return views.number(cursor[1:]) if cursor[:1] == "b" else None


def _before(cursor: str, decoder: codecs.IncrementalDecoder) -> str:
    """Return the cursor before the bytes of a character that is not whole yet."""
    return f"b{int(cursor[1:]) - len(decoder.getstate()[0])}" if cursor.startswith("b") else cursor


async def _bytes(file: int, cursor: str) -> AsyncIterator[tuple[bytes, str]]:
    """Yield what the file has more; nothing at its end."""
    notes: list[str] = []
    reader = Follower(file, file, notes.append)
    start = data_from(file, 0) or 0
    reader.offset = max(start, _offset(cursor) or 0)
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


# ---- the output of a run on another node


async def _follow_there(
    source: Source, node: str, run: RunId, stderr: bool, cursor: str, tell: Tell
) -> None:
    """Read it in pieces: no descriptor comes from there. If the node does not answer, ask it
    again."""
    said = False

    async def keep(text: str, behind: str) -> None:
        nonlocal cursor, said
        cursor, said = behind, False
        await tell(text, behind)

    while True:
        try:
            with await trio.to_thread.run_sync(source.connect, node) as client:
                client.be_patient(ANSWER)
                text = not stderr and await _has_text(client, run)
                pieces = (
                    _texts(client, run, cursor)
                    if text
                    else _parts(client, run, "stderr" if stderr else "stdout", cursor)
                )
                await _pass_on(pieces, partial(trio.sleep, LOOK), keep)
                return
        except Unreachable:
            if not said:
                await tell(
                    f"\n[node {node} does not answer; its output goes on here when it does]\n", ""
                )
            said = True
        await trio.sleep(LOOK)


async def _has_text(client: Client, run: RunId) -> bool:
    """Return whether the agent's events are known."""
    try:
        await trio.to_thread.run_sync(client.call, m.Text(id=0, run=run), m.TextPart)
    except DaemonError as error:
        if error.error is not ErrorCode.WRONG_STATE:
            raise
        return False
    return True


async def _parts(
    client: Client, run: RunId, stream: Literal["stdout", "stderr"], cursor: str
) -> AsyncIterator[tuple[bytes, str]]:
    """Yield what the output has more; nothing while it does not grow."""
    offset = _offset(cursor)
    offset = -BEFORE if offset is None else offset
    ended = False
    while not ended:
        request = m.ReadOutput(id=0, run=run, stream=stream, offset=offset)
        part = await trio.to_thread.run_sync(client.call, request, m.OutputPart)
        skipped = part.offset - max(offset, 0)
        note = f"[earlier output is not shown: {skipped} bytes]\n".encode() if skipped > 0 else b""
        offset, ended = part.offset + len(part.data), part.ended
        yield note + part.data, f"b{offset}"
