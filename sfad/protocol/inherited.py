"""What a program may inherit from its parent that breaks it: closed standard descriptors, an
ignored SIGCHLD, blocked signals, a locale without UTF-8. Both programs repair these before they do
anything. Imports little, because each verb imports it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection
from io import TextIOWrapper


def repair_process() -> None:
    """Open the standard descriptors that are closed, reap children as usual, and use UTF-8."""
    own_standard_descriptors()
    # If it is ignored, the kernel reaps each child itself, and no exit code can be read (wait(2)).
    # make and git reset it too.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _use_utf8()


def own_standard_descriptors() -> None:
    """Open /dev/null as each of 0, 1 and 2 that is closed."""
    # The next open() would get a closed 0, 1 or 2, and a socket would then receive what is written
    # to stdout.
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # The interpreter makes no stream for a descriptor that was closed when it started.
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def unblock_signals(*, but: Collection[int] = ()) -> None:
    """Unblock all signals but these: the kernel passes a mask on to every program, and those that
    this process starts could not be interrupted either."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked.intersection(but))


STRAY = (
    signal.SIGUSR1,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    signal.SIGPWR,
    signal.SIGSTKFLT,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)
"""Signals that end or stop a process which does not expect them. A script may send one to the wrong
process, or a timer of a parent survives execve(2)."""


def survive_stray_signals(*more: int) -> None:
    """Do nothing at these signals from now on. They are handled, not ignored: a program that this
    process starts would go on ignoring them."""
    for number in (*STRAY, *more):
        signal.signal(number, _do_nothing)


def _do_nothing(_number: int, _frame: object) -> None:
    pass


def _use_utf8() -> None:
    """Execute the program again in Python's UTF-8 mode if the locale has another encoding: what it
    says and is told is UTF-8, and so are names of files. In the C locale Python does so itself
    unless PYTHONUTF8=0. PYTHONIOENCODING may choose another encoding of the streams in each
    mode."""
    if sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8", errors=stream.errors)
