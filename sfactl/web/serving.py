"""Serve the console: where it listens, whose connections it accepts, and how it ends."""

import os
import pwd
import signal
import socket
import ssl
import sys
import webbrowser
from collections.abc import Callable
from contextlib import closing
from errno import EADDRINUSE
from functools import partial
from ipaddress import ip_address
from typing import Any, NamedTuple
from weakref import WeakSet

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from sfad.host import systemd
from sfad.host.linux.callers import ConnectionTable

from ..exits import ExitCode, UsageError, understood
from . import addresses
from .access import Gate, login_link
from .logins import UNTIL_USED, Held, Running, announce, distrust, kept, runs
from .options import Address, WebOptions, ip
from .pages import application
from .source import Source

MOST_CONNECTIONS = 256
"""Connections at once. A browser makes six."""
SILENT_MS = 60_000
"""Milliseconds after which a connection is given up whose other end does not acknowledge what was
sent: a telephone that sleeps."""


def of_users(uids: frozenset[int]) -> Callable[[trio.SocketStream], bool]:
    """Return a test for connections whose other end is a process of one of these users, on this
    machine."""

    def accepted(stream: trio.SocketStream) -> bool:
        try:
            with closing(ConnectionTable()) as table:
                caller = table.caller(stream.socket)
        except OSError:  # no descriptor is free
            return False
        return caller is not None and caller.uid in uids

    return accepted


def from_address(address: str) -> Callable[[trio.SocketStream], bool]:
    """Return a test for connections that come from this IP address."""

    def accepted(stream: trio.SocketStream) -> bool:
        try:
            return bool(stream.socket.getpeername()[0] == address)
        except OSError:
            return False

    return accepted


class PeerListener(trio.abc.Listener[trio.SocketStream]):
    """Accepts the connections that pass a test, and closes all others at once."""

    def __init__(
        self, listener: trio.SocketListener, accepts: Callable[[trio.SocketStream], bool]
    ) -> None:
        self._listener = listener
        self._accepts = accepts
        self._open: WeakSet[trio.SocketStream] = WeakSet()

    async def accept(self) -> trio.SocketStream:
        while True:
            # a checkpoint: a client that connects without pause does not keep other tasks waiting
            stream = await self._listener.accept()
            if self._accepts(stream) and self._room():
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_MS)
                self._open.add(stream)
                return stream
            stream.socket.close()

    def _room(self) -> bool:
        return sum(stream.socket.fileno() >= 0 for stream in self._open) < MOST_CONNECTIONS

    async def aclose(self) -> None:
        await self._listener.aclose()

    def hang_up(self) -> None:
        """Close all connections, also where the other end does not read."""
        for stream in list(self._open):
            stream.socket.close()


GOODBYE = 1.0
"""Seconds that answers under way get at the end."""


class Place(NamedTuple):
    """Where the console listens, and how browsers reach it. Made by `place_of` from the command
    line."""

    host: str
    port: int
    cert: str | None
    key: str | None
    proxy: str | None
    """The origin of a proxy in front: `https://agents.example.org`."""
    accepts: Callable[[trio.SocketStream], bool]
    checks_users: bool

    @property
    def name(self) -> str:
        return str(Address(self.host, self.port))

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET


def place_of(wanted: WebOptions) -> Place:
    """Return the place that the options mean. Raise `UsageError` for one that is not safe."""
    (host, port), cert, key = wanted.listen, wanted.cert, wanted.key
    proxy, sender = wanted.proxy, wanted.sender
    if (cert is None) != (key is None):
        raise UsageError("--cert and --key need each other")
    if sender is not None and proxy is None:
        raise UsageError("--from needs --proxy: it names whose connections are the proxy's")
    if ip_address(host).is_loopback:
        users = {os.geteuid()} if sender is None else {os.geteuid(), _uid(sender)}
        return Place(host, port, cert, key, proxy, of_users(frozenset(users)), True)
    if proxy is not None:
        if sender is None:
            raise UsageError(
                f"--listen {wanted.listen}: other machines can connect; "
                "name the proxy's IP address with --from"
            )
        proxy_address = understood("--from", ip, sender)
        return Place(host, port, cert, key, proxy, from_address(proxy_address), False)
    if cert is None:
        raise UsageError(
            f"--listen {wanted.listen}: other machines can connect; "
            "give a certificate (--cert FILE --key FILE), or the proxy in front (--proxy "
            "https://NAME --from ADDRESS), or listen on 127.0.0.1 and forward the port with ssh -L"
        )
    return Place(host, port, cert, key, None, lambda _: True, False)


