"""The daemon that is measured, and many requests to it at once."""

from __future__ import annotations

import builtins
import os
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from unittest.mock import patch

from sfactl.connecting.connection import Client
from sfad.core.state.run import run_id
from sfad.protocol import messages as m
from sfad.protocol.framing import SUPPORTED
from sfad.protocol.types import RunInfo
from tests.bench.peers import GRACE, Argv, Peer, Requests, Runs
from tests.harness import Daemon, running, stopped

CONFIG = """
[quotas]
spawns_per_hour = 1000000
trees = 10000
trees_per_user = 10000
[limits]
max_time = "2h"
[defaults]
timeout = "1h"
"""
PAGE = 1000
"""Ended runs in a page of a full list: as many as the daemon gives."""
TRUE = ["/bin/true"]
SLEEP = ["/bin/sleep", "1000"]


@contextmanager
def directory() -> Iterator[Path]:
    """Make a directory, in memory if there is room: on a disk, deleting the files of one
    measurement slows the next one."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as path:
        yield Path(path)


@contextmanager
def daemon(environment: Mapping[str, str] | None = None, config: str = CONFIG) -> Iterator[Daemon]:
    """Start a daemon that has these variables in its environment."""
    with directory() as path, ExitStack() as stack:
        with patch.dict(os.environ, environment or {}):
            one = stack.enter_context(running(path, config=config, executed=True))
        yield one


def submitted(client: Client, count: int, argv: Sequence[str], **options: object) -> list[str]:
    """Start `count` runs of a command, all requested before the first answer is read."""
    words = [word.encode() for word in argv]
    asked = [
        m.Spawn(id=0, argv=words, cwd=b"/", env=[b"PATH=/bin"], **options)  # type: ignore[arg-type]
        for _ in range(count)
    ]
    return [reply.run.id for reply in _answers(client, asked)]


def awaited(client: Client, runs: Sequence[str]) -> None:
    """Wait until all these runs have completed, with a request for each."""
    assert all(
        reply.run.status == "completed"
        for reply in _answers(client, [m.Wait(id=0, run=run) for run in runs])
    )


def _answers(client: Client, requests: Sequence[m.Request]) -> list[m.RunReply]:
    if len(requests) == 1:
        return [client.call(requests[0], m.RunReply)]
    sender = threading.Thread(target=lambda: [client.send(request) for request in requests])
    sender.start()
    found: list[m.RunReply] = []
    while len(found) < len(requests):
        for answer in client.arrived():
            assert isinstance(answer.reply, m.RunReply), answer.reply
            found.append(answer.reply)
    sender.join()
    return found


def one_by_one(client: Client, count: int) -> None:
    """Start `count` runs of /bin/true, each when the one before has ended."""
    for _ in range(count):
        awaited(client, submitted(client, 1, TRUE))


def at_once(client: Client, count: int) -> None:
    """Start `count` runs of /bin/true, and wait for all."""
    awaited(client, submitted(client, count, TRUE))


class Sfad(Peer):
    """The daemon with everything on: guard, ledger, containment, output in files."""

    name = "sfad"
    executed = True
    """Whether the daemon is a program of its own. A fork of the tests' template has more memory,
    and starts at once."""

    def start(self, runs: Runs) -> None:
        del runs
        self.daemon = self.opened.enter_context(
            running(self.place, config=CONFIG, executed=self.executed)
        )
        self.client = self.opened.enter_context(self.daemon.client())
        self.opened.callback(lambda: stopped(self.client, everything=True, grace=0.0))
        self.env = self.daemon.env

    def close(self) -> None:
        self.opened.close()

    def remember(self, runs: int) -> None:
        """Start again with so many runs in the ledger: copies of one."""
        self.submit_all(TRUE, 50)
        self.daemon.stop()
        with closing(sqlite3.connect(self.daemon.state_dir / "ledger.db")) as ledger, ledger:
            columns = [name for _, name, *_ in ledger.execute("PRAGMA table_info(runs)")]
            sample = dict(
                zip(
                    columns,
                    ledger.execute("SELECT * FROM runs ORDER BY number DESC").fetchone(),
                    strict=True,
                )
            )
            marks = ", ".join("?" * len(columns))
            for number in range(sample["number"] + 1, runs + 1):
                copy = sample | {"number": number, "id": run_id(number), "root_id": run_id(number)}
                ledger.execute(f"INSERT INTO runs VALUES ({marks})", tuple(copy.values()))  # noqa: S608 - question marks
        self.daemon.restart()
        self.client.reconnect("it is being measured")

    def pids(self) -> list[int]:
        return [self.daemon.pid]

    def submit(self, argv: Argv, **options: object) -> str:
        return submitted(self.client, 1, argv, **options)[0]

    def submit_all(self, argv: Argv, count: int) -> list[str]:
        return submitted(self.client, count, argv)

    def wait(self, run: str) -> None:
        awaited(self.client, [run])

    def wait_all(self, runs: Sequence[str]) -> None:
        awaited(self.client, runs)

    def list(self, *, limits: bool = False) -> builtins.list[RunInfo]:
        """Return all runs, page by page, in the form that `sfactl list` asks for, or that of
        `sfactl list --json`."""
        found: builtins.list[RunInfo] = []
        before: str | None = None
        while True:
            page = self.client.call(
                m.List(id=0, rows=PAGE, before=before, limits=limits), m.RunList
            )
            found += page.runs
            before = page.next
            if before is None:
                return found

    def page(self) -> m.RunList:
        """Return the live runs and the newest fifty of the others."""
        return self.client.call(m.List(id=0), m.RunList)

    def status(self, run: str) -> m.RunReply:
        return self.client.call(m.Info(id=0, run=run), m.RunReply)

    def stop(self, run: str) -> None:
        stopped(self.client, run, grace=GRACE)

    def output(self, run: str) -> Path:
        return self.daemon.state_dir / "output" / f"{run}.out"

    def load(self, kind: str, run: str) -> Requests:
        request = m.Info(id=1, run=run) if kind == "status" else m.List(id=1, rows=200)
        hello = m.Hello(id=1, versions=list(SUPPORTED))
        return Requests(self.daemon.socket, "frame", m.pack_message(hello), m.pack_message(request))

    def commands(self, run: str) -> dict[str, Argv]:
        script = Path(sys.executable).with_name("sfactl")
        sfactl = [str(script)] if script.exists() else [sys.executable, "-m", "sfactl"]
        words = {
            "list": ["list"],
            "status": ["info", run],
            "spawn": ["spawn", "--", *TRUE],
            "run": ["run", "-q", "--", *TRUE],
            "report": ["report", run, "--input-tokens", "1"],
        }
        return {kind: [*sfactl, *each] for kind, each in words.items()}
