"""The state directory and its locks, as the kernel sees them; each attack with real processes."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sfad.host.socket_file import AlreadyRunning, PathError
from sfad.host.state_dir import (
    LOCK,
    claim_instance,
    lock_state_dir,
    prepare_state_dir,
    take_state_dir,
)
from tests.harness import as_root

INSTANCE, OTHER = secrets.token_hex(6), secrets.token_hex(6)
"""This process's own: the whole machine sees claims."""

HOLDER = """
import sys
from pathlib import Path
from sfad.host.state_dir import lock_state_dir
lock_state_dir(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""

SQUATTER = """
import os, sys
from pathlib import Path
from sfad.host.state_dir import claim_instance
os.setgroups([]), os.setgid(65534), os.setuid(65534)
claim_instance(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by(code: str, *words: object) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that has reported that it holds its locks."""
    command = [sys.executable, "-c", code, *map(str, words)]
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, env=env
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield holder
        holder.kill()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory that no process holds."""
    path = tmp_path / "state"
    prepare_state_dir(path)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_the_state_directory_is_its_owner_s_only(tmp_path: Path) -> None:
    made, found = tmp_path / "a" / "b", tmp_path / "found"
    found.mkdir(mode=0o755)
    for path in (made, found):
        prepare_state_dir(path)
        assert mode(path) == 0o700


def test_a_shared_directory_is_not_narrowed_under_its_users(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "theirs").touch()
    with pytest.raises(PathError, match="a directory of its own"):
        prepare_state_dir(shared)
    assert mode(shared) == 0o1777
    (tmp_path / "file").touch()
    with pytest.raises(
        PathError, match=r"cannot be used: .*; to choose another: --state-dir or SFAD_STATE_DIR"
    ):
        prepare_state_dir(tmp_path / "file" / "x")


@as_root
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, -1)
    with pytest.raises(PathError, match="belongs to uid 12345"):
        prepare_state_dir(theirs)


def test_the_locks_end_with_the_process(state: Path) -> None:
    with held_by(HOLDER, state, INSTANCE) as holder:
        with pytest.raises(AlreadyRunning, match=rf"held by pid {holder.pid}: one daemon"):
            lock_state_dir(state, INSTANCE)
        holder.kill()
        holder.wait()
        lock = lock_state_dir(state, INSTANCE)
        assert (state / LOCK).read_text() == f"{os.getpid()}\n"
        assert not any(map(os.get_inheritable, (lock.directory, lock.file, lock.claim)))
        lock.close()


def remove_lock(state: Path) -> None:
    (state / LOCK).unlink()


def replace(state: Path) -> None:
    shutil.rmtree(state)
    state.mkdir(mode=0o700)


def move(state: Path) -> None:
    state.rename(state.with_name("elsewhere"))


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/nosuch")],
    ids=["directory", "fifo", "link"],
)
def test_what_is_no_file_in_place_of_the_lock_is_set_aside(
    state: Path, make: Callable[[Path], None]
) -> None:
    make(state / LOCK)
    lock = lock_state_dir(state, INSTANCE)
    assert (state / LOCK).read_text() == f"{os.getpid()}\n"
    assert len(list(state.glob("lock.foreign-*"))) == 1
    lock.close()


@pytest.mark.parametrize("attack", [remove_lock, shutil.rmtree, replace, move])
def test_removing_files_frees_no_lock(state: Path, attack: Callable[[Path], None]) -> None:
    with held_by(HOLDER, state, INSTANCE) as holder:
        attack(state)
        there = state.exists()
        with pytest.raises(AlreadyRunning, match=f"held by pid {holder.pid}"):
            take_state_dir(state, INSTANCE)
        assert state.exists() is there, "nothing is made where an older daemon's directory was"
        with pytest.raises(AlreadyRunning, match=f"held by pid {holder.pid}"):
            claim_instance(state, INSTANCE)
        holder.kill()
        holder.wait()
        take_state_dir(state, INSTANCE).close()


def test_the_directory_is_held_by_any_path_to_it(state: Path) -> None:
    with held_by(HOLDER, state, INSTANCE):
        remove_lock(state)
        move(state)
        with pytest.raises(AlreadyRunning):
            take_state_dir(state.with_name("elsewhere"), OTHER)


def test_another_instance_is_not_held(state: Path, tmp_path: Path) -> None:
    with held_by(HOLDER, state, INSTANCE):
        take_state_dir(tmp_path / "other", OTHER).close()


@as_root
def test_a_claim_of_another_user_does_not_count(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with held_by(SQUATTER, state, INSTANCE):
        take_state_dir(state, INSTANCE).close()


def test_a_state_directory_that_is_missing_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(PathError, match="cannot be locked: No such file"):
        lock_state_dir(tmp_path / "missing", INSTANCE)


def test_a_missing_directory_is_noticed(state: Path) -> None:
    lock = lock_state_dir(state, INSTANCE)
    assert lock.lost() is None
    move(state)
    assert "was moved away or is hidden" in str(lock.lost())
    state.mkdir()
    assert "was replaced by another directory" in str(lock.lost())
    state.rmdir()
    state.with_name("elsewhere").rename(state)
    assert lock.lost() is None
    shutil.rmtree(state)
    assert "was removed" in str(lock.lost())
    lock.close()
