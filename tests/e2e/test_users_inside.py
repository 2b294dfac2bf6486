"""Runs of other users under root's daemon use `sfactl` from inside, with and without a sandbox and
a terminal."""

from __future__ import annotations

import json
import os
import pwd
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import Isolation, RunInfo
from tests.harness import PATIENCE, Daemon, ended, running, started, wait_until
from tests.unprivileged import impossible
from tests.users import FIRST, SECOND, as_user, needs_root, open_directory, readable_by_all

pytestmark = [needs_root, pytest.mark.skipif(bool(impossible()), reason=impossible() or "-")]

NOBODY = pwd.getpwnam("nobody").pw_uid
"""A user with an entry in /etc/passwd."""
OVERFLOW = 65534
"""What a user namespace shows of a group without a number in it."""
CONFIG = """
[access]
users = "all"
[limits]
adaptive = true
[quotas]
spawns_per_hour = 10000
[metrics]
listen = "unix:PLACE/metrics"
"""


class Shared:
    """Root's daemon, and an interpreter that its users can execute: below it they are mounted where
    everyone can look."""

    def __init__(self, place: Path, daemon: Daemon) -> None:
        self.place = place
        self.daemon = daemon
        self.homes = {uid: place / f"home-{uid}" for uid in (FIRST, SECOND, NOBODY)}
        for uid, home in self.homes.items():
            home.mkdir(mode=0o700)
            (work := home / "work").mkdir()
            for owned in (home, work):
                os.chown(owned, uid, uid)
        self.python = str(place / "python" / "bin" / Path(sys.executable).resolve().name)

    def env(self, uid: int) -> list[bytes]:
        variables = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.homes[uid]),
            "PYTHONPATH": f"{self.place}/code:{self.place}/site",
            "SFA": f"{self.python} -m sfactl",
        }
        return [os.fsencode(f"{key}={value}") for key, value in variables.items()]

    def submit(self, uid: int, script: str, **options: Any) -> RunInfo:
        """Return a run of a shell script once it has ended. The caller is a process of the user."""
        with Client(self.daemon.socket) as client:
            options = {"cwd": os.fsencode(self.homes[uid] / "work"), "env": self.env(uid)} | options
            return ended(client, started(client, ["sh", "-c", script], **options).id)

    def shell(
        self, uid: int, script: str, *, groups: tuple[int, ...] = (), **options: Any
    ) -> list[str]:
        """Return the lines that a user's shell script has printed as a run, in which `$SFA` is
        `sfactl`."""
        run = as_user(
            uid, lambda: self.submit(uid, "exec 2>&1\n" + script, **options), groups=groups
        )
        printed, complaints = (
            (self.daemon.state_dir / "output" / f"{run.id}.{end}").read_text()
            for end in ("out", "err")
        )
        assert (run.status, complaints) == ("completed", ""), (printed, run.reason)
        return printed.splitlines()


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with open_directory() as place:
        directory = place / "d"
        directory.mkdir(mode=0o755)
        with running(
            directory,
            config=CONFIG.replace("PLACE", str(place)),
            mode="cgroup",
            wrap=readable_by_all(place),
        ) as daemon:
            yield Shared(place, daemon)


needs_bubblewrap = pytest.mark.needs("bwrap")
INSIDE = """
    $SFA run --name child -- sh -c 'id -u; id -G; echo parent $SFA_PARENT_ID' 2>/dev/null
    $SFA report --turns 3 && $SFA list --json
    $SFA info OTHER; echo $?; $SFA info zzz9; echo $?
"""


@pytest.mark.parametrize(
    ("uid", "isolation"),
    [
        pytest.param(FIRST, None, id="without-entry"),
        pytest.param(NOBODY, None, id="with-entry"),
        pytest.param(FIRST, Isolation(network=False), id="no-network", marks=needs_bubblewrap),
        pytest.param(NOBODY, Isolation(), id="isolated", marks=needs_bubblewrap),
    ],
)
def test_a_run_of_another_user_uses_sfactl(
    shared: Shared, uid: int, isolation: Isolation | None
) -> None:
    """Its child is that user's, with his groups; it sees its own subtree, and a run of another user
    is unknown to it. In a sandbox the socket belongs to a user who has no number there, and so does
    each group but the user's own."""
    other = as_user(SECOND, lambda: shared.submit(SECOND, "true").id)
    lines = shared.shell(uid, INSIDE.replace("OTHER", other), groups=(62001,), isolation=isolation)
    groups = [uid, 62001 if isolation is None else OVERFLOW]
    assert lines[:2] == [str(uid), " ".join(dict.fromkeys(map(str, groups)))]
    runs = {run["id"]: run for run in json.loads(lines[3])["runs"]}
    (own,) = (run for run in runs.values() if run["parent_id"] is None)
    assert lines[2] == f"parent {own['id']}"
    assert {run["root_id"] for run in runs.values()} == {own["id"]}
    assert own["usage"]["turns"] == 3
    assert lines[5::2] == ["66", "66"]
    assert lines[4].replace(other, "zzz9") == lines[6]


