"""The way from a sandbox to the gateway, between real sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.processes.rig import PATIENCE

SERVE = """
import socket, sys
from sfad.features.isolation.forwarder import _Forwarder
listener, port, ended = map(int, sys.argv[1:])
_Forwarder(socket.socket(fileno=listener), ("127.0.0.1", port), ended).serve()
"""


def test_nothing_is_lost_where_both_sides_send_before_they_read() -> None:
    """All buffers on the way are full in both directions."""
    up, down = os.urandom(1 << 16) * 256, os.urandom(1 << 16) * 256
    with (
        socket.create_server(("127.0.0.1", 0)) as gateway,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        near, far = os.pipe()
        inherited = (listener.fileno(), near)
        words = [listener.fileno(), gateway.getsockname()[1], near]
        forwarder = subprocess.Popen(
            [sys.executable, "-c", SERVE, *map(str, words)], pass_fds=inherited
        )
        try:
            with (
                socket.create_connection(listener.getsockname(), PATIENCE) as agent,
                gateway.accept()[0] as server,
            ):
                server.settimeout(PATIENCE)
                with ThreadPoolExecutor(4) as pool:
                    sent = [pool.submit(_send, agent, up), pool.submit(_send, server, down)]
                    received = [
                        pool.submit(_receive, server, len(up)),
                        pool.submit(_receive, agent, len(down)),
                    ]
                    assert [each.result(PATIENCE) for each in received] == [up, down]
                    assert [each.result(PATIENCE) for each in sent] == [None, None]
        finally:
            os.close(far)  # the sandbox has ended
            os.close(near)
            assert forwarder.wait(PATIENCE) == 0


def _send(stream: socket.socket, data: bytes) -> None:
    stream.sendall(data)


def _receive(stream: socket.socket, size: int) -> bytes:
    """Read in small pieces, so that the sender is faster."""
    found = bytearray()
    while len(found) < size and (piece := stream.recv(1 << 12)):
        found += piece
    return bytes(found)
