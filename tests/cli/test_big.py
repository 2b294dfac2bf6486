"""Lists of a ledger that a client must not hold as a whole."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator

import msgspec
import pytest

from sfactl.commands.list import ON_TERMINAL
from sfactl.connecting.connection import Client
from sfactl.showing.pages import PAGE, QUEUED, Newest, every
from sfad.core.state.run import run_id
from sfad.protocol.requests.listing import List, RunList
from sfad.protocol.types import RunInfo, Status
from sfad.storage.ledger.queries import MAX_EVENTS
from tests.harness import started, wait_until
from tests.ledger import big as ledger

from .conftest import SFACTL, World
from .test_list import all_of

ROWS = 20_000
FAILED = [run_id(number) for number in range(10, ROWS + 1, 10)]


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A daemon that finds a ledger of 20 000 runs, and of more events than it looks at at once."""
    world = World(tmp_path_factory.mktemp("big"))
    ledger.fill(world.state, ROWS, MAX_EVENTS + 20_000)
    with world.served():
        yield world


def listed(world: World, *words: str) -> list[str]:
    lines = world.sfactl("list", "--jsonl", *words).stdout.splitlines()
    return [msgspec.json.decode(line)["id"] for line in lines]


def test_each_form_has_every_match_once_and_the_newest_last(big: World) -> None:
    assert listed(big, "--status", "failed") == FAILED
    assert [run["id"] for run in big.json("list", "--status", "failed")["runs"]] == FAILED
    header, *lines = big.sfactl("list", "--status", "failed").stdout.splitlines()
    assert [line.split()[0] for line in lines] == FAILED
    assert header.split()[:3] == ["ID", "NAME", "STATUS"]
    *lines, sums = big.sfactl("list", "--status", "failed", "--sum").stdout.splitlines()
    assert sums.split()[:3] == ["sum", str(len(FAILED)), "runs"]


def test_many_of_the_newest_are_not_held_either(big: World) -> None:
    assert listed(big, "--status", "failed", "-n", "1500") == FAILED[-1500:]
    done = big.sfactl("list", "--status", "failed", "-n", "1500", "--json")
    assert "only the newest 1500 of the ended runs are shown" in done.stderr
    assert msgspec.json.decode(done.stdout)["truncated"] is True
    everything = big.json("list", "--status", "failed", "-n", "3000")
    assert (len(everything["runs"]), everything.get("truncated")) == (len(FAILED), None)


