"""The endpoint among clients that mean no good."""

from __future__ import annotations

import math
from pathlib import Path

import trio
import trio.testing

from sfad.features.metrics.endpoint import MAX_CONNECTIONS, TIMEOUT, MetricsEndpoint
from sfad.features.metrics.feature import MetricsConfig
from sfad.host.log import Log


async def figures() -> str:
    return "figures"


async def ask(path: Path) -> bytes:
    """Return the reply to a request."""
    async with await trio.open_unix_socket(path) as asking:
        await asking.send_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        return b"".join([bytes(piece) async for piece in asking])


async def test_clients_that_send_nothing_lose_their_places(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "m"
    log = Log("error", file=tmp_path / "log")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            MetricsEndpoint(MetricsConfig(listen=f"unix:{path}"), figures, log).serve
        )
        await trio.testing.wait_all_tasks_blocked()
        # nothing wakes without clients
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
        began = trio.current_time()
        idle = [await trio.open_unix_socket(path) for _ in range(3 * MAX_CONNECTIONS)]
        assert (await ask(path)).endswith(b"figures")
        assert trio.current_time() - began < TIMEOUT  # they have not been waited for
        assert [await connection.receive_some() for connection in idle] == [b""] * len(idle)
        for connection in idle:
            await connection.aclose()
        nursery.cancel_scope.cancel()
    log.close()
    assert not path.exists()
    assert (tmp_path / "log").read_text() == ""


async def test_a_client_whose_text_is_being_made_keeps_its_place(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "m"
    made, replies = trio.Event(), list[bytes]()

    async def text() -> str:
        await made.wait()
        return "figures"

    async def ask_and_keep() -> None:
        replies.append(await ask(path))

    log = Log("error", file=tmp_path / "log")
    async with trio.open_nursery() as nursery:
        endpoint = MetricsEndpoint(MetricsConfig(listen=f"unix:{path}"), text, log)
        nursery.start_soon(endpoint.serve)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as asking:
            for _ in range(MAX_CONNECTIONS + 1):
                asking.start_soon(ask_and_keep)
            await trio.sleep(TIMEOUT / 2)  # all places are taken, and one client waits for a place
            assert replies == []
            made.set()
        assert all(reply.endswith(b"figures") for reply in replies)
        nursery.cancel_scope.cancel()
    log.close()
    assert (tmp_path / "log").read_text() == ""
