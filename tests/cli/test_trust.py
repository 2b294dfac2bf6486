"""A client sends its environment only to a daemon of its own user, of root or of the service
user."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sfactl.connecting.connection import Client, Unreachable
from tests.harness import GONE, as_nobody, as_root, wait_until

from .conftest import PATIENCE, World

pytestmark = as_root

Received = Callable[[], bytes]


@contextmanager
def listening(path: Path, uid: int) -> Iterator[Received]:
    """Let a process of that user listen at a socket, and close each connection after its first
    bytes. Yield a function that ends the process and returns what it has received."""
    read, write = os.pipe()
    ready, said = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        path.parent.mkdir(parents=True, exist_ok=True)
        listener.bind(str(path))
        path.chmod(0o666)
        child = os.fork()
        if child == 0:
            try:
                os.setuid(uid)
                listener.listen()  # whose credentials are shown is decided here
                os.write(said, b"x")
                _receive(listener, write)
            finally:
                os._exit(1)
    os.close(write)
    os.close(said)
    assert os.read(ready, 1) == b"x"
    os.close(ready)
    with os.fdopen(read, "rb") as received:

        def end() -> bytes:
            os.kill(child, signal.SIGKILL)
            return received.read()

        try:
            yield end
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitid(os.P_PID, child, os.WEXITED)


def _receive(listener: socket.socket, write: int) -> None:
    while True:
        with listener.accept()[0] as connection:
            os.write(write, connection.recv(65536))


def test_another_user_is_sent_nothing(world: World) -> None:
    with listening(world.socket, GONE) as received:
        for words in (["spawn", "--", "true"], ["run", "--", "true"], ["list"]):
            said = world.sfactl(*words, code=69).stderr
            assert f"cannot be reached at {world.socket}" in said
            assert f"of uid {GONE} listens there" in said
            assert f"SFAD_SERVICE_USER={GONE}" in said
        assert "listens there" in world.sfactl("doctor", code=1).stdout
        assert received() == b""


@pytest.mark.parametrize("name", ["nobody", str(GONE)])
def test_the_service_user_is_trusted(world: World, name: str) -> None:
    with listening(world.socket, GONE) as received:
        assert (
            "closed the connection" in world.sfactl("list", code=69, SFAD_SERVICE_USER=name).stderr
        )
        assert b"hello" in received()
    world.socket.unlink()
    with listening(world.socket, 12345) as received:
        assert (
            "of uid 12345 listens there"
            in world.sfactl("list", code=69, SFAD_SERVICE_USER=name).stderr
        )
        assert received() == b""


def test_a_service_user_that_does_not_exist_is_told(world: World) -> None:
    with listening(world.socket, GONE):
        assert (
            "SFAD_SERVICE_USER: unknown user 'nosuch'"
            in world.sfactl("list", code=2, SFAD_SERVICE_USER="nosuch").stderr
        )


def test_an_untrusted_socket_is_not_passed_over_and_starts_no_daemon(world: World) -> None:
    runtime = world.directory / "runtime"
    for name in ("SFAD_SOCKET", "SFAD_AUTOSTART"):
        del world.env[name]
    world.env["XDG_RUNTIME_DIR"] = str(runtime)
    with (
        listening(runtime / "sfad" / "sfad.sock", GONE) as received,
        listening(world.state / "sfad.sock", 0) as trusted,
    ):
        assert "listens there" in world.sfactl("spawn", "--", "true", code=69).stderr
        assert received() == trusted() == b""
    assert os.listdir(world.state) == ["sfad.sock"]


def test_root_is_trusted_by_everybody_and_others_are_not() -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "s"
        path.parent.chmod(0o755)
        with listening(path, 0) as received:
            assert "closed the connection" in as_nobody(lambda: Client(path))
            assert b"hello" in received()
        path.unlink()
        with listening(path, 12345) as received:
            assert "of uid 12345 listens there" in as_nobody(lambda: Client(path))
            assert received() == b""


def test_a_daemon_that_was_replaced_is_not_connected_to_again(world: World) -> None:
    with world.served():
        client = Client(world.socket)
    with listening(world.socket, GONE) as received:
        with pytest.raises(Unreachable, match="listens there"):
            client.reconnect("")
        assert received() == b""


def test_a_socket_that_another_user_made_meanwhile_starts_no_daemon(world: World) -> None:
    del world.env["SFAD_AUTOSTART"]
    world.state.mkdir(mode=0o700)
    with open(world.state / "autostart.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        client = world.popen("spawn", "--", "true")
        # the arrow marks a process that waits for a lock
        waiting = re.compile(rf"^\d+: -> FLOCK .* {client.pid} ", re.MULTILINE)
        wait_until(
            lambda: waiting.search(Path("/proc/locks").read_text()),
            "it found no daemon, and waits for its turn to start one",
        )
        with listening(world.socket, GONE) as received:
            fcntl.flock(lock, fcntl.LOCK_UN)
            _, said = client.communicate(timeout=PATIENCE)
            assert received() == b""
    assert (client.returncode, b"listens there" in said) == (69, True), said
    assert os.listdir(world.state) == ["autostart.lock"]
