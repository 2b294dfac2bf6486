"""A process above pytest that reaps the orphans of killed daemons at once.

Otherwise they are reaped by pid 1, which in some containers looks only every two seconds. Until
then they are zombies, and the next daemon waits for the end of the run.
"""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SIGNALS = {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


def reap_above() -> None:
    """Continue in a child process. Its parent reaps orphans until the child ends, and ends with its
    exit code."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.fork()
    if child:
        _reap_until_end_of(child)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reap_until_end_of(child: int) -> None:
    while True:
        arrived = signal.sigwaitinfo(_SIGNALS)
        # by kill(2): from a terminal, the child gets it too
        if arrived.si_signo != signal.SIGCHLD and arrived.si_code <= 0:
            os.kill(child, arrived.si_signo)
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
            if ended.si_pid == child:
                os._exit(
                    ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status
                )
