"""Output files: `ID.out` and `ID.err`, 0600, which the run writes itself.

The oldest bytes of a bounded file are a hole (`holes`), so its size is all that was written, and
not what is left of it.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec import Struct

from ...core.state.run import number_or_zero, run_number
from ...host.files import identity, make_directory, set_aside
from ...host.linux import displacement
from ...host.tasks import LoopRounds
from ...protocol.types import RunId, RunInfo
from . import holes, truncated

Suffix = Literal[".out", ".err"]
SUFFIXES: tuple[Suffix, Suffix] = (".out", ".err")
TIMES = ".times"
"""The suffix of the index of a run's output; see `times`."""
SHOWN = ".shown"
"""The suffix of the record of a terminal: when its output was shown, and its sizes."""

# O_APPEND: all attempts, and all processes of a run, add to the end
_WRITE = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_READ = os.O_RDONLY
# a run may put anything where its file was: a link, or a FIFO, on which open(2) would wait for its
# other end
_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NEW = _WRITE | os.O_EXCL | os.O_CLOEXEC | os.O_NOCTTY
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_CHUNK = 1 << 20

_HIGHEST = 1 << 40
"""No daemon made a file with a higher number. A file that an agent made must not use up the
numbers."""


class Replaced(OSError):
    """The file with the name of a run's output file is not the one that the daemon made."""

    def __init__(self, run_id: RunId, name: str) -> None:
        message = (
            f"{name} is not the file that the daemon made for run {run_id}: "
            "another process has replaced or removed it"
        )
        super().__init__(errno.ESTALE, message)
        self.message = message


class LeasedError(OSError):
    """Another process holds a lease on the file: see F_SETLEASE in fcntl(2)."""


class Made(Struct, frozen=True):
    """A file that was made or opened for a run's attempt."""

    inode: int
    size: int
    """When the attempt began; 0 if an earlier daemon began it."""


