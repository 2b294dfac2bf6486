"""`sfactl top` in a browser, on loopback, for the user who has started it.

Who may connect: a process of this user only, which the kernel tells (sock_diag(7)); any other is closed before it can send
anything, so that it cannot keep places occupied either. Who may ask: the browser that has opened the printed address first. Its
token is exchanged for a cookie, once. A browser sends a cookie to all ports of a host, so the path is secret as well. Host and
Origin are checked: a page of another site must reach this one neither by a name that it resolves to 127.0.0.1, nor by a WebSocket.
"""

import hmac
import os
import secrets
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from shlex import join

import aiohttp_jinja2
import jinja2
from aiohttp import web
from textual_serve.server import Server

from ..exits import ExitCode, UsageError

LOOPBACK = "127.0.0.1"
COOKIE = "sfactl_top"
OPENED = "the address can be opened once, in one browser; end 'sfactl top --web' and start it again for another"
MOST_SESSIONS = 8
"""Each is a process of its own."""

_SOCK_DIAG = 4
"""NETLINK_SOCK_DIAG, which the socket module does not name."""
_BY_FAMILY = 20
_REQUEST = 1
_ERROR = 2
_HEADER = struct.Struct("=IHHII")
"""`nlmsghdr`."""
_WANTED = struct.Struct("=BBBBI")
"""The beginning of `inet_diag_req_v2`: family, protocol, extensions, padding, states."""
_ENDS = struct.Struct("!HH16s16sI8s")
"""`inet_diag_sockid`: ports, addresses, interface, cookie."""
_FOUND = struct.Struct("=4x48x12xII")
"""`inet_diag_msg`: of all its fields, uid and inode."""
_ALL_STATES, _ANY_INTERFACE, _NO_COOKIE = 0xFFFFFFFF, 0, b"\xff" * 8
Address = tuple[str, int]
NO_PEER: Address = ("0.0.0.0", 0)  # noqa: S104
"""The remote end of a listener."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def user_of(local: Address, remote: Address) -> int | None:
    """Return the uid that has the IPv4 socket between these addresses; `None` if no process has it any more. The kernel is asked
    (sock_diag(7)): some microseconds, however many connections the machine has. Raise `OSError` if it does not tell."""
    ends = _ENDS.pack(local[1], remote[1], *(socket.inet_aton(host) for host, _ in (local, remote)), _ANY_INTERFACE, _NO_COOKIE)
    wanted = _WANTED.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + ends
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.send(_HEADER.pack(_HEADER.size + len(wanted), _BY_FAMILY, _REQUEST, 0, 0) + wanted)
        answer = kernel.recv(4096)  # the kernel has answered within send(2)
    if _HEADER.unpack_from(answer)[1] == _ERROR:
        number = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        raise OSError(number, os.strerror(number))
    uid, inode = _FOUND.unpack_from(answer, _HEADER.size)
    return int(uid) if inode else None


class OwnListener(socket.socket):
    """Accepts connections of this user's processes, and closes all others at once."""

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """Accept one. Raise `BlockingIOError` after a connection of another user: then the event loop serves what it has before it
        comes back, and another user who connects without pause cannot keep it here."""
        connection, peer = super().accept()
        if _is_own(peer, connection.getsockname()):
            return connection, peer
        connection.close()
        raise BlockingIOError


def _is_own(peer: tuple[str, int], own: tuple[str, int]) -> bool:
    try:
        return user_of(peer, own) == os.geteuid()
    except OSError:  # it has closed the connection, or no descriptor is free
        return False


class TopServer(Server):
    """textual-serve's server behind a token, a cookie and a secret path."""

    def __init__(self, command: Sequence[str], port: int) -> None:
        """Listen at `port`, or at one that the kernel chooses for 0. Raise `OSError`."""
        self._listener = OwnListener(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((LOOPBACK, port))
        self._listener.listen()
        try:
            user_of(self._listener.getsockname(), NO_PEER)
        except OSError as error:  # every browser would be cut off
            raise OSError(error.errno, "the kernel does not tell whose a connection is (sock_diag, CONFIG_INET_DIAG)") from None
        self._token: str | None = secrets.token_urlsafe(32)
        self._cookie = secrets.token_urlsafe(32)
        self._path = f"/{secrets.token_urlsafe(32)}"
        self._sessions = 0
        super().__init__(f"exec {join(command)}", LOOPBACK, self._listener.getsockname()[1], title="sfactl top")

    @property
    def address(self) -> str:
        """What to open, once."""
        return f"{self.public_url}{self._path}/?token={self._token}"

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM."""
        web.run_app(self._application(), sock=self._listener, access_log=None, print=None)

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[self._check], client_max_size=0)
        aiohttp_jinja2.setup(app, loader=jinja2.FileSystemLoader(self.templates_path))
        app.add_routes(
            [
                web.get(f"{self._path}/", self._index, name="index"),
                web.get(f"{self._path}/ws", self._session, name="websocket"),
                web.static(f"{self._path}/static", Path(self.statics_path), name="static"),
            ]
        )
        return app

    @web.middleware
    async def _check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        foreign = origin is None if request.path.endswith("/ws") else origin not in (None, self.public_url)
        if request.host != f"{LOOPBACK}:{self.port}" or foreign or origin not in (None, self.public_url):
            raise web.HTTPForbidden(text="only the page of this address may ask")
        if not request.path.startswith(f"{self._path}/"):
            raise web.HTTPNotFound
        if (token := request.query.get("token")) is not None:
            return self._let_in(token)
        if not _equal(request.cookies.get(COOKIE, ""), self._cookie):
            raise web.HTTPForbidden(
                text="the address can be opened once, in one browser; end 'sfactl top --web' and start it again"
            )
        return await handler(request)

    def _let_in(self, token: str) -> web.StreamResponse:
        if self._token is None or not _equal(token, self._token):
            raise web.HTTPForbidden(text=OPENED)
        self._token = None
        response = web.HTTPSeeOther(f"{self._path}/")
        response.set_cookie(COOKIE, self._cookie, path=f"{self._path}/", httponly=True, samesite="Strict")
        return response

    async def _index(self, request: web.Request) -> web.StreamResponse:
        response = aiohttp_jinja2.render_template("app_index.html", request, self._page())
        own = f"'self' ws://{LOOPBACK}:{self.port}"
        response.headers["Content-Security-Policy"] = (
            f"default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
            f"font-src 'self'; connect-src {own}; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
        )
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-store"
        return response

    def _page(self) -> dict[str, object]:
        """Return what textual-serve's page is made from."""
        here = f"{LOOPBACK}:{self.port}{self._path}"
        return {
            "font_size": 16,
            "app_websocket_url": f"ws://{here}/ws",
            "config": {"static": {"url": f"http://{here}/static/"}},
            "application": {"name": self.title},
        }

    async def _session(self, request: web.Request) -> web.StreamResponse:
        if self._sessions >= MOST_SESSIONS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_SESSIONS} windows are open already")
        self._sessions += 1
        try:
            return await self.handle_websocket(request)
        finally:
            self._sessions -= 1


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def serve(command: Sequence[str], port: int) -> int:
    """Serve `command` in a browser until it is interrupted. Return the exit code."""
    try:
        server = TopServer(command, port)
    except OSError as error:
        raise UsageError(f"--port {port}: {error.strerror}") from None
    print(f"open {server.address}", flush=True)
    print("the address works once; Ctrl-C ends this", file=sys.stderr, flush=True)
    server.run()
    return ExitCode.DONE
