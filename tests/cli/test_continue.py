"""`sfactl continue`: the session of an ended agent goes on in a new run."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from tests.harness import PYTHON, alive, started, wait_until
from tests.tiers import first, sampled, variant

from .conftest import SFACTL, World

CONFIG = """
[gateway]
enabled = false
[service]
continue_lost = {lost}
[agents.bot]
command = ["{bot}", "--new", "{{session}}", "{{options}}", "--", "{{task}}"]
resume = ["{bot}", "--old", "{{session}}", "{{options}}", "--", "{{task}}"]
[sessions]
default_agent = "claude"
"""
COST = 0.00315
"""USD of each run of the stand-in."""
MakeDesk = Callable[..., World]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[MakeDesk]:
    """Serves a daemon whose users have a stand-in for Claude Code on their PATH:
    `place(lost=True)`."""
    worlds: list[World] = []

    def make(*, lost: bool = False) -> World:
        bin_, home = tmp_path / "bin", tmp_path / "home"
        bin_.mkdir()
        home.mkdir()
        program(bin_ / "claude", f'exec {PYTHON} "{Path(__file__).parent}/fake_claude.py" "$@"')
        program(
            bin_ / "bot",
            'printf "%s\\n" "$@"; case $*/$1 in *hang/--new) exec sleep 1000;; esac; exit 4',
        )
        world = World(tmp_path, CONFIG.format(lost=str(lost).lower(), bot=bin_ / "bot"))
        world.env |= {"HOME": str(home), "PATH": f"{bin_}{os.pathsep}{world.env['PATH']}"}
        world.begin()
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        world.stop_all()
        world.end()


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


SKIPS = "--dangerously-skip-permissions"


@first(1)
@pytest.mark.parametrize("told", [SKIPS, ""])
def test_a_text_of_the_run_becomes_no_option(place: MakeDesk, tmp_path: Path, told: str) -> None:
    """opencode prints its session's id, and keeps it in a database. A run can write to both."""
    world, data = place(), tmp_path / "home" / ".local" / "share" / "opencode"
    data.mkdir(parents=True)
    with closing(sqlite3.connect(data / "opencode.db")) as database, database:
        database.execute("CREATE TABLE session (id, directory, time_created, parent_id)")
    program(
        tmp_path / "bin" / "opencode",
        f"""{PYTHON} -c 'import os, sqlite3, sys, time
with sqlite3.connect("{data}/opencode.db") as database:
    values = ("{SKIPS}", os.path.realpath(os.getcwd()), time.time() * 1000, None)
    database.execute("INSERT INTO session VALUES (?, ?, ?, ?)", values)'
echo "$@" >> {tmp_path}/started
echo '{{"type":"step_start","sessionID":"{told}","part":{{"id":"p","type":"step-start"}}}}'
exit 1""",  # noqa: S608 - the values are of this test
    )
    run = ended(world, "opencode", "do it")
    assert (run["session_id"], run["status"]) == (None, "failed")
    assert "cannot be continued" in world.sfactl("continue", run["id"], code=1).stderr
    assert "skip" not in (tmp_path / "started").read_text()


def ended(world: World, *words: str) -> dict[str, Any]:
    """Start a run in the background; return it when it has ended."""
    return waited(world, world.spawn(*words))


def waited(world: World, run: str) -> dict[str, Any]:
    world.sfactl("wait", run, code=None)
    found: dict[str, Any] = world.json("info", run)
    return found


def hanging(world: World, *words: str) -> str:
    """Start an agent that has said something and does not end. Return its run."""
    run = world.spawn(*words, "claude", "hang")
    wait_until(lambda: world.json("info", run)["usage"]["messages"], "it has said something")
    wait_until(lambda: [*sessions(world)], "its session is saved")
    return run


def sessions(world: World) -> Iterator[Path]:
    return Path(world.env["HOME"]).rglob("*.jsonl")


