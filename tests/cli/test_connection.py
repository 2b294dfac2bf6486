"""The connection, with a scripted daemon."""

from __future__ import annotations

import errno
import os
import select
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from sfactl.connecting import connection
from sfactl.connecting.connection import Client, ConnectionLost, DaemonError, Unreachable, explain
from sfactl.exits import ExitCode, Quit
from sfad.protocol import messages as m
from sfad.protocol.framing import MAX_REQUEST, FrameDecoder, frame
from sfad.protocol.types import ErrorCode
from tests.harness import as_nobody, as_root, running

Script = Callable[[socket.socket, Callable[[], m.Request]], None]


@contextmanager
def served(tmp_path: Path, script: Script, *, greet: bool = True) -> Iterator[Path]:
    """Serve one connection, in a thread."""
    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=_serve, args=(listener, script, greet))
        thread.start()
        yield path
        thread.join()


def _serve(listener: socket.socket, script: Script, greet: bool) -> None:
    connection, _ = listener.accept()
    with connection:
        incoming = _requests(connection)
        if greet:
            hello = next(incoming)
            welcome = m.Welcome(id=hello.id, version=1, daemon="0", pid=1, state_dir="/")
            connection.sendall(m.pack_message(welcome))
        script(connection, lambda: next(incoming))


def _requests(connection: socket.socket) -> Iterator[m.Request]:
    decoder = FrameDecoder(MAX_REQUEST)
    while data := connection.recv(65536):
        for body in decoder.feed(data):
            yield m.unpack_request(body)


def _dribble(connection: socket.socket, replies: Sequence[m.Reply], size: int) -> None:
    data = b"".join(m.pack_message(reply) for reply in replies)
    for start in range(0, len(data), size):
        connection.sendall(data[start : start + size])


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
def test_replies_are_matched_by_id_in_any_order_and_any_pieces(tmp_path: Path, size: int) -> None:
    def script(connection: socket.socket, receive: Callable[[], m.Request]) -> None:
        first, second = receive(), receive()
        _dribble(connection, [m.Done(id=second.id), m.RunList(id=first.id, runs=[])], size)

    with served(tmp_path, script) as path, Client(path) as client:
        listed = client.send(m.List(id=0))
        client.call(m.Send(id=0, run="a1", data=b""), m.Done)
        while not (rest := client.arrived()):
            """A read may hold less than a reply."""
        assert [answer.reply.id for answer in rest] == [listed]


def test_descriptors_go_to_the_reply_that_declares_them(tmp_path: Path) -> None:
    def script(connection: socket.socket, receive: Callable[[], m.Request]) -> None:
        request = receive()
        connection.sendall(m.pack_message(m.Done(id=99)))
        with open(tmp_path / "out", "w+") as out, open(tmp_path / "err", "w+") as err:
            out.write("said")
            out.flush()
            reply = m.pack_message(m.LogFiles(id=request.id, run="a1", ended=True))
            socket.send_fds(connection, [reply], [out.fileno(), err.fileno()])

    with served(tmp_path, script) as path, Client(path) as client:
        _, (out, err) = client.ask(m.Logs(id=0, run="a1"), m.LogFiles)
        assert os.pread(out, 10, 0) == b"said"
        assert not os.get_inheritable(out)
        os.close(out)
        os.close(err)


def test_descriptors_nobody_took_are_closed(tmp_path: Path) -> None:
    readable, writable = os.pipe()

    def script(connection: socket.socket, receive: Callable[[], m.Request]) -> None:
        receive()
        socket.send_fds(connection, [m.pack_message(m.Done(id=2))], [writable])
        os.close(writable)

    with served(tmp_path, script) as path, Client(path) as client:
        client.call(m.DaemonInfo(id=0), m.Done)
    assert os.read(readable, 1) == b"", "the pipe's last writer must be gone"
    os.close(readable)


def test_an_error_is_raised_with_its_exit_code(tmp_path: Path) -> None:
    def script(connection: socket.socket, receive: Callable[[], m.Request]) -> None:
        error = m.Error(
            id=receive().id, code=ErrorCode.NO_SUCH_RUN, message="no run has the id 'zz'"
        )
        connection.sendall(m.pack_message(error))

    with (
        served(tmp_path, script) as path,
        Client(path) as client,
        pytest.raises(DaemonError, match="zz") as raised,
    ):
        client.call(m.Info(id=0, run="zz"), m.RunReply)
    assert raised.value.code == 66


