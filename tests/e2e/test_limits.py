"""No run uses more than it was given, and its watchers are notified twice: near the limit and above
it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode, Status
from tests.conftest import Start
from tests.harness import Daemon, agent, ended, spawn, started, stopped, wait_until

from .agents import BETWEEN, info, limit, state, turns, until_event, until_over, watched


@pytest.fixture
def daemon(common: Daemon) -> Daemon:
    return common


def test_an_agent_is_stopped_within_a_few_turns_of_its_limit(
    share: Start, containment: str
) -> None:
    daemon = share(mode=containment)
    with daemon.client() as client:
        run, _ = watched(client, turns(400), limit("turns", 10))
        over, events = until_over(client, run.id)
    assert over.status is Status.FAILED
    assert over.reason is not None
    assert (over.reason.kind, over.reason.limit_kind, over.reason.threshold) == (
        "limit",
        "turns",
        10,
    )
    assert over.usage.turns is not None
    assert 11 <= over.usage.turns <= 30  # of 400: the machine may be busy
    assert (over.reason.used or 0) <= over.usage.turns
    told = [event for event in events if event.type.startswith("limit_")]
    assert [event.type for event in told] == ["limit_nearing", "limit_exceeded"]
    near, above = told
    assert (near.used or 0) >= 8
    assert (near.scope, near.limit_kind, near.threshold, near.exceeded_by) == (
        "run",
        "turns",
        10,
        None,
    )
    assert (above.agent_name, above.run_id, above.root_id) == (run.name, run.id, run.id)
    assert above.exceeded_by == (above.used or 0) - 10 > 0


def test_the_foreground_client_exits_with_4_and_says_why(daemon: Daemon) -> None:
    done = daemon.sfactl(
        "run", "--meter", "jsonl", "--limit", "turns=3", "--name", "busy", "--", *turns(400)
    )
    assert done.returncode == 4, done.stderr
    assert "turns" in done.stderr
    why = daemon.sfactl("why", "busy").stdout
    assert "turns" in why
    assert "3" in why


def test_a_limit_that_warns_lets_the_run_go_on(daemon: Daemon) -> None:
    with daemon.client() as client:
        run, _ = watched(client, turns(14), limit("turns", 10, "warn"))
        over, events = until_over(client, run.id)
    assert (over.status, over.usage.turns) == (Status.COMPLETED, 14)
    breaches = map(json.loads, (daemon.state_dir / "limits.log").read_text().splitlines())
    [line] = [each for each in breaches if each["run_id"] == run.id]
    assert (line["limit_kind"], line["threshold"], line["run"]["name"]) == ("turns", 10, run.name)
    assert [event.type for event in events if event.type.startswith("limit_")] == [
        "limit_nearing",
        "limit_exceeded",
    ]


def test_a_limit_that_pauses_stops_the_counters_until_there_is_more_room(
    share: Start, containment: str, tmp_path: Path
) -> None:
    daemon, enough = share(mode=containment), tmp_path / "enough"
    text = f"""
while not os.path.exists({str(enough)!r}):
    print('{{"type": "turn", "tool": "Bash"}}', flush=True)
    time.sleep({BETWEEN})
