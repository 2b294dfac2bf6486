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
        self._unread = False
        """No process can read it any more."""
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

    @property
    def over(self) -> str | None:
        """Why nothing can be written any more, or `None`."""
        if self._unread:
            return "it has closed its stdin"
        return "its stdin was closed by an earlier send" if self._eof else None

    def leave_to_run(self) -> None:
        """Close the read end once the last attempt has it: when the run closes its own, writing must fail."""
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end = -1

    def write(self, data: bytes, *, eof: bool) -> str | None:
        """Write `data`, or queue what the pipe has no room for. Return why not, or `None`."""
        if self.over is not None:
            return self.over
        if len(self._pending) + len(data) > MAX_PENDING:
            return f"{len(self._pending)} bytes already wait for it to read its stdin; at most {MAX_PENDING} may"
        if data and not self._pending:
            try:
                data = data[os.write(self._write_end, data) :]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                self._unread = True
                self._more.set()
                return self.over
        self._pending += data
        self._eof = eof
        self._more.set()
        return None

    async def serve(self) -> None:
        """Write what is queued, until the end of file or of the reader, or until cancelled."""
        try:
            while not (self._unread or (self._eof and not self._pending)):
                if not self._pending:
                    self._more = trio.Event()
                    await self._more.wait()
                    continue
                await self._write_some()
        except BrokenPipeError:
            self._unread = True
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
        self.leave_to_run()
        self._close_write_end()

    def close(self) -> None:
        """The run is over. Writing fails with EPIPE, so `serve` ends."""
        self.leave_to_run()
        self._eof = True
        self._more.set()
