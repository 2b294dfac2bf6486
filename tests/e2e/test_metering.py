"""What agents say they use: recordings of real ones, whatever else a run may print, and several
sources at once."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import Status
from tests.conftest import Start
from tests.harness import Daemon, agent, ended, started, stopped, wait_until
from tests.tiers import first, variant

from .agents import info, limit, recorded, state, until_event, until_over, watched

ASKED = {
    "claude": ["-p", "x", "--output-format", "stream-json", "--verbose"],
    "codex": ["exec", "--json", "x"],
    "gemini": ["-p", "x", "--output-format", "stream-json"],
}


@pytest.fixture
def daemon(common: Daemon) -> Daemon:
    return common


@first(1)
@pytest.mark.parametrize(
    ("recording", "turns", "tokens", "cost"),
    [
        ("claude-success", 2, (4650, 180), 0.0238875),
        ("claude-shared-message-ids", 3, (6600, 240), 0.03385),
        ("codex-success", 2, (4500, 240), None),
        ("gemini-success", 2, (3600, 120), "prices"),
    ],
)
def test_a_recording_is_metered_by_the_command_alone(
    tmp_path: Path,
    daemon: Daemon,
    recording: str,
    turns: int,
    tokens: tuple[int, int],
    cost: object,
) -> None:
    program = recording.partition("-")[0]
    with daemon.client() as client:
        run = ended(
            client, started(client, [recorded(tmp_path, program, recording), *ASKED[program]]).id
        )
    assert (run.status, run.meter, run.usage.source) == (Status.COMPLETED, program, "stream")
    assert (run.usage.turns, run.usage.input_tokens, run.usage.output_tokens) == (turns, *tokens)
    if cost == "prices":
        assert run.usage.cost_usd is not None, (
            "Gemini tells no cost, and the end of so short a run waits for the price list"
        )
        assert run.usage.cost_from == "prices"
    else:
        assert run.usage.cost_usd == cost
        assert run.usage.cost_from == ("agent" if cost is not None else None)
    row = json.loads(daemon.sfactl("info", run.id, "--json").stdout)
    assert row["usage"] == row["usage_by_source"]["stream"]


def tell(client: Client, run: str) -> None:
    """Send a byte to its stdin. What it prints before the client has read the answer to its spawn,
    `until_event` does not see."""
    client.send(m.Send(id=client.next_id(), run=run, data=b"x"))


def test_a_meter_that_recognises_nothing_says_so_and_enforces_nothing(daemon: Daemon) -> None:
    program = "import sys\nsys.stdin.read(1)\nprint('x' * 70_000, flush=True)\nsys.stdin.read()"
    with daemon.client() as client:
        run, _ = watched(
            client,
            [sys.executable, "-c", program],
            limit("turns", 10),
            meter="claude",
            stdin="pipe",
        )
        assert state(run, "turns")[2] == "meter"
        tell(client, run.id)
        said = until_event(client, "meter_silent")
        assert said.message.startswith(
            "the meter claude recognises nothing in what the run prints: "
        )
        now = info(client, run.id)
        assert (state(now, "turns"), now.usage.source) == ((None, "terminate", "ready"), "none")
        stopped(client, run.id)
        brief, _ = watched(client, ["head", "-c1"], limit("turns", 10), meter="codex", stdin="pipe")
        tell(client, brief.id)
        over, events = until_over(client, brief.id)
    assert [event.type for event in events if event.run_id == brief.id].count("meter_silent") == 1
    assert state(over, "turns")[2] == "ready"
    row = json.loads(daemon.sfactl("info", brief.id, "--json").stdout)
    assert {one["enforced_by"] for one in row["limits"] if one["kind"] in ("turns", "cost")} == {
        "ready"
    }


def test_a_model_that_cannot_be_reached_is_visible(daemon: Daemon) -> None:
    retry = {
        "type": "system",
        "subtype": "api_retry",
        "attempt": 6,
        "error_status": 529,
        "error": "overloaded",
    }
    answer = {"type": "assistant", "message": {"id": "m", "model": "m", "content": []}}
    lines = [json.dumps(retry), json.dumps(answer)]
    program = (
        f"import sys\nfor line in {lines}:\n    sys.stdin.read(1)\n "
        "   print(line, flush=True)\nsys.stdin.read()"
    )
    with daemon.client() as client:
        run, _ = watched(client, [sys.executable, "-c", program], meter="claude", stdin="pipe")
        tell(client, run.id)
        assert (
            until_event(client, "run_progress").message
            == "the API answered 529 six times: overloaded"
        )
        why, listed = daemon.sfactl("why", run.id).stdout, daemon.sfactl("list").stdout
        assert "cannot reach its model: the API answered 529 six times: overloaded" in why
        assert "running (API 529)" in listed
        tell(client, run.id)
        assert until_event(client, "run_progress").message == "the API answers again"
        assert info(client, run.id).api_trouble is None
        stopped(client, run.id)


@first(1)
@pytest.mark.parametrize("recording", ["claude-api-failure", "codex-turn-failed"])
def test_an_agent_that_reports_failure_has_failed_even_if_it_exits_0(
    tmp_path: Path, daemon: Daemon, recording: str
) -> None:
    program = recording.partition("-")[0]
    with daemon.client() as client:
        run = ended(
            client, started(client, [recorded(tmp_path, program, recording), *ASKED[program]]).id
        )
    assert (run.status, run.exit_code) == (Status.FAILED, 0)
    assert run.reason is not None
    assert run.reason.kind == "agent"


def test_a_run_that_prints_anything_at_all_is_metered_and_the_daemon_stays_small(
    start: Start,
) -> None:
    daemon = start()  # whose memory has not grown yet
    ugly = """
