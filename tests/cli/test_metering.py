"""Limits, use and approvals from the command line, against a daemon."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import msgspec
import pytest

from sfactl.__main__ import execute
from tests.docs.pages import DOCS
from tests.harness import wait_until

from .conftest import PATIENCE, World

Start = Callable[..., subprocess.Popen[bytes]]

TOKENS = ("--model", "some-model", "--input-tokens", "100", "--max-output-tokens", "100")


def script(*lines: str) -> tuple[str, ...]:
    """Return a command that runs lines of shell."""
    return ("--", "sh", "-c", "\n".join(lines))


def paused(daemon: World, *words: str) -> str:
    """Start a run that a limit of one turn has paused."""
    run = daemon.spawn(*words, *script("$SFACTL report --turns 2", "sleep 60"))
    wait_until(lambda: daemon.status(run) == "paused", "the breach")
    return run


@pytest.mark.alone
def test_a_breach_is_told_once_and_is_exit_4(daemon: World) -> None:
    said = daemon.sfactl(
        "run",
        "--name",
        "w",
        "--no-gateway",
        "--limit",
        "turns=5",
        *script("for n in 4 1 1 1; do $SFACTL report --turns $n; done; sleep 60"),
        code=4,
    ).stderr.splitlines()
    assert said[0] == (
        "[agent:w] starting: 2m (default; change with --timeout, --limit); "
        "not enforceable: turns, cost"
    )
    assert said[1].startswith("sfactl: a1: NOT ENFORCEABLE: turns 5.")
    assert said[2:4] == [
        "[agent:w] limit turns: used 4 of 5, 80 %",
        "[agent:w] limit turns: used 6 of 5, terminating",
    ]
    assert said[4].startswith(
        "[agent:w] failed: used 6 turns; its turns limit is 5, set by --limit turns"
    )
    assert len(said) == 5
    assert "(1 over)" in daemon.sfactl("why", "a1").stdout
    reason = daemon.json("info", "a1")["reason"]
    assert (reason["limit_kind"], reason["used"], reason["exceeded_by"]) == ("turns", 6, 1)


@pytest.mark.alone
def test_a_limit_that_nobody_can_keep_is_said_so_at_the_start(daemon: World) -> None:
    done = daemon.sfactl(
        "spawn",
        "--no-gateway",
        "--limit",
        "cost=2:warn",
        "--limits",
        '{"max_turns": 9}',
        "--",
        "sleep",
        "60",
    )
    assert done.stdout == "a1\n"
    assert "NOT ENFORCEABLE: turns 9, cost 2.00 USD" in done.stderr
    assert "NOT ENFORCEABLE" in daemon.sfactl("info", "a1").stderr
    assert (
        daemon.sfactl("spawn", "--limit", "turns=9", "--meter", "jsonl", "--", "sleep", "60").stderr
        == ""
    )
    assert (
        daemon.sfactl(
            "spawn", "--limit", "turns=9", "--meter", "report", "--", "sleep", "60"
        ).stderr
        == ""
    )
    assert daemon.sfactl("spawn", "--timeout", "9", "--", "sleep", "60").stderr == "", (
        "its other limits were not asked for"
    )
    assert daemon.sfactl("spawn", "-q", "--limit", "cost=2", "--", "sleep", "60").stderr == ""


def test_what_is_metered_and_reported_is_shown_with_its_source(daemon: World) -> None:
    event = '{"type": "turn", "tool": "Bash"}'
    lines = (f"echo '{event}'", "$SFACTL report --turns 3 --cost 0.5", "sleep 60")
    run = daemon.spawn("--meter", "jsonl", *script(*lines))
    wait_until(lambda: len(daemon.json("info", run)["usage_by_source"]) == 2, "both sources")
    shown = daemon.sfactl("info", run).stdout
    assert "cost 0.50 USD (from the agent) [report, shown elsewhere]" in shown
    assert "1 turn [stream]" in shown
    assert "meter        jsonl" in shown
    assert "TURNS" in daemon.sfactl("list").stdout
    assert "3 turns  0.50 USD" in daemon.sfactl("tree").stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "--limit", "turns=5", "--limit", "turn=6", "--", "true"), "given twice"),
        (("run", "--meter", "claude", "--no-log", "--", "true"), "exclude each other"),
        (("report", "a1"), "nothing to report"),
        (("report", "--turns", "many"), "--turns: 'many'"),
        (("report", "--turns", "1", "--role", "both"), "--role: unknown role 'both'"),
        (("report", "--cost", "free"), "--cost: 'free'"),
        (("reserve", "--model", "m", "--input-tokens", "1"), "--max-output-tokens is missing"),
        (("settle", "a1-1", "--input-tokens", "1"), "--output-tokens is missing"),
        (("config", "skema"), "'skema'"),
    ],
)
def test_usage_errors_need_no_daemon(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(list(words)) == 2
    assert says in capsys.readouterr().err


def test_what_the_daemon_does_not_take(daemon: World) -> None:
    assert (
        "(--limit turns) is outside its range"
        in daemon.sfactl("run", "--limit", "turns=101", "--", "true", code=2).stderr
    )
    for words in (("report", "--turns", "1"), ("reserve", *TOKENS)):
        assert "in no run" in daemon.sfactl(*words, code=2).stderr
    assert "zz9" in daemon.sfactl("report", "zz9", "--turns", "1", code=66).stderr
    assert (
        "'zz9-1'"
        in daemon.sfactl(
            "settle", "zz9-1", "--input-tokens", "1", "--output-tokens", "1", code=1
        ).stderr
    )


@pytest.mark.alone
def test_a_reservation_is_asked_for_held_and_settled(daemon: World) -> None:
    reserve = " ".join(("$SFACTL reserve", *TOKENS))
    done = daemon.sfactl(
        "run", "-q", "--limit", "tokens=1000:pause", *script(
            f"held=$({reserve})", "echo $held", "$SFACTL info --json $SFA_RUN_ID",
            "$SFACTL settle $held --input-tokens 90 --output-tokens 5 --turns 1",
            "$SFACTL info --json $SFA_RUN_ID",
            "$SFACTL settle $held --input-tokens 1 --output-tokens 1; echo $?", f"{reserve} --json",
        ),
    )  # fmt: skip
    name, held, settled, again, other = done.stdout.splitlines()
    assert name.startswith("a1-")
    assert "'a1-" in done.stderr
    assert (again, msgspec.json.decode(other)["reserved"]["run"]) == ("1", "a1")
    assert [used(text, "tokens") for text in (held, settled)] == [(0, 200), (95, None)]
    assert daemon.json("info", "a1")["usage"]["tokens"] == 295, (
        "what was never settled is charged in full"
    )


def used(run: str, kind: str) -> tuple[float, float | None]:
    """Return what a run, as JSON, has used of a limit, and what is reserved of it."""
    (found,) = [limit for limit in msgspec.json.decode(run)["limits"] if limit["kind"] == kind]
    return found["used"], found["reserved"]


def test_a_refused_reservation_is_exit_1_in_words_or_as_json(daemon: World) -> None:
    run = daemon.spawn("-q", "--limit", "tokens=100", "--", "sleep", "60")
    done = daemon.sfactl("reserve", run, *TOKENS, code=1)
    assert (done.stdout, done.stderr.partition(":")[0]) == ("", "sfactl")
    assert "not reserved: 200 tokens more" in done.stderr
    daemon.sfactl("wait", run, code=4)
    assert "asked for 200 tokens on top of 0 that it has used" in (
        why := daemon.sfactl("why", run).stdout
    )
    assert "(that would have been 100 over; what its descendants used counts too)" in why
    other = daemon.spawn("-q", "--limit", "tokens=100", "--", "sleep", "60")
    refused = daemon.json("reserve", other, *TOKENS, code=1)["refused"]
    assert (refused["limit_kind"], refused["whose"], refused["asked"]) == ("tokens", other, 200)


def test_a_paused_run_goes_on_with_more_room_or_is_told_what_is_wrong(daemon: World) -> None:
    run = paused(daemon, "-q", "--limit", "turns=1:pause")
    why = daemon.sfactl("why", run).stdout
    assert "used 2 of 1, 1 over" in why or "(1 over)" in why
    assert f"sfactl resume {run} [--limit turns=N]" in why
    assert "turns = 101" in daemon.sfactl("resume", run, "--limit", "turns=101", code=2).stderr
    assert (
        "has used 2 turns already: the new limit must be above that"
        in daemon.sfactl("resume", run, "--limit", "turns=1", code=2).stderr
    )
    assert "does not wait for an approval" in daemon.sfactl("approve", run, code=1).stderr
    resumed = daemon.json("resume", run, "--limit", "turns=9")
    assert resumed["status"] == "running"
    assert [limit["threshold"] for limit in resumed["limits"] if limit["kind"] == "turns"] == [9]


def test_a_bound_on_money_that_nothing_would_keep_is_refused(daemon: World) -> None:
    done = daemon.sfactl("run", "--no-gateway", "--limit", "cost=2", "--", "true", code=1)
    assert (
        "nothing would enforce its cost limit of 2.00 USD (--limit cost): "
        "it does not use the gateway"
    ) in done.stderr
    assert "Start it with --gateway; or name its --meter" in done.stderr
    for words in (("--meter", "report"), ("--meter", "jsonl")):
        daemon.sfactl("run", "-q", "--no-gateway", *words, "--limit", "cost=2", "--", "true")
    assert daemon.json("list", "--status", "rejected_unenforceable")["runs"][0]["exit_code"] is None


def test_an_increase_is_approved_or_denied_from_outside(daemon: World) -> None:
    lines = (
        "$SFACTL report --turns 2",
        "sleep 0.1",
        "$SFACTL approve $SFA_RUN_ID; echo $?",
        "sleep 60",
    )
    run = daemon.spawn("-q", "--limit", "turns=1:request_increase", *script(*lines))
    wait_until(lambda: daemon.status(run) == "paused", "the breach")
    assert (
        f"sfactl approve {run} [--limit turns=N], or sfactl deny {run}"
        in daemon.sfactl("why", run).stdout
    )
    assert daemon.sfactl("approve", run, "--limit", "turns=3").stderr == f"{run} is running\n"
    wait_until(lambda: "77" in daemon.sfactl("logs", "--stdout", run).stdout, "its own approval")
    other = paused(daemon, "-q", "--limit", "turns=1:request_increase")
    assert daemon.json("deny", other)["status"] in ("stopping", "failed")
    daemon.sfactl("wait", other, code=4)
    assert "denied by user" in daemon.sfactl("why", other).stdout


@pytest.mark.alone
def test_the_person_at_a_run_is_told_how_to_approve(start: Start, daemon: World) -> None:
    process = start(
        "run",
        "--name",
        "w",
        "--no-gateway",
        "--on-limit",
        "request_increase",
        "--limit",
        "turns=1",
        *script("$SFACTL report --turns 2", "read -r _ || true"),
    )
    assert process.stdin is not None
    assert process.stderr is not None
    said = [process.stderr.readline().decode() for _ in range(3)]
    assert said[1:] == [
        "sfactl: a1: NOT ENFORCEABLE: turns 1. " + said[1].partition("turns 1. ")[2],
        (
            "[agent:w] limit turns: used 2 of 1, waiting for approval: "
            "sfactl approve a1 [--limit turns=N], or sfactl deny a1\n"
        ),
    ]
    daemon.sfactl("approve", "a1")
    process.stdin.close()
    assert process.wait(PATIENCE) == 0


def test_the_schema_is_the_one_in_the_documentation(world: World) -> None:
    assert world.sfactl("config", "schema").stdout == (DOCS / "limits.schema.json").read_text()
