"""Files that are sent with runs (docs/fleet.md#files): archives, which come in pieces, and the
directories where runs unpack them.

`UID-ARCHIVE/`   a copy: `archive.part` grows to `archive`, which a run unpacks in `own/`. Both are
                 given to the run's user
`RUN.json`       which copy a run has. Runs that continue each other have the same one

They are beside the state directory, and not in it: that is open to the daemon only, and hidden from
runs in a sandbox.
"""

import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from ....core.state.run import number_or_zero
from ....durable.maintenance import Old
from ....host.files import UNDECODABLE, read
from ....protocol.texts.units import format_size
from ....protocol.types import RunId, Ship
from ..messages import PIECE

_ARCHIVE = re.compile(r"[0-9a-f]{32}")
_COPY = re.compile(r"\d+-[0-9a-f]{32}")
UNCLAIMED = 3600.0
"""Seconds for which an archive is kept that no run has named."""
MOST_UNCLAIMED = 16
"""Archives of one user that no run has named."""
STAYS_FREE = 64 << 20
"""Bytes of the disk that archives leave."""
_BATCH = 256


class ShipRefused(Exception):
    """Files cannot be taken. The message says why."""


class Shipment(Struct, frozen=True):
    """What is known of the files of a run."""

    copy: str
    uid: int
    ship: Ship


def is_archive(name: str) -> bool:
    return _ARCHIVE.fullmatch(name) is not None


