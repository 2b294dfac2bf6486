"""Searches for session files. They belong to the agent: any name may be there as a FIFO, a link, or a directory of 100 000 names.

So a search is bounded, no link below the program's own directory is followed, and only regular files of the run's user are opened.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ..meters.program import FileName, SessionPlace

MOST_ENTRIES = 10_000
"""Names in directories that one search reads."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC


class FileSearch:
    """One search for files of a user that were written since a time (seconds since the epoch)."""

    def __init__(self, uid: int, since: float) -> None:
        self.entries = 0
        self._uid = uid
        self._since = since

    def found(self, places: Sequence[SessionPlace]) -> Iterator[tuple[str, int]]:
        """Yield the path of each file, and a descriptor that is open until the next one. Raises `OSError`."""
        done: set[str] = set()
        for place in places:
            root = _opened(place.root, _DIRECTORY) if os.path.isabs(place.root) else None
            if root is None:
                continue
            with _closing(root):
                for path, descriptor in self._walk(root, place.root, place.names):
                    if path not in done:
                        done.add(path)
                        yield path, descriptor

    def _walk(self, directory: int, above: str, names: Sequence[FileName]) -> Iterator[tuple[str, int]]:
        name, *below = names
        for entry in self._matching(directory, name):
            path = f"{above}/{entry}"
            descriptor = _opened(entry, _DIRECTORY | os.O_NOFOLLOW, directory) if below else self._file(entry, directory)
            if descriptor is None:
                continue
            with _closing(descriptor):
                if below:
                    yield from self._walk(descriptor, path, below)
                else:
                    yield path, descriptor

    def _matching(self, directory: int, name: FileName) -> list[str]:
        if isinstance(name, str):
            return [name]
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                self.entries += 1
                if self.entries > MOST_ENTRIES:
                    break
                if name.fullmatch(entry.name):
                    found.append(entry.name)
        return sorted(found, reverse=True)

    def _file(self, name: str, directory: int) -> int | None:
        # first without opening it for reading: opening a device may have an effect
        handle = _opened(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, directory)
        if handle is None:
            return None
        with _closing(handle):
            status = os.fstat(handle)
            ours = stat.S_ISREG(status.st_mode) and status.st_uid == self._uid and status.st_mtime >= self._since
            return _opened(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) if ours else None


def _opened(path: str, flags: int, directory: int | None = None) -> int | None:
    with suppress(OSError):
        return os.open(path, flags, dir_fd=directory)
    return None


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)
