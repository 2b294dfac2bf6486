"""Whom a daemon serves, and how open its socket is."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Literal

import pytest

from sfad.host import socket_file
from sfad.host.socket_file import PathError, bind_socket
from sfad.protocol.paths import SYSTEM_SOCKET

Containment = Literal["cgroup", "tags"]


@pytest.mark.parametrize(
    ("uid", "users", "path", "containment", "everyone"),
    [
        (0, "auto", SYSTEM_SOCKET, "cgroup", True),
        (0, "auto", SYSTEM_SOCKET, "tags", False),
        (0, "auto", Path("/root/sfad.sock"), "cgroup", False),
        (0, "all", Path("/root/sfad.sock"), "cgroup", True),
        (0, "own", SYSTEM_SOCKET, "cgroup", False),
        (1000, "auto", SYSTEM_SOCKET, "cgroup", False),
        (1000, "own", SYSTEM_SOCKET, "tags", False),
    ],
)
def test_only_roots_daemon_with_cgroups_serves_everybody(
    monkeypatch: pytest.MonkeyPatch,
    uid: int,
    users: socket_file.Users,
    path: Path,
    containment: Containment,
    everyone: bool,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert socket_file.serves_all(users, path, containment) is everyone


@pytest.mark.parametrize(
    ("uid", "containment", "why"),
    [(0, "tags", "contained by tags"), (1000, "cgroup", "has uid 1000")],
)
def test_a_daemon_that_cannot_serve_all_says_why(
    monkeypatch: pytest.MonkeyPatch, uid: int, containment: Containment, why: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    with pytest.raises(PathError, match=why):
        socket_file.serves_all("all", SYSTEM_SOCKET, containment)


@pytest.mark.parametrize("everyone", [True, False])
def test_the_socket_is_as_open_as_it_must_be(tmp_path: Path, everyone: bool) -> None:
    path = tmp_path / "run" / "s"
    before = os.umask(0o077)
    try:
        mode = 0o755 if everyone else 0o700
        with bind_socket(
            path, mode=socket_file.socket_mode(everyone=everyone), directory_mode=mode
        ) as bound:
            assert bound.family is socket.AF_UNIX
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)]
    assert modes == ([0o666, 0o755] if everyone else [0o600, 0o700])
