"""`sfactl rerun`: a run is started again with what it was started with."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfactl.commands import rerun
from sfactl.options import spawn as spawn_options
from sfad.protocol.messages import Spawn
from sfad.protocol.types import (
    Action,
    Bound,
    Checks,
    Claim,
    Isolation,
    Limit,
    LimitKind,
    Placing,
    Ship,
)

from .command_lines import spawn_options_of
from .conftest import SFACTL, World

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
WORDS = st.lists(st.binary(max_size=6).map(lambda word: word.replace(b"\0", b"")), max_size=3)
NAMES = st.from_regex(r"[A-Za-z0-9._][A-Za-z0-9._-]{0,7}", fullmatch=True)
HOSTS = st.lists(NAMES, max_size=2)
PATHS = st.lists(NAMES.map(lambda name: os.fsencode(os.path.realpath(f"/{name}"))), max_size=2)
SECONDS = st.none() | st.floats(0, 60).map(lambda number: round(number, 3))
COUNTS = st.none() | st.builds(Bound, value=st.integers(1, 99), source=st.just("--max"))
LIMITS = st.lists(
    st.builds(
        Limit,
        kind=st.sampled_from([LimitKind.TIME, LimitKind.COST, LimitKind.TURNS]),
        threshold=st.integers(1, 10**6).map(float),
        action=st.none() | st.sampled_from([Action.PAUSE, Action.WARN]),
    ),
    max_size=3,
    unique_by=lambda limit: limit.kind,
)


PLACES = st.builds(
    Placing,
    node=st.none() | NAMES,
    labels=st.dictionaries(NAMES, NAMES, max_size=2),
    cpus=st.sampled_from([0.0, 0.5, 64.0]),
    gpus=st.sampled_from([0.0, 1.0]),
    memory=st.sampled_from([0, 1 << 30]),
    restart_elsewhere=st.booleans(),
)


SHIPS = st.sampled_from(
    [Ship(directory=b"/usr"), Ship(directory=b"/", within=b"usr"), Ship(directory=b"/etc")]
)
"""Directories that are there. A request is kept with more than the command line says, but that is
sent anew."""


@st.composite
def requests(draw: st.DrawFn) -> Spawn:
    """A request as a command line makes one."""
    isolation = draw(
        st.none()
        | st.builds(
            Isolation, network=st.booleans(), writable=PATHS, readable=PATHS, egress=HOSTS
        ).map(
            lambda found: (
                Isolation(network=True, writable=found.writable, readable=found.readable)
                if found.network
                else Isolation(
                    network=False,
                    writable=found.writable,
                    readable=found.readable,
                    egress=found.egress,
                )
            )
        )
    )
    agent = draw(st.none() | st.sampled_from(["claude", "codex"]))
    attempts = draw(st.integers(1, 9))
    placing = draw(st.none() | PLACES)
    return Spawn(
        id=0,
        argv=[*([] if agent is not None else [b"true"]), *draw(WORDS)],
        cwd=b"/usr",
        env=[],
        agent=agent,
        name=draw(st.none() | NAMES),
        kind=draw(st.sampled_from(["agent", "skill"])),
        run_type=draw(st.none() | NAMES),
        max_depth=draw(COUNTS),
        max_descendants=draw(COUNTS),
        limits=draw(LIMITS),
        on_limit=draw(st.none() | st.sampled_from([Action.WARN, Action.PAUSE])),
        meter=draw(st.sampled_from([None, "claude", "report", "none"])),
        attempts=attempts,
        resume=attempts > 1 and draw(st.booleans()),
        retry_delay=draw(SECONDS),
        grace=draw(SECONDS),
        leaf=draw(st.booleans()),
        queue=draw(st.booleans()),
        priority=draw(st.integers(-5, 5)),
        group=draw(st.none() | NAMES),
        gateway=draw(st.sampled_from([None, True])),
        stdin=draw(st.sampled_from(["null", "pipe"])),
        labels=draw(st.dictionaries(NAMES, TEXT, max_size=2)),
        channel=draw(st.none() | NAMES),
        allow=draw(st.lists(st.sampled_from(["info", "list"]), max_size=2)),
        deny=draw(st.lists(st.sampled_from(["stop", "wait"]), max_size=2)),
        allowed_tools=draw(st.lists(TEXT, max_size=2)),
        blocked_tools=draw(st.lists(TEXT, max_size=2)),
        allowed_models=draw(st.lists(NAMES, max_size=2)),
        on_end=draw(st.none() | TEXT),
        check=draw(
            st.none() | st.builds(Checks, commands=st.lists(TEXT, max_size=2), timeout=SECONDS)
        ),
        setup=draw(st.none() | TEXT),
        isolation=isolation,
        placing=placing,
        ship=draw(st.none() | SHIPS) if placing is not None else None,
    )


def understood(words: list[str]) -> Spawn:
    """Return the request that `sfactl spawn` would send."""
    return spawn_options.message(spawn_options_of(words), {})


def plain(request: Spawn) -> dict[str, Any]:
    """Return the fields that a rerun keeps, with limits and bounds without their sources."""
    found = {name: getattr(request, name) for name in request.__struct_fields__}
    for name in ("env", "umask", "key", "claim"):
        del found[name]
    found["limits"] = [(limit.kind, limit.threshold, limit.action) for limit in request.limits]
    for name in ("max_depth", "max_descendants"):
        found[name] = found[name] and found[name].value
    return found


@given(requests())
def test_the_words_ask_for_the_same(request: Spawn) -> None:
    line = rerun.line_of(request)
    assert plain(understood(line.words)) == plain(request)
    assert shlex.split("\n".join(line.lines()), comments=True) == line.words


def test_each_field_of_a_request_is_kept_or_left_out_on_purpose() -> None:
    left_out = {
        "id", "env", "umask", "placeholders", "agent_session", "tied", "detach", "after", "quiet",
        "shim", "stdio", "claim", "watch", "key", "descriptors", "automatic", "env_set",
        "continues", "grant", "copies", "admit", "below",
    }  # fmt: skip
    base = Spawn(id=0, argv=[b"x"], cwd=b"/", env=[])
    other = Spawn(
        id=0,
        argv=[b"x"],
        cwd=b"/",
        env=[],
        nested=True,
        log=False,
        gateway=False,
        claim=Claim(depth=2),
        quiet=True,
        tied=True,
    )
    changed = set(rerun.line_of(other).words) - set(rerun.line_of(base).words)
    assert changed == {"--nested", "--no-log", "--no-gateway"}
    drawn = {name for name in Spawn.__struct_fields__ if name not in left_out}
    assert drawn == {
        "argv", "cwd", "agent", "name", "kind", "run_type", "max_depth", "max_descendants",
        "limits", "on_limit", "meter", "attempts", "resume", "retry_delay", "grace", "leaf",
        "nested", "queue", "priority", "group", "log", "gateway", "stdin", "labels", "channel",
        "allow", "deny", "allowed_tools", "blocked_tools", "allowed_models", "on_end", "isolation",
        "worktree", "terminal", "placing", "ship", "check", "setup",
    }, "say in words_of, or here, what becomes of a new field"  # fmt: skip


def editor(tmp_path: Path, script: str) -> dict[str, Any]:
    """Return the environment with an editor that is this shell script; `$1` is the file."""
    file = tmp_path / "editor"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return {"EDITOR": str(file), "VISUAL": ""}


OPTIONS = (
    "--name", "worker", "--timeout", "77", "--limit", "turns=9:pause", "--attempts", "3",
    "--retry-delay", "0.5", "--label", "team=a b", "--priority", "4", "--on-limit", "warn",
    "--block-tool", "Bash(rm:*)", "--grace", "2", "--type", "qa", "--no-gateway",
)  # fmt: skip


def test_an_ended_run_is_started_again_with_all_it_had(shared: World, tmp_path: Path) -> None:
    where = tmp_path / "some where"
    where.mkdir()
    command = ["sh", "-c", f"pwd; echo $FRESH > '{tmp_path}/out'; exit 3", "it's"]
    first = shared.spawn(*OPTIONS, "--cwd", str(where), "--", *command)
    shared.sfactl("wait", first, code=None)
    done = shared.sfactl("rerun", first, FRESH="new")
    second = done.stdout.strip()
    assert "--env" not in done.stderr
    shared.sfactl("wait", second, code=None)
    assert (tmp_path / "out").read_text() == "new\n", "the environment is this client's"
    old, new = shared.json("info", first), shared.json("info", second)
    same = ("argv", "cwd", "name", "labels", "type", "exit_code", "attempts", "parent_id", "kind")
    assert {key: new[key] for key in same} == {key: old[key] for key in same}
    limits = [
        [(state["kind"], state["threshold"], state["action"]) for state in run["limits"]]
        for run in (old, new)
    ]
    assert limits[0] == limits[1]
    assert new["attempts"] == 3
    assert (
        shared.sfactl("rerun", second, "--dry-run").stdout
        == shared.sfactl("rerun", first, "--dry-run").stdout
    )


def test_dry_run_prints_a_command_line_that_works(shared: World) -> None:
    run = shared.spawn("--name", "dry", "--label", "x=it's", "--", "sh", "-c", "exit 4")
    line = shared.sfactl("rerun", run, "--dry-run").stdout
    label = """'x=it'"'"'s'"""
    assert line == (
        f"sfactl spawn --name dry --cwd {os.getcwd()} --label {label} -- sh -c 'exit 4'\n"
    )
    again = shared.spawn(*shlex.split(line)[2:])
    shared.sfactl("wait", again, code=None)
    assert shared.json("info", again)["exit_code"] == 4


def test_words_that_are_no_text_stay_as_they_are(shared: World) -> None:
    word = b"\xff'\n$x"
    script = 'printf %s "$0"'
    command: list[str | bytes] = [*SFACTL, "spawn", "--", "sh", "-c", script, word]
    run = subprocess.run(
        command, env=shared.env, capture_output=True, text=True, check=True
    ).stdout.strip()
    again = shared.sfactl("rerun", run).stdout.strip()
    shared.sfactl("wait", again)
    assert (shared.state / "output" / f"{again}.out").read_bytes() == word
    line = subprocess.run(
        [*SFACTL, "rerun", "--dry-run", run], env=shared.env, capture_output=True, check=True
    ).stdout
    assert shlex.split(os.fsdecode(line))[-1] == os.fsdecode(word)


def test_a_live_run_an_agent_and_several_at_once(shared: World) -> None:
    run = shared.spawn("--name", "alive", "--", "sleep", "1000")
    found = shared.json("rerun", run)
    assert (found["name"], found["argv"]) == ("alive", ["sleep", "1000"])
    done = shared.sfactl("rerun", run, "nobody", found["id"], code=66)
    assert len(done.stdout.split()) == 2
    assert "no run has the id or the name 'nobody'" in done.stderr
    # there need be no such program: the command is kept anyway
    claude = shared.sfactl(
        "spawn",
        "--name",
        "asks",
        "claude",
        "look at it",
        "--model",
        "x",
        code=None,
        PATH="/nowhere",
    ).stdout.strip()
    line = shared.sfactl("rerun", claude, "--dry-run").stdout
    assert line.endswith(" claude 'look at it' --model x\n")


def test_what_is_not_kept_is_said(shared: World) -> None:
    run = shared.spawn("--env", "TOKEN=very-secret-indeed", "--", "sh", "-c", "echo $TOKEN")
    done = shared.sfactl("rerun", run)
    assert done.stderr == (
        f"sfactl: {run}: what --env had set is not kept, because it may be secret: "
        "set it again with --env\n"
    )
    again = shared.sfactl("rerun", run, "--env", "TOKEN=other").stdout.strip()
    shared.sfactl("wait", again)
    assert shared.sfactl("logs", again).stdout == "other\n"
    for path in shared.state.rglob("*"):
        if path.is_file() and path.parent.name != "output":
            assert b"very-secret" not in path.read_bytes(), path
    after = shared.spawn("--after", run, "--", "true")
    assert f"it does not wait again for {run}" in shared.sfactl("rerun", after).stderr
    huge = shared.spawn("--", "true", "x" * 70_000)
    assert (
        f"what run {huge} was started with is not kept"
        in shared.sfactl("rerun", huge, code=1).stderr
    )


def test_an_edited_command_line_is_started(shared: World, tmp_path: Path) -> None:
    run = shared.spawn("--name", "plain", "--", "sh", "-c", "exit 1")
    saved = f"cp $1 {tmp_path}/seen; sed -i 's/exit 1/exit 9/; s/^--name plain/--name edited/' $1"
    again = shared.sfactl("rerun", "--edit", run, **editor(tmp_path, saved)).stdout.strip()
    shared.sfactl("wait", again, code=None)
    found = shared.json("info", again)
    assert (found["name"], found["exit_code"]) == ("edited", 9)
    assert (tmp_path / "seen").read_text().splitlines()[1:] == [
        "--name plain",
        f"--cwd {os.getcwd()}",
        "-- sh -c 'exit 1'",
    ]
    unchanged = shared.sfactl("rerun", "-e", run, **editor(tmp_path, "true")).stdout.strip()
    assert shared.json("info", unchanged)["name"] == "plain"


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("echo '# only this' > $1", 1, "nothing was started: the file is empty"),
        ("exit 3", 1, "ended with 3"),
        ('echo "--name \'x" > $1', 2, "the saved options cannot be read: No closing quotation"),
        ("echo '--nmae x -- true' > $1", 2, "no such option: --nmae. Did you mean '--name'?"),
        ("echo '--name x' > $1", 2, "nothing to run"),
    ],
)
def test_a_saved_file_that_starts_nothing(
    shared: World, tmp_path: Path, script: str, code: int, said: str
) -> None:
    run = shared.spawn("--", "true")
    done = shared.sfactl("rerun", "--edit", run, code=code, **editor(tmp_path, script))
    assert said in done.stderr
    assert done.stdout == ""


def test_edit_needs_an_editor(shared: World) -> None:
    run = shared.spawn("--", "true")
    assert (
        "set VISUAL or EDITOR"
        in shared.sfactl("rerun", "--edit", run, code=2, EDITOR="", VISUAL="").stderr
    )


@pytest.mark.parametrize("config", ["[groups.gpu]\nslots = 1\n[guard]\nmax_depth = 1\n"])
def test_a_group_a_refused_start_and_a_killed_daemon(world: World) -> None:
    with world.served():
        first = world.spawn("--group", "gpu", "--name", "one", "--", "sleep", "1000")
        second = world.sfactl("rerun", first, "--json")
        assert '"group":"gpu"' in second.stdout
        assert '"status":"queued"' in second.stdout
        assert [run["id"] for run in world.json("list", "--group", "gpu")["runs"]][:1] == [first]
        assert world.json("list", "--group", "no")["runs"] == []
        refused = world.sfactl(
            "spawn",
            "--max-depth",
            "1",
            "--name",
            "child",
            "--",
            "true",
            code=None,
            SFA_CALL_CHAIN="a,b",
        )
        assert refused.returncode == 1
        (row,) = world.json("list", "--name", "child")["runs"]
        again = world.spawn(*shlex.split(world.sfactl("rerun", row["id"], "--dry-run").stdout)[2:])
        world.sfactl("wait", again)
        world.kill()
        world.begin()
        assert "--group gpu" in world.sfactl("rerun", first, "--dry-run").stdout, (
            "as the spool has it"
        )
        assert "--name child" in world.sfactl("rerun", again, "--dry-run").stdout, (
            "as the ledger has it"
        )
        world.stop_all()
        assert "--group gpu" in world.sfactl("rerun", first, "--dry-run").stdout


def test_a_child_keeps_what_it_inherited(shared: World) -> None:
    script = "$SFACTL spawn --name below --block-tool Write -- true"
    root = shared.spawn("--block-tool", "Bash", "--label", "team=x", "--", "sh", "-c", script)
    shared.sfactl("wait", root)
    line = shared.sfactl("rerun", "below", "--dry-run").stdout
    assert "--label team=x" in line
    assert "--block-tool Bash" in line
    assert "--block-tool Write" in line
    found = shared.json("rerun", "below")
    assert (found["parent_id"], found["depth"]) == (None, 0)


def test_a_run_starts_only_its_own_again(shared: World) -> None:
    stranger = shared.spawn("--name", "stranger", "--", "sleep", "1000")
    for verb, said in (
        ("rerun", "'rerun' or 'continue'"),
        ("continue", "'rerun' or 'continue'"),
        ("logs", "'logs'"),
        ("fetch", "'fetch'"),
        ("session log", "'session log'"),
    ):
        done = shared.sfactl("run", "-q", "--", "sh", "-c", f"$SFACTL {verb} {stranger}", code=77)
        assert f"may not use {said} on run {stranger}: it is not in the subtree of" in done.stderr
    denied = shared.sfactl(
        "run", "-q", "--deny", "info", "--", "sh", "-c", "$SFACTL rerun $SFA_RUN_ID", code=77
    )
    assert "was started without permission for 'info'" in denied.stderr
    script = "c=$($SFACTL spawn -q --name kid -- true); $SFACTL wait $c; $SFACTL rerun $c"
    child = shared.sfactl("run", "-q", "--", "sh", "-c", script).stdout.split()[-1]
    assert shared.json("info", child)["depth"] == 1


@pytest.mark.needs("bwrap")
def test_a_sandbox_stays(shared: World, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "sub").mkdir()
    inner = f"sh -c 'echo x > {tmp_path}/file; echo x > /usr/file'"
    script = f"echo up > {tmp_path}/file && cd sub && $SFACTL spawn --name inner -- {inner}"
    outer = shared.spawn(
        "--isolate",
        "--writable",
        f"{tmp_path}/more",
        "--cwd",
        str(tmp_path),
        "--",
        "sh",
        "-c",
        script,
    )
    shared.sfactl("wait", outer)
    line = shared.sfactl("rerun", outer, "--dry-run").stdout
    assert f"--writable {tmp_path}/more" in line
    assert "--isolate=on" in line
    # the child was started below the directory that its parent could write to
    line = shared.sfactl("rerun", "inner", "--dry-run").stdout
    assert f"--cwd {tmp_path}/sub " in line
    assert f"--isolate=on --writable {tmp_path}/more --writable {tmp_path} " in line
    again = shared.sfactl("rerun", "inner").stdout.strip()
    shared.sfactl("wait", again, code=None)
    assert shared.json("info", again)["isolation"] == "on"
    assert (tmp_path / "file").read_text() == "x\n"
    assert not Path("/usr/file").exists()


def test_the_models_and_the_way_to_them_stay(shared: World) -> None:
    script = "$SFACTL spawn --name modest -- true"
    outer = shared.spawn("--gateway", "--model-allow", "claude-haiku-*", "--", "sh", "-c", script)
    shared.sfactl("wait", outer)
    line = shared.sfactl("rerun", "modest", "--dry-run").stdout
    assert "--gateway" in line
    assert "--model-allow 'claude-haiku-*'" in line
