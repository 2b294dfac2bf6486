"""The environment that a command is executed in, and the errors when it cannot be executed."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import pty
import resource
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from sfad.core.events import Emptied, LaunchFailed, LaunchSucceeded, MainExited
from sfad.core.state.run import run_id
from sfad.processes import kernel
from sfad.processes.contain.cgroup import cgroupfs
from sfad.processes.credentials import LIMIT_KINDS, Credentials
from sfad.processes.launcher import LaunchError
from sfad.processes.trampoline import executable
from sfad.processes.trampoline.creating import Cloner, files_to_try
from tests import surroundings
from tests.harness import unanswered, until, with_fuse
from tests.loader import traced, tracing
from tests.processes.rig import PATIENCE, Rig, rigged
from tests.users import FIRST, open_directory

SHOW = "import os,sys; sys.stdout.buffer.write(open('/proc/self/environ','rb').read())"


@pytest.fixture(autouse=True)
def itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell stands before the interpreter: it would add to the environment, and take from it."""
    monkeypatch.setattr(sys, "executable", surroundings.interpreter)


def shown(environ: bytes) -> list[bytes]:
    return [item for item in environ.split(b"\0")[:-1] if not item.startswith(b"SFA_COOKIE=")]


async def test_exit_code(either: Rig) -> None:
    either.launch("a1", "sh", "-c", "exit 3")
    ended = await either.wait(MainExited, "a1")
    assert (ended.code, ended.signal, ended.empty) == (3, None, True)
    assert [type(event) for event in either.events] == [LaunchSucceeded, MainExited]
    either.launcher.release("a1")


async def test_signal(either: Rig) -> None:
    either.launch("a1", "sh", "-c", "kill -SEGV $$")
    ended = await either.wait(MainExited, "a1")
    assert (ended.code, ended.signal) == (None, signal.SIGSEGV)
    either.launcher.release("a1")


async def test_environment_is_unchanged(either: Rig, tmp_path: Path) -> None:
    env = [
        b"PATH=/usr/bin:/bin",
        b"a.b=1",
        b"LATIN=\xe9\xff",
        b"EMPTY=",
        b"TWICE=1",
        b"TWICE=2",
        b"no equals sign",
        b"=x",
    ]
    output = await either.output(
        "a1", sys.executable, "-I", "-S", "-c", SHOW, env=env, tmp_path=tmp_path
    )
    assert shown(output) == env
    either.launcher.release("a1")


async def test_empty_environment(either: Rig, tmp_path: Path) -> None:
    output = await either.output(
        "a1", sys.executable, "-I", "-S", "-c", SHOW, env=[], tmp_path=tmp_path
    )
    assert shown(output) == []
    assert output.startswith(f"SFA_COOKIE={either.launcher.instance}:a1:".encode())
    either.launcher.release("a1")


async def test_the_cookie_of_another_run_is_not_its_own(either: Rig, tmp_path: Path) -> None:
    env = [b"SFA_COOKIE=0123456789ab:a7:00", b"PATH=/usr/bin:/bin", b"SFA_COOKIE="]
    output = await either.output(
        "a1", sys.executable, "-I", "-S", "-c", SHOW, env=env, tmp_path=tmp_path
    )
    assert shown(output) == [b"PATH=/usr/bin:/bin"]
    (own,) = [item for item in output.split(b"\0") if item.startswith(b"SFA_COOKIE=")]
    assert own.startswith(f"SFA_COOKIE={either.launcher.instance}:a1:".encode())
    either.launcher.release("a1")


async def test_arguments_are_unchanged(either: Rig, tmp_path: Path) -> None:
    words = [b"", b"two words", b"\xff\xfe", b"-c", b"*"]
    output = await either.output("a1", "/usr/bin/printf", b"<%s>", *words, tmp_path=tmp_path)
    assert output == b"".join(b"<" + word + b">" for word in words)
    either.launcher.release("a1")


async def test_umask_and_cwd(either: Rig, tmp_path: Path) -> None:
    output = await either.output(
        "a1",
        "sh",
        "-c",
        "umask; pwd -P",
        cwd=str(tmp_path),
        umask=0o137,
        env=[b"PATH=/bin"],
        tmp_path=tmp_path,
    )
    umask, directory = output.split()
    assert umask == b"0137"
    assert os.path.samefile(directory, tmp_path)  # noqa: ASYNC240 - local
    either.launcher.release("a1")


