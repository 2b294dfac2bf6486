"""Closes descriptors that clients sent, in threads of their own.

close(2) of a file that a client sent may wait as long as the client likes: for unsent data on a TCP socket (SO_LINGER), or for a
FUSE server that does not answer FLUSH. It may also fail. The kernel frees the number before it waits. A Unix socket is closed the
same way, because with it the kernel drops the files that are still in transit through it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

MOST = 64
"""Threads at a time. While all of them wait, further descriptors stay open. Ending the run that makes them wait helps."""

_lock = threading.Lock()
_open: deque[int] = deque()
_threads = 0


def close_soon(descriptors: Iterable[int]) -> None:
    """Close `descriptors` soon, without waiting. The caller must not use them again."""
    global _threads
    with _lock:
        _open.extend(descriptors)
        if not _open or _threads >= MOST:
            return
        _threads += 1
    try:
        threading.Thread(target=_close_all, name="give back", daemon=True).start()  # a daemon thread: the exit does not wait for it
    except RuntimeError:  # no thread can be started now; the next call tries again
        with _lock:
            _threads -= 1


def threads() -> int:
    """Return how many threads close descriptors now."""
    return _threads


def _close_all() -> None:
    while (descriptor := _next()) is not None:
        with suppress(OSError):  # Linux has released the number all the same
            os.close(descriptor)


def _next() -> int | None:
    """Return the next descriptor; `None` if there is none, and this thread ends."""
    global _threads
    with _lock:
        if _open:
            return _open.popleft()
        _threads -= 1
        return None
