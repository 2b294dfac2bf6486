"""Keeps what this process knows from other processes of its user: its environment and memory may have keys of providers."""

import ctypes

_PR_SET_DUMPABLE = 4


def hide_memory() -> None:
    """Have the kernel refuse /proc/PID/environ, /proc/PID/mem, /proc/PID/fd and ptrace(2) to all but root.

    prctl(2): the files in /proc/PID belong to root then, and no core is dumped. execve(2) undoes it, so what this process executes
    is as open as usual."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
