"""Programs that hand work to a server of their own outside of their run, imitated: by a connection
to the path of such a server, and by their command lines."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo, Status
from tests.conftest import Start
from tests.harness import Daemon, ended, spawn, stopped, wait_until
from tests.tiers import first

from .agents import info, limit

PROGRAM = """#!{python} -S
import os, socket, sys, time
if "serve" in sys.argv:
    server = socket.create_server(("127.0.0.1", int(sys.argv[-1])))
    connection = server.accept()
    time.sleep(60)
if sys.argv[-1].startswith("/"):
    connection = socket.socket(socket.AF_UNIX)
    if sys.argv[-2] == "listen":
        connection.bind(sys.argv[-1])
        connection.listen()
        kept = connection.accept()
    else:
        while connection.connect_ex(sys.argv[-1]):
            time.sleep(0.02)
time.sleep(60)
"""
"""Listens at a port after `serve`, or at a path after `listen`; else connects to a path."""


@pytest.fixture
def plain(share: Start, containment: str) -> Daemon:
    return share(config="[gateway]\nenabled = false\n", mode=containment)


@pytest.fixture
def sock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("s") / "cc-daemon-0"
    place.mkdir()
    return place / "control.sock"


def program(directory: Path, name: str) -> Path:
    file = directory / name
    file.write_text(PROGRAM.format(python=sys.executable))
    file.chmod(0o755)
    return file


def begun(client: Client, script: str, **options: object) -> RunInfo:
    reply = spawn(client, ["sh", "-c", script], watch=True, **options)
    assert isinstance(reply, m.RunReply), reply
    return reply.run


def handed(daemon: Daemon, run: str) -> list[dict[str, str]]:
    """Return the events about work that a run hands over."""
    events = map(json.loads, daemon.log.read_text().splitlines())
    return [e for e in events if (e.get("type"), e.get("run_id")) == ("handed_off", run)]


def told(daemon: Daemon, run: str) -> dict[str, str]:
    """Return the first such event, which comes."""
    wait_until(lambda: handed(daemon, run), "it is told")
    return handed(daemon, run)[0]


@pytest.fixture
def outside(sock: Path, tmp_path: Path) -> Iterator[Path]:
    """Yield the path of a server that no run has started."""
    server = subprocess.Popen([program(tmp_path, "server"), "listen", sock])
    try:
        wait_until(sock.exists, "it listens")
        yield sock
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("bounded", [True, False])
def test_a_connection_to_a_server_outside_of_the_tree_is_told(
    plain: Daemon, tmp_path: Path, outside: Path, bounded: bool
) -> None:
    agent = program(tmp_path, "claude")
    limits = [limit("cost", 0.5)] if bounded else []
    with plain.client() as client:
        run = begun(client, f"{agent} {outside} & wait", limits=limits, meter="report")
        event = told(plain, run.id)
        assert event["severity"] == "high"
        assert f"it is connected to its server at {outside}" in event["message"]
        if bounded:
            found = ended(client, run.id)
            assert found.status is Status.FAILED
            assert found.reason is not None
            assert found.reason.message.startswith(event["message"])
        else:
            assert info(client, run.id).status is Status.RUNNING
            stopped(client, run.id)


def test_a_server_in_the_tree_is_none_outside(
    plain: Daemon, tmp_path: Path, sock: Path, outside_port: int
) -> None:
    """Nor is another program's connection to such a path."""
    agent, other = program(tmp_path, "claude"), program(tmp_path, "opencode")
    with plain.client() as client:
        own = begun(client, f"{agent} listen {sock} & {agent} {sock} & wait")
        attached = begun(
            client, f"{other} serve {outside_port} & sleep 0.5; {other} run --attach "
            f"http://127.0.0.1:{outside_port} hi & wait",
        )  # fmt: skip
        wait_until(lambda: info(client, own.id).unadmitted == 2, "both are noticed")
        wait_until(lambda: info(client, attached.id).unadmitted == 2, "both are noticed")
        # told later than what the others would have told
        last = begun(client, f"{agent} --tmux -w x hi & wait")
        told(plain, last.id)
        assert not handed(plain, own.id) + handed(plain, attached.id)
        stopped(client, own.id, attached.id, last.id)


@pytest.fixture
def outside_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
    return port


@first(1)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("claude", "--bg hi"),
        ("codex", "remote-control start"),
        ("opencode", "run --attach http://127.0.0.1:{port} hi"),
        ("opencode", "attach https://host.example"),
    ],
)
def test_a_command_that_goes_around_the_shims_is_told(
    plain: Daemon, tmp_path: Path, name: str, words: str
) -> None:
    agent = program(tmp_path, name)
    with closing(socket.create_server(("127.0.0.1", 0))) as server, plain.client() as client:
        command = f"{agent} {words.format(port=server.getsockname()[1])}"
        run = begun(client, f"env -u CLAUDE_CODE_DISABLE_AGENT_VIEW {command} & wait")
        assert f"`{name} " in told(plain, run.id)["message"]
        stopped(client, run.id)


@pytest.mark.parametrize(
    "script",
    [
        "exec {agent} --tmux -w x hi",
        "sh -c '{agent} --tmux -w x hi'; true",
        "{agent} --tmux=classic",
    ],
    ids=["in the place of the main process", "in a shell", "with a value"],
)
def test_however_a_path_is_executed_work_for_tmux_is_told(
    plain: Daemon, tmp_path: Path, script: str
) -> None:
    with plain.client() as client:
        run = begun(client, script.format(agent=program(tmp_path, "claude")))
        assert "`claude --tmux` hands work to a tmux server" in told(plain, run.id)["message"]
        stopped(client, run.id)


def test_a_program_that_refuses_by_itself_hands_nothing_over(plain: Daemon, tmp_path: Path) -> None:
    agent = program(tmp_path, "claude")
    with plain.client() as client:
        refuses = begun(client, f"{agent} --bg hi & wait")
        wait_until(lambda: info(client, refuses.id).unadmitted == 1, "it is noticed")
        does = begun(client, f"CLAUDE_CODE_DISABLE_AGENT_VIEW=0 {agent} --bg hi & wait")
        told(plain, does.id)
        assert not handed(plain, refuses.id)
        stopped(client, refuses.id, does.id)
