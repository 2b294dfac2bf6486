"""The console as a process, and requests to it."""

from __future__ import annotations

import ctypes
import http.client
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from urllib.parse import urlsplit

import psutil

from tests.harness import PATIENCE, Daemon
from tests.template import fork_console

_LIBC = ctypes.CDLL(None)
_PIDFD_GETFD = 438
"""pidfd_getfd(2), on all architectures."""


class Console:
    """`sfactl web`, and a client that speaks HTTP to it."""

    def __init__(
        self, daemon: Daemon, *options: str, port: int = 0, env: Mapping[str, str] | None = None
    ) -> None:
        """Start it, and wait for its link. `options` come last, so that they can replace
        `--listen`."""
        words = ["--listen", f"127.0.0.1:{port}", *options]
        env = daemon.env | {"XDG_STATE_HOME": f"{daemon.state_dir}.xdg"} | dict(env or {})
        self.process, self._said = fork_console(words, env)
        self.link = self._said.readline().removeprefix("open ").strip()
        parts = urlsplit(self.link)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.host = parts.netloc
        self.login = f"{parts.path}?{parts.query}"
        self.port = parts.port or 0
        self.cookie = ""

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        port: int = 0,
    ) -> tuple[int, dict[str, str], str]:
        """Return status, headers and body; with the cookie, if it has one."""
        known = {"Host": self.host} | ({"Cookie": self.cookie} if self.cookie else {})
        known |= headers or {}
        with closing(
            http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=PATIENCE)
        ) as connection:
            connection.request(method, path, body=body, headers=known)
            answer = connection.getresponse()
            return (
                answer.status,
                {key.lower(): value for key, value in answer.getheaders()},
                answer.read().decode(),
            )

    def open(self) -> tuple[int, dict[str, str]]:
        """Open the link, and keep the cookie."""
        status, headers, _ = self.ask(self.login)
        self.cookie = headers.get("set-cookie", "").partition(";")[0]
        return status, headers

    def token(self) -> str:
        """Return the token of the pages."""
        page = self.ask("/")[2]
        return page.partition('data-token="')[2].partition('"')[0]

    def hang_up(self) -> None:
        """Cut all connections of browsers, as a network does that a telephone leaves."""
        process = os.pidfd_open(self.process.pid)
        for each in psutil.Process(self.process.pid).net_connections("tcp"):
            if each.status == psutil.CONN_ESTABLISHED:
                found = _LIBC.syscall(_PIDFD_GETFD, process, each.fd, 0)
                if found >= 0:
                    with socket.socket(fileno=found) as connection, suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
        os.close(process)

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it as a person would; return its exit code."""
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        code = self.process.wait(PATIENCE)
        self._said.close()
        return code
