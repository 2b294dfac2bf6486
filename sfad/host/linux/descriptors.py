"""Descriptors: the last ones of the process are reserved, and those that clients sent are closed in
time."""

import ctypes
import errno
import os
import resource
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from ..tasks import LoopRounds

# ---- Descriptors are reserved, in two ways: without one the daemon can neither be reached nor stop
# a run
#
# What takes descriptors is refused while some are still free: first clients, then new runs, last
# the owner of the daemon (`Descriptors`). The very last are kept back for stopping (`keep_back`):
# the daemon's soft RLIMIT_NOFILE is a little below the hard one, and the launcher lifts it while it
# signals, kills and looks. So no descriptor is held ready for that.


T = TypeVar("T")

RESERVE, LEAST_RESERVE = 32, 4
"""Descriptors in one reserve, and what it has at least where the limit is low. A launch takes eight
for some milliseconds; the ledger, the spool and the price list take a few each."""
KEPT_BACK = 24
"""Descriptors for stopping. A stop needs four at a time: a directory that is listed, a control
file, `/proc`, and a pidfd."""
LEAST = 80
"""Descriptors with which a daemon can start runs: it has some 45 open itself."""
_limits: tuple[int, int] | None = None
"""The soft and the hard limit of this process, while it keeps some back."""


def too_few() -> str | None:
    """Return why this process may open too few descriptors for a daemon, or `None`."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard >= LEAST:
        return None
    return (
        f"only {hard} descriptors may be open, and a daemon needs {LEAST}: "
        "raise LimitNOFILE= of its unit, or ulimit -Hn"
    )


class Need(IntEnum):
    """Who wants descriptors, and how many reserves must stay free."""

    OWNER = 1
    RUN = 2
    CLIENT = 3


LAUNCH = 8
"""Descriptors that a launch takes for some milliseconds: files for the output, pipes of the
trampoline, the way into the containment, a pidfd."""


def count() -> int:
    # 1 us from Linux 6.2 on; earlier kernels say 0
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))


class Descriptors:
    """What this process may open. The limit is the soft one at the start: the launcher lifts it
    while it stops runs.

    They are counted once a round of the loop. What has been granted in it is taken to be open
    since."""

    def __init__(self, rounds: LoopRounds, count: Callable[[], int] = count) -> None:
        self._rounds = rounds
        self._count = count
        self._counted = -1
        """The round of the last count."""
        self._open = 0
        self._promised = 0
        """Launches of runs that were asked for in this round, whose descriptors are granted."""
        self.limit = self._allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def refusal(self, need: Need, more: int = 0) -> str | None:
        """Say why `more` descriptors cannot be had for `need`, or return `None`."""
        if self._counted != self._rounds.number:
            self._counted, self._open = self._rounds.number, self._count()
            self._promised = 0
            self._allowed = min(self.limit, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        limit = self._allowed
        reserved = need * min(RESERVE, max(LEAST_RESERVE, limit // 16))
        free = limit - self._open
        if free - more >= reserved:
            self._open += more
            return None
        return (
            f"only {free} of {limit} descriptors are left, "
            f"{more} are needed and {reserved} are reserved; "
            "end some runs or clients, or raise LimitNOFILE= of the daemon's unit (ulimit -n)"
        )

    def check_spawn(self) -> None:
        """Raise `OSError` where too few descriptors are left for the launch of a run that is asked
        for."""
        self._check()
        self._promised += 1

    def check_launch(self) -> None:
        """Raise `OSError` where too few descriptors are left for the launch of a run."""
        # if it was asked for in this round, they must not be counted twice: all that an agent asks
        # for would be admitted and fail
        if self._promised and self._counted == self._rounds.number:
            self._promised -= 1
        else:
            self._check()

    def _check(self) -> None:
        refusal = self.refusal(Need.RUN, LAUNCH)
        if refusal is not None:
            raise OSError(refusal)


def soft_of(hard: int) -> int:
    """Return the soft limit under a hard one: `KEPT_BACK` less, but at least three quarters of
    it."""
    return max(hard - KEPT_BACK, hard * 3 // 4)


def keep_back() -> None:
    global _limits
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    _limits = soft_of(hard), hard
    resource.setrlimit(resource.RLIMIT_NOFILE, _limits)


class lifted:  # noqa: N801 - as `contextlib.suppress` is named: it reads like a word in `with lifted():`
    """Allow the descriptors that are kept back. The limit is the whole process's, so nothing in the
    block may wait.

    A class, because it is entered at each round, and a generator would take four calls more."""

    def __enter__(self) -> None:
        if _limits is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (_limits[1], _limits[1]))

    def __exit__(self, *_: object) -> None:
        if _limits is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, _limits)


def with_reserve(call: Callable[..., T], *arguments: object) -> T:
    """Return what `call` returns. If no descriptor is left for it, call it again, and allow those
    that are kept back.

    To allow them takes two system calls, and most calls of the launcher need none of them."""
    try:
        return call(*arguments)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    with lifted():
        return call(*arguments)


# ---- Closes the descriptors that clients sent, in threads of their own
#
# close(2) of such a file may wait as long as the client likes: for unsent data on a TCP socket
# (SO_LINGER), or for a FUSE server that does not answer FLUSH. It may also fail. The kernel frees
# the number before it waits. A Unix socket is closed the same way, because with it the kernel drops
# the files that are still in transit through it.
#
# Each sender has a share of the threads: a tree of runs, or a user outside any run. So what one has
# sent delays only its own.


CLOSERS = 4
"""Threads of one sender at a time. While all of them wait, further descriptors of the sender stay
open."""
MAX_CLOSERS = 512
STUCK = 1.0
"""Seconds in one close(2) after which a thread is taken to wait for what the sender does."""
MAX_UNCLOSED = 256
"""Descriptors of one sender that may wait for a thread."""
_NO_LINGER = struct.pack("ii", 0, 0)


class _Sender(Struct, eq=False):
    open: deque[int] = field(default_factory=deque)
    began: dict[int, tuple[float, bool]] = field(default_factory=dict)
    """By thread: when its close(2) began, and whether that is of a socket."""
    threads: int = 0
    unwelcome: bool = False
    """It has sent what the daemon does not take, so nothing else is taken until that is closed."""


_lock = threading.Lock()
_senders: dict[str, _Sender] = {}


def close_soon(descriptors: Iterable[int], sender: str, *, unwelcome: bool = False) -> None:
    """Close `descriptors` that a sender has sent soon, without waiting. The caller must not use
    them again.

    `unwelcome`: each in a thread of its own, because no child may be started that inherits them."""
    with _lock:
        queue = _senders.setdefault(sender, _Sender())
        queue.open.extend(descriptors)
        queue.unwelcome |= unwelcome
        share = len(queue.open) if unwelcome else CLOSERS - queue.threads
        wanted = min(
            len(queue.open), share, MAX_CLOSERS - sum(each.threads for each in _senders.values())
        )
        if not queue.open and not queue.threads:
            del _senders[sender]
    for _ in range(wanted):
        _start(sender, queue)


def _start(sender: str, queue: _Sender) -> None:
    with _lock:
        queue.threads += 1
    try:
        # a daemon thread: the exit does not wait for it
        threading.Thread(target=_close_all, args=(sender, queue), name="close", daemon=True).start()
    except RuntimeError:  # no thread can be started now; the next call tries again
        with _lock:
            queue.threads -= 1


def threads() -> int:
    return sum(queue.threads for queue in list(_senders.values()))


def refusal(sender: str) -> str | None:
    """Say why nothing more is taken from a sender whose descriptors cannot be closed, or return
    `None`."""
    with _lock:
        queue = _senders.get(sender)
        if queue is None:
            return None
        before = time.monotonic() - STUCK
        stuck = sum(began < before for began, _ in queue.began.values())
        if stuck < CLOSERS and len(queue.open) < MAX_UNCLOSED and not queue.unwelcome:
            return None
        waiting = len(queue.began) + len(queue.open)
    return (
        f"{waiting} files that {sender} has sent cannot be closed: "
        "the kernel waits for what is behind them; end that first"
    )


def unkillable() -> list[str]:
    """Return the senders whose files keep a thread that no signal ends, or may do so: all but
    sockets. execve(2) waits for it."""
    with _lock:
        return sorted(
            sender
            for sender, queue in _senders.items()
            if any(not is_socket for _, is_socket in queue.began.values())
            or not all(map(without_linger, queue.open))
        )


def _close_all(sender: str, queue: _Sender) -> None:
    me = threading.get_ident()
    while (descriptor := _next(sender, queue)) is not None:
        is_socket = without_linger(descriptor)
        with _lock:
            queue.began[me] = time.monotonic(), is_socket
        with suppress(OSError):  # Linux has released the number all the same
            os.close(descriptor)
        with _lock:
            del queue.began[me]


def _next(sender: str, queue: _Sender) -> int | None:
    with _lock:
        if queue.open:
            return queue.open.popleft()
        queue.threads -= 1
        if not queue.threads:
            _senders.pop(sender, None)
        return None


def without_linger(descriptor: int) -> bool:
    """Have close(2) not wait for a socket's unsent data. Return whether it is a socket."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:
        return False
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    sock.detach()
    return True