"""
    with daemon.client() as client, daemon.client() as other:
        run, _ = watched(client, agent(tmp_path, "turns", text), limit("turns", 10, "pause"))
        until_event(client, "run_paused")

        def stands_still() -> bool:
            before = info(other, run.id)
            time.sleep(8 * BETWEEN)
            return info(other, run.id).usage == before.usage

        # it is frozen after it is shown as paused, and what it has printed until then counts
        wait_until(stands_still, "it stands still, and all that it has printed is counted")
        still = info(other, run.id)
        assert still.status is Status.PAUSED
        refused = daemon.sfactl("resume", run.id, "--limit", "turns=5")
        assert refused.returncode == 2, refused.stderr
        assert "11 turns" in refused.stderr or "already" in refused.stderr
        assert info(other, run.id).usage == still.usage
        enough.touch()
        assert daemon.sfactl("resume", run.id, "--limit", "turns=100").returncode == 0
        over, events = until_over(client, run.id)
    printed = daemon.output(run.id).count("\n")
    assert (over.status, over.usage.turns) == (Status.COMPLETED, printed)
    assert state(over, "turns") == (printed, "pause", "meter")
    # it was said before, and 100 is not reached
    assert [event.type for event in events].count("limit_exceeded") == 0


def waiting_for(path: Path) -> str:
    """Return code of an agent that waits for a file: a busy daemon reads later what it prints."""
    return f"import os\nwhile not os.path.exists({str(path)!r}):\n    time.sleep(0.01)"


def test_resuming_without_more_room_turns_the_limit_into_a_warning(
    daemon: Daemon, tmp_path: Path
) -> None:
    paused = tmp_path / "paused"
    with daemon.client() as client:
        command = turns(15, then=waiting_for(paused))
        run, _ = watched(client, command, limit("turns", 10, "pause"))
        until_event(client, "run_paused")
        paused.touch()
        client.call(m.Resume(id=client.next_id(), run=run.id), m.RunReply)
        over, _ = until_over(client, run.id)
    assert (over.status, state(over, "turns")) == (Status.COMPLETED, (15, "warn", "meter"))


@pytest.mark.parametrize(
    ("verb", "status"), [("approve", Status.COMPLETED), ("deny", Status.FAILED)]
)
def test_an_increase_is_approved_or_denied(
    daemon: Daemon, tmp_path: Path, verb: str, status: Status
) -> None:
    told = tmp_path / "told"
    with daemon.client() as client:
        command = turns(14, then=waiting_for(told))
        run, _ = watched(client, command, limit("turns", 10, "request_increase"))
        asked = until_event(client, "increase_requested")
        told.touch()
        assert (asked.limit_kind, asked.threshold, asked.run_id, asked.severity) == (
            "turns",
            10,
            run.id,
            "medium",
        )
        done = daemon.sfactl(verb, run.id)
        assert done.returncode == 0, done.stderr
        over, events = until_over(client, run.id)
    answer = "increase_approved" if verb == "approve" else "increase_denied"
    assert (
        over.status,
        [event.type for event in events if event.type.startswith("increase_")],
    ) == (status, [answer])


def test_an_increase_that_is_not_answered_is_denied_after_a_while(start: Start) -> None:
    daemon = start(config='[limits]\napproval_timeout = "2s"')
    with daemon.client() as client:
        command = turns(14, then="time.sleep(600)")
        run, _ = watched(client, command, limit("turns", 10, "request_increase"))
        until_event(client, "increase_requested")
        over, events = until_over(client, run.id)
    assert over.reason is not None
    assert over.status is Status.FAILED
    assert "approval_timeout" in over.reason.message
    assert [event.type for event in events if event.type.startswith("increase_")] == []


def test_an_agent_cannot_give_itself_more_room(tmp_path: Path, daemon: Daemon) -> None:
    script = """
child = sfactl("spawn", "--meter", "jsonl", "--limit", "turns=1:pause", "--", *TURNS).stdout.strip()
while '"paused"' not in sfactl("info", child, "--json").stdout:
    time.sleep(0.02)
for words in (
    ["resume", child], ["resume", child, "--limit", "turns=50"], ["approve", child],
    ["deny", child], ["recommend"],
):
    print(words[0], sfactl(*words).returncode, flush=True)