NO_ROOM = m.Error(id=0, code=ErrorCode.UNAVAILABLE, message="run a1 would have 65 connections")


@pytest.mark.parametrize("closed", [True, False])
def test_a_daemon_that_refuses_a_connection_says_why(tmp_path: Path, closed: bool) -> None:
    def script(connection: socket.socket, receive: Callable[[], m.Request]) -> None:
        if not closed:
            receive()
        connection.sendall(m.pack_message(NO_ROOM))

    class Late(Client):
        def _reach(self, seconds: float) -> socket.socket:
            sock = super()._reach(seconds)
            if closed:  # the daemon has closed before the hello: EPIPE
                _wait_for_end(sock)
            return sock

    with served(tmp_path, script, greet=False) as path, pytest.raises(DaemonError) as error:
        Late(path)
    assert (error.value.message, error.value.code) == (NO_ROOM.message, ExitCode.UNAVAILABLE)


def _wait_for_end(sock: socket.socket) -> None:
    poll = select.poll()
    poll.register(sock, 0)  # POLLHUP comes unasked
    poll.poll()


def test_the_daemons_last_words_are_heard_while_a_request_is_being_sent(tmp_path: Path) -> None:
    def script(connection: socket.socket, _receive: Callable[[], m.Request]) -> None:
        connection.recv(1)
        connection.sendall(m.pack_message(NO_ROOM))

    with (
        served(tmp_path, script) as path,
        Client(path) as client,
        pytest.raises(DaemonError, match="65 connections"),
    ):
        client.call(m.Send(id=0, run="a1", data=bytes(3 << 20)), m.Done)


def test_a_daemon_without_room_is_asked_again_after_a_lost_connection(tmp_path: Path) -> None:
    def serve() -> None:
        for script, greet in ((lost, True), (refusing, False), (answering, True)):
            _serve(listener, script, greet)

    def lost(_connection: socket.socket, receive: Callable[[], m.Request]) -> None:
        receive()

    def refusing(connection: socket.socket, _receive: Callable[[], m.Request]) -> None:
        connection.sendall(m.pack_message(NO_ROOM))

    def answering(connection: socket.socket, receive: Callable[[], m.Request]) -> None:
        connection.sendall(m.pack_message(m.RunList(id=receive().id, runs=[])))

    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        with Client(path) as client:
            assert client.call(m.List(id=0), m.RunList).runs == []
        thread.join()


def test_a_reply_of_another_kind_is_not_taken(tmp_path: Path) -> None:
    def script(connection: socket.socket, receive: Callable[[], m.Request]) -> None:
        connection.sendall(m.pack_message(m.Done(id=receive().id)))

    with (
        served(tmp_path, script) as path,
        Client(path) as client,
        pytest.raises(Quit, match="Done, not RunReply"),
    ):
        client.call(m.Info(id=0, run="a1"), m.RunReply)


def test_a_daemon_that_vanishes_is_unreachable(tmp_path: Path) -> None:
    def script(_connection: socket.socket, receive: Callable[[], m.Request]) -> None:
        receive()

    with (
        served(tmp_path, script) as path,
        Client(path) as client,
        pytest.raises(ConnectionLost) as raised,
    ):
        client.answer(client.send(m.DaemonInfo(id=0)), m.DaemonStatus)
    assert (raised.value.kind, raised.value.code) == ("gone", 69)


def test_who_accepts_and_says_nothing_is_not_waited_for_longer_than_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(_connection: socket.socket, receive: Callable[[], m.Request]) -> None:
        receive()

    monkeypatch.setattr("sfactl.connecting.connection.RECONNECT", 0.3)
    with (
        served(tmp_path, script) as path,
        Client(path) as client,
        pytest.raises(Unreachable, match=r"within 0\.3 s") as raised,
    ):
        client.call(m.DaemonInfo(id=0), m.DaemonStatus)
    assert raised.value.kind == "silent"