def test_the_agent_goes_on_in_a_new_run_with_all_that_the_old_one_had(
    place: MakeDesk, tmp_path: Path
) -> None:
    world = place()
    words = (
        "--name",
        "writer",
        "--label",
        "team=blue",
        "--limit",
        "turns=7",
        "--cwd",
        str(tmp_path),
    )
    first = ended(world, *words, "claude", "--model", "opus", "please fail")
    assert (first["status"], first["continued_by"]) == ("failed", None)
    assert (
        world.sfactl("why", first["id"]).stdout.splitlines()[-1]
        == f"continue it: sfactl continue {first['id']}"
    )
    second = waited(world, world.sfactl("continue", first["id"]).stdout.strip())
    first = world.json("info", first["id"])
    assert (first["continued_by"], second["continues"]) == (second["id"], first["id"])
    assert (second["status"], second["session_id"]) == ("completed", first["session_id"])
    assert [second[key] for key in ("name", "labels", "cwd")] == [
        first[key] for key in ("name", "labels", "cwd")
    ]
    assert [(limit["kind"], limit["threshold"]) for limit in second["limits"]] == [
        (limit["kind"], limit["threshold"]) for limit in first["limits"]
    ]
    assert second["argv"][-5:-2] == ["opus", "--resume", first["session_id"]]
    assert second["argv"][-1].startswith("You ended by yourself: exited with code 3.")
    assert second["line"] == {
        "runs": [first["id"], second["id"]], "total_cost_usd": pytest.approx(2 * COST),
        "total_tokens": 2020, "partial": True, "at_most": False,
    }  # fmt: skip
    line = f"{first['id']} → {second['id']}"
    assert f"({line}; ≥0.0063 USD in all)" in world.sfactl("tree").stdout
    assert f"line: {line}; " in world.sfactl("why", second["id"]).stdout
    assert f"  {line}  writer  completed, ≥0.0063 USD in all" in world.sfactl("summary").stdout
    (summary,) = world.json("summary")["lines"]
    assert (summary["runs"], summary["status"]) == ([first["id"], second["id"]], "completed")


def test_in_the_foreground_with_a_task_of_its_own(place: MakeDesk) -> None:
    world = place()
    first = ended(world, "claude", "fail")
    done = world.sfactl("continue", first["id"], "do the rest", "--wait")
    assert done.stdout == "heard: do the rest\n"
    failed = world.sfactl("run", "claude", "fail", code=3)
    assert failed.stderr.splitlines()[-1] == "[agent:claude] continue it: sfactl continue a3"


def test_a_command_line_of_the_program_itself(place: MakeDesk) -> None:
    world = place()
    first = ended(
        world,
        "--",
        "claude",
        "-p",
        "--output-format",
        "stream-json",
        "--verbose",
        "--session-id",
        "0a1b2c3d",
        "fail",
    )
    second = waited(world, world.sfactl("continue", first["id"], "more").stdout.strip())
    expected = [
        "claude",
        "-p",
        "--output-format",
        "stream-json",
        "--verbose",
        "--resume",
        "0a1b2c3d",
        "--",
        "more",
    ]
    assert (second["status"], second["argv"]) == ("completed", expected)


def test_a_run_is_continued_once(place: MakeDesk) -> None:
    world = place()
    first = ended(world, "claude", "fail")["id"]
    both = [world.popen("continue", first) for _ in range(2)]
    said = [client.communicate()[0].decode().strip() for client in both]
    assert sorted(client.returncode for client in both) == [0, 1]
    new = next(filter(None, said))
    refused = world.sfactl("continue", first, code=1)
    assert refused.stderr == (
        f"sfactl: run {first} was continued by {new} already; to continue that one: "
        f"sfactl continue {new}\n"
    )
    assert len(world.json("list")["runs"]) == 2
    waited(world, new)
    third = waited(world, world.sfactl("continue", new).stdout.strip())
    assert (third["continues"], third["line"]["runs"]) == (new, [first, new, third["id"]])


@variant
def test_a_run_is_continued_from_a_directory_that_was_removed(
    place: MakeDesk, tmp_path: Path
) -> None:
    world = place()
    first = ended(world, "claude", "fail")["id"]
    removed = tmp_path / "removed"
    removed.mkdir()
    script = f'cd {removed} && rmdir {removed} && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *SFACTL, "continue", first],
        env=world.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert waited(world, done.stdout.strip())["continues"] == first


@variant
def test_a_request_whose_reply_was_lost_may_be_repeated(place: MakeDesk) -> None:
    world = place()
    first = ended(world, "claude", "please fail")["id"]
    env = [f"{key}={value}".encode() for key, value in world.env.items()]
    options = {"cwd": b"/", "env": env, "key": "once", "continues": m.Continuation(run=first)}
    with Client(Path(world.env["SFAD_SOCKET"])) as client:
        run = started(client, [], **options)
        assert started(client, [], **options).id == run.id
    waited(world, run.id)


