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
from ..host.private_files import create, is_regular, make_directory, set_aside
from ..protocol.types import RunId

_SUFFIX = ".spawn"
_UNFINISHED = ".spawn.new"
_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Spawns:
    """The files of all runs in one directory. Ids that are none raise `ValueError`, everywhere."""

    def __init__(self, directory: Path) -> None:
        """Makes the directory, 0700, or narrows it to that, sets aside anything else of that name, and removes what an earlier
        daemon was killed in the middle of. Raises `OSError`."""
        make_directory(directory)
        self._directory = directory
        for name in os.listdir(directory):
            if name.endswith(_UNFINISHED):
                with suppress(IsADirectoryError, PermissionError):  # not a daemon's: `keep` sets it aside if it is in the way
                    os.unlink(directory / name)

    def keep(self, run: RunId, data: bytes) -> None:
        """Keeps it, in the place of what was kept for the run. Raises `OSError`; then what was kept before is as it was, and
        nothing else is left behind."""
        path, unfinished = self._path(run, _SUFFIX), self._path(run, _UNFINISHED)
        make_directory(self._directory)  # an agent may have removed it
        with ExitStack() as undo:
            descriptor = create(Path(unfinished))
            undo.callback(_unlink, unfinished)
            try:
                _write(descriptor, data)
            finally:
                os.close(descriptor)
            try:
                os.rename(unfinished, path)
            except IsADirectoryError:
                set_aside(Path(path))
                os.rename(unfinished, path)
            undo.pop_all()

    def keeps(self, run: RunId) -> bool:
        """Whether something is kept for the run."""
        return is_regular(Path(self._path(run, _SUFFIX)))

    def read(self, run: RunId) -> bytes | None:
        """What was kept for the run; `None` for nothing. Raises `OSError`, also for what is no regular file."""
        path = self._path(run, _SUFFIX)
        try:
            descriptor = os.open(path, os.O_RDONLY | _ALWAYS)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        with open(descriptor, "rb") as file:
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