import os, sys
out = sys.stdout.buffer
turn = b'{"type": "turn"}\\n'
out.write(turn + b'\\xff\\xfe\\0 binary \\n' + b'{"type": "turn", \\n' + b'[' * 200000 + b'\\n')
for _ in range(3):
    out.write(b'{"type": "usage", "note": "' + b'x' * (20 << 20) + b'"}\\n')
out.write(b'{"type": "usage", "deep": ' + b'[' * 100000 + b']' * 100000 + b'}\\n')
out.write(turn + os.urandom(1 << 20) + b'\\n' + turn + turn[:-1])
"""
    process = psutil.Process(daemon.pid)
    with daemon.client() as client:
        first = started(client, ["sleep", "60"], meter="jsonl")
        # the price list is there when this is answered: 18 MB, taken by the first run that is
        # metered
        asked = m.Reserve(
            id=client.next_id(),
            run=first.id,
            model="claude-opus-4-8",
            input_tokens=1,
            max_output_tokens=1,
        )
        client.call(asked, m.Reserved)
        stopped(client, first.id)
        before = process.memory_info().rss
        run, _ = watched(client, [sys.executable, "-c", ugly])
        over, events = until_over(client, run.id)
        assert (over.status, over.usage.turns) == (Status.COMPLETED, 4)
        assert (grown := process.memory_info().rss - before) < 16 << 20, grown  # of 60 MB and more
        assert "meter_gap" in {event.type for event in events}


@variant
def test_a_run_that_writes_without_pause_does_not_keep_the_daemon_from_answering(
    daemon: Daemon,
) -> None:
    spew = "import os\nblock = (b'x' * 99 + b'\\n') * 10000\nwhile True:\n    os.write(1, block)"
    with daemon.client() as client:
        run = started(
            client, [sys.executable, "-c", spew], limits=[limit("output", 4 << 20)], meter="claude"
        )
        path = daemon.state_dir / "output" / f"{run.id}.out"
        for _ in range(100):
            assert info(client, run.id).status is Status.RUNNING
        wait_until(lambda: path.stat().st_size > 64 << 20, "it writes on")
        assert stopped(client, run.id).survivors == []
        wait_until(lambda: path.stat().st_blocks * 512 <= 8 << 20, "and is bounded")


def test_reports_add_up_and_sources_are_kept_apart(tmp_path: Path, daemon: Daemon) -> None:
    script = """
usage = '{"type": "usage", "input_tokens": 500, "output_tokens": 50, "turns": 3, "cost_usd": 0.25}'
print(usage, flush=True)
for _ in range(2):
    used = "--turns 1 --input-tokens 400 --output-tokens 40 --cost 0.0625 --role planning"
    done = sfactl("report", *used.split())
    assert done.returncode == 0, done.stderr
