"""Passes bytes between a sandbox with a network of its own and the gateway.

The listener is in the sandbox's network, and this process is outside. So the agent can neither see
nor signal it, and the kernel still says of each connection to the gateway which run's cgroup it
comes from.
"""

import fcntl
import os
import resource
import select
import signal
import socket
from contextlib import suppress

from ...processes.kernel import SHORTAGES
from .kernel import join_namespace

_NS_GET_USERNS = 0xB701
_IP_FREEBIND = 15
_MOST_CONNECTIONS = 256
_PIECE = 1 << 16
"""Bytes that are taken at once. While they wait, no more are read."""
_BACKLOG = 128
_AGAIN = 0.25
"""Seconds until the listener is looked at again when there was no room, or no descriptor on the
whole machine."""
_SPARE = 16
"""Descriptors beside those of connections."""


def start(port: int, info: int, gate: int) -> None:
    """Fork the forwarder of the process that bubblewrap, which this process becomes, starts: `info`
    tells its pid, and the command waits until `gate` is closed. If there is no way to the gateway,
    this process is killed."""
    sandbox = os.getpid()
    if os.fork():
        return
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            # a run that is stopped may call its model during the grace
            signal.signal(number, signal.SIG_IGN)
        ended = os.pidfd_open(sandbox)
        listener = _listener_within(_child_pid(info), port)
        os.close(gate)
        for descriptor in (0, 1, 2):  # a pipe would stay open
            os.close(descriptor)
        _Forwarder(listener, ("127.0.0.1", port), ended).serve()
    except (OSError, ValueError) as error:
        with suppress(OSError):
            os.write(2, f"sfad: the isolated command has no way to the gateway: {error}\n".encode())
        with suppress(ProcessLookupError):
            os.kill(sandbox, signal.SIGKILL)
    finally:
        os._exit(0)


def _child_pid(info: int) -> int:
    """Return what bubblewrap says of its child: `"child-pid": N` in some lines of JSON."""
    said = b""
    while b"}" not in said and (piece := os.read(info, 4096)):
        said += piece
    os.close(info)
    digits = said.partition(b'"child-pid":')[2].strip().split(b"\n")[0].split(b",")[0].strip(b" }")
    if not digits.isdigit():
        raise OSError("bubblewrap has started nothing")
    return int(digits)


def _listener_within(pid: int, port: int) -> socket.socket:
    """Return a socket that listens on loopback in the network of another process."""
    near, far = socket.socketpair()
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    helper = os.fork()
    if not helper:
        _listen_in(network, port, far)
    far.close()
    os.close(network)
    message, descriptors, _, _ = socket.recv_fds(near, 4096, 1)
    near.close()
    os.waitpid(helper, 0)  # noqa: TID251 - this process reaps its own child, by pid
    if not descriptors:
        raise OSError(message.decode())
    return socket.socket(fileno=descriptors[0])


def _listen_in(network: int, port: int, far: socket.socket) -> None:
    """Enter the network, listen there, and pass the socket on. This process cannot come back, so it
    ends."""
    try:
        # the user namespace that owns it gives the right to enter it
        join_namespace(fcntl.ioctl(network, _NS_GET_USERNS))
        join_namespace(network)
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_IP, _IP_FREEBIND, 1)  # loopback may not be up yet
        listener.bind(("127.0.0.1", port))
        listener.listen(_BACKLOG)
        socket.send_fds(far, [b"listening"], [listener.fileno()])
    except OSError as error:
        far.send(str(error).encode())
    finally:
        os._exit(0)


class _Way:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.held = b""
        self.ended = False


class _Forwarder:
    def __init__(self, listener: socket.socket, gateway: tuple[str, int], ended: int) -> None:
        self._listener = listener
        self._gateway = gateway
        self._ended = ended
        self._poll = select.epoll()
        self._ways: dict[int, tuple[_Way, _Way]] = {}
        """By the descriptor: the way that it is the source of, and the way that it is the sink
        of."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        wanted = 2 * _MOST_CONNECTIONS + _SPARE
        room = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, hard))
        self._most = max(1, (room - _SPARE) // 2)
        self._accepting = False

    def serve(self) -> None:
        """Serve until the sandbox has ended."""
        self._listener.setblocking(False)
        self._poll.register(self._ended, select.EPOLLIN)
        self._accept_while_there_is_room()
        while True:
            for descriptor, what in self._poll.poll(None if self._accepting else _AGAIN):
                if descriptor == self._ended:
                    return
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._ways:
                    self._move(descriptor, what)
            self._accept_while_there_is_room()

    def _accept_while_there_is_room(self) -> None:
        """Look at the listener only while another connection has room: it stays ready, and would
        keep a CPU busy."""
        room = len(self._ways) < 2 * self._most
        if room != self._accepting:
            self._accepting = room
            if room:
                self._poll.register(self._listener, select.EPOLLIN)
            else:
                self._poll.unregister(self._listener)

    def _accept(self) -> None:
        opened: list[socket.socket] = []
        try:
            opened.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            opened.append(self._listener.accept()[0])
            for one in opened:
                one.setblocking(False)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(BlockingIOError):
                opened[0].connect(self._gateway)
        except OSError as error:
            for one in opened:
                one.close()
            if error.errno in SHORTAGES:
                self._accepting = False
                self._poll.unregister(self._listener)
            return
        outside, inside = opened
        there, back = _Way(inside, outside), _Way(outside, inside)
        self._ways[inside.fileno()] = there, back
        self._ways[outside.fileno()] = back, there
        for one in opened:
            self._poll.register(one, 0)
        self._watch(there, back)

    def _move(self, descriptor: int, what: int) -> None:
        out, into = self._ways[descriptor]
        try:
            if what & (select.EPOLLERR | select.EPOLLHUP) and not what & select.EPOLLIN:
                raise OSError("both directions have ended")
            if what & select.EPOLLOUT:
                self._send(into)
            if what & select.EPOLLIN and not out.held and not out.ended:
                out.held = out.source.recv(_PIECE)
                out.ended = not out.held
                self._send(out)
        except BlockingIOError:
            pass
        except OSError:
            self._close(out)
            return
        if out.ended and into.ended and not out.held and not into.held:
            self._close(out)
        else:
            self._watch(out, into)

    def _send(self, way: _Way) -> None:
        if way.held:
            with suppress(BlockingIOError):
                way.held = way.held[way.sink.send(way.held) :]
        if way.ended and not way.held:
            way.sink.shutdown(socket.SHUT_WR)

    def _watch(self, *ways: _Way) -> None:
        for way in ways:
            other = self._ways[way.source.fileno()][1]
            reads = select.EPOLLIN if not way.held and not way.ended else 0
            self._poll.modify(way.source, reads | (select.EPOLLOUT if other.held else 0))

    def _close(self, way: _Way) -> None:
        for one in (way.source, way.sink):
            del self._ways[one.fileno()]
            one.close()
