"""Root's daemon runs each run as its submitter: real users, real processes."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import resource
import signal
import socket
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import Client, ConnectionLost
from sfad.protocol import messages as m
from sfad.protocol.messages import pack_message
from sfad.protocol.types import RunInfo
from tests.harness import Daemon, running, spawn, unanswered, with_fuse
from tests.users import FIRST, SECOND, Failed, as_user, become, needs_root

pytestmark = needs_root

CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
PATH = [b"PATH=/usr/bin:/bin"]
CONFIG = '[access]\nusers = "all"\n'
DEEP = "/".join(["d" * 250] * 14)
SCRIPT = """
id -u; id -g; id -G; umask; ulimit -n; ulimit -Hn; ulimit -c; pwd
echo "env $MARK $HOME"
grep -E '^(CapEff|CapInh|NoNewPrivs):' /proc/self/status
cat /proc/self/cgroup
"""


@pytest.fixture
def home(place: Path) -> Path:
    """A directory of the first user's that no other user can enter."""
    home = place / f"home-{time.monotonic_ns()}"
    home.mkdir(mode=0o700)
    os.chown(home, FIRST, FIRST)
    return home


def ran(path: Path, *argv: str, **options: Any) -> RunInfo | str:
    """Run a command and return what became of it; a refusal's text."""
    where = {"cwd": b"/", "env": PATH}
    with Client(path) as client:
        reply = spawn(client, argv, **(where | options))
        if isinstance(reply, m.Error):
            return reply.message
        assert isinstance(reply, m.RunReply), reply
        return client.call(m.Wait(id=client.next_id(), run=reply.run.id), m.RunReply).run


def ended(path: Path, *argv: str, **options: Any) -> RunInfo:
    run = ran(path, *argv, **options)
    assert isinstance(run, RunInfo), run
    return run


def said(client: Client) -> str:
    reply = client.arrived()[0].reply
    assert isinstance(reply, m.Error), reply
    return reply.message


def output(daemon: Daemon, run: RunInfo) -> list[str]:
    return (daemon.state_dir / "output" / f"{run.id}.out").read_text().splitlines()


def test_a_run_is_its_submitters(everyones: Daemon, home: Path) -> None:
    """User, groups, limits and no_new_privs are the client's by the kernel; umask, directory and
    environment what it sends."""

    def submit() -> RunInfo:
        resource.setrlimit(resource.RLIMIT_NOFILE, (111, 222))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        env = [b"PATH=/usr/bin:/bin", b"MARK=mine", b"HOME=" + os.fsencode(home)]
        return ended(
            everyones.socket, "sh", "-c", SCRIPT, umask=0o027, cwd=os.fsencode(home), env=env
        )

    run = as_user(FIRST, submit, groups=[62001, 62002])
    assert run.status == "completed", run
    lines = output(everyones, run)
    # setgroups(2) sorts nothing, id(1) prints the own group first
    assert lines[:9] == [
        str(FIRST),
        str(FIRST),
        f"{FIRST} 62001 62002",
        "0027",
        "111",
        "222",
        "0",
        str(home),
        f"env mine {home}",
    ]
    status = dict(line.split(":\t") for line in lines if ":\t" in line)
    assert status == {"CapInh": "0" * 16, "CapEff": "0" * 16, "NoNewPrivs": "0"}
    assert f"/{run.id}" in lines[-1]
    assert run.user == str(FIRST)


def test_an_operator_sees_whose_runs_they_are(everyones: Daemon) -> None:
    as_user(FIRST, lambda: ended(everyones.socket, "sh", "-c", "sleep 1"))
    ended(everyones.socket, "true")
    header, *rows = everyones.sfactl("list").stdout.splitlines()
    at = header.split().index("USER")
    assert {str(FIRST), "root"} <= {row.split()[at] for row in rows}
    assert re.search(
        rf"^\w+  \S+  {FIRST}  completed  depth 0  ran 1",
        everyones.sfactl("tree").stdout,
        re.MULTILINE,
    )
    assert json.loads(everyones.sfactl("list", "--json", "--user", str(FIRST)).stdout)["runs"]