def test_who_does_not_speak_the_protocol_is_said_so(tmp_path: Path) -> None:
    def script(connection: socket.socket, receive: Callable[[], m.Request]) -> None:
        receive()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with (
        served(tmp_path, script, greet=False) as path,
        pytest.raises(Unreachable, match="does not speak"),
    ):
        Client(path)


BROKEN = {
    "nothing": b"",
    "no value": b"\xc1",
    "a text": b"\xa3abc",
    "a list": msgspec.msgpack.encode([1]),
    "no type": msgspec.msgpack.encode({"id": 2}),
    "a type that is none": msgspec.msgpack.encode({"type": [], "id": 2}),
    "no id": msgspec.msgpack.encode({"type": "done"}),
    "a field is missing": msgspec.msgpack.encode({"type": "runs", "id": 2}),
    "a field is of another type": msgspec.msgpack.encode({"type": "runs", "id": 2, "runs": 1}),
    "more than a message": m.pack(m.RunList(id=2, runs=[])) + b"\0",
    "bad UTF-8": b"\x83\xa4type\xa5error\xa2id\2\xa7message\xa2\xff\xfe",
    "half a surrogate pair": b"\x83\xa4type\xa5error\xa2id\2\xa7message\xa3\xed\xa0\x80",
    "deeply nested": b"\x91" * 40_000,
    "deeply nested in an unknown field": b"\x84\xa4type\xa4runs\xa2id\2\xa4runs\x90\xa1x"
    + b"\x91" * 40_000
    + b"\xc0",
    "a key that cannot be hashed": b"\x81\x80\1",
    "an array of four thousand million": (
        b"\x83\xa4type\xa4runs\xa2id\2\xa4runs\xdd\xff\xff\xff\xff\1"
    ),
    "long and wrong": b"\xc1" * 300_000,
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
def test_a_malformed_reply_ends_the_connection(tmp_path: Path, body: bytes) -> None:
    def script(connection: socket.socket, receive: Callable[[], m.Request]) -> None:
        receive()
        connection.sendall(frame(body))

    with served(tmp_path, script) as path, Client(path) as client:
        with pytest.raises(Unreachable, match="does not speak this protocol") as raised:
            client.call(m.List(id=0), m.RunList)
        assert raised.value.kind == "gone"


def test_a_reply_that_is_cut_off_at_any_byte_is_a_lost_connection(tmp_path: Path) -> None:
    whole = m.pack_message(m.RunList(id=2, runs=[]))
    for cut in range(len(whole)):

        def script(
            connection: socket.socket, receive: Callable[[], m.Request], cut: int = cut
        ) -> None:
            receive()
            connection.sendall(whole[:cut])

        with (
            served(tmp_path, script) as path,
            Client(path) as client,
            pytest.raises(ConnectionLost),
        ):
            client.answer(client.send(m.List(id=0)), m.RunList)
        path.unlink()


def test_what_only_a_newer_daemon_says_is_passed_over(tmp_path: Path) -> None:
    """Unknown fields, and messages of an unknown type that answer nothing."""

    def script(connection: socket.socket, receive: Callable[[], m.Request]) -> None:
        asked = receive()
        for said in (
            {"type": "surprise", "id": 0, "more": {"deep": [1]}},
            {"type": "event", "id": 99, "event": {"type": "x", "surprise": 1}},
            {"type": "runs", "id": asked.id, "runs": [], "surprise": [1]},
        ):
            connection.sendall(frame(msgspec.msgpack.encode(said)))

    with served(tmp_path, script) as path, Client(path) as client:
        assert client.call(m.List(id=0), m.RunList) == m.RunList(id=2, runs=[])


def test_an_answer_of_an_unknown_type_is_named(tmp_path: Path) -> None:
    def script(connection: socket.socket, receive: Callable[[], m.Request]) -> None:
        connection.sendall(frame(msgspec.msgpack.encode({"type": "surprise", "id": receive().id})))

    with (
        served(tmp_path, script) as path,
        Client(path) as client,
        pytest.raises(Quit, match="answered Reply, not RunList") as raised,
    ):
        client.call(m.List(id=0), m.RunList)
    assert raised.value.code == ExitCode.LOST


def test_silence_ends_in_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfactl.connecting.connection.HANDSHAKE_TIMEOUT", 0.05)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen()
        with pytest.raises(Unreachable) as raised:
            Client(tmp_path / "sock")
    assert raised.value.kind == "silent"


def test_missing_and_refused_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with pytest.raises(Unreachable) as missing:
        Client(path)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with pytest.raises(Unreachable) as refused:
        Client(path)
    assert (missing.value.kind, refused.value.kind) == ("missing", "refused")
    assert str(path) in missing.value.message


def test_a_sandbox_is_told_from_file_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sock"
    path.touch(mode=0o600)
    assert explain(str(path), OSError(errno.EPERM, "")).kind == "sandbox"
    assert explain(str(path), OSError(errno.EACCES, "")).kind == "sandbox", (
        "the mode allows it, so something else does not"
    )
    monkeypatch.setattr(os, "access", lambda *_: False)
    denied = explain(str(path), OSError(errno.EACCES, ""))
    assert denied.kind == "denied"
    assert f"uid {os.getuid()} with mode 0600" in denied.message


@as_root
def test_the_place_of_roots_daemon_keeps_no_user_from_one_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failure() -> str:
        with pytest.raises(Unreachable) as raised:
            connection.connect(None)
        return f"{raised.value.kind} {Path(raised.value.path).parent.name}"

    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o711)
        closed = Path(directory) / "roots"
        closed.mkdir(mode=0o700)
        places = [Path(directory) / "own" / "sock", closed / "sock"]
        monkeypatch.setattr(connection, "client_sockets", lambda *_: [*map(str, places)])
        assert as_nobody(failure) == "denied roots"
        monkeypatch.setattr(connection, "SYSTEM_SOCKET", str(places[1]))
        assert as_nobody(failure) == "missing own"
        places.pop(0)
        assert as_nobody(failure) == "denied roots", "a place that was chosen"


