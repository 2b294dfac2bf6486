"""Mistakes in command lines, and their error messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import wait_until

from .conftest import World

SFACTL = [os.fsencode(sys.executable), b"-m", b"sfactl"]


def said(daemon: World, *words: bytes, stdout: str = os.devnull) -> tuple[int, str]:
    """Return exit code and stderr of a command whose words are bytes."""
    with open(stdout, "wb") as target:
        done = subprocess.run(
            [*SFACTL, *words], stdout=target, stderr=subprocess.PIPE, env=daemon.env, timeout=60
        )
    return done.returncode, done.stderr.decode(errors="replace")


@pytest.mark.parametrize(
    "words", [(b"list",), (b"run", b"-q", b"--", b"echo", b"hi"), (b"spawn", b"--", b"true")]
)
def test_a_stdout_that_takes_nothing_is_named(daemon: World, words: tuple[bytes, ...]) -> None:
    code, stderr = said(daemon, *words, stdout="/dev/full")
    assert code == 75
    assert "stdout" in stderr
    assert "No space left on device" in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    "words",
    [
        (b"run", b"--name", b"\xff", b"--", b"true"),
        (b"stop", b"\xff"),
        (b"list", b"--name", b"\xff"),
    ],
)
def test_bytes_that_are_no_text_are_a_usage_error(daemon: World, words: tuple[bytes, ...]) -> None:
    code, stderr = said(daemon, *words)
    assert code == 2
    assert "not UTF-8" in stderr


def test_messages_do_not_steer_the_terminal(daemon: World) -> None:
    for words in (
        (b"info", b"\x1b[31mx"),
        (b"run", b"--", b"./na\x1b[1m\x07me"),
        (b"spawn", b"--", b"./na\x1b[1m\x07me"),
    ):
        code, stderr = said(daemon, *words)
        assert code in {66, 127}
        assert "\x1b" not in stderr
        assert "\x07" not in stderr


def test_all_is_given_alone(daemon: World) -> None:
    assert said(daemon, b"stop", b"--all", b"a1")[0] == 2
    assert said(daemon, b"stop", b"--all", b"--name", b"x")[0] == 2


@pytest.mark.alone
def test_a_status_file_is_tried_before_the_agent_runs(daemon: World, tmp_path: Path) -> None:
    assert said(daemon, b"run", b"-q", b"--status-file", b"/nonexistent/x", b"--", b"true")[0] == 2
    assert json.loads(daemon.sfactl("list", "--json").stdout) == {"runs": []}
    stale = tmp_path / "status"
    stale.write_text("{}")
    assert (
        said(
            daemon,
            b"run",
            b"-q",
            b"--max-depth",
            b"999",
            b"--status-file",
            os.fsencode(stale),
            b"--",
            b"true",
        )[0]
        == 2
    )
    assert not stale.exists()  # it does not tell of an earlier run


def test_keep_survives_the_terminal(daemon: World) -> None:
    command = [*SFACTL, b"run", b"--keep", b"--name", b"kept", b"--", b"sleep", b"300"]
    with subprocess.Popen(command, env=daemon.env, stderr=subprocess.PIPE) as client:
        assert client.stderr is not None
        client.stderr.readline()  # it has started
        client.send_signal(signal.SIGHUP)
        assert client.wait(60) == 129
    (run,) = json.loads(daemon.sfactl("list", "--json", "--name", "kept").stdout)["runs"]
    assert run["status"] == "running"
    assert daemon.sfactl("stop", run["id"]).returncode == 0


def test_ctrl_c_while_sfactl_is_being_loaded_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os\nos.kill(os.getpid(), 2)\n")
    there = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [*SFACTL, "list"], env=os.environ | {"PYTHONPATH": there}, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_attempts_without_a_delay_are_all_made(daemon: World) -> None:
    done = daemon.sfactl(
        "run",
        "-q",
        "--attempts",
        "20",
        "--retry-delay",
        "0",
        "--",
        "sh",
        "-c",
        "echo $SFA_ATTEMPT; exit 3",
        code=3,
    )
    assert done.returncode == 3
    assert done.stdout.split() == [str(number) for number in range(1, 21)]


def test_a_log_that_cannot_be_opened_is_named(daemon: World, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[log]\nfile = "/nonexistent/log"\n')
    places = [
        "--socket",
        str(tmp_path / "s"),
        "--state-dir",
        str(tmp_path / "other"),
        "--config",
        str(config),
    ]
    # not forked: a process of the tests may not open files outside of the session's directories
    done = subprocess.run(
        [sys.executable, "-m", "sfad", "serve", *places], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "log.file = /nonexistent/log cannot be opened" in done.stderr
    wait_until(lambda: daemon.sfactl("status").returncode == 0, "the other daemon is not concerned")