def test_no_new_privs_stays(everyones: Daemon) -> None:
    def submit() -> RunInfo:
        libc.prctl(38, 1, 0, 0, 0)
        return ended(everyones.socket, "grep", "NoNewPrivs", "/proc/self/status")

    assert output(everyones, as_user(FIRST, submit)) == ["NoNewPrivs:\t1"]


def test_directory_and_command_are_looked_up_as_the_user(everyones: Daemon, home: Path) -> None:
    script = home / "secret.sh"
    script.write_text("#!/bin/sh\nid -u\n")
    script.chmod(0o755)
    os.chown(script, FIRST, FIRST)
    own = as_user(FIRST, lambda: ended(everyones.socket, "./secret.sh", cwd=os.fsencode(home)))
    assert output(everyones, own) == [str(FIRST)]
    entered = as_user(SECOND, lambda: ended(everyones.socket, "true", cwd=os.fsencode(home)))
    assert entered.status == "failed"
    assert entered.reason is not None
    assert (entered.reason.message, entered.reason.about) == (
        f"cannot enter directory {home}: Permission denied",
        "directory",
    )
    for words in ((str(script),), ("secret.sh",)):
        env = [b"PATH=" + os.fsencode(home)]
        found = as_user(
            SECOND,
            lambda words=words, env=env: ended(everyones.socket, *words, env=env),  # type: ignore[misc]
        )
        assert found.reason is not None
        assert (found.reason.kind, found.reason.errno) == ("launch", errno.EACCES), found


def test_output_belongs_to_the_user_and_no_other_user_reaches_it(everyones: Daemon) -> None:
    run = as_user(
        FIRST,
        lambda: ended(
            everyones.socket, "sh", "-c", "echo one > /dev/stdout; echo two > /dev/stderr"
        ),
    )
    for suffix, text in ((".out", "one\n"), (".err", "two\n")):
        path = everyones.state_dir / "output" / f"{run.id}{suffix}"
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode), path.read_text()) == (
            FIRST,
            FIRST,
            0o600,
            text,
        )
        for uid in (FIRST, SECOND):
            with pytest.raises(Failed, match="Permission denied"):
                as_user(uid, path.read_text)
    for private in ("spool", "output", "ledger.db", "."):
        with pytest.raises(Failed, match="Permission denied"):
            as_user(SECOND, lambda name=private: os.stat(everyones.state_dir / name / "x"))  # type: ignore[misc]


def test_a_cgroup_is_not_writable_by_its_user(everyones: Daemon) -> None:
    script = """
        cd /sys/fs/cgroup/unified 2>/dev/null || cd /sys/fs/cgroup
        cd ".$(sed -n s/^0:://p /proc/self/cgroup)" && pwd
        for try in 'echo 0 > ../cgroup.procs' 'mkdir mine' 'echo 1 > cgroup.freeze'
        do sh -c "$try" && echo did $try; done
        true
    """
    lines = output(everyones, as_user(FIRST, lambda: ended(everyones.socket, "sh", "-c", script)))
    assert len(lines) == 1, lines


def test_who_gave_up_root_has_no_rights_over_an_old_connection(everyones: Daemon) -> None:
    """It is told to connect again; so is a child that has inherited the connection of a parent with
    another user."""

    def gives_up() -> str:
        with Client(everyones.socket) as client:
            become(FIRST, FIRST)
            client.send(m.List(id=client.next_id()))
            return said(client)

    assert f"made by uid 0 and is used by uid {FIRST}" in as_user(0, gives_up)


def test_a_setuid_program_lends_its_rights_to_nobody(everyones: Daemon) -> None:
    """A program that its user has executed acts for its file's owner and for its user. No request
    may have the rights of the one and be steered by the other."""

    def as_setuid() -> str:
        os.setresuid(FIRST, 0, 0)  # what execve(2) of a setuid program of root does
        with Client(everyones.socket) as client:
            return str(client)

    def setuid_later() -> str:
        with Client(everyones.socket) as client:
            os.setresuid(SECOND, SECOND, 0)
            os.setresuid(SECOND, 0, 0)
            client.send(m.List(id=client.next_id()))
            return said(client)

    with pytest.raises(Failed, match=f"made by uid 0 and is used by uid {FIRST}"):
        as_user(0, as_setuid)
    assert f"made by uid 0 and is used by uid {SECOND}" in as_user(0, setuid_later)