"""
    with daemon.client() as client:
        run = started(client, agent(tmp_path, "greedy", f"TURNS = {turns(5)}\n{script}"))
        assert ended(client, run.id).status is Status.COMPLETED
    said = daemon.sfactl("logs", run.id).stdout.split("\n")[:5]
    assert said == ["resume 77", "resume 77", "approve 77", "deny 77", "recommend 77"]


def test_limits_span_attempts(daemon: Daemon) -> None:
    with daemon.client() as client:
        run = started(
            client,
            turns(4, then="sys.exit(1)"),
            limits=[limit("turns", 10)],
            meter="jsonl",
            attempts=5,
            retry_delay=0.01,
        )
        over = ended(client, run.id)
    assert over.reason is not None
    assert (over.status, over.reason.limit_kind, over.attempts) == (Status.FAILED, "turns", 3)


def test_a_profile_and_its_precedence(daemon: Daemon) -> None:
    with daemon.client() as client:
        run = started(client, ["sleep", "60"], run_type="qa", limits=[limit("cost", 3)])
        shown = {
            each.kind.value: (each.threshold, each.action.value, each.source) for each in run.limits
        }
        qa = "terminate", "type qa"
        assert (
            shown.items()
            >= {
                "turns": (10, *qa),
                "time": (120, *qa),
                "cost": (3, "terminate", "--limit cost"),
            }.items()
        )
        stopped(client, run.id)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--limit", "turns=101"], "1 to 100"),
        (["--limit", "cost=0.001"], "0.01"),
        (["--limit", "output=1K"], "64 KiB"),
        (["--timeout", "2h"], "limits.max_time"),
        (["--limit", "output=1M:pause"], "takes no action"),
        (["--limit", "turns=3", "--limit", "turn=4"], "twice"),
        (["--meter", "nosuch"], "claude"),
    ],
)
def test_a_limit_outside_its_range_is_refused_with_the_range(
    daemon: Daemon, words: list[str], told: str
) -> None:
    done = daemon.sfactl("spawn", *words, "--", "true")
    assert done.returncode == 2, done.stderr
    assert told in done.stderr


def test_a_limit_that_cannot_be_enforced_is_reported(daemon: Daemon) -> None:
    done = daemon.sfactl("spawn", "--no-gateway", "--limit", "cost=0.50:warn", "--", "sleep", "60")
    assert "not enforceable" in done.stderr.lower()
    shown = daemon.sfactl("info", done.stdout.strip())
    assert "not enforceable" in (shown.stdout + shown.stderr).lower()
    run = json.loads(daemon.sfactl("info", done.stdout.strip(), "--json").stdout)
    assert run["usage"]["cost_usd"] is None
    cost = next(each for each in run["limits"] if each["kind"] == "cost")
    assert (cost["used"], cost["enforced_by"]) == (None, "nothing")
    assert daemon.sfactl("stop", done.stdout.strip()).returncode == 0


def test_a_fork_bomb_is_stopped_and_named(share: Start, containment: str) -> None:
    daemon = share(mode=containment)
    # it gives up by itself at 600, so that a bug here does not take the machine with it
    bomb = (
        "import os, time\nfor _ in range(600):\n    if os.fork() == 0:\n "
        "       break\ntime.sleep(60)"
    )
    with daemon.client() as client:
        neighbour = started(client, ["sleep", "60"])
        run, _ = watched(client, [sys.executable, "-c", bomb], limit("pids", 100), meter=None)
        over, events = until_over(client, run.id)
        assert over.reason is not None
        assert (over.status, over.reason.limit_kind) == (Status.FAILED, "pids")
        assert (over.reason.used or 0) > 100
        assert [event.type for event in events].count("limit_exceeded") == 1
        assert next(event for event in events if event.type == "limit_exceeded").scope == "tree"
        assert info(client, neighbour.id).status is Status.RUNNING
        stopped(client, neighbour.id)


def test_a_memory_hog_is_stopped_and_named(share: Start, containment: str) -> None:
    daemon = share(mode=containment)
    hog = (
        "import time\nheld = []\nfor _ in range(60):\n    held.append(b'x' * (10 << 20))\n "
        "   time.sleep(0.02)\ntime.sleep(60)"
    )
    with daemon.client() as client:
        neighbour = started(client, ["sleep", "60"])
        run, _ = watched(
            client, [sys.executable, "-c", hog], limit("memory", 200 << 20), meter=None
        )
        over, _ = until_over(client, run.id)
        assert over.reason is not None
        assert (over.status, over.reason.limit_kind) == (Status.FAILED, "memory")
        assert (over.reason.used or 0) > 200 << 20
        assert (over.reason.exceeded_by or 0) > 0  # what watching lets through is told
        assert state(over, "memory")[2] in ("watching", "kernel")
        assert info(client, neighbour.id).status is Status.RUNNING
        stopped(client, neighbour.id)


def test_output_is_bounded_and_the_newest_is_kept(daemon: Daemon) -> None:
    # 24 MB
    talk = "import sys\nfor number in range(400000):\n    sys.stdout.write(f'{number:059}\\n')"
    with daemon.client() as client:
        run = ended(
            client,
            started(client, [sys.executable, "-c", talk], limits=[limit("output", 1 << 20)]).id,
        )
        assert run.status is Status.COMPLETED
        path = daemon.state_dir / "output" / f"{run.id}.out"
        wait_until(lambda: path.stat().st_blocks * 512 <= 2 << 20, "the oldest bytes are freed")
    kept = daemon.sfactl("logs", run.id).stdout
    assert "\0" not in kept
    assert kept.endswith(f"{399999:059}\n")
    assert (1 << 20) - 8192 <= len(kept) <= 2 << 20


def test_an_agent_that_does_not_exit_after_its_result_is_stopped_and_has_completed(
    start: Start,
) -> None:
    daemon = start(config='[stop]\nresult_wait = "500ms"')
    lingers = ["sh", "-c", 'echo \'{"type": "result", "message": "done"}\'; exec sleep 60']
    with daemon.client() as client:
        run = ended(client, started(client, lingers, meter="jsonl").id)
    assert run.status is Status.COMPLETED
    assert run.reason is not None
    assert (run.reason.kind, "0.5 s" in run.reason.message) == ("result", True)


def test_a_child_cannot_outlive_its_parent_nor_widen_a_limit(
    tmp_path: Path, daemon: Daemon
) -> None:
    script = """