@pytest.mark.parametrize(
    "isolation", [None, pytest.param(Isolation(), marks=needs_bubblewrap)], ids=["open", "isolated"]
)
def test_the_command_at_the_end_of_a_users_run_is_the_users(
    shared: Shared, isolation: Isolation | None
) -> None:
    work = shared.homes[FIRST] / f"work-{isolation is not None}"
    work.mkdir()
    os.chown(work, FIRST, FIRST)
    done, outside = work / "done", shared.homes[FIRST] / f"outside-{isolation is not None}"
    command = f"{{ id -u; id -G; touch {outside}; }} > {done}.new; mv {done}.new {done}"
    options = {"cwd": os.fsencode(work), "isolation": isolation}
    as_user(FIRST, lambda: shared.submit(FIRST, "true", on_end=command, **options), groups=(62001,))
    wait_until(done.exists, "the command has been executed")
    uid, groups = done.read_text().splitlines()
    assert (uid, groups) == (str(FIRST), f"{FIRST} {62001 if isolation is None else OVERFLOW}")
    assert done.stat().st_uid == FIRST
    assert outside.exists() == (isolation is None)  # in the sandbox of the run


def test_a_failure_at_the_end_of_a_run_is_told_to_its_user(shared: Shared) -> None:
    run = as_user(FIRST, lambda: shared.submit(FIRST, "true", on_end="exit 7").id)

    def failures(uid: int) -> list[str | None]:
        def ask() -> list[str | None]:
            with Client(shared.daemon.socket) as client:
                return [
                    event.run_id
                    for event in client.call(
                        m.Events(id=0, after=0, types=["hook_failed"]), m.EventPage
                    ).events
                ]

        return as_user(uid, ask)

    wait_until(lambda: run in failures(FIRST), "the user is told")
    assert run not in failures(SECOND)


def test_a_user_at_a_terminal(shared: Shared) -> None:
    """The run controls the terminal, which belongs to the user as after a login."""
    near, far = os.openpty()
    try:
        os.fchown(far, FIRST, 5)
        enter = [
            "nsenter",
            f"--mount=/proc/{shared.daemon.pid}/ns/mnt",
            "setsid",
            "--ctty",
            "--wait",
        ]
        user = ["setpriv", f"--reuid={FIRST}", f"--regid={FIRST}", "--clear-groups", "env", "-i"]
        env = [*map(os.fsdecode, shared.env(FIRST)), f"SFAD_SOCKET={shared.daemon.socket}"]
        script = "test -t 0 && id -u && echo controls > /dev/tty && read line && echo read $line"
        words = [
            shared.python,
            "-m",
            "sfactl",
            "run",
            "--stdio",
            "inherit",
            "--",
            "sh",
            "-c",
            script,
        ]
        process = subprocess.Popen([*enter, *user, *env, *words], stdin=far, stdout=far, stderr=far)
    finally:
        os.close(far)
    try:
        text = _until(near, "controls")
        os.write(near, b"typed\n")
        text += _until(near, "read typed")
        assert str(FIRST) in text.split()
        assert process.wait(PATIENCE) == 0
    finally:
        os.close(near)
        process.kill()
        process.wait()


def _until(terminal: int, text: str) -> str:
    """Return what is written to a terminal until that text."""
    found = ""
    while text not in found:
        assert select.select([terminal], [], [], PATIENCE)[0], found
        found += os.read(terminal, 4096).decode()
    return found


USAGE = (
    """echo '{"type": "usage", "turns": 4, "messages": 1, "input_tokens": 9, "output_tokens": 1}'"""
)


def test_limits_are_learnt_from_the_same_users_runs(shared: Shared) -> None:
    def turns(uid: int, count: int = 1) -> list[tuple[float, str]]:
        runs = [
            shared.submit(uid, USAGE, meter="jsonl", run_type="shared-type") for _ in range(count)
        ]
        return [
            (limit.threshold, limit.source)
            for run in runs
            for limit in run.limits
            if limit.kind == "turns"
        ]

    as_user(FIRST, lambda: turns(FIRST, 20))
    wait_until(
        lambda: as_user(FIRST, lambda: turns(FIRST)) == [(5, "limits.adaptive")],
        "its user's next run follows them",
    )
    assert as_user(SECOND, lambda: turns(SECOND)) == [(25, "default")]


def test_what_a_user_is_told_of_the_daemon(shared: Shared) -> None:
    """Whether it can be used; not what its administrator has configured, or what other users do."""

    def status() -> m.DaemonStatus:
        with Client(shared.daemon.socket) as client:
            return client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)

    right = shared.daemon.config.read_text()
    shared.daemon.config.write_text(f"{right}\n[no_such_section]\nsecret = 1\n")
    try:
        shared.daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: status().rejected_config is not None, "the config is rejected")
        told = as_user(FIRST, status)
    finally:
        shared.daemon.config.write_text(right)
    hidden = (
        told.rejected_config,
        told.config_files,
        told.log,
        told.metrics,
        told.metrics_trouble,
        told.otel,
        told.otel_trouble,
    )
    assert hidden == (None,) * len(hidden)
    assert (told.admitted, told.refused, told.connections, told.hooks, told.ledger_trouble) == (
        None,
        None,
        None,
        [],
        None,
    )
    assert status().metrics is not None
