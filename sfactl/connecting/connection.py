"""The connection to the daemon: synchronous, one request at a time or several in flight, matched by
id.

The daemon may be killed and started again at any moment; its runs continue. `call` and `ask` then
connect again, and repeat the requests that `Request.repeats` allows to repeat. A caller with
several requests in flight uses `reconnect` and `again`.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import pack as packed
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from sfad.protocol.conversation import Answer, Conversation, hello, rights
from sfad.protocol.framing import MAX_REQUEST, ProtocolError, tag
from sfad.protocol.paths import (
    LEDGER,
    SOCKET,
    SYSTEM_SOCKET,
    SYSTEM_STATE,
    client_sockets,
    connect_path,
    state_dir,
)
from sfad.protocol.requests.base import (
    Error,
    Reply,
    Request,
    Welcome,
    pack_message,
)
from sfad.protocol.types import ErrorCode

from .. import exits
from .inside import inside_run
from .signals import wait_readable
from .trust import distrusted

if TYPE_CHECKING:
    from .over_fleet import FleetNodes

R = TypeVar("R", bound=Reply)
Q = TypeVar("Q", bound=Request)


HANDSHAKE_TIMEOUT = 10.0
"""Seconds for connect and `Welcome`. A daemon that adopts a thousand runs should answer within 2
s."""
MAX_UNCLAIMED = 65_536
"""Replies and events that may arrive before the expected reply. A daemon sends far fewer."""
RECONNECT = 10.0
"""Seconds to wait for a daemon that restarts (docs/protocol.md)."""
AGAIN = 0.1
"""Seconds between attempts to connect. The kernel does not tell when a process begins to listen at
a socket."""
HANG_UPS = 3
"""A process that hangs up so many times in a row is no daemon that dies."""
ABSENT = frozenset({"missing", "refused"})
"""Kinds of `Unreachable` that mean no daemon is running. With the others, this process may not or
cannot speak to it."""


class Unreachable(exits.Quit):
    """No daemon answers at this socket. `kind`: `missing`, `refused`, `denied` (file permissions),
    `sandbox` (the system call was refused to this process), `untrusted` (another user listens),
    `silent` (no reply in time) or `gone` (the daemon closed the connection)."""

    def __init__(self, path: str, kind: str, detail: str) -> None:
        super().__init__(
            exits.ExitCode.UNREACHABLE, f"the daemon cannot be reached at {path}: {detail}"
        )
        self.path = path
        self.kind = kind


class ConnectionLost(Unreachable):
    """The connection ended while a request was to be sent or a reply to come: `gone`. The daemon
    may come back."""

    def __init__(self, path: str, detail: str = "it closed the connection") -> None:
        super().__init__(path, "gone", detail)


class DaemonError(exits.Quit):
    """The daemon answered `Error`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(exits.of_error(code), message)
        self.error = code


FLEET = "fleet:"
"""How the place of a socket begins whose daemon is to answer for all nodes of its fleet."""
unanswered_by: dict[str, str] = {}
"""The nodes that have not answered requests of this process, and why."""


def connect(flag: str | None, *, tell: bool = True, patient: bool = True) -> Client:
    """Connect to the daemon at `--socket`, SFA_SOCKET, SFAD_SOCKET, or the first of the user's and
    the system's sockets that exists. If a daemon hangs or denies access, the next place is not
    tried, with one exception: root's daemon at the system's place may serve no other user. Raise
    `Unreachable` for the first place, or for one that has a socket. `tell`: print a note if the
    system's daemon answers in place of the user's own, and once if the user's own does beside the
    system's. `patient`: inside a run, wait for a daemon that died; the run has one."""
    try:
        return _connect(flag, tell=tell)
    except Unreachable as error:
        if error.kind != "refused" or not patient or inside_run() is None:
            raise
        return connect_again(flag)


def connect_again(flag: str | None) -> Client:
    """Connect as `connect` does, to a daemon that died and may be started again within
    `RECONNECT`."""
    give_up = time.monotonic() + RECONNECT
    while True:
        time.sleep(AGAIN)
        try:
            return _connect(flag, tell=True)
        except Unreachable as error:
            if error.kind not in ABSENT or time.monotonic() >= give_up:
                raise


