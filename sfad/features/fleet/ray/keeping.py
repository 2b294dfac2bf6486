"""Keeps this machine's part of the Ray cluster where no systemd does (`fleet.start`).

The daemon starts a *guard*, which ends with it. The guard starts a *keeper* unless one is there: it
starts Ray, and starts it again whenever that ends, each time after a longer pause. A keeper that
was killed leaves its Ray to the next one. The keeper and Ray outlive the daemon: if each start of
the head's daemon ended the cluster, all nodes would lose their part of it. To end Ray, take
`fleet.start` out of the config and send the keeper SIGTERM."""

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil

from ....processes import kernel
from . import command

PAUSE, PAUSE_MAX = 1.0, 5.0
"""Seconds until Ray is started again: doubled each time, and the first again once it has lived for
`LIVED`."""
LIVED = 60.0
MARK = "RAY_KEPT_BY"
"""Variable of all that a keeper starts: the file that it has locked."""
_PR_SET_CHILD_SUBREAPER = 36
CONNECTS_WITHIN = 2.0
"""Seconds that the head has to take a connection."""
END = 10.0
"""Seconds that Ray has to end by itself."""


def main() -> int:
    parser = ArgumentParser(prog="sfad fleet")
    parser.add_argument("--keep", type=int, help="be the keeper, and hold this descriptor")
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("where")
    given = parser.parse_args()
    if given.token_file is not None:
        os.environ |= command.environment(given.token_file)
    if given.keep is not None:
        words = [str(command.program()), *command.arguments(given.where, given.node)]
        os.environ |= command.endurance() | dict(os.environ) | {MARK: str(given.lock)}
        is_head = given.where.partition(":")[0] == command.HEAD
        Keeper(words, given.keep, given.lock, None if is_head else given.where).serve()
        return 0
    if not command.program().exists():
        print(f"{command.program()} does not exist: install sfad[fleet]")
        return 69
    threading.Thread(target=_end_with_daemon, daemon=True).start()
    while True:
        _start_keeper(given.lock)


def _end_with_daemon() -> None:
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)


def _start_keeper(lock: Path) -> None:
    """Wait until no keeper is alive, and start one."""
    held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        subprocess.Popen(
            [sys.executable, "-P", "-m", __spec__.name, "--keep", str(held), *sys.argv[1:]],
            pass_fds=[held],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        os.close(held)
    time.sleep(PAUSE)  # one that cannot live is not started without a pause


class Keeper:
    def __init__(self, words: list[str], held: int, lock: Path, head: str | None) -> None:
        """`held`: the descriptor of the file that it has locked. This tells which processes keep
        Ray: this one, and the one that it has started. `head`: the address of the cluster's head;
        `None`: this machine is that."""
        self._head = head
        self._words, self._held, self._lock = words, held, lock
        self._log = lock.with_suffix(".log")
        self._ends = False

    def serve(self) -> None:
        """Keep Ray until SIGTERM."""
        signal.signal(signal.SIGTERM, self._end)
        # what Ray leaves behind becomes a child of this process
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._tell()
        pause = PAUSE
        left = _left_by_others(str(self._lock))
        ray = next((each for each in left if _executes(each, self._words)), None)
        if ray is None:
            _end(left)
        while not self._ends:
            if ray is None:
                self._await_head()
                ray = self._start()
            began = time.monotonic()
            if ray is not None:
                self._tell(ray.pid)
                while not self._ends:
                    with suppress(psutil.TimeoutExpired):
                        ray.wait(1.0)
                        break
            ray = None
            _end(_left_by_others(str(self._lock)))
            _clear()
            if not self._ends:
                pause = PAUSE if time.monotonic() - began > LIVED else min(2 * pause, PAUSE_MAX)
                time.sleep(pause)

    def _await_head(self) -> None:
        """Wait until the head takes connections: Ray itself would give up after a while, and be
        started again only after a pause."""
        if self._head is None:
            return
        host, _, port = self._head.rpartition(":")
        while not self._ends:
            with suppress(OSError), socket.create_connection((host, int(port)), CONNECTS_WITHIN):
                return
            time.sleep(PAUSE)

    def _start(self) -> psutil.Process | None:
        with self._log.open("wb") as log, suppress(OSError, psutil.Error):
            log.write(f"keeper {os.getpid()}: {' '.join(self._words)}\n".encode())
            log.flush()
            return psutil.Popen(self._words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return None

    def _tell(self, *ray: int) -> None:
        pids = (os.getpid(), *ray)
        stats = [(pid, found.started) for pid in pids if (found := kernel.stat(pid)) is not None]
        os.ftruncate(self._held, 0)
        os.pwrite(self._held, " ".join(f"{pid} {started}" for pid, started in stats).encode(), 0)

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self._ends = True


def _executes(process: psutil.Process, words: list[str]) -> bool:
    """Return whether a process executes this program, which is a script."""
    with suppress(psutil.Error):
        return bool(process.cmdline()[-len(words) :] == words)
    return False


def _clear() -> None:
    """End all that Ray has left: it would keep the ports of the next one."""
    _end(psutil.Process().children(recursive=True))


def _left_by_others(lock: str) -> list[psutil.Process]:
    """Return what an earlier keeper has started that was killed. Some of Ray's processes overwrite
    their environment: they are children of others."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == lock:
                found |= {each.pid: each for each in (process, *process.children(recursive=True))}
    return list(found.values())


def _end(found: list[psutil.Process]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in found:
            with suppress(psutil.Error):
                process.send_signal(number)
        _, found = psutil.wait_procs(found, timeout=END)


if __name__ == "__main__":
    sys.exit(main())
