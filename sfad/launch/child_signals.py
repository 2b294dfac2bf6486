"""SIGCHLD as a descriptor."""

import ctypes
import os
import signal
import sys
from contextlib import suppress

_SIGSET_T, _SIGINFO = 128, 128
"""Bytes of glibc's sigset_t and of a signalfd_siginfo."""


class ChildSignals:
    """SIGCHLD as a descriptor to wait for (signalfd(2)). A handler would run for each child, and one child in a thousand is an
    orphan: that was 8 % of what a short run costs (measured).

    Make it in the main thread before any other thread is started: threads inherit that the signal is blocked. Processes that the
    launcher starts do not; other children would have to unblock it."""

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        mask = (1 << (signal.SIGCHLD - 1)).to_bytes(_SIGSET_T, sys.byteorder)
        self._descriptor: int = ctypes.CDLL(None, use_errno=True).signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def fileno(self) -> int:
        """Return the descriptor, which is readable once children have ended, until `take`."""
        return self._descriptor

    def take(self) -> None:
        """Take the signal. Several that came meanwhile are one."""
        with suppress(BlockingIOError):  # a thread that does not block the signal may have taken it meanwhile
            os.read(self._descriptor, _SIGINFO)

    def close(self) -> None:
        """Close the descriptor. The signal stays blocked, because other threads may be there."""
        os.close(self._descriptor)
