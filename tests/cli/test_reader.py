"""What follows ends when its reader has gone, although nothing more comes that could be written."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.tiers import first, sampled

from .conftest import PATIENCE, World

UNREAD = 141


@pytest.fixture
def run(daemon: World) -> Iterator[str]:
    """A run that has printed a line, and is silent from then on."""
    run = daemon.spawn("--name", "silent", "--", "sh", "-c", "echo line; echo line >&2; sleep 1000")
    yield run
    daemon.sfactl("stop", "--grace", "0", run)


FOLLOWERS = {
    "events": ("events", "-f", "--json"),
    "events of a type": ("events", "-f", "--type", "run_started"),
    "logs": ("logs", "-f", "silent"),
    "lines of logs": ("logs", "-f", "-t", "silent"),
    "logs as JSON": ("logs", "-f", "--json", "silent"),
}
QUIET = {
    "calls": ("calls", "-f", "silent"),
    "calls as JSON": ("calls", "-f", "--json", "silent"),
    "wait": ("wait", "silent"),
    "wait with a time": ("wait", "--timeout", "1h", "--json", "silent"),
    "events that do not come": ("events", "-f", "--type", "run_failed"),
}
ALL = FOLLOWERS | QUIET


@first(1)
@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("name", FOLLOWERS)
def test_it_ends_with_its_reader(daemon: World, name: str) -> None:
    with daemon.popen(*FOLLOWERS[name], stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE) == UNREAD
        assert process.stderr is not None
        assert b"sfactl" not in process.stderr.read()


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("name", sampled(sorted(ALL), keep=3))
def test_it_ends_if_the_reader_was_never_there(daemon: World, name: str) -> None:
    readable, writable = os.pipe()
    os.close(readable)
    with daemon.popen(*ALL[name], stdout=writable) as process:
        os.close(writable)
        assert process.wait(PATIENCE) == UNREAD


@pytest.mark.usefixtures("run")
def test_the_reader_is_at_a_socket(daemon: World) -> None:
    ours, theirs = socket.socketpair()
    with daemon.popen("events", "-f", stdout=theirs.fileno()) as process:
        theirs.close()
        assert ours.recv(1)
        ours.close()
        assert process.wait(PATIENCE) == UNREAD


def test_it_ends_while_it_waits_for_a_daemon(world: World) -> None:
    with world.popen("events", "-f", stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"waiting for it" in process.stderr.readline()
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE) == UNREAD


@pytest.mark.usefixtures("run")
def test_a_pipe_of_a_shell(daemon: World) -> None:
    script = "$SFACTL events -f --json | grep -q silent; echo ${PIPESTATUS[@]}"
    done = subprocess.run(
        ["bash", "-c", script], env=daemon.env, capture_output=True, timeout=PATIENCE, check=True
    )
    assert (done.stdout, done.stderr) == (b"141 0\n", b"")


def test_a_reader_that_stays_hears_the_end(daemon: World, run: str) -> None:
    with daemon.popen("wait", run, stdout=subprocess.PIPE) as process:
        daemon.sfactl("stop", "--grace", "0", run)
        assert process.stdout is not None
        assert b"cancelled" in process.stdout.read()