"""
    with daemon.client() as client:
        run = ended(client, started(client, agent(tmp_path, "twice", script), meter="jsonl").id)
    assert run.status is Status.COMPLETED
    assert (run.usage.source, run.usage.turns, run.usage.tokens, run.usage.cost_usd) == (
        "stream",
        3,
        880,
        0.25,
    )
    assert run.usage.planning_cost_usd == 0.125
    stream = run.usage_by_source["stream"]
    assert (stream.turns, stream.tokens, stream.cost_usd) == (3, 550, 0.25)
    report = run.usage_by_source["report"]
    assert (report.turns, report.tokens, report.cost_usd) == (2, 880, 0.125)
    assert state(run, "turns")[0] == 3, "the largest is shown and enforced"
    assert state(run, "cost")[0] == 0.25


def test_what_a_child_uses_counts_for_every_ancestor_and_the_outermost_breach_is_told(
    tmp_path: Path, start: Start
) -> None:
    daemon = start(config="[stop]\ngrace = 0.5")
    grandchild = (
        'print(\'{"type": "usage", "input_tokens": 900, "output_tokens": 200}\', flush=True); '
        "import time; time.sleep(60)"
    )
    child = [
        "run",
        "--name",
        "low",
        "--meter",
        "jsonl",
        "--limit",
        "tokens=800",
        "--",
        sys.executable,
        "-c",
        grandchild,
    ]
    middle = agent(tmp_path, "middle", f"sfactl(*{child!r})\ntime.sleep(60)")
    top = agent(
        tmp_path,
        "top",
        (
            "sfactl('run', '--name', 'mid', '--limit', "
            f"'tokens=900', '--', *{middle!r})\ntime.sleep(60)"
        ),
    )
    with daemon.client() as client:
        run, _ = watched(client, top, limit("tokens", 1000), meter=None)
        over, events = until_over(client, run.id)
        rows = client.call(m.List(id=client.next_id(), root=run.id), m.RunList).runs
    assert over.reason is not None
    assert (over.status, over.reason.limit_kind, over.reason.used) == (
        Status.FAILED,
        "tokens",
        1100,
    )
    assert over.usage.tokens is None  # its own use; what is below it counts against its limit
    exceeded = [event for event in events if event.type == "limit_exceeded"]
    assert [(event.run_id, event.scope) for event in exceeded] == [(run.id, "tree")]
    assert {row.reason.kind for row in rows if row.reason is not None and row.id != run.id} == {
        "ancestor"
    }


def test_use_is_in_the_ledger_while_the_run_goes_on(daemon: Daemon) -> None:
    import sqlite3
    from contextlib import closing

    talk = (
        'print(\'{"type": "usage", "input_tokens": 7, "output_tokens": 1}\', flush=True); import '
        "time; time.sleep(60)"
    )
    with daemon.client() as client:
        run = started(client, [sys.executable, "-c", talk], meter="jsonl")

        def tokens() -> object:
            with closing(
                sqlite3.connect(f"file:{daemon.state_dir / 'ledger.db'}?mode=ro", uri=True)
            ) as other:
                (usage,) = other.execute(
                    "SELECT usage FROM runs WHERE id = ?", (run.id,)
                ).fetchone()
            return json.loads(usage).get("stream", {}).get("tokens") == 8

        wait_until(tokens, "the row tells what it has used so far")
        stopped(client, run.id)


@pytest.mark.rest("keeps a processor busy for seconds")
def test_the_end_of_a_tree_does_not_block_the_daemon_for_seconds(
    tmp_path: Path, daemon: Daemon
) -> None:
    """Their unread output is not read in one go, however much they write."""
    flood = (
        'import os, time\nline = b\'{"type": "turn"}\\n\' * 4096\nend = time.time() + 2\n'
        "while time.time() < end: os.write(1, line)\ntime.sleep(60)"
    )
    script = f"""
for i in range(4):
    options = ["--name", f"w{{i}}", "--meter", "jsonl", "--limit", "turns=100:warn"]
    sfactl("spawn", *options, "--", sys.executable, "-c", {flood!r})
time.sleep(1)
"""
    waits, over = [], threading.Event()

    def ping() -> None:
        with daemon.client() as client:
            while not over.is_set():
                began = time.monotonic()
                client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)
                waits.append(time.monotonic() - began)
                time.sleep(0.02)

    thread = threading.Thread(target=ping)
    with daemon.client() as client:
        run = started(
            client, agent(tmp_path, "parent", script), limits=[limit("turns", 100, "warn")]
        )
        thread.start()
        ended(client, run.id)
    over.set()
    thread.join()
    assert max(waits) < 5


@first(1)
@pytest.mark.parametrize("how", ["os.unlink(path)", "os.rename(path, path + '.old')"])
def test_a_run_that_removes_its_output_file_is_still_metered(daemon: Daemon, how: str) -> None:
    """It is still metered, and reported to be no longer bounded."""
    script = f"""
import os, time
path = os.readlink('/proc/self/fd/1')
time.sleep(0.3)  # the client drops what is pushed before its spawn is answered
{how}
for _ in range(40):
    print('{{"type": "turn"}}', flush=True)
    time.sleep(0.01)
time.sleep(1)
"""
    with daemon.client() as client:
        run, _ = watched(client, [sys.executable, "-c", script], limit("turns", 10))
        over, events = until_over(client, run.id)
    assert (over.status, over.reason.kind if over.reason is not None else None) == (
        Status.FAILED,
        "limit",
    )
    assert [event.message for event in events if event.type == "meter_gap"] == [
        "the file of its stdout was taken away: it is not bounded any more"
    ]
