"""The kernel tells when files may have been moved, removed, replaced or hidden."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from sfad.host.linux import displacement
from sfad.host.linux.displacement import Displacement
from tests.harness import PATIENCE, as_root
from tests.output.test_holes import Refusing

MS_BIND, MNT_DETACH = 4096, 2


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with files, below a directory and a symbolic link, with a socket."""
    (tmp_path / "real" / "state" / "spool").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "state" / "ledger").write_bytes(b"")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "real" / "state" / "s"))
    return tmp_path / "link" / "state"


def watch(state: Path) -> Displacement:
    return Displacement([state / "s"], [state, state / "spool"])


async def told(seen: Displacement, seconds: float = PATIENCE) -> bool:
    """Return whether the kernel tells within that time."""
    with trio.move_on_after(seconds):
        return not await seen.wait(settled=True)
    return False


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(displacement, "LOOK", 0.01)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file is removed": lambda state: os.unlink(state / "ledger"),
    "a file is renamed": lambda state: os.rename(state / "ledger", state / "old"),
    "a file is replaced": lambda state: os.rename(
        _made(state.parents[1] / "new"), state / "ledger"
    ),
    "a file in the spool is removed": lambda state: os.rmdir(state / "spool"),
    "the directory is moved": lambda state: os.rename(state, state.parents[1] / "elsewhere"),
    "the directory is removed": lambda state: shutil.rmtree(state),
    "a directory on the way is moved": lambda state: os.rename(
        state.parents[1] / "real", state.parents[1] / "away"
    ),
    "a link on the way is removed": lambda state: os.unlink(state.parent),
    "a link on the way is replaced": lambda state: os.rename(
        _linked(state.parents[1] / "other"), state.parent
    ),
    "the socket is removed": lambda state: os.unlink(state / "s"),
    "the socket is replaced": lambda state: os.rename(_made(state.parents[1] / "new"), state / "s"),
}


def _made(path: Path) -> Path:
    path.touch()
    return path


def _linked(path: Path) -> Path:
    path.symlink_to("/")
    return path


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_what_another_process_does_is_told(
    state: Path, change: Callable[[Path], object]
) -> None:
    with watch(state) as seen:
        change(state)
        assert await told(seen)


async def untold(make: Callable[[], Displacement], act: Callable[[], object]) -> bool:
    """Return whether the kernel does not tell of an act. Another test may mount something
    meanwhile, so it is tried again."""
    for _ in range(20):
        with make() as seen:
            act()
            if not await told(seen, 0.05):
                return True
    return False


async def test_the_socket_alone(state: Path) -> None:
    assert await untold(
        lambda: Displacement([state / "s"]), lambda: os.unlink(_made(state / "other"))
    )


@as_root
@pytest.mark.parametrize("waiting", [False, True])
async def test_a_mount_over_a_directory_is_told(state: Path, waiting: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    above = os.fsencode(state.parents[1] / "real")
    mounted: list[int] = []

    async def mount() -> None:
        if waiting:
            await trio.testing.wait_all_tasks_blocked()
        mounted.append(libc.mount(above, above, None, MS_BIND, None))

    async with trio.open_nursery() as nursery:
        with watch(state) as seen:
            if not waiting:
                await mount()
            else:
                nursery.start_soon(mount)
            try:
                assert mounted == [-1] or await told(seen)
            finally:
                libc.umount2(above, MNT_DETACH)
    if mounted == [-1]:
        pytest.skip("nothing can be mounted here")


async def test_what_the_daemon_and_its_neighbours_do_is_not_told(state: Path) -> None:
    assert await untold(lambda: watch(state), lambda: (state / "ledger").write_bytes(b"rows"))
    assert await untold(
        lambda: watch(state), lambda: os.unlink(_made(state.parents[1] / "neighbour"))
    )


async def test_looks_go_on_until_nothing_changes(state: Path) -> None:
    with watch(state) as seen:
        assert await seen.wait(settled=False)
        os.unlink(state / "ledger")
        assert not await seen.wait(settled=True)


@pytest.fixture(params=["no instance", "a missing file"])
def blind(
    request: pytest.FixtureRequest, state: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A state directory of whose changes the kernel cannot tell."""
    if request.param == "no instance":
        monkeypatch.setattr(displacement, "libc", Refusing(errno.EMFILE))
    else:
        os.unlink(state / "s")
    yield state
    monkeypatch.undo()


async def test_where_the_kernel_cannot_tell_looks_go_on(blind: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with watch(blind) as seen:
        assert len(os.listdir("/proc/self/fd")) == before
        with trio.fail_after(PATIENCE):
            assert await seen.wait(settled=True)


def test_nothing_is_left_open(state: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with watch(state):
        assert len(os.listdir("/proc/self/fd")) == before + 4
    assert len(os.listdir("/proc/self/fd")) == before