options = ["--timeout", "1h", "--limit", "turns=90", "--limit", "cost=50"]
child = sfactl("spawn", *options, "--", "sleep", "3000").stdout.strip()
print(child, flush=True)
time.sleep(3000)
"""
    with daemon.client() as client:
        run = started(
            client,
            agent(tmp_path, "parent", script),
            limits=[limit("time", 3), limit("turns", 20), limit("cost", 2)],
        )
        child = wait_until(lambda: daemon.sfactl("logs", run.id).stdout.strip(), "the child")
        below = info(client, child)
        shown = {each.kind.value: (each.threshold, each.source) for each in below.limits}
        whose = f"run {run.id}"
        assert (
            shown.items()
            >= {"turns": (20, f"{whose} (--limit turns)"), "cost": (50, "--limit cost")}.items()
        )
        assert below.deadline is not None
        assert run.deadline is not None
        assert abs((below.deadline - run.deadline).total_seconds()) < 1
        assert ended(client, run.id).status is Status.TIMEOUT
        over = ended(client, child)
        assert over.reason is not None
        assert (over.status, over.reason.kind) == (Status.CANCELLED, "ancestor")


def test_a_time_limit_that_only_warns_still_ends_at_max_time(start: Start) -> None:
    daemon = start(config='[limits]\nmax_time = "2s"\n[defaults]\ntimeout = "2s"')
    with daemon.client() as client:
        run, _ = watched(client, ["sleep", "60"], limit("time", 1, "warn"), meter=None)
        over, events = until_over(client, run.id)
    assert over.reason is not None
    assert (over.status, over.reason.limit_kind) == (Status.TIMEOUT, "time")
    assert "limits.max_time" in over.reason.message
    assert [event.type for event in events if event.type.startswith("limit_")][:2] == [
        "limit_nearing",
        "limit_exceeded",
    ]


def test_a_tool_that_is_blocked_ends_the_run(daemon: Daemon) -> None:
    with daemon.client() as client:
        run = ended(client, started(client, turns(100), meter="jsonl", blocked_tools=["Bash"]).id)
        assert run.reason is not None
        assert (run.status, run.reason.limit_kind) == (Status.FAILED, "tool")
        fine = ended(client, started(client, turns(2), meter="jsonl", blocked_tools=["Write"]).id)
        assert fine.status is Status.COMPLETED


def test_limits_are_checked_by_the_daemon_too(daemon: Daemon) -> None:
    with daemon.client() as client:
        for bad in (
            limit("turns", float("nan")),
            limit("turns", 2.5),
            limit("cost", float("inf")),
            limit("time", -1),
        ):
            reply = spawn(client, ["true"], limits=[bad])
            assert isinstance(reply, m.Error), reply
            assert reply.code is ErrorCode.BAD_REQUEST
