"""Agents that take as much of the daemon as they can get, from inside a run.

    python hogs.py silent               connections that never say hello
    python hogs.py halves               unfinished requests of 4 MiB, as many as it can
    python hogs.py descriptors          connections whose descriptors no request takes, and replies
                                        with descriptors, unread
    python hogs.py watchers             connections with 20 watches each, never read
    python hogs.py children             children that hold descriptors: pipes to their stdin, and
                                        stdio of the agent's own
    python hogs.py knocking             connects and hangs up in a loop
    python hogs.py asking               connections that ask without pause

Each prints one JSON object once it has what it can get, and keeps it for two minutes. Where
`CHILDREN` is set, it starts so many children that do the same first.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from sfactl.connecting.connection import Client, DaemonError
from sfactl.exits import Quit
from sfad.protocol import messages as m
from sfad.protocol.framing import MAX_REQUEST, SUPPORTED, FrameDecoder, ProtocolError
from sfad.protocol.paths import connect_path

SOCKET = os.environ["SFA_SOCKET"]
HELLO = m.pack_message(m.Hello(id=1, versions=list(SUPPORTED)))
RUN = os.environ["SFA_RUN_ID"]

held: list[socket.socket | Client] = []


def said(sock: socket.socket) -> str | None:
    """Return why the daemon has closed the connection; `None` if it has not."""
    try:
        data = sock.recv(65536, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return "reset"
    with suppress(ProtocolError):
        for body in FrameDecoder(1 << 20).feed(data):
            reply = m.unpack_reply(body)
            if isinstance(reply, m.Error):
                return reply.message
    return None if data else "closed"


def opened(*, hello: bool) -> socket.socket:
    """Open a connection, and send its hello if told to."""
    try:
        sock = socket.socket(socket.AF_UNIX)
    except OSError:  # this process has as many as it may have
        leave_to_child()
        sock = socket.socket(socket.AF_UNIX)
    connect_path(sock, Path(SOCKET))
    if hello:
        with suppress(OSError):
            sock.sendall(HELLO)
    held.append(sock)
    return sock


def leave_to_child() -> None:
    """Leave the open connections to a child."""
    if os.fork() == 0:
        signal.alarm(120)
        signal.pause()
    for each in held:
        each.close()
    held.clear()


def settled(socks: list[socket.socket]) -> tuple[int, str]:
    """Return how many of the connections the daemon keeps, and what it said to one that it
    closed."""
    open_client().close()  # whatever came before has been accepted by then
    words = [said(sock) for sock in socks if sock.fileno() >= 0]
    return words.count(None), next((word for word in words if word), "")


def open_client() -> socket.socket:
    """Open a connection, and wait for an answer or its end."""
    sock = opened(hello=True)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.poll()
    return sock


def silent() -> dict[str, Any]:
    kept, why = settled([opened(hello=False) for _ in range(1300)])
    return {"kept": kept, "why": why}


def halves() -> dict[str, Any]:
    frame = struct.pack(">I", MAX_REQUEST) + bytes(MAX_REQUEST - 1)
    socks = []
    for _ in range(40):
        socks.append(opened(hello=True))
        with suppress(OSError):
            socks[-1].sendall(frame)
    kept, why = settled([sock for sock in socks if unread_welcome(sock)])
    return {"kept": kept, "why": why}


def unread_welcome(sock: socket.socket) -> bool:
    """Read the answer to the hello, so that only the daemon's last words remain to be read."""
    with suppress(ConnectionResetError):
        size = struct.unpack(">I", sock.recv(4))[0]
        return bool(sock.recv(size))
    return False


def descriptors() -> dict[str, Any]:
    source = os.open("/dev/null", os.O_RDONLY)
    socks = [opened(hello=True) for _ in range(1000)]
    for sock in socks:
        with suppress(OSError):
            socket.send_fds(sock, [b"\0"], [source] * 12)
        logs = b"".join(m.pack_message(m.Logs(id=number, run=RUN)) for number in range(1, 300))
        other = opened(hello=True)
        with suppress(OSError):
            other.setblocking(False)
            other.sendall(logs)
    open_client()
    return {}


def watchers() -> dict[str, Any]:
    granted, why = 0, ""
    for _ in range(30):
        try:
            client = Client(Path(SOCKET))
            held.append(client)
            for _ in range(20):
                client.call(m.Watch(id=client.next_id(), run=RUN), m.Done)
                granted += 1
        except DaemonError as error:
            why = error.message
    return {"granted": granted, "why": why}


def children() -> dict[str, Any]:
    client, count, why = Client(Path(SOCKET)), 0, ""
    held.append(client)
    common: dict[str, Any] = {
        "argv": [b"sleep", b"120"],
        "cwd": b"/",
        "env": [b"PATH=/usr/bin:/bin"],
    }
    while True:
        request = m.Spawn(
            id=client.next_id(), stdio="inherit", descriptors=3, name=f"c{count}", **common
        )
        if count % 2:
            request = m.Spawn(id=client.next_id(), stdin="pipe", name=f"c{count}", **common)
        try:
            client.send(request, [0, 1, 2] if request.descriptors else [])
            reply = client.arrived()[0].reply
        except Quit as error:
            why = error.message
            break
        if not isinstance(reply, m.RunReply):
            why = reply.message if isinstance(reply, m.Error) else str(reply)
            break
        count += 1
    return {"count": count, "why": why}


def knocking() -> dict[str, Any]:
    for _ in range(4):
        if os.fork() == 0:
            signal.alarm(120)
            while True:
                with suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
                    sock.setblocking(False)
                    sock.connect(SOCKET)
    return {}


def asking() -> dict[str, Any]:
    socks = {sock.fileno(): sock for sock in (open_client() for _ in range(200))}
    batch = b"".join(
        m.pack_message(m.Spawn(id=9, argv=[b"true"], cwd=b"/", env=[])) for _ in range(300)
    )
    rest = dict.fromkeys(socks, batch)
    if os.fork():
        return {}
    signal.alarm(120)
    poll = select.epoll()
    for number, sock in socks.items():
        sock.setblocking(False)
        poll.register(number, select.EPOLLIN | select.EPOLLOUT)
    while True:
        for number, mask in poll.poll():
            with suppress(BlockingIOError, ConnectionError):
                if mask & select.EPOLLIN:
                    socks[number].recv(1 << 20)
                rest[number] = rest[number][socks[number].send(rest[number]) :] or batch


ATTACKS = (silent, halves, descriptors, watchers, children, knocking, asking)


def start_children(count: int) -> None:
    """Start children that do the same, over one connection: the first child may leave no room for
    another."""
    with Client(Path(SOCKET)) as client:
        env = [key + b"=" + value for key, value in os.environb.items()]
        for number in range(count):
            argv = [os.fsencode(word) for word in sys.orig_argv]
            client.call(
                m.Spawn(id=client.next_id(), argv=argv, cwd=b"/", env=env, name=f"child-{number}"),
                m.RunReply,
            )


def main() -> None:
    what = sys.argv[1]
    signal.alarm(120)
    start_children(int(os.environ.pop("CHILDREN", "0")))
    found = next(attack for attack in ATTACKS if attack.__name__ == what)()
    print(json.dumps(found), flush=True)
    while True:
        time.sleep(10)


if __name__ == "__main__":
    main()
