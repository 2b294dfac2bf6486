"""Faults of the daemon and of its machine."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from sfad.host.faults import STATUS
from tests.crash.promises import gateway_of
from tests.crash.victim import Victim
from tests.harness import PATIENCE

UNAVAILABLE = 69
"""Exit code of a daemon that finds its ledger locked or its disk full. It is started again."""

ROOM = 48 << 20
"""Bytes of the disk that is filled."""


@contextmanager
def small_disk(directory: Path) -> Iterator[bool]:
    """Mount a tmpfs if that is permitted. Return whether there is one."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "sfad-soak", str(directory)]
    mounted = subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=False)


class Chaos:
    """One fault after another. The daemon is started again when it has died."""

    def __init__(self, daemon: Victim, random: Random, *, disk: bool) -> None:
        self.done: Counter[str] = Counter()
        self.died: Counter[str] = Counter()
        self.deaths: list[datetime] = []
        self.longest = 0.0
        """Seconds of the longest restart, from the death on."""
        self.wrong: list[str] = []
        self._daemon = daemon
        self._random = random
        self._faults = [
            self.kill,
            self.kill,
            self.renew,
            self.renew,
            self.stall,
            self.lock,
            self.lose_output,
        ]
        self._faults += [self.kill_gateway]
        self._faults += [self.fill] if disk else []

    def strike(self) -> None:
        """Cause a random fault."""
        fault = self._random.choice(self._faults)
        self.done[fault.__name__] += 1
        fault()
        self.look_after()

    def look_after(self) -> None:
        """Start the daemon again if it is dead."""
        code = self._daemon.process.poll()
        if code is None:
            return
        if code == UNAVAILABLE:
            self.done["start refused"] += 1
        elif code not in {STATUS, -signal.SIGKILL}:
            self.wrong.append(
                f"the daemon ended with {code}: {self._daemon.log.read_text()[-2000:]}"
            )
        else:
            self.died[(self._daemon.fallen or "") if code == STATUS else "kill -9"] += 1
        self._restart(self._crash_at())

    def _crash_at(self) -> str:
        return str(self._random.randint(1, 300)) if self._random.random() < 0.6 else ""

    def _restart(self, crash_at: str) -> None:
        self.deaths.append(datetime.now(UTC))
        began = time.monotonic()
        self._daemon.start_again(crash_at)
        while (
            code := self._daemon.process.poll()
        ) is not None and time.monotonic() - began < PATIENCE:
            if code == UNAVAILABLE:
                self.done["start refused"] += 1
            self._daemon.start_again()
        self.deaths.append(datetime.now(UTC))
        self.longest = max(self.longest, time.monotonic() - began)

    # ---- faults

    def kill(self) -> None:
        """Kill the daemon with SIGKILL."""
        self._daemon.process.kill()
        self._daemon.process.wait()

    def kill_gateway(self) -> None:
        """Kill the gateway with SIGKILL."""
        pid = gateway_of(self._daemon)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    def renew(self) -> None:
        """Re-execute the daemon."""
        before = self._daemon.log.read_text().count("re-executing")
        self._daemon.process.send_signal(signal.SIGUSR2)
        until = time.monotonic() + 5
        while (
            self._daemon.log.read_text().count("re-executing") == before
            and time.monotonic() < until
        ):
            time.sleep(0.05)
        self.deaths.append(datetime.now(UTC))

    def stall(self) -> None:
        """Stop the daemon for a while with SIGSTOP."""
        self._daemon.process.send_signal(signal.SIGSTOP)
        time.sleep(self._random.uniform(0.1, 2))
        self._daemon.process.send_signal(signal.SIGCONT)

    def lock(self) -> None:
        """Lock the ledger for a while; sometimes kill the daemon meanwhile."""
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(self._daemon.state_dir / "ledger.db", timeout=5)) as ledger,
        ):
            ledger.execute("BEGIN IMMEDIATE")
            self._suffer(self._random.uniform(0.5, 4))

    def fill(self) -> None:
        """Fill the disk for a while."""
        ballast = self._daemon.state_dir / "filler"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        with suppress(OSError), ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(256))
        self._suffer(self._random.uniform(0.5, 3))
        ballast.unlink()

    def _suffer(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        if self._random.random() < 0.3:
            time.sleep(seconds / 2)
            self.done["kill meanwhile"] += 1
            self.kill()
            self._daemon.start_again()
        while time.monotonic() < until:
            time.sleep(0.05)

    def lose_output(self) -> None:
        """Remove a random output file."""
        with suppress(OSError):
            files = sorted((self._daemon.state_dir / "output").iterdir())
            if files:
                os.unlink(self._random.choice(files))
