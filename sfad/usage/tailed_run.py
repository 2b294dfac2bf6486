"""The output files of one run, and the meter of its stdout."""

import os
import re
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from ..agents.counters import Meter, Reading
from ..host.files import UNDECODABLE
from ..protocol.texts.redaction import redacted
from ..protocol.texts.sanitise import clean
from ..protocol.types import RunId
from ..storage.output.files import SUFFIXES, TIMES, OutputFiles, Suffix
from ..storage.output.reopened import Reopenings
from ..storage.output.times import WriteTimes
from ..storage.output.truncated import Budget, NewestBytes, Truncation
from .stdout import MeterPosition, StdoutMeter

# ---- The last line that a run wrote on its stderr: most programs say there why they failed


LAST_LINE_WITHIN = 4 << 10
"""Bytes that are read. Of a longer line nothing is told, since it may begin within a secret that
could not be recognised."""
MAX_TEXT = 200
"""Characters that are told."""


def last_line(descriptor: int, begin: int, end: int) -> str | None:
    """Return the last line with text between two offsets of an open file: on one line, without
    control characters, secrets hidden. Return `None` if there is none. Raises `OSError`."""
    start = max(begin, end - LAST_LINE_WITHIN)
    data = os.pread(descriptor, end - start, start)
    lines = redacted(clean(data)).splitlines()
    if start > begin:
        del lines[:1]  # cut
    text = next((line for line in map(_plain, reversed(lines)) if line), None)
    return text if text is None or len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _plain(line: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in line).split())


# ---- The milestones of a run: lines `[agent:NAME] text` on its stderr, of which the newest counts
#
# A run that writes without pause is not read whole: of what came since the last look, the newest
# `NEWEST` bytes are.


MILESTONES_WITHIN = 16 << 10
MAX_MILESTONE = 200
"""Characters of a milestone that are shown."""

_LINE = re.compile(rb"^\[agent:([^\]\n]{1,256})\] ([^\n]*)\n", re.MULTILINE)


class StderrMilestones:
    """`open_stderr` returns a descriptor for reading; `reached` is told of the newest milestone
    after each look that found one."""

    def __init__(
        self, name: str, open_stderr: Callable[[], int], reached: Callable[[str], None]
    ) -> None:
        """`name`: the run's, which is left out of its own milestones."""
        self._name = name
        self._open = open_stderr
        self._reached = reached
        self._offset = 0

    def look(self, size: int) -> bool:
        """Read on. Return whether there was more. `size`: of the file now. Raises `OSError`."""
        if size < self._offset:
            self._offset = 0  # it was truncated
        if size == self._offset:
            return False
        descriptor = self._open()
        try:
            start = max(self._offset, size - MILESTONES_WITHIN)
            data = os.pread(descriptor, size - start, start)
        finally:
            os.close(descriptor)
        first = data.find(b"\n") + 1 if start > self._offset else 0
        lines = data[first : data.rfind(b"\n") + 1]
        # a line that is longer than what is read at once is no milestone
        self._offset = start + (
            first + len(lines) if lines else len(data) if len(data) >= MILESTONES_WITHIN else first
        )
        found = _LINE.findall(lines)
        if found and (text := self._text(*found[-1])):
            self._reached(text)
        return True

    def _text(self, name: bytes, words: bytes) -> str:
        text = " ".join(clean(words).split())
        whose = " ".join(clean(name).split())
        # a secret that is cut is not found
        text = redacted(text if whose == self._name or not text else f"{whose}: {text}")
        return text if len(text) <= MAX_MILESTONE else f"{text[: MAX_MILESTONE - 1]}…"


# ---- The output files, and the meter of stdout


FORMAT_VERSION = 1
"""The version of what `position` returns. Raise it when a field is added, removed or changes its
meaning."""

NewMeter = Callable[[bytes | None], Meter]
"""Makes a meter for each attempt, or from a dump one that continues. Raises `ValueError` for a dump
that does not fit."""

T = TypeVar("T")


