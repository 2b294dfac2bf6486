"""Which output files were written to or taken away: one inotify(7) watch on their directory, whose events name the file."""

import os
import re
from contextlib import ExitStack
from pathlib import Path

from ...host import displacement
from ...host.files import identity
from ...protocol.types import RunId

_NAMES_CHANGE = (
    displacement.MOVED_FROM | displacement.MOVED_TO | displacement.DELETE | displacement.DELETE_SELF | displacement.MOVE_SELF
)
# of the event that says that there were more than fs.inotify.max_queued_events: wd -1, mask IN_Q_OVERFLOW
_OVERFLOW = b"\xff\xff\xff\xff\x00\x40\x00\x00"
# An event is a header of 16 bytes and a name padded with NULs. Two runs that write in turns make up to 16 384 events before the
# next read: a regular expression finds the names in 2 ms, a loop over the headers in 12 ms. A name that the expression finds by
# accident is no followed run, or its file is looked at in vain.
_NAMES = re.compile(rb"([a-z][0-9a-v]+)\.(?:out|err)\0")

_BATCH = 64 * 1024
_BATCHES = 16


class Inotify:
    """Readable (`fileno`) when a file of `directory` was written to, deleted, renamed, or replaced by a rename.

    Creating a file does not count. One watch serves all runs. Raises `OSError`: `EMFILE` if the user has no instance left
    (fs.inotify.max_user_instances, 128)."""

    def __init__(self, directory: Path) -> None:
        self.gone = False
        """Another directory, or none, had the name at the last `take`. IN_DELETE_SELF alone does not tell: it comes when the last
        file in the directory is closed."""
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
        """Tell of writes from now on, or of names only. Return whether that is a change: what was written before is not told."""
        if wanted == self.tells_writes:
            return False
        try:
            displacement.add_watch(self._descriptor, self._directory, _NAMES_CHANGE | (displacement.MODIFY if wanted else 0))
            self.tells_writes = wanted
        except OSError:
            self.gone = True
        return True

    def take(self) -> set[RunId] | None:
        """Return the runs whose files changed since the last call; `None` if the kernel dropped events, so that it may be any."""
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
