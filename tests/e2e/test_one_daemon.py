"""One daemon for each state directory, whatever is done to the directory while it lives."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sfad.host.socket_file import AlreadyRunning
from sfad.host.state_dir import claim_instance, lock_state_dir, take_state_dir
from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode, Isolation, Status
from tests.conftest import Start
from tests.harness import (
    IMPATIENT,
    Daemon,
    agent,
    alive,
    ended,
    spawn,
    started,
    stopped,
    wait_until,
)
from tests.tiers import first, variant

from .agents import info
from .test_recovery import ticking


def check_held(daemon: Daemon) -> None:
    """Check that neither a second daemon nor a sweep gets the locks that it takes before anything
    else. `test_daemon` checks that the commands take them."""
    for lock in (take_state_dir, lock_state_dir, claim_instance):
        with pytest.raises(AlreadyRunning, match=f"held by pid {daemon.pid}"):
            lock(daemon.state_dir, daemon.instance)


def remove_lock(state: Path) -> None:
    (state / "lock").unlink()


def remove(state: Path) -> None:
    def gone() -> bool:
        shutil.rmtree(state, ignore_errors=True)  # the daemon may make a file in it meanwhile
        return not state.exists()

    wait_until(gone, "it is gone")


def move(state: Path) -> None:
    state.rename(state.with_name("elsewhere"))


def replace(state: Path) -> None:
    move(state)
    shutil.copytree(state.with_name("elsewhere"), state)


@first(1)
@pytest.mark.parametrize(
    ("attack", "mode"),
    [(remove, "cgroup"), (remove, "tags"), (move, "tags"), (replace, "cgroup")],
)
def test_the_older_daemon_keeps_its_runs(
    start: Start, attack: Callable[[Path], None], mode: str
) -> None:
    daemon = start(mode=mode)
    with daemon.client() as client:
        run = started(client, ["sleep", "300"])
        attack(daemon.state_dir)
        check_held(daemon)
        assert info(client, run.id).status is Status.RUNNING
        assert info(client, run.id).pid == run.pid
        assert stopped(client, run.id).stopped == [run.id]


def test_kill_9_releases_every_lock(share: Start, containment: str) -> None:
    daemon = share(mode=containment)
    with daemon.client() as client:
        run = started(client, ["sleep", "300"])
        remove_lock(daemon.state_dir)
        check_held(daemon)
        assert info(client, run.id).status is Status.RUNNING
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert info(client, run.id).pid == run.pid
        stopped(client, run.id)


@variant
def test_the_locks_outlive_a_reexecution(start: Start) -> None:
    daemon = start()
    daemon.reexecute()
    with daemon.client() as client:
        run = ticking(client)
        remove_lock(daemon.state_dir)
        check_held(daemon)
        move(daemon.state_dir)
        check_held(daemon)
        stopped(client, run.id)


def told(daemon: Daemon, kind: str) -> bool:
    return f'"type":"{kind}"' in daemon.log.read_text()


def test_no_run_starts_while_the_state_directory_is_moved_away(start: Start) -> None:
    daemon = start()
    away = daemon.state_dir.with_name("elsewhere")
    with daemon.client() as client:
        run = ticking(client)
        move(daemon.state_dir)
        answer = spawn(client, ["true"])
        assert isinstance(answer, m.Error)
        assert answer.code is ErrorCode.UNAVAILABLE
        assert f"the state directory {daemon.state_dir} was moved away" in answer.message
        assert told(daemon, "daemon_state_dir_lost")
        for verb, code in (("status", 0), ("doctor", 1)):
            done = daemon.sfactl(verb)
            assert (done.returncode, "was moved away" in done.stdout) == (code, True), done
        assert info(client, run.id).status is Status.RUNNING
        away.rename(daemon.state_dir)
        assert ended(client, started(client, ["true"]).id).status is Status.COMPLETED
        assert told(daemon, "daemon_state_dir_back")
        assert "moved away" not in daemon.sfactl("status").stdout
        stopped(client, run.id)


def test_the_daemon_notices_a_removed_state_directory_and_does_not_reexecute(start: Start) -> None:
    daemon = start(program=IMPATIENT)
    with daemon.client() as client:
        run = ticking(client)
        remove(daemon.state_dir)
        wait_until(
            lambda: told(daemon, "daemon_state_dir_lost"), "the daemon notices without a request"
        )
        daemon.process.send_signal(signal.SIGUSR2)
        wait_until(
            lambda: "was not re-executed" in daemon.log.read_text(),
            "the next program would know of no run",
        )
        assert info(client, run.id).status is Status.RUNNING
        stopped(client, run.id)


CLAIM = """
import fcntl, os, signal, sys
if len(sys.argv) < 4:
    os.execve(sys.executable, [sys.executable, *sys.argv, "without the marks of its run"], {})