def test_the_systems_daemon_in_place_of_the_users_own_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own, state = tmp_path / "run" / "sock", tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv("SFAD_STATE_DIR", str(state))
    (tmp_path / "d").mkdir()
    with running(tmp_path / "d") as daemon:
        system = daemon.socket
        monkeypatch.setattr(connection, "client_sockets", lambda *_: [str(own), str(system)])
        monkeypatch.setattr(connection, "SYSTEM_SOCKET", str(system))
        connection.connect(None).close()
        assert capsys.readouterr().err == "", "the user never had one"
        (state / "ledger.db").touch()
        connection.connect(None, tell=False).close()
        assert capsys.readouterr().err == ""
        for _ in range(2):
            connection.connect(None).close()
        assert (
            capsys.readouterr().err.count(
                f"your own daemon is not running ({own}); the system's daemon answers ({system})"
            )
            == 1
        )


def test_the_users_own_daemon_beside_the_service_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv("SFAD_STATE_DIR", str(state))
    for name in "os":
        (tmp_path / name).mkdir()
    with running(tmp_path / "o") as own, running(tmp_path / "s") as service:
        system = Path(service.socket)
        places = [Path(own.socket), system]
        monkeypatch.setattr(connection, "client_sockets", lambda *_: places)
        monkeypatch.setattr(connection, "SYSTEM_SOCKET", system)
        connection.connect(None, tell=False).close()
        assert capsys.readouterr().err == ""
        for _ in range(2):
            connection.connect(None).close()
        told = f"your own daemon answers ({own.socket}), not the service of this machine ({system})"
        assert capsys.readouterr().err.count(told) == 1
        os.utime(state / connection.BESIDE, ns=(0, system.stat().st_ctime_ns - 1))
        connection.connect(None).close()
        assert told in capsys.readouterr().err, "another service has come since"
        places.pop()
        (state / connection.BESIDE).unlink()
        connection.connect(None).close()
        assert capsys.readouterr().err == "", "the user has chosen a socket"
    places[:] = [Path(own.socket), system]
    with running(tmp_path / "o") as own:
        places[0] = Path(own.socket)
        connection.connect(None).close()
        assert capsys.readouterr().err == "", "no service answers"


def test_a_path_longer_than_an_address_holds(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 80) / ("e" * 80)
    deep.mkdir(parents=True)
    with pytest.raises(Unreachable) as raised:
        Client(deep / "sock")
    assert raised.value.kind == "missing"
