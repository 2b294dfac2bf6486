"""Real programs that call their model past the gateway, and what the kernel tells of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfactl.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo, Status
from tests.conftest import Start
from tests.harness import Daemon, ended, spawn, stopped

from .agents import info, limit, state, until_event
from .provider import Provider, providing
from .test_gateway import config

PROGRAM = """#!{python} -S
import os, socket, sys, time
host, _, port = sys.argv[-1].rpartition(":")
connection = socket.create_connection((host, int(port)))
time.sleep(60)
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with providing() as made:
        yield made


@pytest.fixture
def gated(share: Start, provider: Provider) -> Daemon:
    return share(config=config(provider), mode="cgroup")


def program(directory: Path, name: str) -> Path:
    """Make a program that connects to the address in its last word, and waits."""
    file = directory / name
    file.write_text(PROGRAM.format(python=sys.executable))
    file.chmod(0o755)
    return file


def connecting(client: Client, file: Path, address: str, *words: str, **options: Any) -> RunInfo:
    """Start a script that calls the program by its path, as a shell tool may: no shim sees it."""
    script = f"{file} {' '.join(words)} {address} & wait"
    reply = spawn(client, ["sh", "-c", script], watch=True, **options)
    assert isinstance(reply, m.RunReply), reply
    return reply.run


def test_a_connection_of_an_agent_program_to_its_model_is_told_and_ends_a_run_that_a_person_has_bounded(
    gated: Daemon, provider: Provider, tmp_path: Path
) -> None:
    address, agent = provider.url.removeprefix("http://"), program(tmp_path, "opencode")
    with gated.client() as client:
        bounded = connecting(client, agent, address, limits=[limit("cost", 0.5)])
        assert state(bounded, "cost")[2] == "ready"
        event = until_event(client, "gateway_bypassed")
        assert (event.run_id, event.severity) == (bounded.id, "high")
        assert f"'opencode' runs in it, it has a connection to {address}" in event.message
        found = ended(client, bounded.id)
        assert found.status is Status.FAILED
        assert found.reason is not None
        assert found.reason.message.startswith(event.message)


def test_an_unbounded_run_goes_on_and_nothing_enforces_its_limits(gated: Daemon, provider: Provider, tmp_path: Path) -> None:
    address, agent = provider.url.removeprefix("http://"), program(tmp_path, "opencode")
    with gated.client() as client:
        # these were looked at as often when the other one is told
        elsewhere = connecting(client, agent, f"localhost:{gated_port(gated)}")
        no_agent = connecting(client, program(tmp_path, "something"), address)
        asked = connecting(client, agent, address, gateway=False)
        found = connecting(client, agent, address)
        assert until_event(client, "gateway_bypassed").run_id == found.id
        assert state(info(client, found.id), "cost")[2] == "nothing"
        assert state(info(client, asked.id), "cost")[2] == "nothing"
        assert [state(info(client, each.id), "cost")[2] for each in (elsewhere, no_agent)] == ["ready", "ready"]
        stopped(client, found.id, asked.id, elsewhere.id, no_agent.id)


def gated_port(daemon: Daemon) -> int:
    """Return the gateway's port."""
    return int((daemon.state_dir / "gateway.json").read_text().partition('"port": ')[2].partition(",")[0])