async def test_only_standard_descriptors(either: Rig, tmp_path: Path) -> None:
    leaky = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaky, True)
    code = (
        "import os; print(sorted(int(n) "
        "for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/'+n)))"
    )
    try:
        output = await either.output(
            "a1", sys.executable, "-I", "-S", "-c", code, tmp_path=tmp_path
        )
    finally:
        os.close(leaky)
    assert output == b"[0, 1, 2]\n"
    either.launcher.release("a1")


async def test_signals_are_default_and_unblocked(either: Rig, tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        output = await either.output(
            "a1", "grep", "-E", "SigBlk|SigIgn", "/proc/self/status", tmp_path=tmp_path
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert {line.split()[1] for line in output.splitlines()} == {b"0" * 16}
    either.launcher.release("a1")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of rt_sigaction(2)")
async def test_signals_of_glibc_are_default_too(
    containment: str, program: str, tmp_path: Path
) -> None:
    """A daemon inherits them as ignored from a parent that glibc started by posix_spawn(3)."""
    rt_sigaction = partial(ctypes.CDLL(None).syscall, 13)
    before = {number: (ctypes.c_uint64 * 4)() for number in (32, 33)}
    for number, action in before.items():
        assert rt_sigaction(number, (ctypes.c_uint64 * 4)(signal.SIG_IGN), action, 8) == 0
    try:
        async with rigged(containment, program=program) as rig:
            output = await rig.output(
                "a1", "grep", "SigIgn", "/proc/self/status", tmp_path=tmp_path
            )
            rig.launcher.release("a1")
    finally:
        for number, action in before.items():
            assert rt_sigaction(number, action, None, 8) == 0
    assert output.split()[1] == b"0" * 16


async def test_leads_a_session_of_its_own(either: Rig) -> None:
    either.launch("a1", "sleep", "60")
    pid = (await either.wait(LaunchSucceeded, "a1")).pid
    assert os.getsid(pid) == os.getpgid(pid) == pid
    await either.stop("a1")


async def test_controlling_terminal(either: Rig, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    try:
        with (tmp_path / "out").open("wb") as file:
            either.launch(
                "a1",
                "sh",
                "-c",
                "echo heard >/dev/tty",
                stdin=slave,
                stdout=file.fileno(),
                terminal=True,
            )
            assert (await either.wait(MainExited, "a1")).code == 0
        assert os.read(master, 100).startswith(b"heard")
    finally:
        os.close(master)
        os.close(slave)
    either.launcher.release("a1")


@pytest.mark.parametrize("terminal", [False, True])
async def test_the_loader_obeys_the_environment_only_for_the_command(
    either: Rig, terminal: bool
) -> None:
    """And as its user: no program before that, which is root still, is told what to load."""
    root = os.geteuid() == 0
    master, slave = pty.openpty()
    with open_directory() as place:
        place.chmod(0o777)
        user = user_of(FIRST) if root else None
        try:
            if user is not None:
                os.fchown(slave, user.uid, user.gid)
            either.launch(
                "a1",
                "true",
                env=tracing(place / "traced"),
                stdin=slave,
                terminal=terminal,
                user=user,
            )
            assert (await either.wait(MainExited, "a1")).code == 0
        finally:
            os.close(master)
            os.close(slave)
        assert traced(place / "traced") == {("true", FIRST if root else os.geteuid())}
    either.launcher.release("a1")


def user_of(uid: int) -> Credentials:
    limits = tuple(
        (soft % (1 << 64), hard % (1 << 64))
        for soft, hard in map(resource.getrlimit, range(LIMIT_KINDS))
    )
    return Credentials(uid, uid, (), limits)


async def test_soft_limit_of_descriptors_is_the_original(containment: str, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with rigged(containment) as rig:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        try:
            output = await rig.output("a1", "sh", "-c", "ulimit -n", tmp_path=tmp_path)
        finally:
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft - 1, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert int(output) == soft
        rig.launcher.release("a1")


async def test_the_shell_runs_a_script_without_an_interpreter_line(
    either: Rig, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text('echo "$0" "$@"')
    script.chmod(0o755)
    output = await either.output("a1", str(script), "x", "y z", tmp_path=tmp_path)
    assert output == f"{script} x y z\n".encode()
    either.launcher.release("a1")


async def test_path_is_the_runs(either: Rig, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "tool-of-this-test"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    options: dict[str, Any] = {
        "cwd": str(tmp_path),
        "env": [b"PATH=/nowhere:bin"],
        "tmp_path": tmp_path,
    }
    assert await either.output("a1", "tool-of-this-test", **options) == b"found\n"
    either.launcher.release("a1")


async def test_not_found(either: Rig) -> None:
    failed = await either.failure("a1", "no-such-program")
    assert (failed.errno, failed.error) == (
        errno.ENOENT,
        "cannot execute no-such-program: No such file or directory",
    )
    failed = await either.failure("a2", "/no/such/program")
    assert (failed.errno, failed.error) == (
        errno.ENOENT,
        "cannot execute /no/such/program: No such file or directory",
    )
    assert not any(isinstance(event, MainExited | LaunchSucceeded) for event in either.events)


async def test_not_executable(either: Rig, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    failed = await either.failure("a1", str(file))
    assert (failed.errno, failed.error) == (
        errno.EACCES,
        f"cannot execute {file}: Permission denied",
    )
    failed = await either.failure("a2", "file", env=[b"PATH=" + os.fsencode(tmp_path)])
    assert failed.errno == errno.EACCES


async def test_missing_interpreter(either: Rig, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    failed = await either.failure("a1", str(script))
    assert failed.errno == errno.ENOENT
    assert "interpreter" in failed.error


async def test_missing_interpreter_of_a_command_found_in_path(either: Rig, tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/no/such/interpreter\n")
    (tmp_path / "script").chmod(0o755)
    failed = await either.failure("a1", "script", cwd=str(tmp_path), env=[b"PATH=/nowhere:."])
    assert (failed.errno, failed.error) == (
        errno.ENOENT,
        "cannot execute script: No such file or directory (its interpreter is missing)",
    )


async def test_missing_directory(either: Rig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for run, name, number in (("a1", "gone", errno.ENOENT), ("a2", "file", errno.ENOTDIR)):
        failed = await either.failure(run, "true", cwd=f"{tmp_path}/{name}")
        assert (failed.errno, failed.error) == (
            number,
            f"cannot enter directory {tmp_path}/{name}: {os.strerror(number)}",
        )


@pytest.mark.parametrize("argv", [[], [""], ["a\0b"], ["/bin/echo", "a\0b"]])
async def test_impossible_arguments(rig: Rig, argv: list[str]) -> None:
    failed = await rig.failure("a1", *argv)
    assert failed.errno in {errno.ENOENT, errno.EINVAL}


async def test_an_empty_name_is_shown(either: Rig) -> None:
    assert (
        await either.failure("a1", "", "x")
    ).error == "cannot execute '': No such file or directory"


async def test_too_long(rig: Rig) -> None:
    assert (await rig.failure("a1", "true", "x" * 200_000)).errno == errno.E2BIG


async def test_a_command_that_cannot_be_saved_is_not_executed(either: Rig, tmp_path: Path) -> None:
    either.forgets = True
    failed = await either.failure("a1", "touch", str(tmp_path / "done"))
    assert (failed.errno, failed.kind) == (errno.ENOSPC, "output")
    assert failed.error == f"cannot remember the start of touch: {os.strerror(errno.ENOSPC)}"
    assert [type(event) for event in either.events] == [LaunchFailed]
    assert not (tmp_path / "done").exists()
    either.forgets = False
    either.launch("a1", "touch", str(tmp_path / "done"))
    assert (await either.wait(MainExited, "a1")).code == 0
    assert [record.pid for record in either.remembered][-1] == (
        await either.wait(LaunchSucceeded, "a1")
    ).pid
    either.launcher.release("a1")


@pytest.mark.parametrize(
    "where", ["sfad.processes.launched_runs.LaunchedRun.record", "sfad.processes.watch.Reactor.add"]
)
async def test_a_command_that_cannot_be_watched_is_not_executed(
    either: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def short(*_arguments: object) -> None:
        raise OSError(errno.ENFILE, "as if the system had no descriptors left")

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(where, short)
        either.launch("a1", "touch", str(tmp_path / "done"))
    assert (await either.wait(LaunchFailed, "a1")).errno == errno.ENFILE
    assert [type(event) for event in either.events] == [LaunchFailed]
    await until(lambda: not kernel.children(), "the trampoline has gone")
    assert not (tmp_path / "done").exists()
    assert set(os.listdir("/proc/self/fd")) == before
    either.launcher.release("a1")


def test_directories_are_left_out_of_the_search() -> None:
    assert files_to_try(b"x", [b"PATH=/s:/a:/t::/s"], [b"/s", b"/t"]) == [b"/a/x", b"./x"]
    assert files_to_try(b"x", [b"PATH=/s"], [b"/s"]) == []
    assert files_to_try(b"/s/x", [b"PATH=/s"], [b"/s"]) == [b"/s/x"]


def test_a_search_path_that_no_kernel_takes_is_refused() -> None:
    assert len(files_to_try(b"x" * 255, [b"PATH=" + b"/directory:" * 3000])) == 3001
    with pytest.raises(LaunchError, match="Argument list too long"):
        files_to_try(b"x" * 255, [b"PATH=" + b":" * 4000])
    with pytest.raises(LaunchError, match="File name too long"):
        files_to_try(b"x" * 28_000, [b"PATH=" + b":" * 28_000])


async def test_no_descriptors_left(rig: Rig) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), limits[1]))
    try:
        rig.launch("a1", "true")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (await rig.wait(LaunchFailed, "a1")).errno == errno.EMFILE


async def test_a_failed_launch_can_be_emptied_and_tried_again(rig: Rig) -> None:
    await rig.failure("a1", "no-such-program")
    rig.launcher.terminate("a1", signal.SIGTERM)
    await rig.wait(Emptied, "a1")
    rig.launch("a1", "true")
    assert (await rig.wait(MainExited, "a1")).code == 0
    rig.launcher.release("a1")


async def test_descriptors_below_the_trampolines_own(rig: Rig, tmp_path: Path) -> None:
    """A source that is also a target must not be overwritten before its turn."""
    saved = [os.dup(fd) for fd in (3, 4, 5)]
    with (tmp_path / "in").open("w+b") as given, (tmp_path / "out").open("w+b") as taken:
        given.write(b"through")
        given.seek(0)
        rig.launch("a1", "cat", stdin=given.fileno(), stdout=taken.fileno(), stderr=taken.fileno())
        await rig.wait(MainExited, "a1")
        taken.seek(0)
        assert taken.read() == b"through"
    for fd in saved:
        os.close(fd)
    rig.launcher.release("a1")


@pytest.mark.rest("at scale")
async def test_two_hundred_at_once_and_no_status_is_stolen(rig: Rig) -> None:
    for number in range(200):
        code = (
            f"exit {number % 256}"
            if number % 2
            else f"sleep 0.0{number % 9}; kill -{1 + number % 3} $$"
        )
        rig.launch(run_id(number + 1), "sh", "-c", f"(exec sleep 0.1) & {code}")
    for number in range(200):
        ended = await rig.wait(MainExited, run_id(number + 1))
        assert (ended.code, ended.signal) == (
            (number % 256, None) if number % 2 else (None, 1 + number % 3)
        )
    await rig.stop(*(run_id(number + 1) for number in range(200)))


async def test_commands_are_searched_for_as_execvp_does(either: Rig, tmp_path: Path) -> None:
    for name, mode in (("denied", 0o644), ("allowed", 0o755), ("later", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").write_text(f"echo {name} $0 $1")
        (tmp_path / name / "tool").chmod(mode)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()

    def path(*names: str) -> dict[str, Any]:
        return {"cwd": str(tmp_path), "env": [os.fsencode("PATH=" + ":".join(names))]}

    searched = path(
        f"{tmp_path}/none", "file", "denied", "loop", "x" * 300, "y/" * 3000, "allowed", "later"
    )
    # the shell gets a file without an interpreter line, by the name under which it was found
    assert (
        await either.output("a1", "tool", "x", **searched, tmp_path=tmp_path)
        == b"allowed allowed/tool x\n"
    )
    assert (
        await either.output("a2", "sh", "-c", "echo $0 there", cwd="/", env=[], tmp_path=tmp_path)
        == b"sh there\n"
    )
    assert (
        await either.output(
            "a3",
            "tool",
            "x",
            **path("/nowhere", "") | {"cwd": f"{tmp_path}/later"},
            tmp_path=tmp_path,
        )
        == b"later ./tool x\n"
    )
    for run, names, number in (
        ("a4", ["denied", "file", "none"], errno.EACCES),
        ("a5", ["none", "file"], errno.ENOENT),
        ("a6", [""], errno.ENOENT),
        ("a7", ["loop", "none"], errno.ELOOP),
        ("a8", ["none", "x" * 300], errno.ENAMETOOLONG),
    ):
        failed = await either.failure(run, "tool", **path(*names))
        assert (failed.errno, failed.error) == (
            number,
            f"cannot execute tool: {os.strerror(number)}",
        )
    await either.stop("a1", "a2", "a3")


@with_fuse
@pytest.mark.parametrize("what", ["cwd", "PATH", "command"])
async def test_a_mount_that_does_not_answer_holds_up_no_other_run(
    either: Rig, tmp_path: Path, what: str
) -> None:
    mount = tmp_path / "mount"
    with unanswered(mount):
        path = f"PATH={mount}:/usr/bin:/bin" if what == "PATH" else "PATH=/usr/bin:/bin"
        command = f"{mount}/true" if what == "command" else "true"
        either.launch(
            "a1", command, cwd=str(mount) if what == "cwd" else "/", env=[os.fsencode(path)]
        )
        either.launch("a2", "sh", "-c", "exit 3")
        assert (await either.wait(MainExited, "a2")).code == 3
        assert not [event for event in either.events if getattr(event, "run", "") == "a1"]
        # the hanging process is in its run, where it can be stopped
        await either.stop("a1", "a2")


@with_fuse
async def test_a_mount_whose_server_has_gone_is_searched_past(either: Rig, tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    with unanswered(mount) as go_away:
        go_away()
        either.launch("a1", "true", env=[os.fsencode(f"PATH={mount}:/usr/bin:/bin")])
        assert (await either.wait(MainExited, "a1")).code == 0
        failed = await either.failure(
            "a2", "no-such-program", env=[os.fsencode(f"PATH={mount}:/usr/bin:/bin")]
        )
        assert (failed.errno, failed.error) == (
            errno.ENOTCONN,
            f"cannot execute no-such-program: {os.strerror(errno.ENOTCONN)}",
        )
        failed = await either.failure("a3", "true", cwd=str(mount))
        assert failed.errno == errno.ENOTCONN
        either.launcher.release("a1")


async def test_the_trampoline_in_python_where_memfds_cannot_be_executed(
    monkeypatch: pytest.MonkeyPatch, containment: str
) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert executable.best() == executable.python()
    async with rigged(containment) as rig:
        rig.launch("a1", "sh", "-c", "exit 5")
        assert (await rig.wait(MainExited, "a1")).code == 5
        rig.launcher.release("a1")


async def test_nothing_is_reported_from_within_a_verb(rig: Rig) -> None:
    rig.launch("a1", "no-such-program")
    rig.launcher.survey("a1")
    rig.launcher.terminate("nobody", signal.SIGTERM)
    assert rig.events == []
    await rig.wait(Emptied, "nobody")
    with trio.fail_after(PATIENCE):
        await rig.wait(LaunchFailed, "a1")


async def test_the_clock_tells_when_a_process_has_started(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, stat = [run_id(number) for number in range(1, 41)], kernel.stat
    looked: list[int] = []

    def watched(pid: int) -> kernel.Stat | None:
        looked.append(pid)
        return stat(pid)

    with monkeypatch.context() as patched:
        patched.setattr(kernel, "stat", watched)
        for run in runs:
            rig.launch(run, "sleep", "1000")
    for run in runs:
        main, process = rig.main(run), kernel.stat(rig.main(run).pid)
        assert process is not None
        assert main.started == process.started
    assert len(looked) < len(runs)  # only of those that began as one tick became the next
    await rig.stop(*runs)


async def test_a_command_begins_in_its_cgroup(rig: Rig) -> None:
    assert rig.cgroups
    if rig.trampoline.image is None:
        pytest.skip("the image is for x86_64")
    attached: list[str] = []
    opened = os.open

    def watched(path: str, flags: int, *rest: int, **options: int) -> int:
        if path == "cgroup.procs":
            attached.append(path)
        return opened(path, flags, *rest, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "open", watched)
        rig.launch("a1", "sleep", "1000")
        assert not attached
        main = rig.main("a1")
        members = rig.containment.members(rig.launched("a1"))
        assert [pid for pid, _ in members] == [main.pid]  # at once, before it has executed anything
        await rig.running("a1")
        assert main.clone_block is None
        rig.launcher.kill("a1")
        await rig.wait(Emptied, "a1")
        mark = len(rig.events)
        rig.launch("a1", "true")  # a cgroup that was killed would kill what begins in it
        assert attached
        assert (await rig.wait(MainExited, "a1", after=mark)).code == 0


async def test_where_clone3_is_refused_a_command_attaches_itself(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSYS, "as under a seccomp filter")

    monkeypatch.setattr(Cloner, "clone", refused)
    rig.launch("a1", "sh", "-c", "exit 7")
    assert (await rig.wait(MainExited, "a1")).code == 7


async def test_a_child_in_a_frozen_cgroup_does_not_hold_the_daemon_up(rig: Rig) -> None:
    assert rig.cgroups
    rig.launch("a1", "sleep", "1000")
    await rig.running("a1")
    cgroupfs.write(f"{rig.launcher.detail}/a1/cgroup.freeze", b"1")  # as an agent may that is root
    rig.launch("a2", "sleep", "1000", parent="a1")
    rig.launch("a3", "true")
    assert (await rig.wait(MainExited, "a3")).code == 0
    cgroupfs.write(f"{rig.launcher.detail}/a1/cgroup.freeze", b"0")
    await rig.running("a2")
    await rig.stop("a1")
