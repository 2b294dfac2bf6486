"""The pipe behind `--stdin`: what `send` writes, the run reads."""

import os
from typing import Self

import trio
from msgspec import Struct

MAX_PENDING = 1024 * 1024
"""Bytes that may wait for a run that does not read. More is refused, so that the sender learns of it."""


class Stdin(Struct, frozen=True):
    """A pipe as it is handed to the program that replaces this one."""

    read_end: int
    write_end: int
    pending: list[bytes]
    eof: bool


class StdinPipe:
    """Both ends of a pipe: the run inherits `read_end`; `write` never blocks."""

    def __init__(self, pipe: Stdin) -> None:
        self.read_end, self._write_end = pipe.read_end, pipe.write_end
        self._pending = bytearray().join(pipe.pending)  # one object, because a sender may send a byte at a time
        self._eof = pipe.eof
        self._more = trio.Event()

    @classmethod
    def new(cls) -> Self:
        """Make a pipe. Raises `OSError`."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write_end, False)
        return cls(Stdin(read_end, write_end, [], eof=False))

    def hand_over(self) -> Stdin:
        """Return what the next program needs to go on with the pipe."""
        return Stdin(self.read_end, self._write_end, [bytes(self._pending)], self._eof)

    def write(self, data: bytes, *, eof: bool) -> str | None:
        """Queue `data`. Return why not, or `None`."""
        if self._eof:
            return "its stdin was closed by an earlier send"
        if len(self._pending) + len(data) > MAX_PENDING:
            return f"{len(self._pending)} bytes already wait for it to read its stdin; at most {MAX_PENDING} may"
        self._pending += data
        self._eof = eof
        self._more.set()
        return None

    async def serve(self) -> None:
        """Write what is queued, until the end of file or of the reader, or until cancelled."""
        try:
            while not (self._eof and not self._pending):
                if not self._pending:
                    self._more = trio.Event()
                    await self._more.wait()
                    continue
                await self._write_some()
        except BrokenPipeError:
            self._eof = True  # the run has closed it; the next `send` fails
        finally:
            self._close_write_end()

    async def _write_some(self) -> None:
        try:
            written = os.write(self._write_end, self._pending)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(self._write_end)
            return
        del self._pending[:written]

    def _close_write_end(self) -> None:
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1

    def discard(self) -> None:
        """Close both ends of a pipe that is not served."""
        os.close(self.read_end)
        self._close_write_end()

    def close(self) -> None:
        """The run is over. Writing fails with EPIPE, so `serve` ends."""
        os.close(self.read_end)
        self._eof = True
        self._more.set()
