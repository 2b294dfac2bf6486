"""task-spooler and nq, whose only clients are commands in C."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.bench.peers.peer import Argv, Peer, Runs
from tests.harness import wait_until


class Tsp(Peer):
    name = program = "tsp"
    processes = frozenset({"tsp"})

    def start(self, runs: Runs) -> None:
        del runs
        self.env |= {
            "TS_SOCKET": f"{self.place}/s",
            "TMPDIR": str(self.place),
            "TS_MAXFINISHED": "20000",
            "TS_MAXCONN": "15000",
        }
        self.call("tsp", "-S", "1000")  # at once

    def submit(self, argv: Argv) -> str:
        return self.call("tsp", *argv).strip()

    def wait(self, run: str) -> None:
        self.call("tsp", "-w", run)

    def wait_all(self, runs: Sequence[str]) -> None:
        wait_until(
            lambda: self.call("tsp", "-l").count(" finished ") >= len(runs), "all have finished"
        )

    def stop(self, run: str) -> None:
        self.call("tsp", "-k", run)

    def output(self, run: str) -> Path:
        return Path(wait_until(lambda: self.call("tsp", "-o", run).strip(), "the run has begun"))

    def commands(self, run: str) -> dict[str, Argv]:
        return {"status": ["tsp", "-s", run], "list": ["tsp", "-l"], "spawn": ["tsp", "/bin/true"]}


class Nq(Peer):
    """A queue without a daemon. Jobs run one after another; there is no list and no stop."""

    name = program = "nq"
    processes = frozenset({"nq"})
    without = frozenset({"W3", "W4", "W6", "W7"})

    def start(self, runs: Runs) -> None:
        del runs
        self.env["NQDIR"] = str(self.place)

    def submit(self, argv: Argv) -> str:
        return self.call("nq", *argv).strip()

    def wait(self, run: str) -> None:
        self.call("nq", "-w", run)

    def wait_all(self, runs: Sequence[str]) -> None:
        del runs
        self.call("nq", "-w")

    def output(self, run: str) -> Path:
        return self.place / run

    def commands(self, run: str) -> dict[str, Argv]:
        del run
        return {"spawn": ["nq", "/bin/true"]}
