"""The socket file as the kernel sees it: its mode, its directory, and what was in its place."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sfad.host import socket_file
from sfad.host.socket_file import AlreadyRunning, PathError, bind_socket, unbind_socket
from sfad.protocol.paths import bind_path, connect_path
from tests.harness import GONE, as_nobody, as_root


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=["short", "long"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The path of a socket, short enough for an address and too long for one."""
    deep = tmp_path / ("d" * 120) / ("e" * 120) if request.param == "long" else tmp_path
    return deep / "sfad" / "sfad.sock"


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        connect_path(client, path)


def test_a_socket_is_its_owner_s_only_with_any_umask(address: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    old = os.umask(0)
    try:
        listener = bind_socket(address)
    finally:
        os.umask(old)
    assert (mode(address), mode(address.parent)) == (0o600, 0o700)
    connect(address)
    assert not listener.getblocking()
    listener.close()
    unbind_socket(address)
    assert not address.exists()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_the_mode_is_never_wider_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def watching(sock: socket.socket, path: Path) -> None:
        bind_path(sock, path)
        seen.append(mode(path))

    monkeypatch.setattr(socket_file, "bind_path", watching)
    bind_socket(tmp_path / "s").close()
    assert seen == [0o600]


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(address: Path) -> None:
    bind_socket(address).close()
    listener = bind_socket(address)
    inode = address.lstat().st_ino
    with pytest.raises(AlreadyRunning, match="already listening"):
        bind_socket(address)
    unbind_socket(address)
    assert address.lstat().st_ino == inode
    connect(address)
    listener.close()


def test_a_live_socket_with_a_full_backlog_is_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_file, "BACKLOG", 0)
    listener = bind_socket(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as one:
        connect_path(one, tmp_path / "s")
        with pytest.raises(AlreadyRunning):
            bind_socket(tmp_path / "s")
    listener.close()


def test_a_file_that_is_not_a_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(PathError, match="not a socket"):
        bind_socket(tmp_path / "s")
    unbind_socket(tmp_path / "s")
    assert (tmp_path / "s").read_text() == "precious"
    with pytest.raises(PathError, match="cannot be made"):
        bind_socket(tmp_path / "s" / "below" / "t")
    unbind_socket(tmp_path / "missing" / "t")


def test_one_of_several_starting_daemons_gets_a_stale_socket(tmp_path: Path) -> None:
    for _ in range(20):
        bind_socket(tmp_path / "s").close()
        won: list[socket.socket] = []
        lost: list[AlreadyRunning] = []

        def race(won: list[socket.socket] = won, lost: list[AlreadyRunning] = lost) -> None:
            try:
                won.append(bind_socket(tmp_path / "s"))
            except AlreadyRunning as error:
                lost.append(error)

        threads = [threading.Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 3)
        connect(tmp_path / "s")
        won[0].close()


def test_a_name_that_is_too_long_for_an_address(tmp_path: Path) -> None:
    with pytest.raises(PathError, match="is longer than"):
        bind_socket(tmp_path / ("n" * 100) / ("s" * 100))


def test_a_directory_that_another_process_keeps_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process that may read it can. No daemon waits for that without end, and none fails."""
    monkeypatch.setattr(socket_file, "LOCK_TRIES", 2)
    other = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(other, fcntl.LOCK_EX)
    for _ in range(2):
        bind_socket(tmp_path / "s").close()
    unbind_socket(tmp_path / "s")
    assert not (tmp_path / "s").exists()
    os.close(other)


@pytest.fixture
def safe(tmp_path: Path) -> Path:
    """A directory that only its owner can write to."""
    path = tmp_path / "safe"
    path.mkdir(mode=0o755)
    return path


@pytest.mark.parametrize("bits", [0o777, 0o757, 0o775])
def test_a_directory_that_other_users_may_write_to_is_refused(safe: Path, bits: int) -> None:
    if bits == 0o775:
        give_to_a_group(safe)
    safe.chmod(bits)
    for socket_ in (safe / "s", safe / "below" / "s"):
        with pytest.raises(
            PathError,
            match=(
                rf"directory {safe} is writable by other users \(mode 0{bits:o}, .*chmod go-w "
                rf"{safe}"
            ),
        ):
            bind_socket(socket_)
        assert not socket_.exists()


def give_to_a_group(path: Path) -> None:
    """A group with other members, or an unknown one."""
    if os.geteuid() != 0:
        pytest.skip("takes root to give a directory to another group")
    os.chown(path, -1, 12345)


def test_a_sticky_directory_is_not_refused(safe: Path) -> None:
    safe.chmod(0o1777)
    bind_socket(safe / "s").close()


def test_links_are_followed(safe: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "below").mkdir(mode=0o755)
    (safe / "to-bad").symlink_to("../bad/below")
    (bad / "to-safe").symlink_to(safe)
    bad.chmod(0o777)
    for socket_ in (
        safe / "to-bad" / "s",
        bad / "to-safe" / "s",
        safe / "to-bad" / ".." / ".." / "safe" / "s",
    ):
        with pytest.raises(PathError, match=f"directory {bad} is writable by other users"):
            bind_socket(socket_)
    bad.chmod(0o755)
    bind_socket(safe / "to-bad" / "s").close()
    bind_socket(bad / "to-safe" / "s").close()


def test_new_parents_are_safe_with_any_umask(safe: Path) -> None:
    old = os.umask(0)
    try:
        bind_socket(safe / "a" / "b" / "s").close()
    finally:
        os.umask(old)


@as_root
def test_a_directory_of_another_user_is_refused(safe: Path, tmp_path: Path) -> None:
    os.chown(safe, GONE, GONE)
    with pytest.raises(
        PathError, match=rf"directory {safe} belongs to another user \(mode 0755, uid {GONE}"
    ):
        bind_socket(safe / "s")
    os.chown(safe, 0, 0)
    (tmp_path / "link").symlink_to(safe)
    os.lchown(tmp_path / "link", GONE, GONE)
    with pytest.raises(PathError, match=f"link {tmp_path / 'link'} belongs to another user"):
        bind_socket(tmp_path / "link" / "s")
    bind_socket(safe / "s").close()
    os.chown(safe / "s", GONE, GONE)
    with pytest.raises(PathError, match=f"exists and belongs to uid {GONE}"):
        bind_socket(safe / "s")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory like /tmp, which all users can reach."""
    with TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o1777)
        yield path


@as_root
def test_another_user_gets_the_same_message(shared: Path) -> None:
    assert as_nobody(lambda: bind_socket(shared / "mine" / "s").close()) == "None"
    (shared / "theirs").mkdir()
    os.chown(shared / "theirs", 12345, 12345)
    assert "belongs to another user" in as_nobody(lambda: bind_socket(shared / "theirs" / "s"))
    os.chown(shared / "theirs", GONE, GONE)
    (shared / "theirs").chmod(0o777)
    assert "is writable by other users" in as_nobody(lambda: bind_socket(shared / "theirs" / "s"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(shared / "taken"))
    os.chown(shared / "taken", 12345, 12345)
    assert "belongs to uid 12345" in as_nobody(lambda: bind_socket(shared / "taken"))
    listener.close()
