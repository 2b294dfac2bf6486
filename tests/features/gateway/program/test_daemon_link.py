"""The gateway's connection to a daemon that answers from a script."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import trio
from msgspec.structs import replace

from sfad.features.gateway.messages import ServeGateway, UnaskedRequest, WithdrawCall
from sfad.features.gateway.program.call_journal import Journal
from sfad.features.gateway.program.daemon_link import DaemonLink
from sfad.protocol import messages as m
from sfad.protocol.framing import MAX_REQUEST, FrameDecoder
from sfad.protocol.requests.windows import SeenWindow
from sfad.protocol.types import Tokens

ASKED = m.AdmitCall(
    id=0,
    run="a1",
    upstream="up",
    model="m",
    input_tokens=10,
    more_input=5,
    max_output=100,
    api="anthropic",
)


class ScriptedDaemon:
    """Takes requests one by one."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._decoder = FrameDecoder(MAX_REQUEST)
        self._taken: list[m.Request] = []

    async def next(self) -> m.Request:
        while not self._taken:
            for body in self._decoder.feed(await self._stream.receive_some(1 << 16)):
                self._taken.append(m.unpack_request(body))
        return self._taken.pop(0)

    async def say(self, reply: m.Reply) -> None:
        await self._stream.send_all(m.pack_message(reply))


@asynccontextmanager
async def linked(
    directory: Path,
) -> AsyncIterator[tuple[DaemonLink, trio.SocketListener, trio.Nursery]]:
    """Yield a gateway's connection that is served, the listener to which it connects, and a nursery
    that is to be cancelled."""
    path = os.fspath(directory / "s")
    with (
        socket.socket(socket.AF_UNIX) as plain,
        closing(Journal(os.fspath(directory / "calls"), print)) as journal,
    ):
        plain.bind(path)
        plain.listen()
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(plain))
        link = DaemonLink(path, plain.fileno(), journal)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.serve)
                yield link, listener, nursery


async def test_a_reservation_for_a_caller_that_has_hung_up_meanwhile_is_given_back(
    tmp_path: Path,
) -> None:
    async with linked(tmp_path) as (link, listener, nursery):
        async with await listener.accept() as stream:
            daemon = ScriptedDaemon(stream)
            assert isinstance(await daemon.next(), m.Hello)
            assert isinstance(await daemon.next(), ServeGateway)
            asking = trio.CancelScope()

            async def ask() -> None:
                with asking:
                    await link.admit(ASKED)

            nursery.start_soon(ask)
            asked = await daemon.next()
            asking.cancel()
            withdrawn = await daemon.next()
            assert isinstance(withdrawn, WithdrawCall)
            assert withdrawn.call == asked.id
            await daemon.say(m.CallDecision(id=asked.id, reservation="a1-7"))
            await daemon.say(m.Done(id=withdrawn.id))
            ended = await daemon.next()
            assert isinstance(ended, m.EndCall)
            assert (ended.run, ended.reservation, ended.tokens) == ("a1", "a1-7", Tokens())
            assert ended.error == "its caller hung up before it was made"
            unasked: dict[str, Any] = {
                "id": 0,
                "number": 0,
                "run": "a1",
                "time": 1.5,
                "upstream": "up",
                "path": "/e",
            }
            link.unasked(UnaskedRequest(status=200, **unasked))
            link.unasked(UnaskedRequest(refused="no", **unasked))
            first, second = await daemon.next(), await daemon.next()
            assert isinstance(first, UnaskedRequest)
            assert isinstance(second, UnaskedRequest)
            assert (first.path, first.status, second.refused) == ("/e", 200, "no")
            assert first.number != second.number
        for known in (["a1-7"], []):
            async with await listener.accept() as stream:
                daemon = ScriptedDaemon(stream)
                assert isinstance(await daemon.next(), m.Hello)
                serve = await daemon.next()
                assert isinstance(serve, ServeGateway)
                assert serve.reservations == known
                if known:
                    again = await daemon.next()
                    assert again == ended
                    await daemon.say(m.Done(id=again.id))
        nursery.cancel_scope.cancel()


async def test_a_new_daemon_hears_of_every_window_before_it_is_asked_about_a_call(
    tmp_path: Path,
) -> None:
    """Replies overtake each other: the last one that came need not be the one that tells most."""
    async with linked(tmp_path) as (link, listener, nursery):
        async with await listener.accept() as stream:
            daemon = ScriptedDaemon(stream)
            assert isinstance(await daemon.next(), m.Hello)
            assert isinstance(await daemon.next(), ServeGateway)
            nursery.start_soon(link.admit, replace(ASKED))
            assert isinstance(await daemon.next(), m.AdmitCall)
        for used in (0.6, 0.7, 0.65):
            window = SeenWindow(window="5h", used_ratio=used)
            link.subscription_seen(
                m.SeeWindows(
                    id=0, run="a1", provider="anthropic", time=1.0, login="l", windows=[window]
                )
            )
        async with await listener.accept() as stream:
            daemon = ScriptedDaemon(stream)
            asked = [await daemon.next() for _ in range(6)][2:]
            assert isinstance(asked[-1], m.AdmitCall)
            told = [each.windows[0].used_ratio for each in asked if isinstance(each, m.SeeWindows)]
            assert told == [0.6, 0.7, 0.65]
            nursery.cancel_scope.cancel()
