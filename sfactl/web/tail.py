"""The output of a run as it grows: an agent's text where its events are known, else the bytes of
the file; of a run with a terminal, what that shows.

Escape sequences stay in: the page makes colours of some and leaves out the others. Long lines are
cut here, before they travel.
"""

import codecs
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import trio

from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode, RunId

from ..connecting.connection import Client, DaemonError, Unreachable
from ..exits import Quit
from ..showing.follower import FileWatch
from ..showing.growing import BEFORE, LOOK, of_file, of_node, of_text
from . import views
from .source import Source

LONGEST = 4000
"""Characters of a line that are shown."""
CUT = " … [the rest of this line is not shown here]"

Tell = Callable[[str, str], Awaitable[None]]
"""Take text, and the cursor behind it."""
Show = Callable[[dict[str, Any]], Awaitable[None]]
"""Take a piece of what a terminal shows (`terminal.Piece`)."""


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


async def follow(
    source: Source, run: RunId, *, stderr: bool, cursor: str, tell: Tell, show: Show
) -> None:
    """Tell the output from `cursor` on (empty: the newest part), or show the terminal, until it is
    cancelled. Errors are told as output."""
    try:
        if source.own and await _is_elsewhere(source, run):
            await _follow_there(source, run, stderr, cursor, tell)
            return
        with await trio.to_thread.run_sync(source.connect) as client:
            await _follow_here(client, run, stderr, cursor, tell, show)
    except (Quit, OSError) as error:
        await tell(f"\n[{error.message if isinstance(error, Quit) else error}]\n", "")


async def _follow_here(
    client: Client, run: RunId, stderr: bool, cursor: str, tell: Tell, show: Show
) -> None:
    ask = partial(client.ask, m.Logs(id=0, run=run, form="raw" if stderr else "auto"), m.LogFiles)
    files, descriptors = await trio.to_thread.run_sync(ask)
    growth = FileWatch()
    try:
        if not files.kept:
            await tell("this run keeps no output (--no-log, or --stdio inherit)\n", "")
        file = descriptors[1 if stderr else 0]
        growth.watch(file)
        if files.terminal:
            from . import terminal  # few runs have one

            growth.watch(descriptors[2])
            await terminal.follow(file, descriptors[2], partial(_growth, growth), show)
        pieces: Iterator[tuple[bytes, int | bytes]] = (
            of_text(client, run, _text_position(cursor))
            if files.text
            else of_file(file, _offset(cursor))
        )
        await _pass_on(pieces, partial(_growth, growth), tell)
    finally:
        growth.close()
        for descriptor in descriptors:
            os.close(descriptor)


async def _pass_on(
    pieces: Iterator[tuple[bytes, int | bytes]], rest: Callable[[], Awaitable[None]], tell: Tell
) -> None:
    """Tell what comes. `rest` is called when there is nothing more so far."""
    lines, decoder = Lines(), codecs.getincrementaldecoder("utf-8")("replace")
    while (piece := await trio.to_thread.run_sync(next, pieces, None)) is not None:
        data, position = piece
        if text := decoder.decode(data):
            if isinstance(position, int):  # before the bytes of a character that is not whole yet
                position -= len(decoder.getstate()[0])
            await tell(lines.cut(text.replace("\r\n", "\n")), _cursor(position))
        if not data:
            await rest()


async def _growth(growth: FileWatch) -> None:
    """Wait until the file has grown, or it is time to look."""
    with trio.move_on_after(growth.timeout or LOOK):
        if growth.descriptor < 0:
            await trio.sleep_forever()
        await trio.lowlevel.wait_readable(growth.descriptor)
    growth.drain()


def _offset(cursor: str, default: int = 0) -> int:
    """Return the position in a file of bytes that a cursor names."""
    found = views.number(cursor[1:]) if cursor[:1] == "b" else None
    return default if found is None else found


def _cursor(position: int | bytes) -> str:
    """Return how a page names a position: of a file, or in an agent's text."""
    if isinstance(position, int):
        return f"b{position}"
    return f"t{urlsafe_b64encode(position).decode()}"


def _text_position(cursor: str) -> bytes:
    """Return the position in an agent's text that a cursor names."""
    with suppress(NotBase64):
        return urlsafe_b64decode(cursor[1:]) if cursor[:1] == "t" else b""
    return b""


# ---- the output of a run on another node


async def _is_elsewhere(source: Source, run: RunId) -> bool:
    place = (await source.ask(m.Info(id=0, run=run), m.RunReply)).run.fleet
    return place is not None and place.node != source.own


async def _follow_there(source: Source, run: RunId, stderr: bool, cursor: str, tell: Tell) -> None:
    """Read it in pieces: no descriptor comes from there. If the node does not answer, ask it
    again."""
    said = False
    stream: Literal["stdout", "stderr"] = "stderr" if stderr else "stdout"

    async def keep(text: str, behind: str) -> None:
        nonlocal cursor, said
        cursor, said = behind, False
        await tell(text, behind)

    while True:
        try:
            with await trio.to_thread.run_sync(source.connect) as client:
                text = not stderr and await _has_text(client, run)
                pieces: Iterator[tuple[bytes, int | bytes]] = (
                    of_text(client, run, _text_position(cursor))
                    if text
                    else of_node(client, run, stream, _offset(cursor, -BEFORE))
                )
                await _pass_on(pieces, partial(trio.sleep, LOOK), keep)
                return
        except (DaemonError, Unreachable) as error:
            if isinstance(error, DaemonError) and error.error is not ErrorCode.UNAVAILABLE:
                raise
            if not said:
                why = f"{error.message}; the output goes on here when it does"
                await tell(f"\n[{why}]\n", "")
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
