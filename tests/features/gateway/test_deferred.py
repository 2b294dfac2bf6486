"""Requests whose answer comes later, from work beside the loop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock, patch

import pytest
import trio
from msgspec.structs import replace

from sfad.agents import setup_reader
from sfad.agents.setup_reader import Root, SetupReader, TreeSetups
from sfad.daemon.loop import starting
from sfad.daemon.server.asker import Asker
from sfad.daemon.server.server import Server
from sfad.daemon.server.shares import PeerGroups
from sfad.features.gateway import part
from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode
from tests.harness import PATIENCE, until
from tests.loop.shell import ANN
from tests.server import test_looks
from tests.server.test_looks import served


async def test_a_spawn_that_has_waited_is_answered_whatever_goes_wrong(tmp_path: Path) -> None:
    """A program that is known to call models: its user's settings are read first."""
    spawn = m.Spawn(id=7, argv=[b"claude"], cwd=b"/", env=[b"HOME=/", b"KEY=geheim"], gateway=True)
    async with served(tmp_path, [ANN]) as (_, (client,)):
        with patch.object(starting, "fill_in_asked", Mock(side_effect=TypeError("a bug"))):
            client.send(spawn)
            (answer,) = await client.replies(1)
    assert isinstance(answer, m.Error)
    assert (answer.id, answer.code) == (7, ErrorCode.INTERNAL)
    logged = (tmp_path / "log").read_text()
    way = ["in spawn", "in prepare", "fill_in_asked(p, around)", "TypeError: a bug"]
    assert [step for step in way if step not in logged] == []
    assert "geheim" not in logged, "the log is no place for what is in an environment"


@contextmanager
def settings_held_back() -> Iterator[Event]:
    """Have no settings be read before the event is set."""
    go_on = Event()

    def find(_root: Root) -> TreeSetups:
        go_on.wait(PATIENCE)
        return TreeSetups()

    with (
        patch.object(part, "SetupReader", partial(SetupReader, find)),
        patch.object(setup_reader, "FILES_SECONDS", PATIENCE),
    ):
        try:
            yield go_on
        finally:
            go_on.set()


SLOW = m.Spawn(id=7, argv=[b"claude"], cwd=b"/", env=[b"HOME=/"])


@pytest.mark.parametrize("second", [SLOW, m.Wait(id=7, run="none"), m.List(id=7)])
async def test_the_id_of_a_request_that_waits_is_not_used_again(
    tmp_path: Path, second: m.Request
) -> None:
    with settings_held_back() as go_on:
        async with served(tmp_path, [ANN]) as (loop, (client,)):
            client.send(SLOW, second)
            (refused,) = await client.replies(1)
            assert isinstance(refused, m.Error)
            assert "request id 7 is still in use" in refused.message
            go_on.set()
            (answer,) = await client.replies(1)
            assert isinstance(answer, m.RunReply)
            assert list(loop.catalogue.live) == [answer.run.id]
            client.send(m.List(id=7))
            assert isinstance((await client.replies(1))[0], m.RunList), "it can be used now"


@contextmanager
def servers() -> Iterator[list[Server]]:
    """Collect the servers that are made."""
    made: list[Server] = []

    def make(*args: Any) -> Server:
        made.append(Server(*args))
        return made[-1]

    with patch.object(test_looks, "Server", make):
        yield made


def open_requests(server: Server) -> list[int]:
    requests = server.handover.services.bounds.requests
    return [requests.total(group) for group in PeerGroups.of(ANN, None).all]


async def test_nothing_starts_for_a_client_that_is_gone(tmp_path: Path) -> None:
    """Neither its descriptors nor its open request stay."""
    with settings_held_back() as go_on, servers() as made:
        async with served(tmp_path, [ANN, ANN]) as (loop, (client, other)):
            read, write = os.pipe()
            with os.fdopen(read):
                inherit = replace(SLOW, stdio="inherit", descriptors=3)
                client.send(inherit, descriptors=[write] * 3)
                os.close(write)
                other.send(SLOW)
                await until(lambda: open_requests(made[0]) == [2])
                client.close()
                await until(lambda: len(made[0].handover.clients.by_fd) == 1)
                go_on.set()
                assert isinstance((await other.replies(1))[0], m.RunReply)
                await trio.lowlevel.wait_readable(read)
                assert os.read(read, 1) == b"", "no copy of the pipe's other end is open"
            assert len(loop.catalogue.live) == 1
            assert open_requests(made[0]) == [0]


async def test_a_request_that_failed_while_it_waited_stays_so(tmp_path: Path) -> None:
    """A re-execution fails it, and then does not come about. The request waits for a second thing
    meanwhile: for what its command names."""
    spawn = replace(SLOW, argv=[b"claude", b"--settings", b"none"])
    with settings_held_back() as go_on, servers() as made:
        async with served(tmp_path, [ANN]) as (loop, (client,)):
            client.send(spawn)
            await until(lambda: open_requests(made[0]) == [1])
            made[0].handover.hand_over()
            (failed,) = await client.replies(1)
            assert "the daemon restarted itself" in failed.message
            with patch.object(Asker, "still_wanted", autospec=True, side_effect=wanted) as asked:
                go_on.set()
                await until(lambda: asked.called)
            assert not loop.catalogue.live
            assert open_requests(made[0]) == [0]


wanted = Asker.still_wanted
