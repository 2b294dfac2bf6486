"""Processes as psutil shows them: found and sampled.

A `psutil.Process` is one process, by its pid and its start, for as long as this daemon lives.
psutil's exceptions are mapped here, once: for a process that has ended, or is hidden from this
user, the answer is `None`, or what `ask` was given. Any other failure is an `OSError`. `kernel` has
what psutil is not asked. Before you ask psutil for more, know these traps:

- `cmdline` and `environ` read all that a process shows, which any user can make as long as it likes
  (PR_SET_MM_MAP): 500 MB took 68 s and 4.5 GiB. `exe` and `str(process)` read the command line too,
  and so does `name` of 15 characters. `kernel.command` and `kernel.environ` have a bound.
- `cmdline` splits a command of one word at its spaces. The environment of a process in the middle
  of execve(2) is empty: ask again.
- `Process.wait` takes the status of a child of ours from its owner.
- psutil signals by pid: open a pidfd, ask whether the process is still the same, and signal by the
  pidfd.
- `children` scans all processes; with `recursive=True` it misses what was forked meanwhile.
  `parent` and `parents` read /proc/stat twice for each ancestor.
- A zombie may be a main thread that has ended while other threads live (`lives`). `is_running` is
  true of a zombie.
- `create_time` is the time of day at boot, in whole seconds, and the ticks since then. It moves
  with the clock. What is saved is the start in ticks and the id of the boot.
- The `pss` of `memory_full_info` counts pages of files, which the kernel takes back before it
  enforces a limit.
- `process_iter` keeps its `Process` when the pid is used again, until `is_running` was asked.
- `cpu_affinity` binds the main thread only. `Process(None)` is the calling process. A negative pid
  is a `ValueError`.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import psutil

from . import kernel

_Answer = TypeVar("_Answer")
_Other = TypeVar("_Other")


_STILL = {
    psutil.STATUS_STOPPED,
    psutil.STATUS_TRACING_STOP,
    psutil.STATUS_ZOMBIE,
    psutil.STATUS_DEAD,
}


def ask(question: Callable[[], _Answer], otherwise: _Other) -> _Answer | _Other:
    """Return psutil's answer; `otherwise` if the process has ended or is hidden."""
    try:
        return question()
    except psutil.Error:
        return otherwise


def find(pid: int) -> psutil.Process | None:
    return ask(lambda: psutil.Process(pid), None)


def lives(process: psutil.Process) -> bool:
    """Return whether there is anything left to stop. A zombie only waits for its parent; but a
    process whose main thread has ended shows as a zombie too, while its other threads run."""
    ended = ask(process.status, psutil.STATUS_DEAD) in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return not ended or ask(process.num_threads, 0) > 1


def threads_stopped(pid: int) -> bool:
    """Return whether no thread of a process runs: each is stopped, or has ended."""
    threads = (find(thread.id) for thread in ask(lambda: psutil.Process(pid).threads(), []))
    return all(
        thread is None or ask(thread.status, psutil.STATUS_DEAD) in _STILL for thread in threads
    )


_kept = lru_cache(maxsize=1024)(psutil.Process)
"""A sample of a kept process takes 11 us, and 28 of one that is identified first: the second would
make the status of a run (W3: 130 us) a sixth slower. It is asked by its pid, whichever process has
that now, as its run was."""


def resident(pid: int) -> int:
    """Return the bytes of resident memory; 0 if the process is gone."""
    return ask(lambda: _kept(pid).memory_info().rss, 0)


def cpu_seconds(pid: int) -> float:
    """Return the CPU that a process has used, with that of the children that it has reaped; 0 if it
    is gone."""
    return ask(lambda: sum(_kept(pid).cpu_times()[:4]), 0.0)


_STATES = {
    psutil.STATUS_RUNNING: "running (R)",
    psutil.STATUS_SLEEPING: "sleeping (S)",
    psutil.STATUS_DISK_SLEEP: "uninterruptible sleep (D)",
    psutil.STATUS_STOPPED: "stopped (T)",
    psutil.STATUS_TRACING_STOP: "traced (t)",
    psutil.STATUS_ZOMBIE: "main thread ended (Z)",
}
"""psutil's words for states, and ours with the letter of ps(1)."""


def why_alive(pid: int) -> str | None:
    """Say why a process may still be there, as "uninterruptible sleep (D) in nfs_wait". `None` if
    it is not there."""
    process = find(pid)
    if process is None or not lives(process):
        return None
    status = ask(process.status, "ending")
    return _STATES.get(status, status) + kernel.waits_for(pid)