def test_the_rows_remember_who_continues_whom(place: MakeDesk) -> None:
    world = place()
    first = ended(world, "claude", "fail")["id"]
    world.json("list")  # its row is encoded now
    second = waited(world, world.sfactl("continue", first).stdout.strip())["id"]
    for _ in range(2):
        rows = {row["id"]: row for row in world.json("list")["runs"]}
        assert (rows[first]["continued_by"], rows[second]["continues"]) == (second, first)
        world.end()
        world.begin()
    world.sfactl("continue", first, code=1)
    assert world.json("info", second)["line"]["runs"] == [first, second]


@first(1)
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.unlink(), "its session file is not there"),
        (lambda path: path.write_text(path.read_text()[:-10]), "the last line is incomplete"),
        (lambda path: path.write_text(""), "is cut"),
        (
            lambda path: path.write_text(path.read_text().replace('"cwd": "/', '"cwd": "/srv/')),
            "is of /srv/",
        ),
    ],
)
def test_what_cannot_be_continued_is_refused_with_the_reason_and_nothing_starts(
    place: MakeDesk, spoil: Callable[[Path], object], why: str
) -> None:
    world = place()
    first = ended(world, "claude", "fail")["id"]
    (path,) = sessions(world)
    spoil(path)
    refused = world.sfactl("continue", first, code=1)
    assert refused.stderr.startswith(f"sfactl: run {first} cannot be continued: ")
    assert why in refused.stderr
    assert f"sfactl rerun {first}" in refused.stderr
    assert len(world.json("list")["runs"]) == 1
    assert world.json("info", first)["continued_by"] is None


def test_other_runs_that_cannot_be_continued(place: MakeDesk) -> None:
    world = place()
    script = ended(world, "--", "sh", "-c", "exit 3")["id"]
    assert (
        "is no agent program whose sessions sfad knows"
        in world.sfactl("continue", script, code=1).stderr
    )
    live = hanging(world)
    assert f"run {live} has not ended" in world.sfactl("continue", live, code=1).stderr
    assert "no run has the id" in world.sfactl("continue", "nobody", code=66).stderr
    refused = world.sfactl("spawn", "--timeout", "2h", "claude", "x", code=2)
    assert refused.stdout == ""


def test_words_that_exclude_each_other(place: MakeDesk) -> None:
    world = place()
    for words in (
        (),
        ("a1", "--lost"),
        ("a1", "--since", "1h"),
        ("--lost", "--wait"),
        ("a1", "--resume"),
    ):
        world.sfactl("continue", *words, code=2)


def test_limits_count_anew_or_are_the_rest(place: MakeDesk) -> None:
    world = place()
    first = ended(world, "--limit", "cost=2", "--limit", "turns=9:warn", "claude", "fail")["id"]
    rest = waited(
        world,
        world.sfactl("continue", first, "--limit", "rest", "--limit", "turns=3").stdout.strip(),
    )
    limits = {limit["kind"]: limit for limit in rest["limits"]}
    assert limits["cost"]["threshold"] == pytest.approx(2 - COST)
    assert (limits["turns"]["threshold"], limits["cost"]["source"]) == (3, f"rest of {first}")
    assert limits["time"]["threshold"] < 1800
    again = waited(
        world,
        world.sfactl("continue", rest["id"], "--limit", "cost=1", "--timeout", "9m").stdout.strip(),
    )
    limits = {limit["kind"]: limit["threshold"] for limit in again["limits"]}
    assert (limits["cost"], limits["time"], limits["turns"]) == (1, 540, 3), (
        "turns as they were asked for"
    )


def test_too_little_is_left(place: MakeDesk) -> None:
    world = place()
    first = ended(world, "--limit", "tokens=1010:warn", "claude", "fail")["id"]
    refused = world.sfactl("continue", first, "--limit", "rest", code=2)
    assert "too little is left of the limit of tokens" in refused.stderr
    world.sfactl("continue", first, "--limit", "rest", "--limit", "tokens=5000")


def test_a_stopped_agent_and_one_that_was_killed(place: MakeDesk) -> None:
    world = place()
    for end in ("stop", "kill"):
        run = hanging(world)
        if end == "stop":
            world.sfactl("stop", run)
        else:
            os.kill(world.json("info", run)["pid"], signal.SIGKILL)
        waited(world, run)
        assert waited(world, world.sfactl("continue", run).stdout.strip())["status"] == "completed"