@pytest.mark.parametrize("uids", [(FIRST, FIRST, SECOND), (FIRST, FIRST, 0)])
def test_a_submitter_with_several_uids_is_refused(
    everyones: Daemon, uids: tuple[int, int, int]
) -> None:
    """It acts for more than one user, and can become another of them at any time."""

    def submits() -> str:
        os.setresuid(*uids)
        return str(ran(everyones.socket, "true"))

    assert f"has the uids {sorted(set(uids))} by now, and connected as {uids[0]}" in as_user(
        0, submits
    )


def test_a_submitter_of_another_user_namespace_is_refused(everyones: Daemon) -> None:
    def unshared() -> str:
        assert libc.unshare(CLONE_NEWUSER) == 0
        return str(ran(everyones.socket, "true"))

    assert "is in another user namespace, which its run would leave" in as_user(FIRST, unshared)


def test_a_submitter_of_another_pid_namespace_is_refused(everyones: Daemon) -> None:
    def unshared() -> str:
        assert libc.unshare(CLONE_NEWPID) == 0
        return as_user(FIRST, lambda: str(ran(everyones.socket, "true")))  # the first process there

    assert "is in another pid namespace, which its run would leave" in as_user(0, unshared)


def test_a_submitter_of_another_network_namespace_is_refused(everyones: Daemon) -> None:
    def unshared() -> str:
        assert libc.unshare(CLONE_NEWNET) == 0
        return as_user(FIRST, lambda: str(ran(everyones.socket, "true")))

    assert "is in another net namespace, which its run would leave" in as_user(0, unshared)


def test_a_submitter_with_another_root_directory_is_refused(everyones: Daemon) -> None:
    """As in a container without pid and user namespaces of its own."""

    def enclosed() -> str:
        os.chroot(everyones.socket.parent)
        os.chdir("/")
        return as_user(FIRST, lambda: str(ran(Path("/", everyones.socket.name), "true")))

    assert "has another root directory (a container or chroot)" in as_user(0, enclosed)


def test_a_proc_that_hides_processes_hides_none_from_the_daemon(place: Path) -> None:
    directory = place / "hidden"
    directory.mkdir()
    mount = 'mount -t proc -o hidepid=invisible proc /proc && exec "$@"'
    wrap = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh"]
    with running(directory, config=CONFIG, mode="cgroup", wrap=wrap) as daemon:
        run = as_user(FIRST, lambda: ended(daemon.socket, "id", "-u"))
        assert output(daemon, run) == [str(FIRST)]


def test_a_submitter_that_died_before_it_was_looked_at_is_refused(everyones: Daemon) -> None:
    def submit() -> None:
        sock.connect(str(everyones.socket))
        sock.sendall(
            pack_message(m.Hello(id=1, versions=[1]))
            + pack_message(m.Spawn(id=2, argv=[b"true"], cwd=b"/", env=[]))
        )

    with socket.socket(socket.AF_UNIX) as sock:
        os.kill(everyones.pid, signal.SIGSTOP)
        try:
            as_user(FIRST, submit)  # it has been reaped when this returns
            sock.shutdown(socket.SHUT_WR)
        finally:
            os.kill(everyones.pid, signal.SIGCONT)
        sock.settimeout(30)
        answered = b""
        while more := sock.recv(65536):
            answered += more
    assert b"ended before it could be identified" in answered


def test_attempts_after_a_crash_are_still_the_users(place: Path) -> None:
    """The next daemon takes the credentials from the spool: nobody is there any more to ask."""
    directory = place / "again"
    directory.mkdir(mode=0o755)
    script = (
        'id -u; id -G; ulimit -n; while [ ! -e /proc/$1 ] || [ -z "$(cat $2)" ]; do sleep 0.05; '
        "done; exit 1"
    )
    go = directory / "go"
    go.write_text("")

    def submit() -> str:
        resource.setrlimit(resource.RLIMIT_NOFILE, (123, 234))
        with Client(directory / "s") as client:
            reply = spawn(
                client,
                ["sh", "-c", script, "sh", "self", go],
                cwd=b"/",
                env=PATH,
                attempts=2,
                retry_delay=0.1,
            )
            assert isinstance(reply, m.RunReply), reply
            return reply.run.id

    with running(directory, config=CONFIG, mode="cgroup") as daemon:
        run = as_user(FIRST, submit, groups=[62001])
        daemon.kill()
        daemon.restart()
        go.write_text("go")
        with daemon.client() as client:
            found = client.call(m.Wait(id=client.next_id(), run=run), m.RunReply).run
        assert found.attempts == 2
        assert output(daemon, found) == [str(FIRST), f"{FIRST} 62001", "123"] * 2


