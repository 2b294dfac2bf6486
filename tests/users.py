"""Processes of other users, for tests that run as root: forked from the test, so that they need no
interpreter they can execute."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from tests.unprivileged import FIND_LIBPYTHON, MOUNTS

FIRST, SECOND, THIRD = 61001, 61002, 61003
"""Users without an entry in /etc/passwd."""

T = TypeVar("T")

needs_root = pytest.mark.needs("root")


class Failed(AssertionError):
    """What a process of another user raised."""


def as_user(
    uid: int, do: Callable[[], T], *, gid: int | None = None, groups: Sequence[int] = ()
) -> T:
    """Return what `do` returns in a process of that user. Raise `Failed` with the traceback of what
    it raises."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        _answer(write, uid, uid if gid is None else gid, groups, do)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        content = file.read()  # before it is reaped: an answer may be longer than the pipe
    os.waitid(os.P_PID, pid, os.WEXITED)
    if not content:
        raise Failed(f"the process of uid {uid} has ended without an answer")
    error, value = pickle.loads(content)  # noqa: S301 - from the test's own process
    if error is not None:
        raise Failed(error)
    return value  # type: ignore[no-any-return]


def _answer(pipe: int, uid: int, gid: int, groups: Sequence[int], do: Callable[[], Any]) -> None:
    try:
        try:
            become(uid, gid, groups)
            answer = pickle.dumps((None, do()))
        except BaseException:  # noqa: BLE001 - the test is told of it
            answer = pickle.dumps((traceback.format_exc(), None))
        with os.fdopen(pipe, "wb") as file:
            file.write(answer)
    finally:
        os._exit(0)


def become(uid: int, gid: int, groups: Sequence[int] = ()) -> None:
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


@contextmanager
def waiting_as_user(uid: int, do: Callable[[], T]) -> Iterator[tuple[int, Callable[[], T]]]:
    """Yield the pid of a process of that user, and what has it do something and returns what that
    returns."""
    (told, tell), (read, write) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.close(tell)
        os.read(told, 1)
        _answer(write, uid, uid, (), do)
    os.close(told)
    os.close(write)

    def go() -> T:
        os.write(tell, b"x")
        error, value = pickle.loads(file.read())  # noqa: S301 - from the test's own process
        if error is not None:
            raise Failed(error)
        return value  # type: ignore[no-any-return]

    with os.fdopen(read, "rb") as file:
        try:
            yield pid, go
        finally:
            os.close(tell)
            os.waitid(os.P_PID, pid, os.WEXITED)


def asked_as(socket: Path, requests: Sequence[m.Request], *, uid: int, **who: Any) -> list[m.Reply]:
    """Return the replies that a user gets. `who`: as `as_user` has it."""

    def ask() -> list[m.Reply]:
        found = []
        with Client(socket) as client:
            for request in requests:
                client.send(request)
                found.append(next(answer.reply for answer in client.arrived()))
        return found

    return as_user(uid, ask, **who)


@contextmanager
def open_directory() -> Iterator[Path]:
    """Yield a new directory that every user can enter: pytest's own are root's alone."""
    directory = Path(tempfile.mkdtemp(prefix="users-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def readable_by_all(place: Path) -> list[str]:
    """Return words for `wrap` of a daemon: it executes an interpreter and a checkout below `place`,
    which all users can read."""
    mounts = [f"{name}={source}" for name, source in MOUNTS.items()]
    interpreter = f"PYTHON={Path(sys.executable).resolve().name}"
    unshare = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "env",
        interpreter,
        "sh",
        "-c",
        _ENTER,
        "sh",
    ]
    return [*unshare, str(place), *mounts, "--"]


_ENTER = f"""
directory=$1; shift
for pair in "$@"; do
    shift
    [ "$pair" = -- ] && break
    mkdir "$directory/${{pair%%=*}}"
    mount --bind "${{pair#*=}}" "$directory/${{pair%%=*}}" || exit 99
done
{FIND_LIBPYTHON}
shift
exec env "PYTHONPATH=$directory/code:$directory/site" "$directory/python/bin/$PYTHON" "$@"
"""