@pytest.mark.parametrize("lost", sampled([True, False]))
def test_everything_is_killed(place: MakeDesk, lost: bool) -> None:
    """`lost`: the next daemon continues what is lost by itself."""
    world = place(lost=lost)
    runs = [hanging(world), hanging(world, "--name", "other")]
    pids = [world.json("info", run)["pid"] for run in runs]
    kept = world.state / "spool" / "continued_with"
    assert len(list(kept.iterdir())) == (2 if lost else 0)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in kept.iterdir())
    world.kill()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, pids)), "they are gone")
    world.begin()
    if not lost:
        started = world.sfactl("continue", "--lost").stdout.split()
        assert len(started) == 2
        assert "no run was lost" in world.sfactl("continue", "--lost").stderr
    wait_until(
        lambda: all(world.json("info", run)["continued_by"] for run in runs), "they are continued"
    )
    news = [world.json("info", run)["continued_by"] for run in runs]
    assert [waited(world, new)["status"] for new in news] == ["completed", "completed"]
    assert [world.status(run) for run in runs] == ["lost", "lost"]
    wait_until(lambda: not list(kept.iterdir()), "no environment is kept of what has ended")


@variant
def test_what_a_stop_of_the_daemon_has_ended_goes_on(place: MakeDesk) -> None:
    world = place(lost=True)
    run = hanging(world)
    gone = hanging(world, "--name", "other")
    world.end()
    for path in sessions(world):
        if world_session(path) not in path.name:
            path.unlink()
    world.begin()
    new = wait_until(lambda: world.json("info", run)["continued_by"], "it is continued")
    assert waited(world, new)["status"] == "completed"
    assert world.status(run) == "cancelled"
    assert world.json("info", gone)["continued_by"] is not None


def world_session(path: Path) -> str:
    first: dict[str, str] = json.loads(path.read_text().splitlines()[0])
    return first["sessionId"]


def test_a_child_stays_a_child_while_its_parent_lives(place: MakeDesk) -> None:
    world = place()
    parent = world.spawn("--name", "boss", "--", "sh", "-c", "$SFACTL spawn claude fail; sleep 600")
    child = wait_until(
        lambda: [run for run in world.json("list")["runs"] if run["parent_id"] == parent],
        "the child",
    )[0]["id"]
    waited(world, child)
    second = waited(world, world.sfactl("continue", child).stdout.strip())
    assert (second["parent_id"], second["status"]) == (parent, "completed")
    world.sfactl("stop", parent)
    third = waited(world, world.sfactl("continue", second["id"]).stdout.strip())
    assert (third["parent_id"], third["status"]) == (None, "completed")


def test_attempts_that_resume(place: MakeDesk) -> None:
    world = place()
    run = ended(world, "--attempts", "3", "--resume", "--retry-delay", "100ms", "claude", "fail")
    assert (run["status"], run["attempts"], run["continues"]) == ("completed", 2, None)
    assert run["usage"]["cost_usd"] == pytest.approx(2 * COST), "use adds up"
    assert len([*sessions(world)]) == 1
    assert "heard: You were interrupted." in world.sfactl("logs", run["id"]).stdout
    world.sfactl("run", "--resume", "claude", "x", code=2)


@variant
def test_an_attempt_that_is_lost_resumes(place: MakeDesk) -> None:
    world = place()
    run = hanging(world, "--attempts", "2", "--resume", "--retry-delay", "100ms")
    wait_until(lambda: world.json("info", run)["session_id"], "its session is known")
    pid = world.json("info", run)["pid"]
    world.kill()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), "it is gone")
    world.begin()
    found = waited(world, run)
    assert (found["status"], found["attempts"]) == ("completed", 2), (
        found["reason"],
        world.sfactl("logs", run).stdout,
    )


def test_an_agent_with_a_command_of_its_own(place: MakeDesk) -> None:
    world = place()
    first = ended(world, "bot", "--fast", "work")
    session = first["session_id"]
    assert first["argv"][1:] == ["--new", session, "--fast", "--", "work"]
    second = waited(world, world.sfactl("continue", first["id"], "more").stdout.strip())
    assert second["argv"][1:] == ["--old", session, "--fast", "--", "more"]
    third = waited(world, world.sfactl("continue", second["id"], "--", "--evil").stdout.strip())
    assert third["argv"][-2:] == ["--", "--evil"]


