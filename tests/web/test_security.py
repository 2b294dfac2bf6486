"""`sfactl top --web`: for the browser that opens the address first, of the same user, and for no page of another site."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from urllib.parse import urlsplit

import psutil
import pytest

from tests.harness import PATIENCE, Daemon, as_nobody, as_root, started, wait_until

BURST = 100
"""Connections, fewer than wait in the kernel."""


class Served:
    """The server, and a browser that asks it."""

    def __init__(self, daemon: Daemon) -> None:
        command = [sys.executable, "-m", "sfactl", "top", "--web"]
        self.process = subprocess.Popen(command, env=daemon.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.address = urlsplit(self.process.stdout.readline().removeprefix("open ").strip())
        assert self.address.port is not None
        self.port = self.address.port
        self.cookie = ""

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str | None = None, **headers: str) -> tuple[int, dict[str, str], str]:
        """Return status, headers and body; with the cookie, if it has one."""
        known = {"Cookie": self.cookie} if self.cookie else {}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            connection.request("GET", self.address.path if path is None else path, headers=known | headers)
            answer = connection.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read().decode()

    def open(self) -> tuple[int, dict[str, str]]:
        status, headers, _ = self.get(f"{self.address.path}?{self.address.query}")
        self.cookie = headers.get("set-cookie", "").partition(";")[0]
        return status, headers

    def websocket(self, **headers: str) -> tuple[str, socket.socket]:
        """Ask for a session. Return the status line and the connection."""
        known = {"Host": f"127.0.0.1:{self.port}", "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        known |= {"Sec-WebSocket-Key": b64encode(bytes(16)).decode(), "Cookie": self.cookie} | headers
        request = f"GET {self.address.path}ws?width=100&height=30 HTTP/1.1\r\n"
        request += "".join(f"{key}: {value}\r\n" for key, value in known.items())
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        connection.sendall(f"{request}\r\n".encode())
        line = b""
        while not line.endswith(b"\r\n\r\n") and (more := connection.recv(1)):
            line += more
        return line.decode().partition("\r\n")[0], connection

    def sessions(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> None:
        sessions = self.sessions() if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert psutil.wait_procs(sessions, PATIENCE)[1] == []


@pytest.fixture
def served(common: Daemon) -> Iterator[Served]:
    one = Served(common)
    yield one
    one.end()


def frame(text: str) -> bytes:
    """Return a text frame of a client, masked with zeros (RFC 6455, 5.2)."""
    data = text.encode()
    assert len(data) < 126
    return bytes([0x81, 0x80 | len(data)]) + bytes(4) + data


def shown(connection: socket.socket, words: str) -> None:
    """Read until the session has drawn this."""
    text = ""
    while words not in text:
        data = connection.recv(65536)
        assert data, text[-2000:]
        text += data.decode(errors="replace")


def test_the_first_browser_sees_the_runs_and_no_other(common: Daemon, served: Served) -> None:
    with common.client() as client:
        started(client, ["sleep", "300"], name="visible")
    assert served.get()[0] == 403
    assert served.get(f"{served.address.path}?token=wrong")[0] == 403
    status, headers = served.open()
    assert status == 303
    attributes = {part.strip() for part in headers["set-cookie"].split(";")[1:]}
    assert attributes == {"HttpOnly", "SameSite=Strict", f"Path={served.address.path}"}
    assert len(served.address.path) > 32
    status, headers, body = served.get()
    assert status == 200
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert f"ws://127.0.0.1:{served.port}{served.address.path}ws" in body

    line, connection = served.websocket(Origin=served.origin)
    with connection:
        assert " 101 " in line
        shown(connection, "visible")
        connection.sendall(frame(json.dumps(["stdin", "?"])))
        shown(connection, "the next run in trouble")
    wait_until(lambda: not served.sessions(), "the session ends with its window")

    first, served.cookie = served.cookie, ""
    assert served.open()[0] == 403  # the token works once
    served.cookie = first
    assert served.get()[0] == 200


def test_a_page_of_another_site_gets_nothing(served: Served) -> None:
    served.open()
    here, there = f"127.0.0.1:{served.port}", "http://evil.example"
    assert served.get(Host="evil.example")[0] == 403  # a name that resolves to 127.0.0.1
    assert served.get(Host=f"localhost:{served.port}")[0] == 403
    assert served.get(Origin=there)[0] == 403
    assert served.get("/")[0] == 404
    for headers in ({"Origin": there}, {"Origin": "null"}, {"Host": "evil.example", "Origin": served.origin}, {"Host": here}):
        line, connection = served.websocket(**headers)
        connection.close()
        assert " 403 " in line
    line, connection = served.websocket(Origin=served.origin, Cookie="sfactl_top=guess")
    connection.close()
    assert " 403 " in line
    assert served.sessions() == []


@as_root
def test_another_user_is_cut_off_before_it_asks(served: Served) -> None:
    "localhost".encode("idna")  # loads the codec, which the other user may not be able to read

    def ask() -> str:
        taken = []
        for _ in range(300):
            connection = socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE)
            taken.append(connection)
        try:
            asked = f"GET {served.address.path}?{served.address.query} HTTP/1.1\r\nHost: {served.origin[7:]}\r\n\r\n"
            taken[-1].sendall(asked.encode())
            return str(taken[-1].recv(100))
        except ConnectionError:
            return "cut off"

    assert as_nobody(ask) in ("cut off", "b''")
    assert served.open()[0] == 303


@contextmanager
def nobody_connecting(port: int) -> Iterator[None]:
    """Have another user connect to `port` and hang up without pause."""
    begun, tell_begun = os.pipe()
    stop, tell_stop = os.pipe()

    def connect() -> None:
        count = 0
        while not select.select([stop], [], [], 0)[0]:
            with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
                # reset, so that no port is left waiting
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            count += 1
            if count == BURST:
                os.write(tell_begun, b"-")

    thread = threading.Thread(target=as_nobody, args=(connect,))
    thread.start()
    try:
        assert select.select([begun], [], [], PATIENCE)[0], "the other user has connected"
        yield
    finally:
        os.write(tell_stop, b"-")
        thread.join()
        for each in (begun, tell_begun, stop, tell_stop):
            os.close(each)


@as_root
def test_another_user_who_connects_without_pause_does_not_keep_the_browser_out(served: Served) -> None:
    "localhost".encode("idna")  # as above
    with nobody_connecting(served.port):
        assert served.open()[0] == 303
        assert served.get()[0] == 200


def test_a_session_ends_with_a_server_that_is_killed(served: Served) -> None:
    served.open()
    _, connection = served.websocket(Origin=served.origin)
    with connection:
        shown(connection, "sfad")
        [session] = served.sessions()
        os.kill(served.process.pid, signal.SIGKILL)
        served.process.wait()
        assert psutil.wait_procs([session], PATIENCE)[1] == []
