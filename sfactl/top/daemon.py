"""A thread that follows the output of one run."""

import codecs
import os
import select
import threading
from collections.abc import Callable

from sfad.protocol import messages as m
from sfad.protocol.types import RunId

from ..connection import Client, connect
from ..exits import Quit
from ..follower import FileWatch, data_from
from ..output import plain
from .errands import Post

BEFORE = 64 * 1024
"""Bytes of earlier output that are shown."""
CHUNK = 256 * 1024
LOOK = 1.0
"""Seconds after which an agent's text is asked for again without a change of its file."""

Show = Callable[[list[str], bool], None]
"""Takes harmless lines, and whether the first of them goes on the last one before."""


class OutputTail:
    """Calls `show` in the thread of the screen, until it is stopped."""

    def __init__(self, socket: str | None, run: RunId, *, stderr: bool, show: Show, post: Post) -> None:
        self._socket, self._run, self._stderr, self._show, self._post = socket, run, stderr, show, post
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._within_line = False
        self._stopped, self._stop = os.pipe()
        threading.Thread(target=self._work, name="tail", daemon=True).start()

    def stop(self) -> None:
        """Show nothing more. The thread ends by itself."""
        if self._stop >= 0:
            os.close(self._stop)
            self._stop = -1

    def _work(self) -> None:
        try:
            with connect(self._socket) as client:
                files, descriptors = client.ask(m.Logs(id=0, run=self._run, form="raw" if self._stderr else "auto"), m.LogFiles)
                try:
                    self._follow(client, files, descriptors[1 if self._stderr else 0])
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
        except (Quit, OSError) as error:
            self._tell(f"\n{error.message if isinstance(error, Quit) else error}\n")
        os.close(self._stopped)

    def _follow(self, client: Client, files: m.LogFiles, file: int) -> None:
        if not files.kept:
            self._tell("this run keeps no output (--no-log, or --stdio inherit)\n")
        growth = FileWatch()
        growth.watch(file)
        try:
            read = _Text(client, self._run) if files.text else _Bytes(file)
            while True:
                growth.drain()
                while data := read.more():
                    self._tell(self._decoder.decode(data))
                poll = select.poll()
                poll.register(self._stopped, select.POLLIN)
                if growth.descriptor >= 0:
                    poll.register(growth.descriptor, select.POLLIN)
                ready = dict(poll.poll(1000 * (growth.timeout or LOOK)))
                if self._stopped in ready:
                    return
        finally:
            growth.close()

    def _tell(self, text: str) -> None:
        first, *rest = text.replace("\r\n", "\n").expandtabs(4).split("\n")
        lines = [plain(line) for line in (first, *rest)]
        goes_on, self._within_line = self._within_line, bool(rest[-1] if rest else self._within_line or first)
        if lines[-1] == "":
            lines.pop()
        if self._stop >= 0:
            self._post(lambda: self._show(lines, goes_on))


class _Bytes:
    """Reads what a file has more."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._at = max(data_from(file, 0) or 0, os.fstat(file).st_size - BEFORE)

    def more(self) -> bytes:
        size = os.fstat(self._file).st_size
        if size < self._at:  # the run truncated it
            self._at = 0
        start = data_from(self._file, self._at)
        if start is None:
            return b""
        self._at = max(start, size - 4 * CHUNK)
        data = os.pread(self._file, CHUNK, self._at)
        self._at += len(data)
        return data


class _Text:
    """Asks for what an agent's events say."""

    def __init__(self, client: Client, run: RunId) -> None:
        self._client, self._run, self._cursor, self._over = client, run, b"", False

    def more(self) -> bytes:
        if self._over:
            return b""
        part = self._client.call(m.Text(id=0, run=self._run, cursor=self._cursor), m.TextPart)
        self._cursor, self._over = part.cursor, part.ended and not part.more
        return part.text or (self.more() if part.more else b"")