def _connect(flag: str | None, *, tell: bool) -> Client:
    if flag is not None and flag.startswith(FLEET):
        client = _connect(flag.removeprefix(FLEET) or None, tell=tell)
        client.ask_fleet()
        return client
    try:
        places = client_sockets(os.environ, os.getuid(), flag)
    except ValueError as error:
        raise exits.Quit(exits.ExitCode.UNREACHABLE, str(error)) from None
    failures: list[Unreachable] = []
    for place in places:
        try:
            client = Client(place)
        except Unreachable as error:
            if error.kind not in ABSENT and not (
                failures and place == SYSTEM_SOCKET and error.kind == "denied"
            ):
                raise
            failures.append(error)
        else:
            if tell and failures and place == SYSTEM_SOCKET:
                _tell_stand_in(failures)
            if tell and place != SYSTEM_SOCKET and SYSTEM_SOCKET in places:
                _tell_of_service(place)
            return client
    raise next((f for f in failures if f.kind == "refused"), failures[0])


_told: set[Path] = set()
"""State directories of daemons whose users were told. A program that connects again and again would
tell each time."""


def _tell_stand_in(failures: Sequence[Unreachable]) -> None:
    """Say once that the system's daemon answers, if the user has a daemon of their own: their runs
    are not the system's."""
    try:
        state = state_dir(os.environ, os.getuid())
    except ValueError:  # no home, so no daemon either
        return
    left = [failure for failure in failures if failure.kind == "refused"]
    if state in _told or state == SYSTEM_STATE or not (left or (state / LEDGER).exists()):
        return
    _told.add(state)
    print(
        f"sfactl: your own daemon is not running ({(left or failures)[0].path}); "
        f"the system's daemon answers ({SYSTEM_SOCKET}), which knows none of its runs. "
        "To start yours: systemctl --user start sfad, or sfad serve",
        file=sys.stderr,
        flush=True,
    )


BESIDE = "beside-service"
"""The file in the user's state directory whose time is when they were told of the service."""


def _tell_of_service(own: Path) -> None:
    """Say once, since the system's socket was made, that the user's own daemon answers and not the
    system's: their histories and the budgets of teams are not the same."""
    try:
        state = state_dir(os.environ, os.getuid())
        mark, made = state / BESIDE, os.stat(SYSTEM_SOCKET).st_ctime_ns
        if state == SYSTEM_STATE or (mark.exists() and mark.stat().st_mtime_ns > made):
            return
        Client(SYSTEM_SOCKET).close()
        mark.touch(0o600)
    except (OSError, ValueError, exits.Quit):  # it does not serve this user, or no one could tell
        return
    print(
        f"sfactl: your own daemon answers ({own}), not the service of this machine "
        f"({SYSTEM_SOCKET}): the runs, history and budgets of teams of the service do not count "
        f"here. To use the service: export SFAD_SOCKET={SYSTEM_SOCKET}, or stop your own daemon",
        file=sys.stderr,
        flush=True,
    )


def call(flag: str | None, request: Request, expected: type[R]) -> R:
    """Connect as `connect` does, send one request, and return its reply. Raise what `connect` and
    `Client.call` raise."""
    with connect(flag) as client:
        return client.call(request, expected)