claim = os.memfd_create("claim")
fcntl.lockf(claim, fcntl.LOCK_EX, 1, int(sys.argv[1], 16))
directory = os.open(sys.argv[2], os.O_RDONLY)
fcntl.flock(directory, fcntl.LOCK_EX)
print("locked", flush=True)
signal.pause()
"""


@pytest.mark.needs("bwrap")
def test_no_sandbox_keeps_the_next_daemon_from_starting(
    start: Start, containment: str, tmp_path: Path
) -> None:
    """It can take the locks for which reading is enough: of the instance, and of the socket's
    directory."""
    daemon = start(mode=containment)
    daemon.stop()
    work, daemon.socket = tmp_path / "work", tmp_path / "run" / "s"
    work.mkdir()
    daemon.restart()
    (work / "claim.py").write_text(CLAIM)
    with daemon.client() as client:
        argv = [sys.executable, "claim.py", daemon.instance, str(daemon.socket.parent)]
        run = started(client, argv, cwd=os.fsencode(work), isolation=Isolation())
        output = daemon.state_dir / "output" / f"{run.id}.out"
        wait_until(output.read_text, "it has locked them")
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert info(client, run.id).status is Status.RUNNING
        stopped(client, run.id)


@contextmanager
def hidden(directory: Path) -> Iterator[None]:
    """Mount another file system over the directory."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "sfad-test", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


@pytest.mark.needs("root")
def test_a_mount_over_the_directory(common: Daemon) -> None:
    daemon = common
    with daemon.client() as client:
        run = ticking(client)
        with hidden(daemon.state_dir):
            check_held(daemon)
            assert isinstance(spawn(client, ["true"]), m.Error)
        assert isinstance(spawn(client, ["true"]), m.RunReply)
        stopped(client, run.id)


@variant
def test_a_socket_that_cannot_be_served_ends_no_run(share: Start, containment: str) -> None:
    daemon = share(mode=containment)
    with daemon.client() as client:
        run = started(client, ["sleep", "300"])
    daemon.kill()
    daemon.directory.chmod(0o777)
    done = daemon.sfad("serve")
    assert done.returncode == 69
    assert f"directory {daemon.directory} is writable by other users" in done.stderr
    assert alive(run.pid)
    daemon.directory.chmod(0o700)
    daemon.restart()
    with daemon.client() as client:
        assert info(client, run.id).pid == run.pid
        stopped(client, run.id)


def test_a_spool_that_was_removed_is_written_again(start: Start) -> None:
    daemon = start(program=IMPATIENT)
    with daemon.client() as client:
        run = started(client, ["sleep", "300"])
        shutil.rmtree(daemon.state_dir / "spool")
        wait_until(
            lambda: "was removed or replaced" in daemon.log.read_text(),
            "the daemon notices without a request",
        )
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert (info(client, run.id).status, info(client, run.id).pid) == (Status.RUNNING, run.pid)
        stopped(client, run.id)


LISTENER = """
path = os.environ["SFA_SOCKET"]
os.unlink(path)
import socket
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
print("listening", flush=True)
while True:
    print(listener.accept()[0].recv(65536), flush=True)
"""


@first(1)
@pytest.mark.parametrize("without", ["", "-u SFA_COOKIE"])
def test_a_person_sends_nothing_to_an_agent_that_listens_at_the_daemons_socket(
    start: Start, tmp_path: Path, without: str
) -> None:
    daemon = start(mode="cgroup" if without else "tags")
    with daemon.client() as client:
        path = f"SFA_SOCKET={daemon.socket}"
        run = started(
            client,
            ["env", *without.split(), path, *agent(tmp_path, "listener", LISTENER)],
            leaf=True,
        )
        output = daemon.state_dir / "output" / f"{run.id}.out"
        wait_until(output.read_text, "it listens")
        done = daemon.sfactl("spawn", "--", "true")
        assert (done.returncode, "it is a process of a run" in done.stderr) == (69, True), done
        assert "BAD    daemon" in daemon.sfactl("doctor").stdout
        assert set(output.read_text().splitlines()) <= {"listening", "b''"}
        stopped(client, run.id)


def test_a_socket_that_an_agent_removed_or_replaced_is_created_again(start: Start) -> None:
    daemon = start(mode="tags", program=IMPATIENT)
    with daemon.client() as client:
        ended(client, started(client, ["rm", str(daemon.socket)], leaf=True).id)
        said = daemon.sfactl("doctor").stdout
        assert (
            re.search(rf"pid {daemon.pid} holds the state directory \([a-z-]+\)", said)
            or "answers at" in said
        )
        wait_until(daemon.socket.exists, "it is created again")
        daemon.sfactl("list").check_returncode()
        replaced = (
            "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1] + '2')"
        )
        script = f'"$0" -c "{replaced}" "$1" && mv "$1"2 "$1"'
        ended(
            client,
            started(client, ["sh", "-c", script, sys.executable, str(daemon.socket)], leaf=True).id,
        )
        wait_until(
            lambda: daemon.log.read_text().count('"type":"daemon_socket_renewed"') == 2,
            "it is created a second time",
        )
        daemon.sfactl("list").check_returncode()


ACTIVATED = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
if not os.fork():
    listener.bind(os.environ["SFAD_SOCKET"])
    listener.listen()
    os._exit(0)
os.wait()
os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="sfad.socket")
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Listens as systemd does: by another process than the daemon, which gets the socket as its
descriptor 3."""


@first(1)
@pytest.mark.parametrize("removed", [False, True])
def test_a_daemon_removes_the_socket_that_it_has_bound_and_leaves_systemds(
    start: Start, removed: bool
) -> None:
    daemon = start(mode="tags", wrap=(sys.executable, "-c", ACTIVATED))
    daemon.sfactl("list").check_returncode()
    # as 'systemctl disable --now' does, and perhaps some milliseconds before it stops the service
    if removed:
        daemon.socket.unlink()
        wait_until(daemon.socket.exists, "it is created again")
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(60) == 0
    assert daemon.socket.exists() is not removed