@pytest.mark.rest("at scale")
def test_a_long_list_takes_no_more_memory_than_a_short_one(big: World) -> None:
    def peak(*words: str) -> int:
        """Return KiB."""
        with subprocess.Popen(
            [*SFACTL, "list", *words], env=big.env, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            while process.stdout.read(1 << 16):
                pass
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = status
        assert status == 0
        return used.ru_maxrss

    short = peak("-n", "10", "--jsonl")
    for form in (["--jsonl"], ["--json"], []):
        assert peak("--since", "30d", *form) < short + 8 * 1024


def test_a_list_is_printed_as_it_is_read(big: World) -> None:
    process = subprocess.Popen(
        [*SFACTL, "list", "--since", "30d"], env=big.env, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout:
        first = [process.stdout.readline().split()[0] for _ in range(2)]
        assert first == [b"ID", b"a1"]
        assert process.poll() is None, "the rest does not fit in the pipe"
    assert process.wait(60) != 0


def test_a_terminal_gets_the_newest_and_a_line_that_says_so(big: World) -> None:
    master, slave = pty.openpty()
    with subprocess.Popen(
        [*SFACTL, "list", "--status", "failed"],
        env=big.env | {"TERM": "dumb"},
        stdout=slave,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(slave)
        lines = all_of(master).decode().splitlines()
        assert process.stderr is not None
        told = process.stderr.read().decode()
    assert [line.split()[0] for line in lines] == ["ID", *FAILED[-ON_TERMINAL:]]
    assert f"the newest {ON_TERMINAL} of the ended runs are shown; there are more: -n N" in told


class Counting(Client):
    """Counts the pages that it asks for."""

    pages = 0

    def call(self, request, expected, descriptors=()):  # type: ignore[no-untyped-def]
        self.pages += 1
        return super().call(request, expected, descriptors)


@pytest.mark.parametrize(
    ("wanted", "matches", "most"),
    [
        (List(id=0, user="eve"), ROWS // 1000, 1),
        (List(id=0, user="bob", status=[Status.COMPLETED]), ROWS // 100 - 1, 1),
        (List(id=0, user="nobody"), 0, 1),
        (List(id=0, group="nightly"), 4, 1),
        (List(id=0, group="nightly", status=[Status.COMPLETED], name="name4"), 4, 1),
        (List(id=0, status=[Status.LOST], labels={"team": "t7"}), ROWS // 1000, 1),
        (List(id=0, name="name10", status=[Status.FAILED]), ROWS // 100, 1),
        (List(id=0, name="name11", status=[Status.FAILED]), 0, 1),
        (List(id=0, sessions=True), 0, 1),
        (List(id=0, run_type="none"), 0, ROWS // 5000 + 1),
        (List(id=0, model="none", since=1.0), 0, ROWS // 5000 + 1),
    ],
)
def test_a_search_asks_for_no_more_pages_than_its_best_index_needs(
    big: World, wanted: List, matches: int, most: int
) -> None:
    client = Counting(big.socket)
    with client:
        assert sum(map(len, every(client.call, wanted))) == matches
        assert client.pages <= most + matches // PAGE
        client.pages = 0
        newest = Newest(client, wanted, 10)
        assert sum(map(len, newest.pages())) == min(matches, 10)
        assert client.pages <= most


def test_live_runs_have_their_places(daemon: World) -> None:
    runs = [
        daemon.spawn("--", "sleep", "100"),
        daemon.spawn("--", "true"),
        daemon.spawn("--", "sleep", "100"),
    ]
    daemon.sfactl("wait", runs[1])
    with Client(daemon.socket) as client:
        found: list[RunInfo] = []
        cursor: str | None = ""
        while cursor is not None:
            page = client.call(List(id=0, after=cursor, rows=1), RunList)
            assert len(page.runs) <= 1
            found += page.runs
            cursor = page.next
    shown = [(run.id, run.status.terminal) for run in found if run.id in runs]
    assert shown == [(runs[0], False), (runs[1], True), (runs[2], False)]
    assert listed(daemon, "--since", "1h")[-3:] == runs


@pytest.mark.parametrize("config", ["[quotas]\ntrees = 1\n"])
def test_queued_runs_beyond_some_are_counted(daemon: World) -> None:
    with Client(daemon.socket) as client:
        first = started(client, ["/bin/sleep", "100"])
        for _ in range(QUEUED + 5):
            assert started(client, ["/bin/sleep", "100"]).status == "queued"
    wait_until(lambda: daemon.status(first.id) == "running", "the first has a slot")
    done = daemon.sfactl("list")
    assert len(done.stdout.splitlines()) == 1 + 1 + QUEUED
    assert "sfactl: 5 more runs are queued: sfactl list --status queued" in done.stderr
    assert len(daemon.sfactl("list", "--status", "queued").stdout.splitlines()) == 1 + QUEUED + 5
    assert len(daemon.json("list")["runs"]) == 1 + QUEUED + 5
    with Client(daemon.socket) as client:
        page = client.call(List(id=0, queued=3), RunList)
        assert (len(page.runs), page.queued) == (4, QUEUED + 2)
        page = client.call(List(id=0, queued=3, name="none"), RunList)
        assert (len(page.runs), page.queued) == (0, 0)
    daemon.stop_all()


def test_rare_events_are_found_however_old(big: World) -> None:
    rare = ("events", "--type", "limit_exceeded")
    for words in ((), ("--tail", "2"), ("--since", "30d")):
        lines = big.sfactl(*rare, *words).stdout.splitlines()
        assert [line.split()[2] for line in lines] == ["#7", f"#{MAX_EVENTS + 7}"]
    assert "#7 " not in big.sfactl(*rare, "--tail", "1").stdout


def test_forms_that_exclude_each_other(big: World) -> None:
    done = big.sfactl("list", "--json", "--jsonl", code=2)
    assert "--jsonl is one object for each run" in done.stderr