class Client:
    """A connection to the daemon. To make one may raise `Unreachable`, and `DaemonError` if the
    daemon has no room for it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._answers: list[Answer] = []
        self.fleet: FleetNodes | None = None
        """The nodes for which the daemon answers on this connection; `None`: for itself."""
        self.last_id = 0
        """Of the request that was sent last."""
        self._patience: float | None = None
        self._first_open()

    def _first_open(self) -> None:
        """Open, also if the daemon has died since it began to listen, and is started again."""
        give_up, hung_up = time.monotonic() + RECONNECT, 0
        while True:
            try:
                return self._open(HANDSHAKE_TIMEOUT)
            except ConnectionLost:
                hung_up += 1
                if self._last_words is not None or hung_up >= HANG_UPS:
                    raise  # it lives, and does not want this client
            except Unreachable as error:
                if not hung_up or error.kind not in ABSENT:
                    raise
                if time.monotonic() >= give_up:
                    detail = f"it did not come back within {RECONNECT:.3g} s; no request was sent"
                    raise Unreachable(self.path, error.kind, detail) from error
                hung_up = 1
            time.sleep(AGAIN)

    def _open(self, handshake: float) -> None:
        self._conversation = Conversation()
        self._last_words: Error | None = None
        self._opened_at = time.monotonic()
        self._socket = self._reach(handshake)
        try:
            if (why := distrusted(self._socket)) is not None:
                raise Unreachable(self.path, "untrusted", why)
            self.welcome = self._shake_hands()
            if self.fleet is not None:
                self.ask_fleet()
        except BaseException:
            self.close()
            raise

    def _reach(self, seconds: float) -> socket.socket:
        sock = None
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # not settimeout(): a non-blocking connect() fails at once if the backlog is full,
            # instead of waiting for a place
            sock.setsockopt(
                socket.SOL_SOCKET,
                socket.SO_SNDTIMEO,
                packed("ll", int(seconds), int(seconds % 1 * 1e6)),
            )
            connect_path(sock, self.path)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, packed("ll", 0, 0))
            sock.settimeout(seconds)
        except (OSError, ValueError) as error:
            if sock is not None:
                sock.close()
            raise (
                explain(self.path, error)
                if isinstance(error, OSError)
                else exits.UsageError(str(error))
            ) from error
        return sock

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, and each descriptor that no caller has taken."""
        self._socket.close()
        unclaimed = self._conversation.take_unclaimed()
        unclaimed += [each for answer in self._answers for each in answer.descriptors]
        self._answers.clear()
        for descriptor in unclaimed:
            os.close(descriptor)

    def reconnect(
        self,
        advice: str,
        pause: Callable[[], None] = lambda: time.sleep(AGAIN),
        patience: float | None = None,
    ) -> None:
        """Connect again to a restarting daemon, at the same place; never start one. Earlier
        requests get no reply any more; ids continue. `pause` is called between attempts and takes
        `AGAIN` seconds. After `patience` seconds (default: `RECONNECT`) raise `Unreachable` with
        `advice`, or `DaemonError` if the daemon still has no room for the connection."""
        self.close()
        patience = RECONNECT if patience is None else patience
        give_up = time.monotonic() + patience
        if time.monotonic() - self._opened_at < AGAIN:
            pause()  # do not connect in a hot loop to a daemon that greets and hangs up
        while True:
            try:
                return self._open(min(HANDSHAKE_TIMEOUT, max(give_up - time.monotonic(), AGAIN)))
            except DaemonError as error:
                if error.error is not ErrorCode.UNAVAILABLE or time.monotonic() >= give_up:
                    raise
            except Unreachable as error:
                if error.kind == "untrusted":
                    raise
                if time.monotonic() >= give_up:
                    detail = f"it did not come back within {patience:.3g} s; {advice}"
                    raise Unreachable(self.path, error.kind, detail) from error
            pause()

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def fileno(self) -> int:
        """Return the descriptor to poll: it is readable when `arrived` has something to return."""
        return self._socket.fileno()

    @property
    def sock(self) -> socket.socket:
        """For another driver of the conversation."""
        return self._socket

    @property
    def conversation(self) -> Conversation:
        return self._conversation

    def be_patient(self, seconds: float | None) -> None:
        """Set the seconds to wait for each piece of a reply, and for a daemon that restarts before
        the reply even if the request's own time is over. `None`, the initial value, waits without
        end for a reply. After `Unreachable` of kind `silent` the reply may still come: close the
        connection."""
        self._patience = seconds
        self._socket.settimeout(seconds)

    def closed_by_daemon(self) -> bool:
        """Whether the other end is closed, as far as the kernel knows: anything sent now would be
        lost."""
        if self.closed:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        try:
            return bool(poll.poll(0)) and not self._socket.recv(1, socket.MSG_PEEK)
        except ConnectionResetError:
            return True

    def next_id(self) -> int:
        """Return an id that no earlier request of this connection has."""
        self.last_id += 1
        return self.last_id

    def send(self, request: Request, descriptors: Sequence[int] = ()) -> int:
        """Give the request the next id, send it without waiting, and return the id; `arrived` or
        `answer` receive the reply. After `ConnectionLost` the daemon has not taken the request: a
        frame that is cut off is no request. Raise `DaemonError` if the daemon said why it closed
        the connection."""
        number, frame = self.packed(request)
        self._write(frame, descriptors)
        return number

    def packed(self, request: Request) -> tuple[int, bytes]:
        """Give the request the next id, and return that and its frame. Raise `UsageError` for one
        that is too long."""
        request = replace(request, id=self.next_id())
        frame = pack_message(request)
        if len(frame) > MAX_REQUEST:
            raise exits.UsageError(
                f"the request is {len(frame)} bytes long; the daemon takes {MAX_REQUEST}"
            )
        return request.id, frame

    def _write(self, frame: bytes, descriptors: Sequence[int] = ()) -> None:
        if self.closed:
            raise ConnectionLost(self.path)
        try:
            sent = self._socket.sendmsg([frame], [rights(descriptors)]) if descriptors else 0
            self._socket.sendall(memoryview(frame)[sent:])
        except (BrokenPipeError, ConnectionResetError):
            self._read_to_the_end()
            raise self._lost() from None

    def _read_to_the_end(self) -> None:
        """Read what the daemon sent before it closed the connection."""
        try:
            while True:
                self._read()
        except exits.Quit:
            return

    def _lost(self) -> exits.Quit:
        """Return the error to raise now that the daemon has closed the connection. If the daemon is
        short of something, its own message."""
        words = self._last_words
        if words is None:
            return ConnectionLost(self.path)
        if words.code is ErrorCode.UNAVAILABLE:
            return DaemonError(words.code, words.message)
        return ConnectionLost(self.path, f"it closed the connection: {words.message}")

    def call(self, request: Request, expected: type[R], descriptors: Sequence[int] = ()) -> R:
        """Send a request and return its reply, of type `expected`. If the connection is lost,
        connect again, and repeat the request if that is allowed. Raise `DaemonError`,
        `Unreachable`."""
        return self.ask(request, expected, descriptors)[0]

    def ask(
        self, request: Request, expected: type[R], descriptors: Sequence[int] = ()
    ) -> tuple[R, list[int]]:
        """Do what `call` does, and return the descriptors that came with the reply."""
        repeated = 0
        while True:
            asked, sent = time.monotonic(), False
            try:
                number = self.send(request, descriptors)
                sent = True
                return self.answer(number, expected)
            except ConnectionLost:
                if repeated >= (request.repeats if sent else max(request.repeats, 1)):
                    raise ConnectionLost(self.path, unanswered(request)) from None
            repeated += 1
            elapsed = time.monotonic() - asked
            self.reconnect(
                advice(request), patience=min(self._time_for_reply(request, elapsed), RECONNECT)
            )
            request = again(request, time.monotonic() - asked)

    def _time_for_reply(self, request: Request, elapsed: float) -> float:
        """Return the seconds left for the reply to a request that was sent `elapsed` seconds
        ago."""
        left = time_for(request, elapsed)
        # a wait may be over while its reply is not late: the daemon may have died just before it
        return left if self._patience is None else max(left, self._patience - elapsed)

    def answer(self, wanted: int, expected: type[R]) -> tuple[R, list[int]]:
        """Wait for the reply to the request with the id `wanted`; `send` has sent it. Raise
        `DaemonError`, `Unreachable`."""
        others: list[Answer] = []
        mine: list[Answer] = []
        try:
            while not mine:
                for answer in self.arrived():
                    (mine if answer.reply.id == wanted and not mine else others).append(answer)
                if len(others) > MAX_UNCLAIMED:
                    what = (
                        f"it sent {len(others)} messages, but no reply to request {wanted}, "
                        "so it is not a daemon"
                    )
                    raise Unreachable(self.path, "gone", what)
        finally:
            self._answers.extend(others)
        return expect(mine[0].reply, expected), mine[0].descriptors

    def arrived(self) -> list[Answer]:
        """Return all replies and events received so far, after at least one read from the socket if
        there are none. Raise `Unreachable` at the end of the connection."""
        if not self._answers:
            self._read()
        answers = list(self._answers)
        self._answers.clear()
        return answers

    def _read(self) -> None:
        try:
            wait_readable(self._socket.fileno(), self._socket.gettimeout())
            for answer in self._conversation.read(self._socket):
                if isinstance(answer.reply, Error) and not answer.reply.id:
                    # it is about the connection, which the daemon closes next
                    self._last_words = answer.reply
                unanswered_by.update(answer.reply.unanswered)
                self._answers.append(answer)
        except TimeoutError:
            raise Unreachable(
                self.path,
                "silent",
                f"no answer within {self._socket.gettimeout():g} s; it hangs or cannot start, and "
                "its log says why (of a service: systemctl status sfad)",
            ) from None
        except ConnectionResetError:
            raise self._lost() from None
        except ProtocolError as error:
            raise Unreachable(
                self.path, "gone", f"the process there does not speak this protocol: {error}"
            ) from error

    def _shake_hands(self) -> Welcome:
        number = self.next_id()
        self._write(hello(f"sfactl {os.getpid()}", number))
        welcome, _ = self.answer(number, Welcome)
        self._socket.settimeout(self._patience)
        return welcome

    def ask_fleet(self) -> None:
        """Have the daemon answer for all nodes of its fleet from now on. Raise `DaemonError`."""
        from .over_fleet import FleetNodes, OverFleet

        self.fleet, _ = self.answer(self.send(OverFleet(id=0)), FleetNodes)