def _uid(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise UsageError(
            f"--from: there is no user {name!r}; behind loopback it names the user of the proxy"
        ) from None


def _bound(place: Place) -> socket.socket:
    listener = socket.socket(place.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((place.host, place.port))
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == EADDRINUSE:
            # the program that listens there may have shown browsers a page of its own, which could
            # act as soon as the console is there again
            distrust(place.name)
        hint = "; --listen 127.0.0.1:0 takes a free port" if place.port else ""
        if error.errno == EADDRINUSE and runs(place.name):
            hint = "; your console runs there: sfactl web --link prints a link"
        raise UsageError(
            f"cannot listen on {place.host} port {place.port}: {error.strerror}{hint}"
        ) from None
    if place.checks_users:
        try:
            with closing(ConnectionTable()) as table:
                table.connections(())
        except OSError:  # every browser would be cut off
            listener.close()
            raise UsageError(
                "the kernel does not tell whose a connection is (sock_diag, CONFIG_INET_DIAG)"
            ) from None
    return listener


def tls_of(place: Place) -> ssl.SSLContext | None:
    """Load the certificate; `None` without one. Raise `UsageError`."""
    if place.cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(place.cert, place.key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"--cert {place.cert}, --key {place.key}: {error.strerror or error}"
        ) from None
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def _origins(place: Place) -> list[str]:
    """Return the addresses in a browser, the best for another device first."""
    if place.proxy is not None:
        return [place.proxy]
    scheme, default = ("https", 443) if place.cert is not None else ("http", 80)
    port = "" if place.port == default else f":{place.port}"
    hosts = addresses.of_machine() if ip_address(place.host).is_unspecified else [place.host]
    return [f"{scheme}://{f'[{host}]' if ':' in host else host}{port}" for host in hosts]


def serve(source: Source, place: Place, *, opens: bool) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP. Return the exit code."""
    context = tls_of(place)
    listener = _bound(place)
    place = place._replace(port=listener.getsockname()[1])
    signal.set_wakeup_fd(-1)  # trio has its own, and warns of another
    try:
        with closing(listener), kept(place.name) as (known, lock, brief):
            gate = Gate(_origins(place), known)
            announce(lock, Running(gate.origins, not place.checks_users or place.proxy is not None))
            if brief is not None:
                print(f"logins end with this console: {brief}", file=sys.stderr)
            if systemd.manages():  # others may read the log
                print("the console is ready; a link: sfactl web --link", flush=True)
                systemd.notify("READY=1")
                trio.run(_serve, source, listener, place, context, gate, None)
                return ExitCode.DONE
            link = login_link(gate.origins[0], known.link(UNTIL_USED))
            print(f"open {link}", flush=True)
            print(
                "the link works once, in one browser; for a telephone: sfactl web --link; "
                "Ctrl-C ends this",
                file=sys.stderr,
            )
            trio.run(_serve, source, listener, place, context, gate, link if opens else None)
            known.end_with_console()
    except Held:
        raise UsageError(f"another console of yours listens on {place.name}") from None
    return ExitCode.DONE


async def _serve(
    source: Source,
    sock: socket.socket,
    place: Place,
    tls: ssl.SSLContext | None,
    gate: Gate,
    link: str | None,
) -> None:
    config = Config()
    config.loglevel = "ERROR"
    config.include_server_header = False
    config.keep_alive_timeout = 75
    config.h11_max_incomplete_size = 64 * 1024
    listener = PeerListener(
        trio.SocketListener(trio.socket.from_stdlib_socket(sock)), place.accepts
    )
    end = WorkerContext(None)
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:
            pages: Any = gate.guard(application(source, gate, nursery))
            app = ASGIWrapper(pages)
            handler = partial(TCPServer, app, config, end, ConnectionState({}))
            if link is not None:
                nursery.start_soon(
                    partial(trio.to_thread.run_sync, webbrowser.open, link, abandon_on_cancel=True)
                )
            async with trio.open_nursery() as serving:
                reached: Any = (
                    listener
                    if tls is None
                    else trio.SSLListener(listener, tls, https_compatible=True)
                )
                serving.start_soon(
                    partial(trio.serve_listeners, handler, [reached], handler_nursery=nursery)
                )
                async for _ in signals:
                    break
                serving.cancel_scope.cancel()
            await end.terminated.set()
            nursery.cancel_scope.deadline = trio.current_time() + GOODBYE
            nursery.start_soon(_hang_up, listener)


async def _hang_up(listener: PeerListener) -> None:
    """Close what is still open at the end: hypercorn shields its sending, and another end that does
    not read would keep it here."""
    try:
        await trio.sleep_forever()
    finally:
        listener.hang_up()
