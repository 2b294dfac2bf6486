"""`watch_runs`: a snapshot, then each run that changes, with what it uses; for the caller's own
subtree only; bounded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sfactl.connecting.connection import Client, DaemonError
from sfad.daemon.server import shares
from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode, RunInfo, Status
from tests.conftest import Start
from tests.harness import IMPATIENT, PYTHON, Daemon, ended, started, stopped, wait_until
from tests.tiers import variant

SLEEP = ["sleep", "120"]
WATCHER = """
import json, os, sys
from pathlib import Path
from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
with Client(Path(os.environ["SFA_SOCKET"])) as client:
    client.send(m.WatchRuns(id=0))
    while True:
        for answer in client.arrived():
            for run in answer.reply.runs:
                print(json.dumps([run.id, run.status.value]), flush=True)
"""


class Watching:
    """What a client is told of runs, as it would show them."""

    def __init__(self, client: Client, **wanted: object) -> None:
        self.client = client
        self.id = client.send(m.WatchRuns(id=0, **wanted))  # type: ignore[arg-type]
        self.runs: dict[str, RunInfo] = {}
        self.snapshots = 0
        self.pushes = 0
        while not self.snapshots:
            self.take()

    def take(self) -> None:
        for answer in self.client.arrived():
            reply = answer.reply
            assert reply.id == self.id
            if isinstance(reply, m.Error):
                raise DaemonError(reply.code, reply.message)
            assert isinstance(reply, m.RunList | m.RunsPush)
            if isinstance(reply, m.RunList):
                self.runs, self.snapshots = {}, self.snapshots + 1
            self.pushes += 1
            self.runs |= {run.id: run for run in reply.runs}

    def until(self, condition: Callable[[dict[str, RunInfo]], bool]) -> None:
        self.client.be_patient(60.0)
        while not condition(self.runs):
            self.take()


@contextmanager
def watching(daemon: Daemon, **wanted: object) -> Iterator[Watching]:
    with daemon.client() as client:
        yield Watching(client, **wanted)


@pytest.fixture
def daemon(common: Daemon) -> Daemon:
    return common


def test_a_snapshot_and_then_each_change(daemon: Daemon) -> None:
    with daemon.client() as client:
        before = started(client, SLEEP, name="before").id
        with watching(daemon) as seen:
            assert seen.runs[before].status is Status.RUNNING
            after = started(client, SLEEP, name="after").id
            seen.until(lambda runs: after in runs and runs[after].pid is not None)
            client.call(m.Pause(id=0, run=before), m.RunReply)
            seen.until(lambda runs: runs[before].status is Status.PAUSED)
            stopped(client, before, after)
            seen.until(
                lambda runs: all(runs[run].status is Status.CANCELLED for run in (before, after))
            )
            assert seen.snapshots == 1


def test_what_a_run_uses(share: Start, containment: str) -> None:
    daemon = share(mode=containment)
    busy = (
        "import os, time\nos.fork()\nheld = bytearray(b'x') "
        "* 30_000_000\nend = time.monotonic() + 60\n"
    ) + "while time.monotonic() < end: pass"
    with daemon.client() as client, watching(daemon) as seen:
        run = started(client, [sys.executable, "-c", busy], name="busy").id
        seen.until(
            lambda runs: run in runs and (runs[run].cpu_cores or 0) > 0 and runs[run].processes == 2
        )
        seen.until(lambda runs: (runs[run].memory_bytes or 0) > 30_000_000)


def test_use_and_totals(daemon: Daemon) -> None:
    with daemon.client() as client, watching(daemon) as seen:
        parent = started(client, SLEEP, name="parent").id
        client.call(m.Report(id=0, run=parent, turns=3, cost_usd=0.25), m.RunReply)
        seen.until(
            lambda runs: (
                parent in runs
                and runs[parent].usage.turns == 3
                and runs[parent].total_cost_usd == 0.25
            )
        )
        client.call(m.Report(id=0, run=parent, cost_usd=0.25), m.RunReply)
        seen.until(lambda runs: runs[parent].total_cost_usd == 0.5)


def test_filters(daemon: Daemon) -> None:
    with daemon.client() as client, watching(daemon, name="wanted") as seen:
        started(client, ["true"], name="other")
        wanted = started(client, ["true"], name="wanted").id
        seen.until(lambda runs: wanted in runs and runs[wanted].status.terminal)
        assert {run.name for run in seen.runs.values()} == {"wanted"}


def test_a_run_is_told_of_its_own_subtree_only(daemon: Daemon) -> None:
    with daemon.client() as client:
        other = started(client, SLEEP, name="other").id
        script = f"{PYTHON} -c '{WATCHER}' & sfactl spawn --name child -- true >/dev/null; wait"
        env = [f"{key}={value}".encode() for key, value in daemon.env.items()]
        env += [f"PATH={sys.prefix}/bin:/usr/bin:/bin".encode()]
        run = started(
            client, ["sh", "-c", script], name="watcher", env=env, cwd=str(Path.cwd()).encode()
        ).id
        logs, descriptors = client.ask(m.Logs(id=0, run=run), m.LogFiles)
        assert logs.run == run
        with open(descriptors[0]) as out, open(descriptors[1]) as err:

            def told() -> list[tuple[str, str]]:
                out.seek(0)
                return [
                    tuple(json.loads(line))
                    for line in out.read().splitlines(keepends=True)
                    if line.endswith("\n")
                ]

            wait_until(
                lambda: any(status == "completed" for _, status in told()),
                f"it hears of its child: {err.read()}",
            )
            ids = {each for each, _ in told()}
        assert run in ids
        assert len(ids) == 2
        assert other not in ids


@variant
def test_a_watch_goes_on_after_a_re_execution(start: Start) -> None:
    daemon = start()
    with daemon.client() as client, watching(daemon) as seen:
        run = started(client, SLEEP).id
        seen.until(lambda runs: run in runs)
        daemon.reexecute()
        seen.until(lambda _: seen.snapshots == 2)
        assert seen.runs[run].status is Status.RUNNING
        stopped(client, run)
        seen.until(lambda runs: runs[run].status.terminal)


def test_changes_that_are_not_read_are_told_as_they_are_then(daemon: Daemon) -> None:
    """The client reads nothing while a run changes a thousand times, and gets a few pushes at the
    most."""
    with daemon.client() as client, watching(daemon) as seen:
        run = started(client, SLEEP, name="talker").id
        for _ in range(1000):
            client.send(m.Report(id=0, run=run, input_tokens=1))
        answered = 0
        while answered < 1000:
            answered += len(client.arrived())
        seen.until(lambda runs: run in runs and runs[run].usage.input_tokens == 1000)
        assert seen.pushes < 100


def test_a_client_that_does_not_read_is_told_why_it_hears_no_more(start: Start) -> None:
    daemon = start(program=IMPATIENT)
    with daemon.client() as client, watching(daemon) as seen:
        # each push has the first kilobytes of each command, so few of them fill the socket
        runs = [started(client, ["sh", "-c", "sleep 120 # " + "x" * 100_000]).id for _ in range(20)]

        def dropped() -> bool:
            for run in runs:
                client.call(m.Report(id=0, run=run, input_tokens=1), m.RunReply)
            return "a slow client: it left" in daemon.log.read_text()

        wait_until(dropped, "the daemon gives it up")
        with pytest.raises(
            DaemonError, match="bytes unread for 1 s, so it is not told of runs any more; ask again"
        ) as error:
            seen.until(lambda _: False)
        assert error.value.error is ErrorCode.UNAVAILABLE
        again = Watching(seen.client)
        assert set(runs) <= set(again.runs)
        stopped(client, *runs)
        again.until(lambda told: all(told[run].status.terminal for run in runs))


def test_no_more_watches_than_a_bound(daemon: Daemon) -> None:
    with daemon.client() as client:
        for _ in range(shares.MAX_RUN_FEEDS):
            client.call(m.WatchRuns(id=0), m.RunList)
        with daemon.client() as another, pytest.raises(DaemonError, match="at most 64") as refused:
            another.call(m.WatchRuns(id=0), m.RunList)
        assert refused.value.error is ErrorCode.UNAVAILABLE
        ended(client, started(client, ["true"]).id)
    with daemon.client() as client:

        def place() -> bool:
            try:
                client.call(m.WatchRuns(id=0), m.RunList)
            except DaemonError:
                return False
            return True

        wait_until(place, "closed connections give their places back")