class OutputFiles:
    """The files of all runs in one directory, which is made 0700 if it is missing, unless `make` is
    false. Raises `OSError`.

    An agent can remove and replace the directory and its files. The daemon makes the directory
    again, and tells `say`."""

    def __init__(
        self,
        directory: Path,
        say: Callable[[str], object] = lambda _line: None,
        *,
        make: bool = True,
        rounds: LoopRounds | None = None,
    ) -> None:
        """`rounds`: of the loop that alone opens files for runs."""
        self.directory = directory
        self._say = say
        self._rounds = rounds
        self._open_directory: int | None = None
        self._name, self._prefix = str(directory), f"{directory}/"
        """To make text of a path takes two calls."""
        self._made: dict[RunId, dict[Suffix, Made]] = {}
        """The files that this daemon, or the one before for a run that was adopted, has made or
        opened for a run."""
        if make:
            self._tell_aside(make_directory(directory))

    def room(self) -> int:
        """Return the bytes that the disk has free for other programs than root's. Raises
        `OSError`."""
        disk = os.statvfs(self.directory)
        return disk.f_bavail * disk.f_frsize

    def make_again(self) -> None:
        """Make the directory if it was removed or replaced. Raises `OSError`."""
        try:
            os.close(os.open(self.directory, _DIRECTORY))
        except OSError:
            aside = make_directory(self.directory)
            self._say(
                f"{self.directory} was removed or replaced by another process; "
                "it was made again, without what was in it"
            )
            self._tell_aside(aside)

    def open_for_run(self, run_id: RunId, owner: tuple[int, int] | None = None) -> tuple[int, int]:
        """Return descriptors for the run's stdout and stderr, the caller's to close. Raises
        `OSError`.

        Create the files, and set aside anything else in their places. `owner`: uid and gid of
        another user who executes the run; a program opens /dev/stdout again, and only the file's
        owner may. No other user has a way into the directory."""
        run_number(run_id)  # raises for anything that is not an id, such as a path
        if self._open_directory is None:
            self._open_directory = self._opened_directory()
            if self._rounds is not None:  # a burst of runs starts in few rounds
                self._rounds.at_end(self._close_directory)
        try:
            descriptors = self._both(run_id, partial(self._open_to_write, self._open_directory))
        finally:
            if self._rounds is None:
                self._close_directory()
        if owner is not None:
            for descriptor in descriptors:
                os.fchown(descriptor, *owner)
        return descriptors

    def _opened_directory(self) -> int:
        try:
            return os.open(self._name, _DIRECTORY)
        except OSError:
            self.make_again()
            return os.open(self._name, _DIRECTORY)

    def _close_directory(self) -> None:
        if self._open_directory is not None:
            os.close(self._open_directory)
            self._open_directory = None

    def open_for_reader(self, run_id: RunId, *, create: bool = False) -> tuple[int, int]:
        """Return descriptors for reading stdout and stderr, the caller's to close.

        `create` is for a live run, whose readers may come before its first attempt. Raises
        `OSError`; `Replaced`; `FileNotFoundError` if no output was kept."""
        if create and run_id not in self._made:
            for descriptor in self.open_for_run(run_id):
                os.close(descriptor)
        try:
            return self._both(run_id, self._open_to_read)
        except FileNotFoundError as error:
            if not create:
                raise
            raise Replaced(run_id, str(error.filename)) from None

    def open_for_meter(self, run_id: RunId, suffix: Suffix = ".out") -> int:
        """Return a descriptor for reading, the caller's to close. Raises `OSError`."""
        return self._open(run_id, suffix, _READ)

    @contextmanager
    def stdout(self, run_id: RunId) -> Iterator[int]:
        """Yield a descriptor for reading stdout. Raises `OSError`; `Replaced`; `FileNotFoundError`
        if no output was kept."""
        descriptor = self._open_to_read(run_id, ".out")
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def tail(self, run_id: RunId, max_bytes: int) -> tuple[bytes, bool]:
        """Return the newest `max_bytes` bytes of stdout without a character cut in two, and whether
        there were more.

        Raises as `stdout` does."""
        with self.stdout(run_id) as descriptor:
            return _tail(descriptor, max_bytes)

    def newest(self, descriptor: int, max_bytes: int) -> tuple[int, bytes]:
        """Return at most the newest `max_bytes` bytes of an open output file, and the offset of the
        first. Raises `OSError`."""
        size = os.fstat(descriptor).st_size
        return _read_to(descriptor, max(0, size - max_bytes), size)

    def open_all(self, run: RunInfo, *, create: bool = False) -> Sequence[int]:
        """As `open_for_reader`; of a run that has or had a terminal of its own, with its record."""
        descriptors = self.open_for_reader(run.id, create=create)
        flags = os.O_RDONLY | os.O_CREAT if run.terminal else os.O_RDONLY
        try:
            return *descriptors, self.open_shown(run.id, flags)
        except FileNotFoundError:
            return descriptors
        except OSError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def open_shown(self, run_id: RunId, flags: int = _WRITE) -> int:
        """Return a descriptor of the record of a run's terminal, the caller's to close. Raises
        `OSError`."""
        return self._open(run_id, SHOWN, flags)

    def hold(self, run_id: RunId, suffix: Suffix) -> int:
        """Return a descriptor for reading and writing, the caller's to close. While it is open no
        process gets a lease on the file, with which it could keep the daemon from opening it.
        Raises `OSError`; `LeasedError` if a process has one already."""
        return self._open(run_id, suffix, os.O_RDWR)

    @staticmethod
    def hold_too(descriptor: int) -> int:
        """As `hold`, of a file that the caller has just opened for a run. A duplicate of the
        descriptor would not do: the kernel grants a lease to a process that uses the same open
        file."""
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)

    def break_lease(self, run_id: RunId, suffix: Suffix) -> int:
        """As `hold`, but wait until the kernel has ended the lease: at most
        /proc/sys/fs/lease-break-time, 45 s. No new one is granted meanwhile. For a thread. Raises
        `OSError`."""
        found = os.open(self._path(run_id, suffix), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", self._path(run_id, suffix))
            return os.open(f"/proc/self/fd/{found}", os.O_RDWR | os.O_CLOEXEC)
        finally:
            os.close(found)

    def save_truncated(self, run_id: RunId, suffix: Suffix, kept: bytes) -> int:
        """Save what a run had written before it truncated its file; see `truncated.save`. Raises
        `OSError`."""
        return truncated.save(self._path(run_id, suffix), kept)

    def restore_truncated(self, run_id: RunId, suffix: Suffix) -> bool:
        """Put that before the rest, when no process of the run is alive; see `truncated.restore`.
        Raises `OSError`."""
        restored = truncated.restore(self._path(run_id, suffix))
        if restored and run_id in self._made and (now := self.status(run_id, suffix)) is not None:
            self._made[run_id][suffix] = Made(now.st_ino, 0)
        return restored

    def forget(self, run_id: RunId) -> None:
        """Forget which files the run was given: from now on any regular file counts as its
        output."""
        self._made.pop(run_id, None)

    def remove(self, run_id: RunId) -> None:
        for suffix in _KEPT:
            with suppress(FileNotFoundError):
                os.unlink(self._path(run_id, suffix))

    def is_stdout(self, path: str, run_id: RunId) -> bool:
        """Return whether a path, that of a descriptor, is the run's stdout. Its file system is not
        asked, because that may not answer."""
        if ".out" not in self.made(run_id):
            return False
        return path == os.path.join(os.path.realpath(self.directory), f"{run_id}.out")

    def made(self, run_id: RunId) -> Mapping[Suffix, Made]:
        """Return the files that the run was given for its newest attempt, if this daemon has given
        it any."""
        return self._made.get(run_id, {})

    def inodes(self, run_id: RunId) -> tuple[int, ...]:
        """Return the inodes of both files, for `adopt`; nothing if the run was given none."""
        return tuple([made.inode for made in self._made.get(run_id, {}).values()])

    def adopt(self, run_id: RunId, inodes: tuple[int, ...]) -> None:
        """Take these files for the run's: an earlier daemon gave it them. Another file of their
        names may be any file of the machine, of which nothing must be freed."""
        if inodes:
            self._made[run_id] = {
                suffix: Made(inode, 0) for suffix, inode in zip(SUFFIXES, inodes, strict=True)
            }

    def status(self, run_id: RunId, suffix: Suffix) -> os.stat_result | None:
        """Return the status of the regular file that has the name now, or `None`. Costs one system
        call. Raises `OSError`."""
        try:
            status = os.stat(self._path(run_id, suffix), follow_symlinks=False)
        except FileNotFoundError:
            return None
        return status if stat.S_ISREG(status.st_mode) else None

    def free(
        self,
        run_id: RunId,
        suffix: Suffix,
        keep: int,
        until: int,
        between: Callable[[], object] = lambda: None,
        *,
        inode: int | None = None,
    ) -> int:
        """Free the bytes of a file that lie before offset `until` and before its newest `keep`;
        return how many.

        For a thread: it may wait for the disk. `between` is called every few MiB, and may raise to
        give up. `inode`: leave any other file alone, as one that the run has linked in its place.
        Raises `OSError`; `EOPNOTSUPP` if the file system cannot free bytes."""
        try:
            descriptor = self._open(run_id, suffix, os.O_WRONLY)
        except FileNotFoundError:
            return 0
        try:
            if inode is not None and os.fstat(descriptor).st_ino != inode:
                return 0
            return holes.free(descriptor, keep, until, between)
        finally:
            os.close(descriptor)

    def highest_number(self) -> int:
        """Return the highest run number of a file here, 0 without files. A new ledger continues
        above it."""
        numbers = (
            number_or_zero(entry.name.partition(".")[0]) for entry in os.scandir(self.directory)
        )
        return max((number for number in numbers if number <= _HIGHEST), default=0)

    def _path(self, run_id: RunId, suffix: str) -> str:
        run_number(run_id)  # raises for anything that is not an id, such as a path
        return f"{self._prefix}{run_id}{suffix}"

    def _both(self, run_id: RunId, open_one: Callable[[RunId, Suffix], int]) -> tuple[int, int]:
        out = open_one(run_id, ".out")
        try:
            return out, open_one(run_id, ".err")
        except OSError:
            os.close(out)
            raise

    def _open_to_write(self, directory: int, run_id: RunId, suffix: Suffix) -> int:
        try:
            descriptor = os.open(f"{run_id}{suffix}", _NEW, 0o600, dir_fd=directory)
        except FileExistsError:
            if not self._may_write(run_id, suffix):
                self._tell_aside(set_aside(Path(self._path(run_id, suffix))))
            descriptor = self._open(run_id, suffix, _WRITE)
        status = os.fstat(descriptor)
        self._made.setdefault(run_id, {})[suffix] = Made(status.st_ino, status.st_size)
        return descriptor

    def _may_write(self, run_id: RunId, suffix: Suffix) -> bool:
        # an unknown file may be that of an earlier daemon; with a second link it may be any file of
        # the machine
        found, made = self.status(run_id, suffix), self._made.get(run_id, {})
        return found is not None and (
            found.st_ino == made[suffix].inode if suffix in made else found.st_nlink == 1
        )

    def _open_to_read(self, run_id: RunId, suffix: Suffix) -> int:
        try:
            descriptor = self._open(run_id, suffix, _READ)
        except OSError as error:
            if error.errno in _SOMETHING_ELSE:
                raise Replaced(run_id, f"{run_id}{suffix}") from error
            raise
        made = self._made.get(run_id, {}).get(suffix)
        if made is not None and os.fstat(descriptor).st_ino != made.inode:
            os.close(descriptor)
            raise Replaced(run_id, f"{run_id}{suffix}")
        return descriptor

    def _open(self, run_id: RunId, suffix: str, flags: int) -> int:
        path = self._path(run_id, suffix)
        # by a descriptor of the directory, because O_NOFOLLOW concerns only the last part of a path
        directory = os.open(self.directory, _DIRECTORY)
        try:
            descriptor = os.open(f"{run_id}{suffix}", flags | _ALWAYS, 0o600, dir_fd=directory)
        except BlockingIOError as error:
            raise LeasedError(error.errno, "another process holds a lease on it", path) from error
        finally:
            os.close(directory)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        os.set_blocking(descriptor, True)
        return descriptor

    def _tell_aside(self, aside: Path | None) -> None:
        if aside is not None:
            self._say(f"{aside} was in the place of the daemon's own; it was renamed to that")


_SOMETHING_ELSE = frozenset({errno.ELOOP, errno.ENXIO, errno.EINVAL, errno.EISDIR, errno.ENOTDIR})
"""Errors of open(2) and `_open` for a symlink, a socket, a FIFO or device, a directory, and a
directory that is a file."""


def _tail(descriptor: int, max_bytes: int) -> tuple[bytes, bool]:
    size = os.fstat(descriptor).st_size
    wanted = max(0, size - max(0, max_bytes))
    start, data = _read_to(descriptor, wanted, size)
    return (data[_split_character(data) :], True) if start else (data, False)


def _read_to(descriptor: int, start: int, end: int) -> tuple[int, bytes]:
    """Return the bytes from `start` to `end` that are not in a hole, and where they begin. A hole
    may grow meanwhile."""
    first, data = start, bytearray()
    buffer = memoryview(bytearray(min(_CHUNK, end - start)))
    while start < end:
        at, part = holes.read_into(descriptor, buffer[: end - start], start)
        if at > start:
            # the bytes that were read before are older, so they have been freed, too
            first, data = at, bytearray()
        if not part:  # a run may truncate its file meanwhile
            break
        data += part
        start = at + len(part)
    return first, bytes(data)


def _split_character(data: bytes) -> int:
    # at most three continuation bytes belong to a character; more are not UTF-8, and are kept
    count = next((i for i, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), len(data[:4]))
    return count if count < 4 else 0


# ---- Deletes the output of runs that ended long ago


BATCH = 256
_KEPT = (*SUFFIXES, TIMES, SHOWN, *(suffix + truncated.KEPT for suffix in SUFFIXES))

Ends = Callable[[Sequence[RunId]], Mapping[RunId, float | None]]
"""Returns when runs ended, in seconds since the epoch; `None` for a live run. Unknown runs are
missing."""


def remove_old(
    directory: Path,
    cutoff: float,
    *,
    ends: Ends,
    live: Collection[RunId],
    between: Callable[[], object],
) -> int:
    """Delete the output files of runs that ended before `cutoff`, in seconds since the epoch;
    return how many.

    Of a run that `ends` does not know, the time of the last write counts. Files of `live` runs, and
    other files, stay. For a thread: it waits for the disk. `between` is called between bounded
    batches, and may wait, or raise to give up. Raises the first `OSError` when all files have been
    tried."""
    names = [entry.name for entry in os.scandir(directory) if _run(entry.name) is not None]
    count, failed = 0, []
    for start in range(0, len(names), BATCH):
        batch = [name for name in names[start : start + BATCH] if _run(name) not in live]
        known = ends([run for name in batch if (run := _run(name)) is not None])
        for name in batch:
            try:
                count += _remove_if_old(directory / name, cutoff, known)
            except OSError as error:
                failed.append(error)
        between()
    if failed:
        raise failed[0]
    return count


def remove_above(
    directory: Path,
    most: int,
    *,
    ends: Ends,
    owners: Callable[[Sequence[RunId]], Mapping[RunId, int | None]],
    live: Collection[RunId],
    between: Callable[[], object],
) -> int:
    """Delete the output files of the runs that ended first of each user whose output takes more
    than `most` bytes on the disk; return how many. What live runs have counts. `owners` returns
    users; else as `remove_old`."""
    taken: dict[RunId, int] = {}
    for entry in os.scandir(directory):
        if (run := _run(entry.name)) is not None:
            with suppress(FileNotFoundError):
                taken[run] = taken.get(run, 0) + entry.stat(follow_symlinks=False).st_blocks * 512
    sums: dict[int | None, int] = {}
    ended: list[tuple[float, RunId, int | None]] = []
    runs = list(taken)
    for start in range(0, len(runs), BATCH):
        batch = runs[start : start + BATCH]
        known, of = ends(batch), owners(batch)
        for run in batch:
            owner, at = of.get(run), known.get(run, 0.0)
            sums[owner] = sums.get(owner, 0) + taken[run]
            if run not in live and at is not None:
                ended.append((at, run, owner))
        between()
    removed = 0
    for _, run, owner in sorted(ended, key=lambda each: each[:2]):
        if sums[owner] > most:
            sums[owner] -= taken[run]
            removed += remove(directory, [run], dry=False, between=between)[0]
    return removed


def remove(
    directory: Path, runs: Collection[RunId], *, dry: bool, between: Callable[[], object]
) -> tuple[int, int]:
    """Delete the files of `runs`, or only count them if `dry`. Return how many, and their bytes on
    the disk. Else as `remove_old`."""
    count, freed, failed = 0, 0, []
    for position, path in enumerate(
        directory / f"{run}{suffix}" for run in runs for suffix in _KEPT
    ):
        try:
            freed += _remove(path, dry=dry)
            count += 1
        except FileNotFoundError:
            pass  # the run kept no output, or it was removed before
        except OSError as error:
            failed.append(error)
        if position % BATCH == BATCH - 1:
            between()
    if failed:
        raise failed[0]
    return count, freed


def _remove(path: Path, *, dry: bool) -> int:
    # st_blocks counts in units of 512 bytes: stat(2). Freed output leaves holes
    taken = path.lstat().st_blocks * 512
    if not dry:
        path.unlink()
    return taken


def _remove_if_old(path: Path, cutoff: float, known: Mapping[RunId, float | None]) -> bool:
    run = path.name.partition(".")[0]
    with suppress(FileNotFoundError):
        # a run may have put a link in its file's place: the link is deleted, and not its target
        ended = known[run] if run in known else path.lstat().st_mtime
        if ended is not None and ended < cutoff:
            path.unlink()
            return True
    return False


def _run(name: str) -> RunId | None:
    run, dot, suffix = name.partition(".")
    return run if number_or_zero(run) and dot + suffix in _KEPT else None


# ---- Which output files were written to or taken away: one inotify(7) watch on their directory,
# whose events name the file

_NAMES_CHANGE = (
    displacement.MOVED_FROM
    | displacement.MOVED_TO
    | displacement.DELETE
    | displacement.DELETE_SELF
    | displacement.MOVE_SELF
)
# of the event that says that there were more than fs.inotify.max_queued_events: wd -1, mask
# IN_Q_OVERFLOW
_OVERFLOW = b"\xff\xff\xff\xff\x00\x40\x00\x00"
# An event is a header of 16 bytes and a name padded with NULs. Two runs that write in turns make up
# to 16 384 events before the next read: a regular expression finds the names in 2 ms, a loop over
# the headers in 12 ms. A name that the expression finds by accident is no followed run, or its file
# is looked at in vain.
_NAMES = re.compile(rb"([a-z][0-9a-v]+)\.(?:out|err)\0")

_BATCH = 64 * 1024
_BATCHES = 16


class Inotify:
    """Readable (`fileno`) when a file of `directory` was written to, deleted, renamed, or replaced
    by a rename.

    Creating a file does not count. One watch serves all runs. Raises `OSError`: `EMFILE` if the
    user has no instance left (fs.inotify.max_user_instances, 128)."""

    def __init__(self, directory: Path) -> None:
        self.gone = False
        """Another directory, or none, had the name at the last `take`. IN_DELETE_SELF alone does
        not tell: it comes when the last file in the directory is closed."""
        self._directory = directory
        self._descriptor = displacement.new_instance()
        with ExitStack() as undo:
            undo.callback(self.close)
            displacement.add_watch(self._descriptor, directory, _NAMES_CHANGE | displacement.MODIFY)
            undo.pop_all()
        self.tells_writes = True
        self._identity = identity(directory)

    def fileno(self) -> int:
        return self._descriptor

    def replaced(self) -> bool:
        """Return whether another directory, or none, has the name now."""
        return identity(self._directory) != self._identity

    def tell_writes(self, wanted: bool) -> bool:
        """Tell of writes from now on, or of names only. Return whether that is a change: what was
        written before is not told."""
        if wanted == self.tells_writes:
            return False
        try:
            displacement.add_watch(
                self._descriptor,
                self._directory,
                _NAMES_CHANGE | (displacement.MODIFY if wanted else 0),
            )
            self.tells_writes = wanted
        except OSError:
            self.gone = True
        return True

    def take(self) -> set[RunId] | None:
        """Return the runs whose files changed since the last call; `None` if the kernel dropped
        events, so that it may be any."""
        names: set[bytes] = set()
        self.gone = self.replaced()
        for _ in range(_BATCHES):
            try:
                events = os.read(self._descriptor, _BATCH)
            except BlockingIOError:
                break
            if _OVERFLOW in events:
                return None
            names.update(_NAMES.findall(events))
        return {name.decode() for name in names}

    def close(self) -> None:
        os.close(self._descriptor)
