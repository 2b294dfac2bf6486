"""What it takes to start a run that is queued or may be retried, its environment among it: one 0600 file a run, `ID.spawn`.

Secrets lie here, so nothing of them is ever in the ledger, the log or an event (SPEC section 10), and the file goes with the
run's last start.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

from ..core.ids import run_number
from ..protocol.types import RunId

_SUFFIX = ".spawn"
_UNFINISHED = ".spawn.new"
_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Spawns:
    """The files of all runs in one directory. Ids that are none raise `ValueError`, everywhere."""

    def __init__(self, directory: Path) -> None:
        """Makes the directory, 0700, or narrows it to that, and removes what a daemon before us was killed in the middle of.

        Raises `OSError`; `NotADirectoryError` where a symlink is in its place."""
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700, parents=True)
        if not stat.S_ISDIR(directory.lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(directory))
        if stat.S_IMODE(directory.stat().st_mode) != 0o700:
            directory.chmod(0o700)
        self._directory = directory
        for name in os.listdir(directory):
            if name.endswith(_UNFINISHED):
                os.unlink(directory / name)

    def keep(self, run: RunId, data: bytes) -> None:
        """Keeps it, in the place of what was kept for the run. Raises `OSError`; then what was kept before is as it was, and
        nothing else is left behind."""
        path, unfinished = self._path(run, _SUFFIX), self._path(run, _UNFINISHED)
        with ExitStack() as undo:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _ALWAYS, 0o600)
            undo.callback(_unlink, unfinished)
            try:
                _write(descriptor, data)
            finally:
                os.close(descriptor)
            os.rename(unfinished, path)
            undo.pop_all()

    def read(self, run: RunId) -> bytes | None:
        """What was kept for the run; `None` for nothing. Raises `OSError`, also for what is no regular file."""
        path = self._path(run, _SUFFIX)
        try:
            descriptor = os.open(path, os.O_RDONLY | _ALWAYS)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            return file.read()

    def forget(self, run: RunId) -> None:
        """Removes what was kept for the run; it is no error if that is nothing. Raises `OSError`."""
        _unlink(self._path(run, _SUFFIX))

    def runs(self) -> list[RunId]:
        """Of whom something is kept, in order. Raises `OSError`."""
        stems = (name.removesuffix(_SUFFIX) for name in os.listdir(self._directory) if name.endswith(_SUFFIX))
        return sorted(stem for stem in stems if _is_id(stem))

    def _path(self, run: RunId, suffix: str) -> str:
        run_number(run)  # raises for anything that is not an id, such as a path
        return f"{self._directory}/{run}{suffix}"


def _is_id(text: str) -> bool:
    try:
        return run_number(text) > 0
    except ValueError:
        return False


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
