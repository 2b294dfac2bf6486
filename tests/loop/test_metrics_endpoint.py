"""The endpoint among clients that mean no good."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from sfad.config import MetricsConfig
from sfad.loop.metrics_endpoint import MAX_CONNECTIONS, MetricsEndpoint
from sfad.observe.log import Log


async def test_clients_that_send_nothing_lose_their_places(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    path = tmp_path / "m"

    async def text() -> str:
        return "figures"

    log = Log("error", file=tmp_path / "log")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(MetricsEndpoint(MetricsConfig(listen=f"unix:{path}"), text, log).serve)
        await trio.testing.wait_all_tasks_blocked()
        idle = [await trio.open_unix_socket(path) for _ in range(MAX_CONNECTIONS)]
        asking = await trio.open_unix_socket(path)
        await asking.send_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        reply = b"".join([piece async for piece in asking])
        assert reply.endswith(b"figures")
        assert [await connection.receive_some() for connection in idle] == [b""] * MAX_CONNECTIONS
        for connection in (*idle, asking):
            await connection.aclose()
        nursery.cancel_scope.cancel()
    log.close()
    assert not path.exists()
    assert (tmp_path / "log").read_text() == ""
