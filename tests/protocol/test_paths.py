"""Which socket and which state directory a command uses."""

from __future__ import annotations

import os
import signal
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from sfad.protocol.paths import (
    SYSTEM_SOCKET,
    client_sockets,
    connect_path,
    daemon_socket,
    make_private,
    state_dir,
)

HOME = {"HOME": "/home/ann"}
LOGIN = {**HOME, "XDG_RUNTIME_DIR": "/run/user/7"}
STATE_SOCKET = Path("/home/ann/.local/state/sfad/sfad.sock")
LOGIN_SOCKET = Path("/run/user/7/sfad/sfad.sock")


def clients(
    env: dict[str, str], uid: int = 7, flag: str | None = None, login: bool = False
) -> list[Path]:
    return client_sockets(env, uid, flag, exists=lambda _: login)


def daemon(env: dict[str, str], uid: int = 7, flag: str | None = None, login: bool = False) -> Path:
    return daemon_socket(env, uid, flag, exists=lambda _: login)


def test_a_socket_that_was_named_is_the_only_one() -> None:
    named = {**LOGIN, "SFA_SOCKET": "/a", "SFAD_SOCKET": "/b"}
    assert clients(named, flag="/f") == [Path("/f")]
    assert clients(named) == [Path("/a")]
    assert clients({**LOGIN, "SFAD_SOCKET": "/b"}) == [Path("/b")]
    assert clients({**LOGIN, "SFA_SOCKET": "", "SFAD_SOCKET": "b"}) == [Path.cwd() / "b"]


def test_else_the_user_s_then_the_system_s() -> None:
    assert clients(LOGIN) == [LOGIN_SOCKET, STATE_SOCKET, SYSTEM_SOCKET]
    assert clients(LOGIN, login=True) == [LOGIN_SOCKET, STATE_SOCKET, SYSTEM_SOCKET]
    assert clients(HOME, login=True) == [LOGIN_SOCKET, STATE_SOCKET, SYSTEM_SOCKET]
    assert clients(HOME) == [STATE_SOCKET, SYSTEM_SOCKET]
    assert clients({**HOME, "XDG_RUNTIME_DIR": "relative"}) == [STATE_SOCKET, SYSTEM_SOCKET]


def test_the_daemon_serves_the_first_that_its_clients_try() -> None:
    for env, login in ((LOGIN, False), (HOME, True), (HOME, False)):
        assert daemon(env, login=login) == clients(env, login=login)[0]
    assert daemon({**LOGIN, "SFA_SOCKET": "/of-a-run"}) == LOGIN_SOCKET
    assert daemon({**LOGIN, "SFAD_SOCKET": "/b"}) == Path("/b")
    assert daemon({**LOGIN, "SFAD_SOCKET": "/b"}, flag="/f") == Path("/f")


def test_root_without_a_session_is_the_system() -> None:
    assert daemon({}, 0) == daemon({"HOME": "/root"}, 0, login=True) == SYSTEM_SOCKET
    assert daemon({"XDG_RUNTIME_DIR": "/run/user/0"}, 0) == Path("/run/user/0/sfad/sfad.sock")
    assert SYSTEM_SOCKET in clients({}, 0)


def test_nowhere_to_go_is_said() -> None:
    with pytest.raises(ValueError, match="all unset"):
        daemon({})


def test_state_directories() -> None:
    assert state_dir(HOME, 7) == Path("/home/ann/.local/state/sfad")
    assert state_dir({**HOME, "XDG_STATE_HOME": "/s"}, 7) == Path("/s/sfad")
    assert state_dir(HOME, 0) == Path("/var/lib/sfad")
    assert state_dir({"SFAD_STATE_DIR": "/e"}, 0) == Path("/e")
    assert state_dir({"SFAD_STATE_DIR": "/e"}, 7, "/f") == Path("/f")
    with pytest.raises(ValueError, match="HOME"):
        state_dir({}, 7)


def test_a_signal_while_the_daemons_queue_is_full_leaves_no_connection_that_is_none(
    tmp_path: Path,
) -> None:
    """A terminal that changes its size is enough."""
    with ExitStack() as stack:
        listener, first, second = (
            stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3)
        )
        listener.bind(os.fspath(tmp_path / "s"))
        listener.listen(0)
        connect_path(first, tmp_path / "s")
        before = signal.signal(signal.SIGALRM, lambda *_: stack.enter_context(listener.accept()[0]))
        stack.callback(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        connect_path(second, tmp_path / "s")
        assert second.getpeername() == os.fspath(tmp_path / "s")


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_a_private_directory_is_in_no_open_one_with_any_umask(tmp_path: Path, umask: int) -> None:
    tmp_path.chmod(0o755)
    old = os.umask(umask)
    try:
        make_private(tmp_path / "a" / "b")
        make_private(tmp_path / "a" / "b")
    finally:
        os.umask(old)
    modes = [
        stat.S_IMODE(each.stat().st_mode) for each in (tmp_path, tmp_path / "a", tmp_path / "a/b")
    ]
    assert modes == [0o755, 0o700, 0o700]