@first(1)
@pytest.mark.parametrize("limits", [("--resume",), ("--limit", "silence=1s:continue")])
def test_further_attempts_of_such_an_agent_continue_its_session(
    place: MakeDesk, limits: tuple[str, ...]
) -> None:
    world = place()
    task = "work" if limits == ("--resume",) else "hang"
    run = ended(world, "--attempts", "2", "--retry-delay", "100ms", *limits, "bot", task)
    told = world.sfactl("logs", run["id"]).stdout.split()
    assert (run["attempts"], told) == (
        2,
        ["--new", run["session_id"], "--", task, "--old", run["session_id"], "--", *told[7:]],
    )
    assert told[7:], "it is told why it goes on"


def test_a_session_goes_on_when_it_is_sent_a_message(place: MakeDesk) -> None:
    world = place()
    done = json.loads(world.sfactl("session", "delegate", "--json", "fail", code=None).stdout)
    assert "is a session" in world.sfactl("continue", done["run_id"], code=1).stderr
    new = world.sfactl("session", "send", done["run_id"], "and", "now").stdout.strip()
    found = waited(world, new)
    assert (found["status"], found["session"], found["continues"]) == (
        "completed",
        True,
        done["run_id"],
    )
    assert found["argv"][-1] == "and now"
    assert (
        "was continued by"
        in world.sfactl("session", "send", done["run_id"], "again", code=1).stderr
    )


@pytest.mark.needs("git")
def test_a_lost_agent_goes_on_in_its_worktree(place: MakeDesk, tmp_path: Path) -> None:
    world = place(lost=True)
    repository = tmp_path / "repository"
    identity = ("-c", "user.name=ann", "-c", "user.email=ann@example.org")
    subprocess.run(["git", "init", "-q", repository], check=True)
    subprocess.run(
        ["git", "-C", repository, *identity, "commit", "-q", "--allow-empty", "-m", "begin"],
        check=True,
    )
    run = hanging(world, "--worktree", "--cwd", str(repository))
    before = world.json("info", run)
    Path(before["worktree"], "begun").write_text("work\n")
    world.kill()
    os.kill(before["pid"], signal.SIGKILL)
    wait_until(lambda: not alive(before["pid"]), "it is gone")
    world.begin()
    new = wait_until(lambda: world.json("info", run)["continued_by"], "it is continued")
    after = waited(world, new)
    assert (after["status"], after["worktree"], after["branch"]) == (
        "completed",
        before["worktree"],
        before["branch"],
    )
    assert Path(before["worktree"], "begun").read_text() == "work\n"


@pytest.mark.needs("git")
def test_a_run_whose_worktree_is_gone_is_continued_only_if_that_is_known(
    place: MakeDesk, tmp_path: Path
) -> None:
    world = place()
    repository = tmp_path / "repository"
    identity = ("-c", "user.name=ann", "-c", "user.email=ann@example.org")
    subprocess.run(["git", "init", "-q", repository], check=True)
    subprocess.run(
        ["git", "-C", repository, *identity, "commit", "-q", "--allow-empty", "-m", "begin"],
        check=True,
    )
    run = ended(world, "--worktree", "--cwd", str(repository), "claude", "please fail")
    Path(run["worktree"], "begun").write_text("work\n")
    told = json.loads(world.sfactl("prune", "--worktrees", "--json").stdout)
    assert not Path(run["worktree"]).exists()
    said = world.sfactl("continue", run["id"], code=1).stderr
    ref = told["worktrees_saved"][0]["ref"]
    gone = f"the worktree of run {run['id']} is gone"
    assert f"{gone}, and what was not committed there is kept as {ref}" in said
    assert (ref in said, f"sfactl continue {run['id']} --fresh" in said) == (True, True)
    assert not Path(run["worktree"]).exists()
    done = world.sfactl("continue", run["id"], "--fresh")
    assert f"the worktree of {run['id']} is gone: the new run makes it" in done.stderr
    second = waited(world, done.stdout.strip())
    assert second["worktree"] == run["worktree"]
    assert second["argv"][-1].startswith(f"The worktree of run {run['id']} is gone, and what was")
    assert "You ended by yourself" in second["argv"][-1]
    assert Path(run["worktree"], "begun").read_text() == "work\n", "what was kept is there again"
    assert "is made again on its branch" in world.sfactl("logs", "--stderr", second["id"]).stdout


def test_an_agent_that_has_completed_is_not_told_that_it_was_interrupted(place: MakeDesk) -> None:
    world = place()
    run = ended(world, "claude", "please")
    second = waited(world, world.sfactl("continue", run["id"]).stdout.strip())
    assert run["status"] == "completed"
    assert second["argv"][-1].startswith("You ended by yourself")
    assert "interrupted" not in second["argv"][-1]