@pytest.mark.parametrize(
    "name",
    [
        "two\nlines",
        "\x1b[31mred\x07",
        "\udcff\udcfe",
        " ",
        "-rf",
        "a" * 255,
        "/".join(["d" * 250] * 14),
    ],
)
def test_odd_names_of_directories(everyones: Daemon, home: Path, name: str) -> None:
    (home / name).mkdir(parents=True)
    for each in (home / name, *(home / name).parents):
        if each.is_relative_to(home):
            os.chown(each, FIRST, FIRST)
    winding = f"{home}/{name.split('/')[0]}/../{name}"
    run = as_user(FIRST, lambda: ended(everyones.socket, "pwd", "-P", cwd=os.fsencode(winding)))
    assert run.status == "completed", run
    found = (everyones.state_dir / "output" / f"{run.id}.out").read_bytes()
    assert found == os.fsencode(home / name) + b"\n"


def test_a_user_cannot_lead_the_daemon_out_of_its_directories(
    everyones: Daemon, home: Path
) -> None:
    """Root writes and reads by names that only root can change, so a link to the run's own output
    leads nowhere."""
    script = """
        where=$(readlink /proc/$$/fd/1)
        ln -s /etc/shadow link; ln -L /proc/$$/fd/1 hard 2>/dev/null; chmod 666 /proc/$$/fd/1
        echo first; [ -n "$where" ] || echo nowhere
        rm "$where" && echo removed
        ln -sf /etc/shadow "$where" && echo replaced
        exit 1
    """
    command = ("sh", "-c", script)
    run = as_user(
        FIRST,
        lambda: ended(
            everyones.socket, *command, cwd=os.fsencode(home), attempts=2, retry_delay=0.01
        ),
    )
    assert output(everyones, run) == ["first", "first"]


def test_the_daemons_environment_is_not_its_users(everyones: Daemon) -> None:
    """Neither in a run's environment nor in /proc."""
    run = as_user(
        FIRST,
        lambda: ended(everyones.socket, "sh", "-c", f"env; cat /proc/{everyones.pid}/environ"),
    )
    names = {line.partition("=")[0] for line in output(everyones, run)} - {
        "PATH",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    }
    ours = re.compile(r"SFA_\w+|\w+_BASE_URL|CLAUDE_CODE_DISABLE_\w+")
    assert all(map(ours.fullmatch, names)), names
    for name in ("environ", "mem", "fd"):
        with pytest.raises(Failed, match="Permission denied"):
            as_user(FIRST, lambda name=name: os.open(f"/proc/{everyones.pid}/{name}", os.O_RDONLY))  # type: ignore[misc]


@with_fuse
def test_a_file_of_a_users_fuse_server_is_refused(everyones: Daemon, place: Path) -> None:
    """Its server could keep the daemon waiting whenever that starts a run."""
    with unanswered(place / "fuse", SECOND):
        # the server is not asked for it, so that this test cannot hang
        file = os.open(place / "fuse", os.O_PATH)

        def submit() -> str:
            with Client(everyones.socket) as client:
                request = m.Spawn(
                    id=client.next_id(),
                    argv=[b"true"],
                    cwd=b"/",
                    env=PATH,
                    stdin="descriptor",
                    descriptors=1,
                )
                try:
                    client.send(request, [file])
                    return str(client.arrived()[0].reply)
                except ConnectionLost as lost:  # the daemon was faster than the end of send()
                    return str(lost)

        try:
            assert "a file of a FUSE file system of a user" in as_user(FIRST, submit)
            assert as_user(SECOND, lambda: ended(everyones.socket, "true")).status == "completed"
        finally:
            os.close(file)
