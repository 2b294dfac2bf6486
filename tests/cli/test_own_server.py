"""A program inside a run that asks a server of its own for something: the shim answers with child
runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.harness import wait_until
from tests.tiers import variant

from .conftest import World

PROGRAM = """#!{python} -S
import os, sys, time
if "-p" not in sys.argv:
    print("the program itself, with", os.environ.get("CLAUDE_CODE_DISABLE_AGENT_VIEW"))
    sys.exit(9)
task = sys.argv[-1]
print('{{"type": "assistant", "message": {{"id": "m", "content": '
      '[{{"type": "text", "text": "I begin: %s"}}], "usage": {{}}}}}}' % task, flush=True)
while task == "wait":
    time.sleep(1)
print('{{"type": "result", "result": "I did: %s", "is_error": false}}' % task)
"""


@pytest.fixture(scope="module")
def programs(shared: World) -> World:
    binaries = shared.directory / "bin"
    binaries.mkdir()
    for name in ("claude", "codex"):
        (binaries / name).write_text(PROGRAM.format(python=sys.executable))
        (binaries / name).chmod(0o755)
    sfactl = binaries / "sfactl"
    sfactl.write_text(f'#!/bin/sh\nexec {sys.executable} -m sfactl "$@"\n')
    sfactl.chmod(0o755)
    shared.env["PATH"] = f"{binaries}:/usr/local/bin:/usr/bin:/bin"
    return shared


@pytest.fixture(params=["--gateway", pytest.param("--no-gateway", marks=variant)])
def gateway(request: pytest.FixtureRequest, programs: World) -> Iterator[str]:
    """How runs start: with the gateway's shims of `claude` and `codex`, or with those that a person
    has installed."""
    if request.param == "--no-gateway":
        programs.sfactl("shim", "install", "claude", "codex")
    yield request.param
    if request.param == "--no-gateway":
        programs.sfactl("shim", "remove", "claude", "codex")


@pytest.fixture
def place(programs: World, daemon: World) -> World:  # noqa: ARG001 - it has them
    return daemon


def test_a_task_in_the_background_is_a_child_run_that_one_can_wait_for(
    place: World, gateway: str
) -> None:
    script = (
        "claude --bg --model x 'the task'; id=$(sfactl list --json --root $SFA_RUN_ID | "
        'grep -o \'"id":"[^"]*\' | tail -1 | cut -d\'"\' -f4); '
        "sfactl wait $id >/dev/null; claude agents --all; claude logs $id"
    )
    done = place.sfactl("run", "-q", "--name", "top", gateway, "--", "sh", "-c", script)
    first, *_, told, listed, begun, did = [line for line in done.stdout.splitlines() if line]
    child = first.removeprefix("backgrounded · ")
    assert f"  claude logs {child}            show recent output" in done.stdout
    assert told == f"{child} ends with this run, unless you wait for it: sfactl wait {child}"
    assert listed == f"{child}  done      the task"
    assert (begun, did) == ("I begin: the task", "I did: the task")
    info = place.json("info", child)
    assert (info["name"], info["depth"], info["status"]) == ("claude", 1, "completed")
    assert info["argv"][1:] == [
        "-p", "--output-format", "stream-json", "--verbose", "--model", "x", "--", "the task",
    ]  # fmt: skip


def test_what_is_in_the_background_can_be_listed_and_stopped_and_ends_with_the_run(
    place: World, gateway: str
) -> None:
    script = (
        "SFA_CHILD_NAME=a claude --bg wait; claude agents --json; claude --bg wait; "
        "claude stop $(claude agents | head -1 | cut -d' ' -f1); claude agents"
    )
    done = place.sfactl("run", "-q", gateway, "--", "sh", "-c", script)
    lines = done.stdout.splitlines()
    (first,) = msgspec.json.decode(next(line for line in lines if line.startswith("[")))
    assert (first["kind"], first["state"], first["name"]) == ("background", "working", "wait")
    assert f"stopped {first['id']}" in lines
    second = lines[-1].split()[0]
    assert lines[-1].split()[1] == "working"
    wait_until(lambda: place.status(second) == "cancelled", "it ends with the run above it")
    assert place.status(first["id"]) == "cancelled"
    assert [place.json("info", run)["name"] for run in (first["id"], second)] == ["a", "claude"]


def test_a_task_in_the_background_of_the_same_program_is_no_loop(
    place: World, gateway: str
) -> None:
    """A program whose own shell tool asks for the background."""
    own = place.directory / "bin" / "claude"
    text = own.read_text()
    asking = text.replace(
        "task = sys.argv[-1]\n",
        'task = sys.argv[-1]\nif task == "ask":\n    os.system("claude --bg below; sfactl wait")\n',
    )
    try:
        own.write_text(asking)
        done = place.sfactl("run", "-q", gateway, "--raw", "--", "claude", "-p", "ask")
    finally:
        own.write_text(text)
    assert "backgrounded · " in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("claude --bg", 'name the task: claude --bg "TASK"'),
        ("claude --tmux -w x hi", "claude --tmux hands work to a tmux server"),
        ("codex cloud exec hi", "codex cloud hands work to OpenAI's cloud"),
        ("claude stop", "name a session, as in: claude stop ID"),
    ],
)
def test_what_cannot_be_done_within_the_run_is_refused_with_a_sentence(
    place: World, gateway: str, command: str, words: str
) -> None:
    done = place.sfactl("run", "-q", gateway, "--", "sh", "-c", f"{command}; exit $?", code=2)
    assert words in done.stderr
    assert "the program itself" not in done.stdout


def test_the_command_of_a_run_hands_nothing_over(place: World) -> None:
    for command in (["--", "claude", "--bg", "hi"], ["claude", "--bg", "hi"]):
        done = place.sfactl("run", *command, code=2)
        assert "leave out --bg; or: sfactl spawn claude" in done.stderr
    done = place.sfactl("run", "--", "codex", "cloud", "exec", "hi", code=2)
    assert "start it outside of any run" in done.stderr


def test_without_a_shim_the_program_refuses_the_background_itself_unless_a_person_wants_it(
    place: World,
) -> None:
    words = ("run", "-q", "--no-gateway", "--", "sh", "-c", "claude --bg hi; true")
    assert place.sfactl(*words).stdout == "the program itself, with 1\n"
    done = place.sfactl(*words, CLAUDE_CODE_DISABLE_AGENT_VIEW="0")
    assert done.stdout == "the program itself, with 0\n"
    script = Path(place.directory, "bin", "codex")
    done = place.sfactl("run", "-q", "--no-gateway", "--", str(script), "hi", code=9)
    assert done.stdout.startswith("the program itself")
    codex = place.json("list", "--name", "codex")["runs"][-1]
    assert codex["argv"][1:] == ["-c", "check_for_update_on_startup=false", "hi"]
