"""Copy output files, or an agent's text, as they grow. inotify(7) tells when; a clock is used only
if the user has no inotify instance left."""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import stat
import time
from collections.abc import Callable, Sequence

from sfad.protocol.requests.following import TextPart
from sfad.protocol.texts.sanitise import visible

IN_MODIFY = 0x2
PIPE_CHUNK = 4096
"""PIPE_BUF (pipe(7)): what poll's POLLOUT promises can be written to a pipe without blocking. A
write that blocks would delay the first Ctrl-C while the reader is slow."""
FILE_CHUNK = 1024 * 1024
"""Bytes read at a time if the target is a regular file, where a write cannot block for long."""
SOON = 0.02
"""Seconds after which the files of a run are watched. Many a command has ended before, and its end
tells to read them."""
RETRY = 0.2
"""Seconds between looks at the files without inotify (fs.inotify.max_user_instances is 128 for each
user)."""


class FileWatch:
    """A descriptor that is readable when a watched file has changed. Without inotify, `timeout` is
    the seconds between looks."""

    def __init__(self) -> None:
        import ctypes  # takes a quarter of Python's start

        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self.timeout: float | None = None if self.descriptor >= 0 else RETRY

    def watch(self, descriptor: int) -> None:
        """Watch the file behind an open descriptor, also if it was renamed."""
        path = f"/proc/self/fd/{descriptor}".encode()
        if (
            self.descriptor >= 0
            and self._libc.inotify_add_watch(self.descriptor, path, IN_MODIFY) < 0
        ):
            self.timeout = RETRY

    def drain(self) -> None:
        """Discard the events so far. Call it before reading the files, never after."""
        if self.descriptor < 0:
            return
        try:
            while os.read(self.descriptor, 4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class ForTerminal:
    """Makes of a stream of bytes what may be written to a terminal, where escapes of an agent would
    act: characters that steer it, and bytes that are not UTF-8, become visible. A carriage return
    ends a line."""

    def __init__(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._lines = io.IncrementalNewlineDecoder(decoder, translate=True)

    def __call__(self, data: bytes, *, final: bool = False) -> bytes:
        """Return what can be written of `data`: a character that is cut in two waits for its rest
        unless this is `final`."""
        return visible(self._lines.decode(data, final=final)).encode()


class Follower:
    """Copy a growing file to a descriptor of this process, from an offset.

    `note` receives a message if the file shrank (the run truncated its own output; reading begins
    again at 0), and if bytes were freed before they were read (see `_read`).
    Freed bytes are a hole, which is not copied. A terminal gets what `ForTerminal` makes of the
    bytes."""

    def __init__(
        self, source: int, target: int, note: Callable[[str], None], offset: int = 0
    ) -> None:
        self.source = source
        self.target = target
        self.offset = offset
        self._note = note
        self._pending = memoryview(b"")
        self._chunk = FILE_CHUNK if stat.S_ISREG(os.fstat(target).st_mode) else PIPE_CHUNK
        self._shown = ForTerminal() if os.isatty(target) else None

    @property
    def wants_to_write(self) -> bool:
        return bool(self._pending)

    def fill(self, *, last: bool = False) -> bool:
        """Read the next bytes, unless some are still to be written. Return whether there is
        something to write. `last`: no more will be written to the file."""
        while not self._pending:
            data = self._read()
            final = last and not data
            shown = data if self._shown is None else self._shown(data, final=final)
            self._pending = memoryview(shown)
            if not data:
                break
        return bool(self._pending)

    def flush(self) -> None:
        """Write at most one chunk. It does not block, because the caller has polled the target."""
        written = os.write(self.target, self._pending[: self._chunk])
        self._pending = self._pending[written:]

    def take(self) -> bytes:
        """Return the bytes that were read, for a subclass that writes them in another form."""
        data, self._pending = bytes(self._pending), memoryview(b"")
        return data

    def _read(self) -> bytes:
        size = os.fstat(self.source).st_size
        if size < self.offset:
            self._continue_at(0, "the run truncated its output; starting again at its beginning")
        while size > self.offset and (data := os.pread(self.source, FILE_CHUNK, self.offset)):
            # After reading, because bytes may be freed meanwhile and never come back: what is data
            # now was data then.
            start = data_from(self.source, self.offset)
            if start is None:
                break
            freed = start - self.offset
            if freed:
                self._continue_at(
                    start,
                    (
                        f"{freed} bytes were freed before they were read (the output limit, "
                        "or a full disk, keeps only the newest)"
                    ),
                )
            if freed < len(data):
                self.offset = start + len(data) - freed
                return data[freed:]
        return b""

    def _continue_at(self, offset: int, why: str) -> None:
        """Continue to read at `offset`, which is not where the last read ended."""
        self._note(why)
        self.offset = offset


class TextFollower(Follower):
    """Ask for text when the file has grown, and write it: one request at a time, and none while
    text is left to write."""

    def __init__(
        self, source: int, target: int, note: Callable[[str], None], ask: Callable[[bytes], None]
    ) -> None:
        """`ask` sends a request with a cursor; pass its reply to `take_in`."""
        super().__init__(source, target, note)
        self._ask = ask
        self._cursor = b""
        self._waiting = False
        self._more = True
        self._size = 0
        self.finished = False
        """Whether no more text will come."""

    def fill(self, *, last: bool = False) -> bool:  # noqa: ARG002 - the last text says so itself
        """Ask for the next text, unless some is still to be written. Return whether there is
        something to write."""
        size = os.fstat(self.source).st_size
        if not (self._pending or self._waiting or self.finished) and (
            self._more or size != self._size
        ):
            self._size, self._waiting = size, True
            self._ask(self._cursor)
        return bool(self._pending)

    def take_in(self, part: TextPart) -> None:
        """Take the next text to write."""
        for note in part.notes:
            self._note(note)
        self._waiting, self._more = False, part.more
        self.finished = part.ended and not part.more
        text = part.text if self._shown is None else self._shown(part.text, final=self.finished)
        self._pending, self._cursor = memoryview(text), part.cursor

    def run_ended(self) -> None:
        """Note that the run has ended: the next answers bring the rest of its text."""
        self._more = True

    def give_up(self) -> None:
        """Stop asking, because no answer will come."""
        self.finished = True


def data_from(file: int, offset: int) -> int | None:
    """Return the first offset at or after `offset` that is not in a hole; `None` if the rest of the
    file is a hole or empty."""
    try:
        return os.lseek(file, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        if error.errno == errno.EINVAL:  # a file system without holes
            return offset
        raise


class Copying:
    """Several followers and the watch on their files, as one `Activity` of a poll loop."""

    def __init__(self, followers: Sequence[Follower]) -> None:
        self._followers = followers
        self._growth: FileWatch | None = None
        self._began = time.monotonic()

    @property
    def timeout(self) -> float | None:
        return SOON if self._growth is None else self._growth.timeout

    def _watched(self) -> FileWatch | None:
        if self._growth is None and time.monotonic() - self._began >= SOON:
            self._growth = FileWatch()
            for follower in self._followers:
                self._growth.watch(follower.source)
        return self._growth

    def interests(self) -> dict[int, int]:
        """Return what to poll for. Read ahead, so that a target is polled only when there is
        something to write."""
        growth = self._watched()
        if growth is not None:
            growth.drain()
        wanted = {f.target: select.POLLOUT for f in self._followers if f.fill()}
        if growth is not None and growth.descriptor >= 0:
            wanted[growth.descriptor] = select.POLLIN
        return wanted

    def advance(self, ready: dict[int, int]) -> None:
        """Write what can be written without blocking. Raise `BrokenPipeError` when the reader has
        gone."""
        for follower in self._followers:
            if follower.target in ready and follower.wants_to_write:
                follower.flush()

    def drained(self) -> bool:
        """Whether everything that the files now hold has been written."""
        return not any(follower.fill(last=True) for follower in self._followers)

    def close(self) -> None:
        if self._growth is not None:
            self._growth.close()
        for follower in self._followers:
            os.close(follower.source)