def check(reply: Reply) -> None:
    """Raise `DaemonError` for an `Error`."""
    if isinstance(reply, Error):
        raise DaemonError(reply.code, reply.message)


def expect(reply: Reply, expected: type[R]) -> R:
    """Return a reply of that type. Raise `DaemonError`, and `Quit` for a reply of another type."""
    check(reply)
    if not isinstance(reply, expected):
        raise exits.Quit(
            exits.ExitCode.LOST,
            f"the daemon answered {type(reply).__name__}, not {expected.__name__}",
        )
    return reply


# ---- A request whose connection was lost


def again(request: Q, elapsed: float) -> Q:
    """Return `request` as it is sent a second time, `elapsed` seconds after the first."""
    if getattr(request, "timeout", None) is None:
        return request
    return replace(request, timeout=time_for(request, elapsed))


def time_for(request: Request, elapsed: float) -> float:
    """Return the seconds that a request leaves for a daemon that restarts, `elapsed` seconds after
    it was sent first."""
    timeout: float | None = getattr(request, "timeout", None)  # of a wait
    return math.inf if timeout is None else max(timeout - elapsed, 0.0)


def unanswered(request: Request) -> str:
    """Return the message for a request that is not sent again."""
    what = tag(type(request))
    if request.repeats and what not in _CHANGES:
        return f"it closes the connection each time it receives this {what}"
    return (
        "it closed the connection before it replied. "
        f"The {what} may have been carried out, and is not sent again; {_look(request)}"
    )


