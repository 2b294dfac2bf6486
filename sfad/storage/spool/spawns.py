"""What it takes to start a run that is queued or may be retried: one 0600 file for each run, `ID.spawn`.

The run's environment is part of it, and may have secrets. So it is in no ledger, log or event, and the file is removed with the
run's last start.
"""

import os
from contextlib import ExitStack, suppress
from pathlib import Path

from ...core.state.run import number_or_zero, run_number
from ...host.files import create, is_regular, keep_damaged, make_directory, read, set_aside
from ...protocol.types import RunId

_SUFFIX = ".spawn"
_UNFINISHED = ".spawn.new"
_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Spawns:
    """The files of all runs in one directory. Each method raises `ValueError` for text that is not an id."""

    def __init__(self, directory: Path) -> None:
        """Make the directory as `make_directory` does, and remove unfinished files of an earlier daemon. Raises `OSError`."""
        make_directory(directory)
        self._directory = directory
        for name in os.listdir(directory):
            if name.endswith(_UNFINISHED):
                with suppress(IsADirectoryError, PermissionError):  # not a daemon's: `save` sets it aside if it is in the way
                    os.unlink(directory / name)
        self._saved = set(self.runs())
        """Runs that may have a file. Most never have one, and need no unlink(2)."""

    def save(self, run: RunId, data: bytes) -> None:
        """Save `data` for the run in place of what was saved before. Raises `OSError`, and then changes nothing."""
        path, unfinished = self._path(run, _SUFFIX), self._path(run, _UNFINISHED)
        self._saved.add(run)
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

    def has(self, run: RunId) -> bool:
        return is_regular(Path(self._path(run, _SUFFIX)))

    def read(self, run: RunId) -> bytes | None:
        """Return what was saved for the run, or `None`. Raises `OSError`, also if the file is not a regular one."""
        try:
            return read(self._path(run, _SUFFIX))
        except FileNotFoundError:
            return None

    def keep_damaged(self, run: RunId) -> str:
        """Set aside what is saved for the run. Return where it is, as the end of a sentence."""
        return keep_damaged(Path(self._path(run, _SUFFIX)))

    def forget(self, run: RunId) -> None:
        path = self._path(run, _SUFFIX)
        if run in self._saved:
            _unlink(path)
            self._saved.discard(run)

    def runs(self) -> list[RunId]:
        """Return the runs for which something is saved, in order of their ids. Raises `OSError`."""
        stems = (name.removesuffix(_SUFFIX) for name in os.listdir(self._directory) if name.endswith(_SUFFIX))
        return sorted(stem for stem in stems if number_or_zero(stem))

    def _path(self, run: RunId, suffix: str) -> str:
        run_number(run)  # raises for anything that is not an id, such as a path
        return f"{self._directory}/{run}{suffix}"


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
