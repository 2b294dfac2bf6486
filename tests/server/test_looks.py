"""Requests that arrive together are answered with one look at the runs, which never is older than a
request, nor another user's."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import trio

from sfad.core.state.access import Peer
from sfad.daemon.loop.runtime import Runtime
from sfad.daemon.server import dispatch
from sfad.daemon.server import server as package
from sfad.daemon.server.dispatch import Receiver
from sfad.daemon.server.server import Server
from sfad.protocol import messages as m
from sfad.protocol.framing import MAX_REPLY, FrameDecoder
from sfad.protocol.types import Limit, LimitKind, RunId, RunInfo
from tests.harness import PATIENCE, until
from tests.loop.shell import ANN, shell, spawned, stopped
from tests.processes.fake import FakeLauncher

BOB = Peer(1, "bob", owner=False)


class Client:
    """A client in the server's own thread: it sends while the server does not run."""

    def __init__(self, path: Path) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(str(path))
        self._sock.setblocking(False)
        self._decoder = FrameDecoder(MAX_REPLY)
        self._replies: list[m.Reply] = []

    def send(self, *requests: m.Request, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self._sock, [b"".join(map(m.pack_message, requests))], descriptors)

    async def replies(self, count: int) -> list[Any]:
        while len(self._replies) < count:
            await trio.lowlevel.wait_readable(self._sock)
            self._replies += map(m.unpack_reply, self._decoder.feed(self._sock.recv(1 << 20)))
        found, self._replies = self._replies[:count], self._replies[count:]
        return found

    def close(self) -> None:
        self._sock.close()


@asynccontextmanager
async def served(
    directory: Path, peers: Sequence[Peer]
) -> AsyncIterator[tuple[Runtime, list[Client]]]:
    """Serve one client for each peer."""
    waiting = list(peers)
    with ExitStack() as stack:
        # on a busy machine too, they have one turn
        stack.enter_context(patch.object(dispatch, "TURN_TIME", PATIENCE))
        # to the kernel they are one user
        stack.enter_context(patch.object(Receiver, "why_sender_refused", return_value=None))
        async with (
            shell(directory, FakeLauncher, everyone=True) as runtime,
            trio.open_nursery() as nursery,
        ):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(directory / "s"))
            listener.listen()
            listener.setblocking(False)
            server = Server(listener, runtime, lambda _sock: waiting.pop(0))
            nursery.start_soon(server.serve)
            clients = []
            for _ in peers:
                clients.append(client := Client(directory / "s"))
                stack.callback(client.close)
                client.send(m.Hello(id=1, versions=[1]))
                assert isinstance((await client.replies(1))[0], m.Welcome)
            yield runtime, clients
            nursery.cancel_scope.cancel()
            server.close()


async def test_requests_that_come_together_share_a_look(tmp_path: Path) -> None:
    async with served(tmp_path, [ANN] * 3) as (runtime, clients):
        run = await spawned(runtime)
        with patch.object(
            runtime.resources.launcher, "footprints", wraps=runtime.resources.launcher.footprints
        ) as look:
            for number, client in enumerate(clients):
                client.send(m.Info(id=10 + number, run=run), m.List(id=20 + number, live=True))
            for number, client in enumerate(clients):
                info, page = await client.replies(2)
                assert (info.id, info.run.id, page.id) == (10 + number, run, 20 + number)
                assert [(each.id, each.processes) for each in page.runs] == [
                    (run, info.run.processes)
                ]
            assert look.call_count == 2
            clients[0].send(m.Info(id=30, run=run))
            await clients[0].replies(1)
            assert look.call_count == 3, "it may have changed by now"


async def test_a_request_is_answered_after_what_came_before_it(tmp_path: Path) -> None:
    async with served(tmp_path, [ANN]) as (runtime, (client,)):
        run = await spawned(runtime)
        looks = m.Info(id=1, run=run), m.List(id=2)
        client.send(
            *looks,
            m.ChangeLimits(id=3, run=run, limits=[Limit(kind=LimitKind.TURNS, threshold=7)]),
            *looks,
        )
        before, page_before, changed, after, page_after = await client.replies(5)
        assert isinstance(changed, m.RunReply)
        assert turns(before.run) == turns(page_before.runs[0]) != 7
        assert turns(after.run) == turns(page_after.runs[0]) == 7


def turns(run: RunInfo) -> float:
    return next(limit.threshold for limit in run.limits if limit.kind is LimitKind.TURNS)


async def test_no_look_is_shared_with_another_user(tmp_path: Path) -> None:
    async with served(tmp_path, [ANN, BOB, ANN]) as (runtime, clients):
        live, ended = await spawned(runtime), await spawned(runtime)
        await stopped(runtime, ended)
        for client in clients:
            client.send(
                m.List(id=1),
                m.Info(id=2, run=live),
                m.Info(id=3, run=ended),
                m.List(id=4, root=live),
            )
        for peer, client in zip([ANN, BOB, ANN], clients, strict=True):
            page, *others = await client.replies(4)
            assert [run.id for run in page.runs] == ([live, ended] if peer is ANN else [])
            assert [isinstance(reply, m.Error) for reply in others] == [peer is BOB] * 3


async def test_a_list_costs_as_many_calls_whatever_its_length(tmp_path: Path) -> None:
    async with served(tmp_path, [ANN]) as (runtime, (client,)):
        await over(runtime, 3)
        few = await calls(client, m.List(id=1))
        await over(runtime, 40)
        assert await calls(client, m.List(id=1)) < few + 20


async def test_a_shared_look_costs_few_calls(tmp_path: Path) -> None:
    async with served(tmp_path, [ANN]) as (runtime, (client,)):
        run = await spawned(runtime)
        one, ten = (
            await calls(client, m.Info(id=1, run=run)),
            await calls(client, *[m.Info(id=1, run=run)] * 10),
        )
        assert one < 150
        assert (ten - one) / 9 < 45


async def over(runtime: Runtime, count: int) -> None:
    """Let so many runs begin and end."""
    runs: list[RunId] = [await spawned(runtime) for _ in range(count)]
    for run in runs:
        await stopped(runtime, run)
    await until(lambda: all(map(runtime.catalogue.over, runs)))


async def calls(client: Client, *requests: m.Request) -> int:
    """Return how many functions of the daemon are called for requests, when their like was answered
    before."""
    count = 0
    inside = str(Path(package.__file__).parents[1])

    def called(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(inside)

    client.send(*requests)
    await client.replies(len(requests))
    client.send(*requests)
    sys.setprofile(called)
    await client.replies(len(requests))
    sys.setprofile(None)
    return count


async def test_a_long_list_is_sent_in_one_go(tmp_path: Path) -> None:
    async with served(tmp_path, [ANN]) as (runtime, (owner,)):
        spawn = m.Spawn(id=1, argv=[b"sh", b"-c", b"x" * 100_000], cwd=b"/", env=[])
        for _ in range(70):
            await spawned(runtime, spawn)
        sent, send = list[int](), socket.socket.send

        def noted(sock: socket.socket, data: bytes) -> int:
            sent.append(len(data))
            return send(sock, data)

        with patch.object(socket.socket, "send", noted):
            owner.send(m.List(id=1))
            (page,) = await owner.replies(1)
        assert len(m.pack(page)) > 300_000
        *others, reply = sorted(sent)
        assert reply > 300_000
        assert sum(others) < 100, "the request, and bytes that wake the loop"