def advice(request: Request) -> str:
    """Return what to tell the user if the daemon does not come back."""
    if tag(type(request)) == "stop":
        return "the runs may still be alive: stop them again when the daemon is back"
    if tag(type(request)) in _CHANGES:
        return f"the {tag(type(request))} may have been carried out; {_look(request)}"
    return "runs may continue without it"


_CHANGES = ("spawn", "stop", "pause")
"""Requests that change something and may still be repeated."""


def _look(request: Request) -> str:
    if tag(type(request)) in ("spawn", "stop", "prune"):
        return "check with: sfactl list"
    return f"check with: sfactl info {getattr(request, 'run', None) or 'RUN'}"


# ---- No connection


def start_of(path: str) -> str:
    """Return how to start the daemon of a socket."""
    systems = Path(path) in (SYSTEM_SOCKET, SYSTEM_STATE / SOCKET) and system_unit() is not None
    return "as root: systemctl start sfad.socket" if systems else "start one with 'sfad serve'"


def system_unit() -> str | None:
    """Return the unit of a daemon for all users, if one is installed."""
    places = (f"{place}/systemd/system/sfad.socket" for place in ("/etc", "/usr/lib", "/lib"))
    return next((unit for unit in places if os.path.exists(unit)), None)


def explain(path: str, error: OSError) -> Unreachable:
    """Return the error for a failed `socket` or `connect`, with what the user can do."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Unreachable(
            path, "missing", f"the socket does not exist: no daemon is running; {start_of(path)}"
        )
    if error.errno == errno.ECONNREFUSED and not _is_socket(path):
        return Unreachable(path, "missing", "it is not a socket: no daemon listens there")
    if error.errno == errno.ECONNREFUSED:
        return Unreachable(
            path,
            "refused",
            "the socket exists, but no process listens on it: "
            "the daemon has died, and its runs continue, or it is starting or stopping. "
            "Start it again with 'sfad serve' or the next 'sfactl spawn'",
        )
    if isinstance(error, TimeoutError) or error.errno == errno.EAGAIN:
        return Unreachable(
            path,
            "silent",
            (
                f"it did not accept the connection within {HANDSHAKE_TIMEOUT:g} s; "
                "the daemon hangs or is overloaded"
            ),
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return _denied(path, error)
    return Unreachable(path, "missing", error.strerror or str(error))


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:  # its path is too long for stat(2), or it has just gone
        return True


def _denied(path: str, error: OSError) -> Unreachable:
    # The mode of a socket causes EACCES. Seccomp and Landlock cause EPERM, or EACCES although the
    # mode allows access.
    name = errno.errorcode.get(error.errno or 0, "?")
    if error.errno == errno.EPERM or os.access(path, os.W_OK):
        return Unreachable(
            path,
            "sandbox",
            f"this process may not connect ({name}), probably because of its sandbox; the daemon "
            "may be running. Allow Unix sockets in the sandbox, or start runs from outside it",
        )
    try:
        status = os.stat(path)
    except OSError:
        owner = ": its directory belongs to another user"
    else:
        owner = f": it belongs to uid {status.st_uid} with mode {status.st_mode & 0o777:04o}"
    return Unreachable(
        path, "denied", f"permission denied ({name}){owner}; use the daemon of your own user"
    )
