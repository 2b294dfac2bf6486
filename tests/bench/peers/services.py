"""runit and s6: a process for each service. Their clients write to a FIFO and read a file."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import ClassVar, Literal

from tests.bench.peers.peer import Argv, Peer, Runs
from tests.harness import wait_until

Run = tuple[Path, bytes]
"""A service, and the time in its status before the run."""


class Runit(Peer):
    name = "runit"
    program = "runsvdir"
    processes = frozenset({"runsvdir", "runsv", "svlogd"})
    scanner: ClassVar[Argv] = ["runsvdir"]
    logger = "svlogd ./log"
    pid: ClassVar[tuple[slice, Literal["little", "big"]]] = slice(12, 16), "little"
    """Where its status has the pid."""

    def start(self, runs: Runs) -> None:
        (self.place / "all").mkdir()
        self.all: list[Path] = []
        self.services = {
            tuple(argv): iter([self.service(argv) for _ in range(count)]) for argv, count in runs
        }
        self.serve(*self.scanner, str(self.place / "all"))
        files = [one / "supervise/status" for one in self.all]
        wait_until(
            lambda: all(file.exists() and file.stat().st_size >= 18 for file in files),
            "all services are supervised",
        )

    def service(self, argv: Argv) -> Path:
        """Make a service that is down. One that writes has a logger, which is a process too."""
        one = self.place / "all" / f"s{len(self.all)}"
        one.mkdir()
        (one / "down").touch()
        scripts = {"run": shlex.join(argv)}
        if "spew" in argv:
            (one / "log/log").mkdir(parents=True)
            (one / "log/log/config").write_text("s0\nn0\n")
            scripts["log/run"] = self.logger
        for script, command in scripts.items():
            (one / script).write_text(f"#!/bin/sh\nexec {command}\n")
            (one / script).chmod(0o755)
        self.all.append(one)
        return one

    def state(self, service: Path) -> tuple[bytes, int]:
        """Return the time of the last change, and the pid or 0."""
        status = (service / "supervise/status").read_bytes()
        return status[:12], int.from_bytes(status[self.pid[0]], self.pid[1])

    def submit(self, argv: Argv) -> Run:
        service = next(self.services[tuple(argv)])
        run = service, self.state(service)[0]
        control = os.open(service / "supervise/control", os.O_WRONLY | os.O_NONBLOCK)
        os.write(control, b"o")
        os.close(control)
        return run

    def wait(self, run: Run) -> None:
        while True:
            changed, pid = self.state(run[0])
            if not pid and changed != run[1]:
                return
            time.sleep(0.0001)

    def list(self) -> object:
        return [self.state(one) for one in self.all]

    def status(self, run: Run) -> object:
        return self.state(run[0])

    def stop(self, run: Run) -> None:
        self.call("sv", "-w", "1", "force-stop", str(run[0]))

    def output(self, run: Run) -> Path:
        return run[0] / "log/log/current"

    def commands(self, run: Run) -> dict[str, Argv]:
        return {
            "status": ["sv", "status", str(run[0])],
            "list": ["sv", "status", *map(str, self.all)],
        }


class S6(Runit):
    name = "s6"
    program = "s6-svscan"
    processes = frozenset({"s6-svscan", "s6-supervise", "s6-log"})
    scanner: ClassVar[Argv] = ["s6-svscan", "-c", "6000"]
    logger = "s6-log n1 s268435455 ./log"
    pid = slice(24, 32), "big"

    def stop(self, run: Run) -> None:
        self.call("s6-svc", "-wD", "-T", "1000", "-d", str(run[0]))

    def commands(self, run: Run) -> dict[str, Argv]:
        every = ["sh", "-c", 'for one; do s6-svstat "$one"; done', "sh", *map(str, self.all)]
        return {"status": ["s6-svstat", str(run[0])], "list": every}