# ---- Files whose file system is a program of another user, which may never answer
#
# dup2(2) and execve(2) close descriptors, and close(2) asks a FUSE server (FUSE_FLUSH). A child
# that waits there before it executes its command has the daemon wait, too: posix_spawn(3) is a
# vfork(2).

_SUPER_MAGIC = 0x65735546
"""FUSE_SUPER_MAGIC of linux/magic.h."""
_libc = ctypes.CDLL(None, use_errno=True)


def of_another_user(descriptor: int) -> bool:
    """Return whether a file is on a FUSE mount that root has not made, as far as can be told
    without asking its server.

    /proc tells about mounts that this process sees. For others there is only fstatfs(2): it does
    not ask the server of a mount in another user namespace, because the kernel lets no process
    outside use that."""
    try:
        info = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        mount = next(line.split()[1] for line in info.splitlines() if line.startswith("mnt_id:"))
        for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            where, _, what = line.partition(" - ")
            if where.split(" ", 1)[0] == mount:
                kind, _source, options = what.split(" ")
                return kind.startswith("fuse") and "user_id=0" not in options.split(",")
        return _is_fuse(descriptor)
    except OSError:
        return True


def _is_fuse(descriptor: int) -> bool:
    found = (ctypes.c_long * 32)()
    if _libc.fstatfs(descriptor, found):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return bool(found[0] == _SUPER_MAGIC)