class _SavedTail(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    inodes: dict[Suffix, int]
    position: MeterPosition


_TO_BYTES = msgspec.msgpack.Encoder()
_FROM_BYTES = msgspec.msgpack.Decoder(_SavedTail)


class TailedRun(Struct, eq=False, dict=True):
    """Nothing raises `OSError`. `seen(readings)`, `lost(message)`, `trouble(message)`: see `Tail`;
    `moved()`: its stdout is no longer where it was."""

    run: RunId
    files: OutputFiles
    limit: int | None
    seen: Callable[[tuple[Reading, ...]], None]
    lost: Callable[[str], None]
    trouble: Callable[[str], None]
    moved: Callable[[], None]
    budget: Budget
    reopenings: Reopenings
    milestones: StderrMilestones | None = None
    stdout: StdoutMeter | None = None
    size: int = 0
    """Of its files at the last look."""
    sizes: dict[Suffix, int] = field(default_factory=dict)
    """Of each."""
    _inodes: dict[Suffix, int] = field(default_factory=dict)
    _taken: set[Suffix] = field(default_factory=set)
    """Files that have been told to be no longer where they were."""
    _begun: dict[Suffix, int] = field(default_factory=dict)
    """Sizes of the files when the attempt began, if this daemon began it."""
    held: dict[Suffix, int] = field(default_factory=dict)
    """Descriptors that keep processes from taking a lease on the files, by which they could not be
    bounded."""
    _newest: dict[Suffix, NewestBytes] = field(default_factory=dict)
    _truncated: dict[Suffix, int] = field(default_factory=dict)
    """How often the run was seen to have truncated a file."""
    _closed: bool = False
    _errors: set[int | None] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.times = WriteTimes(f"{self.files.directory}/{self.run}{TIMES}")
        self._note_files()

    def set_limit(self, limit: int | None) -> None:
        self.limit = limit

    def meter(self, new_meter: NewMeter, saved: bytes | None) -> tuple[Reading, ...] | None:
        """Meter its stdout from where `saved` says. Return the readings there, or `None` for a
        meter that begins at the start."""
        if saved is not None:
            with suppress(*UNDECODABLE):
                found = _FROM_BYTES.decode(saved)
                if found.version == FORMAT_VERSION:
                    self.stdout = StdoutMeter(
                        self._open, new_meter, self.seen, self.lost, found.position
                    )
                    self._inodes |= found.inodes
                    return self.stdout.readings
        self.stdout = StdoutMeter(self._open, new_meter, self.seen, self.lost)
        return None

    def position(self) -> bytes | None:
        position = self._guarded(StdoutMeter.position)
        return (
            _TO_BYTES.encode(_SavedTail(FORMAT_VERSION, self._inodes, position))
            if position is not None
            else None
        )

    def files_may_be_new(self) -> None:
        """Take the files that are now there for the run's, even if they are moved later."""
        self._inodes.clear()

    def hold(self, suffix: Suffix, descriptor: int | None = None) -> None:
        """Hold a file of a live run that is bounded, by this descriptor if it is given. Raises
        `OSError` as `OutputFiles.hold`."""
        if self._closed or self.limit is None or suffix in self.held:
            if descriptor is not None:
                os.close(descriptor)
            return
        inode = None
        if descriptor is None:
            descriptor = self.files.hold(self.run, suffix)
        elif (made := self.files.made(self.run).get(suffix)) is not None:
            inode = made.inode
        self.held[suffix] = descriptor
        self.reopenings.watch(descriptor, inode)

    def is_blank(self, suffix: Suffix, status: os.stat_result) -> bool:
        """Return whether the run has done nothing with a file that is held, as most do with one of
        the two to their end."""
        return (
            not (status.st_size or status.st_blocks or self.sizes.get(suffix))
            and suffix in self.held
            and suffix not in self._newest
            and not self.reopenings.any()
        )

    def look_for_truncation(self, suffix: Suffix, status: os.stat_result) -> None:
        """Save what was there before the run truncated a file that is held. Tell so, each time
        their number has doubled."""
        held = self.held.get(suffix)
        if held is None or self.limit is None:
            return
        newest = self._newest.get(suffix)
        if newest is None:
            if not status.st_size and not self.reopenings.opened(status.st_ino):
                return  # it has written nothing yet, as most runs to their end
            newest = self._newest[suffix] = NewestBytes(self.budget)
        try:
            for found in self.reopenings.truncations(newest, held)[1]:
                self._save(suffix, found, self.limit)
        except OSError as error:
            self.failed(error, "what it had written before it truncated its output is lost")

    def _save(self, suffix: Suffix, found: Truncation, limit: int) -> None:
        """Raises `OSError`."""
        lost = max(0, min(found.lost, limit - len(found.kept)))
        lost += self.files.save_truncated(self.run, suffix, found.kept)
        count = self._truncated[suffix] = self._truncated.get(suffix, 0) + 1
        if count & (count - 1) == 0:
            name = "stdout" if suffix == ".out" else "stderr"
            self.lost(
                f"it truncated its {name}: {len(found.kept)} bytes that it had written before "
                "are kept, and come before the rest when it has ended"
                + (f"; {lost} bytes are lost" if lost else "")
            )

    def watch(self) -> None:
        """Have the files that are held watched, now that this is possible."""
        for descriptor in self.held.values():
            self.reopenings.watch(descriptor)

    def restore(self) -> None:
        """Put what the run had written before it truncated a file before the rest. For a thread, as
        a file may be large; no process of the run is alive. Raises `OSError`."""
        for suffix in SUFFIXES:
            # an earlier daemon may have saved something of a run that was adopted
            if suffix not in self._truncated and suffix in self._begun:
                continue
            if self.files.restore_truncated(self.run, suffix):
                status = self.files.status(self.run, suffix)
                if status is not None:
                    self.times.blur(suffix, status)

    def begin_attempt(self, opened: Sequence[int] = ()) -> None:
        if self.held:
            self._release()  # the files may be new
        if self.limit is not None:
            try:
                for suffix, descriptor in zip(SUFFIXES, opened or (None, None), strict=True):
                    self.hold(
                        suffix, None if descriptor is None else self.files.hold_too(descriptor)
                    )
            except OSError:
                pass  # tried again at each look
        files, now = self.files.made(self.run), time.time()
        for suffix in SUFFIXES:
            made = files.get(suffix)
            self._begun[suffix] = made.size if made is not None else 0
            if made is not None:
                self._inodes[suffix] = made.inode
                if made.size == 0:
                    self.times.begun.setdefault(suffix, now)
        if self.stdout is not None:
            self._guarded(StdoutMeter.begin_attempt)

    def _note_files(self) -> None:
        for suffix, made in self.files.made(self.run).items():
            self._inodes[suffix] = made.inode

    def read(self, until: float) -> bool:
        """Read until `time.perf_counter()` is `until`. Return whether that was all there is, or all
        that can be read."""
        self.read_milestones()
        return self._guarded(lambda stdout: stdout.advance(until)) is not False

    def tell_milestones(self, name: str, reached: Callable[[str], None]) -> None:
        """Tell `reached` of the milestones on its stderr; see `StderrMilestones`."""
        self.milestones = StderrMilestones(name, lambda: self._open(".err"), reached)

    def read_milestones(self) -> bool:
        """Return whether there was more on its stderr."""
        if self.milestones is None:
            return False
        try:
            held = self.held.get(".err")
            status = os.fstat(held) if held is not None else self.status(".err")
            return status is not None and self.milestones.look(status.st_size)
        except FileNotFoundError:
            pass  # replaced since; that is told
        except OSError as error:
            self.failed(error, "its stderr cannot be read for milestones")
        return False

    def last_line(self) -> str | None:
        """Return the last line of what the attempt has written on stderr; see `last_line`."""
        status = self.status(".err")
        if status is None:
            return None
        begin = self._begun.get(".err", 0)
        try:
            descriptor = self._open(".err")
            try:
                # another size than when it began: it was truncated
                return last_line(
                    descriptor, begin if begin <= status.st_size else 0, status.st_size
                )
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return None  # replaced since; that is told
        except OSError as error:
            self.failed(error, "its stderr cannot be read for why it failed")
            return None

    def unread(self) -> int | None:
        return self._guarded(StdoutMeter.unread)

    def drain(self, until: float, newest: int, *, ended: bool) -> None:
        self._guarded(lambda stdout: stdout.drain(until, newest, ended=ended))

    def close(self) -> None:
        """Close the descriptor. The run is no longer metered, and what happens to its files is no
        longer told."""
        self._closed = True
        self._release()
        for newest in self._newest.values():
            newest.forget()
        self._close_meter()

    def _release(self) -> None:
        while self.held:
            descriptor = self.held.popitem()[1]
            self.reopenings.unwatch(descriptor)
            os.close(descriptor)

    def status(self, suffix: Suffix) -> os.stat_result | None:
        """Return the status of the file that the run was given. If it was moved, tell so once and
        return `None`."""
        try:
            status = self.files.status(self.run, suffix)
        except OSError as error:
            self.failed(error, "its output cannot be bounded")
            return None
        found = status.st_ino if status is not None else None
        if found is not None and self._inodes.setdefault(suffix, found) == found:
            return status
        if suffix in self._inodes:
            self._tell_taken(suffix)
        return None

    def failed(self, error: OSError, what: str) -> None:
        if error.errno not in self._errors:
            self._errors.add(error.errno)
            self.trouble(f"run {self.run}: {what}: {error}")

    def _open(self, suffix: Suffix = ".out") -> int:
        """Raises `FileNotFoundError` also if another file is in its place, which may be another
        user's."""
        if self.status(suffix) is None:
            raise FileNotFoundError
        descriptor = self.files.open_for_meter(self.run, suffix)
        if os.fstat(descriptor).st_ino != self._inodes[suffix]:
            os.close(descriptor)
            raise FileNotFoundError
        return descriptor

    def _guarded(self, call: Callable[[StdoutMeter], T]) -> T | None:
        if self.stdout is None:
            return None
        try:
            return call(self.stdout)
        except OSError as error:
            self.failed(error, "its output cannot be read for metering")
        except Exception:  # noqa: BLE001 - a bug in a meter must not leave every tree without a supervisor
            self._close_meter()
            self.trouble(
                f"run {self.run} is no longer metered: internal error:\n{traceback.format_exc()}"
            )
        return None

    def _close_meter(self) -> None:
        if self.stdout is not None:
            self.stdout.file.close()
            self.stdout = None

    def _tell_taken(self, suffix: Suffix) -> None:
        stdout = self.stdout if suffix == ".out" else None
        if stdout is not None:
            self.moved()
        # else the meter continues with the file that it has open
        unread = stdout is not None and not stdout.file.is_open
        if not self._closed and suffix not in self._taken and (unread or self.limit is not None):
            self._taken.add(suffix)
            name = "stdout" if suffix == ".out" else "stderr"
            what = "not metered and not bounded" if unread else "not bounded"
            self.lost(f"the file of its {name} was taken away: it is {what} any more")