class ShippedFiles:
    def __init__(self, state: Path, most: int) -> None:
        self.directory = Path(f"{state}-shipped")
        self.most = most
        """`fleet.ship_max`."""

    def copy_of(self, uid: int, archive: str) -> Path:
        """Return the directory of an archive, whether or not it is there."""
        return self.directory / name_of(uid, archive)

    def is_whole(self, uid: int, archive: str) -> bool:
        return is_archive(archive) and (self.copy_of(uid, archive) / "archive").is_file()

    # ---- archives come, for a thread

    def put(
        self,
        uid: int,
        archive: str,
        size: int,
        offset: int,
        data: bytes,
        *,
        last: bool,
        named: Collection[str],
    ) -> tuple[int, bool]:
        """Keep a piece. Return how many bytes of the archive there are, and whether it is whole.
        `named`: copies of live runs. Raise `ShipRefused`, `OSError`."""
        if not is_archive(archive):
            raise ShipRefused(
                f"the name of an archive has 32 hexadecimal digits, got {archive[:40]!r}"
            )
        if size > self.most:
            raise ShipRefused(
                f"the files have {format_size(size)}, "
                f"and fleet.ship_max is {format_size(self.most)}: "
                "send a smaller directory, or have git ignore what the run does not need"
            )
        if len(data) > PIECE:
            raise ShipRefused(f"a piece has at most {PIECE} bytes, got {len(data)}")
        copy = self.copy_of(uid, archive)
        if (copy / "archive").is_file():
            return (copy / "archive").stat().st_size, True
        if not copy.is_dir():
            self._make(uid, copy, named)
        descriptor = os.open(
            copy / "archive.part",
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
        )
        with os.fdopen(descriptor, "ab") as part:
            kept = os.fstat(descriptor).st_size
            if kept == offset and (data or last):
                self._check(kept, len(data))
                part.write(data)
                part.flush()
                kept += len(data)
                if last:
                    os.rename(copy / "archive.part", copy / "archive")
        return kept, last and kept == offset + len(data)

    def _check(self, kept: int, more: int) -> None:
        # incompressible files become a little larger; a tar has 1 KiB for each file
        if kept + more > 2 * self.most:
            raise ShipRefused(
                f"the archive has more than twice fleet.ship_max, {format_size(self.most)}"
            )
        disk = os.statvfs(self.directory)
        free = disk.f_bavail * disk.f_frsize
        if free < more + STAYS_FREE:
            why = (
                f"only {format_size(free)} are free on the disk, "
                f"of which {format_size(STAYS_FREE)} stay free; free some"
            )
            raise OSError(errno.ENOSPC, why, str(self.directory))

    def _make(self, uid: int, copy: Path, named: Collection[str]) -> None:
        _make(self.directory)
        waiting = [
            name for name in self._copies() if name.startswith(f"{uid}-") and name not in named
        ]
        waiting = [name for name in waiting if not (self.directory / name / "own").exists()]
        if len(waiting) >= MOST_UNCLAIMED:
            raise ShipRefused(
                f"{len(waiting)} archives of uid {uid} wait for a run that names them, "
                f"at most {MOST_UNCLAIMED} may"
            )
        _make(copy)

    def piece(self, uid: int, archive: str, offset: int) -> tuple[bytes, bool]:
        """Return a piece of a whole archive, and whether it is the last one. For a thread. Raise
        `OSError`."""
        with (self.copy_of(uid, archive) / "archive").open("rb") as file:
            data = os.pread(file.fileno(), PIECE, offset)
            return data, offset + len(data) >= os.fstat(file.fileno()).st_size

    # ---- a run begins

    def begin(self, run: RunId, uid: int, ship: Ship, owner: tuple[int, int] | None) -> Path:
        """Note which copy a run has, and give that to its user. Return it. Raise `OSError`."""
        copy = self.copy_of(uid, ship.archive)
        record = self.directory / f"{run}.json"
        if not record.exists():
            new = self.directory / f"{run}.new"
            new.write_bytes(msgspec.json.encode(Shipment(copy.name, uid, ship)))
            new.rename(record)
        own = copy / "own"
        with suppress(FileExistsError):
            own.mkdir(0o700)
        if owner is not None:
            os.chown(own, *owner, follow_symlinks=False)
            os.chown(copy / "archive", *owner, follow_symlinks=False)
        return copy

    def of(self, run: RunId) -> Shipment | None:
        """Return what is known of the files of a run; `None` if there are none."""
        try:
            return msgspec.json.decode(read(self.directory / f"{run}.json"), type=Shipment)
        except (OSError, *UNDECODABLE):
            return None

    def packed(self, shipment: Shipment, name: str, offset: int) -> bytes:
        """Return a piece of packed changes. For a thread. Raise `OSError`."""
        if not is_archive(name):
            raise FileNotFoundError(f"no changes were packed as {name[:40]!r}")
        # by descriptors: the directory is the user's, who can put a link there
        own = os.open(
            self.directory / shipment.copy / "own",
            os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
        )
        try:
            file = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=own
            )
        finally:
            os.close(own)
        try:
            found = os.fstat(file)
            if (
                not stat.S_ISREG(found.st_mode)
                or found.st_uid != shipment.uid
                or found.st_nlink != 1
            ):
                raise PermissionError(f"{name} is not what the run's user has packed")
            return os.pread(file, PIECE, offset)
        finally:
            os.close(file)

    # ---- what is removed, for a thread

    def remove(self, runs: Collection[RunId], *, dry: bool) -> int:
        """Remove the files of runs, or only count them if `dry`. Return the bytes. Raise
        `OSError`."""
        freed = 0
        for run in runs:
            shipment = self.of(run)
            if shipment is None:
                continue
            shared = any(
                other != run and kept.copy == shipment.copy for other, kept in self._records()
            )
            if not shared:
                freed += _size(self.directory / shipment.copy)
            if not dry:
                self._forget(run, None if shared else shipment.copy)
        return freed

    def remove_old(self, old: Old, named: Collection[str]) -> int:
        """Remove the files of old runs, and what no run has named for a while. Return how many
        copies. `named`: copies of live runs. Raise `OSError`."""
        cutoff, between = old.cutoff, old.between
        runs = [run for run, _ in self._records() if run not in old.live]
        for start in range(0, len(runs), _BATCH) if cutoff is not None else ():
            batch = runs[start : start + _BATCH]
            known = old.ends(batch)
            for run in batch:
                ended = (
                    known[run] if run in known else (self.directory / f"{run}.json").stat().st_mtime
                )
                if cutoff is not None and ended is not None and ended < cutoff:
                    self._forget(run, None)
            between()
        for name in self._names():
            if name.endswith(".new"):  # a daemon was killed while it wrote a record
                (self.directory / name).unlink(missing_ok=True)
        kept = {shipment.copy for _, shipment in self._records()} | set(named)
        count = 0
        for name in self._copies():
            if name not in kept and _touched(self.directory / name) < old.now - UNCLAIMED:
                _remove_tree(self.directory / name)
                count += 1
                between()
        return count

    def _forget(self, run: RunId, copy: str | None) -> None:
        if copy is not None:
            _remove_tree(self.directory / copy)
        (self.directory / f"{run}.json").unlink(missing_ok=True)

    def _records(self) -> Iterator[tuple[RunId, Shipment]]:
        for name in self._names():
            run, _, suffix = name.partition(".")
            if suffix == "json" and number_or_zero(run) and (shipment := self.of(run)) is not None:
                yield run, shipment

    def _copies(self) -> list[str]:
        return [name for name in self._names() if _COPY.fullmatch(name)]

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.directory)
        except FileNotFoundError:
            return []


def name_of(uid: int, archive: str) -> str:
    """Return the name of the copy that an archive becomes."""
    return f"{uid}-{archive}"


def _make(directory: Path) -> None:
    """Make a directory that the users of runs can go through, where they are not the daemon's
    own."""
    with suppress(FileExistsError):
        directory.mkdir(0o700)
    if os.geteuid() == 0:
        directory.chmod(0o711)


def _touched(copy: Path) -> float:
    """Return when something was last done with a copy that no run has."""
    times = [time.time()]
    with suppress(OSError):
        times = [copy.stat().st_mtime]
        times += [entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(copy)]
    return max(times)


def _size(copy: Path) -> int:
    """Return the bytes on the disk."""
    found = 0
    for directory, _, files in os.walk(copy):
        for name in files:
            with suppress(OSError):
                found += os.lstat(f"{directory}/{name}").st_blocks * 512
    return found


def _remove_tree(copy: Path) -> None:
    if os.geteuid() != 0:  # root needs no rights, and must not follow what a user puts there
        for directory, _, _ in os.walk(copy):
            with suppress(OSError):
                os.chmod(directory, 0o700)
    shutil.rmtree(copy)
