"""A real daemon in a private directory, and questions to the kernel about it."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import select
import shlex
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from socketserver import BaseServer
from types import MappingProxyType
from typing import IO, Any, NoReturn

import psutil
import pytest
import trio

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo
from sfad.storage.store import Store
from tests import needs
from tests.leaks import cgroups
from tests.template import Child, fork_daemon, run_forked, template
from tests.unprivileged import Place

PATIENCE = 60.0
"""Seconds that a test waits for something that takes milliseconds, because the machine may be
loaded."""


def instance_of(state_dir: Path) -> str:
    """Return the name in the cgroups and cookies of a daemon with this state directory."""
    return hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:12]


def wait_until(
    condition: Callable[[], Any], what: str, *, seconds: float = PATIENCE, pause: float = 0.01
) -> Any:
    """Poll until the condition holds; return its value. Only for conditions that no event reports.
    What takes long, or is long in being asked, is asked about less often, because to ask takes
    processor time of this process and of a daemon."""
    began = asked = time.monotonic()
    while not (value := condition()):
        answered = time.monotonic()
        waited = answered - began
        assert waited < seconds, f"not within {seconds:g} s: {what}"
        time.sleep(max(pause, min(waited / 20, 0.1), min(answered - asked, 0.5)))
        asked = time.monotonic()
    return value


async def until(condition: Callable[[], object], what: str = "the condition holds") -> None:
    """Do the same beside trio's other tasks. The time is real: the kernel and threads do not know a
    test's clock."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what}"
        await trio.sleep(0.002)


def failing(code: int) -> Callable[..., Any]:
    """Return a function that raises `OSError` with this number, whatever it is called with."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return fail


@contextmanager
def serve_in_thread(server: BaseServer) -> Iterator[None]:
    """Have a server serve until the end of the block, and close it."""
    with server:
        thread = threading.Thread(
            target=server.serve_forever, args=[0.05], name=type(server).__name__
        )
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


PYTHON = shlex.quote(sys.executable)
"""The interpreter, as a word of a shell: its path may have a space."""
PROGRAM = ("-m", "sfad")
IMPATIENT = ("-m", "tests.impatient")


def unlocked(state_dir: Path) -> bool:
    """Return whether no process has the locks of a daemon. One that was killed in the middle of a
    posix_spawn(3) leaves a child that has its descriptors until execve(2)."""
    for path in (state_dir, state_dir / "lock"):
        with suppress(OSError), ExitStack() as opened:
            held = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a test may have put a FIFO there
            opened.callback(os.close, held)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
    return True


class Daemon:
    """`sfad serve` in a directory of the test."""

    def __init__(
        self,
        directory: Path,
        *,
        config: str = "",
        mode: str = "auto",
        nobody: Place | None = None,
        wrap: Sequence[str] = (),
        program: Sequence[str] = PROGRAM,
        executed: bool = False,
    ) -> None:
        """Start the daemon. `nobody`: run it as that user, there. `wrap`: words before the
        interpreter, such as prlimit(1). `program`: the interpreter's arguments. `executed`: execute
        the interpreter even if a fork of the template would do. Skips the test where there is no
        containment of that `mode`."""
        if nobody is None:
            needs.containment(mode)
        self.directory = directory
        directory.chmod(directory.stat().st_mode & ~0o022)  # with any umask of who runs the tests
        self._nobody = nobody
        self._wrap = tuple(wrap)
        self._program = tuple(program)
        known = self._program in (PROGRAM, IMPATIENT)
        self._forked = known and not executed and nobody is None and not wrap
        self.socket = directory / "s"
        self.state_dir = directory / "state"
        self.config = directory / "sfad.toml"
        self.config.write_text(f'{config}\n[containment]\nmode = "{mode}"\n')
        self.log = directory / "log"
        self.process = self._start()

    @property
    def python(self) -> str:
        """The interpreter that its user can execute."""
        return self._nobody.python if self._nobody else sys.executable

    def _start(
        self,
        environment: Mapping[str, str] = MappingProxyType({}),
        command: Sequence[str] | None = None,
    ) -> subprocess.Popen[bytes] | Child:
        env = self.env | dict(environment)
        wait_until(
            lambda: unlocked(self.state_dir), "no process has the locks of the daemon before"
        )
        read, write = os.pipe()
        with self.log.open("ab") as log:
            if self._forked and command is None and template().fits(env):
                process: subprocess.Popen[bytes] | Child = fork_daemon(
                    env, log.fileno(), write, patience=self._program[1]
                )
            else:
                process = self._execute(
                    command or [*self._wrap, self.python, *self._program], env, log, write
                )
        os.close(write)
        with os.fdopen(read, "rb") as ready:
            said = ready.read()
        if said != b"ready\n":
            process.kill()
            process.wait()
            raise AssertionError(f"the daemon did not start: {self.log.read_text()}")
        return process

    def _execute(
        self, command: Sequence[str], env: Mapping[str, str], log: IO[bytes], ready: int
    ) -> subprocess.Popen[bytes]:
        command = self._nobody.command(*command) if self._nobody else command
        return subprocess.Popen(
            [*command, "serve", "--ready-fd", str(ready)],
            pass_fds=[ready],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            start_new_session=True,  # as under systemd, and as sfactl starts it
        )

    @property
    def instance(self) -> str:
        """The name in its cgroups and cookies."""
        return instance_of(self.state_dir)

    @property
    def env(self) -> dict[str, str]:
        """The environment of an `sfactl` that talks to this daemon."""
        env = os.environ | (self._nobody.env if self._nobody else {})
        return env | {
            "SFAD_SOCKET": str(self.socket),
            "SFAD_STATE_DIR": str(self.state_dir),
            "SFAD_CONFIG": str(self.config),
        }

    @property
    def pid(self) -> int:
        """The daemon's."""
        return self.process.pid

    def client(self) -> Client:
        """Open a connection."""
        return Client(self.socket)

    def sfactl(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        return run_forked("sfactl", words, self.env, timeout=2 * PATIENCE, **options)

    def sfad(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run another `sfad` with the daemon's environment to its end."""
        return run_forked("sfad", words, self.env, timeout=2 * PATIENCE)

    def output(self, run: str) -> str:
        """Return what a run has printed on its stdout until now."""
        return (self.state_dir / "output" / f"{run}.out").read_text()

    def errors(self, run: str) -> str:
        """Return what a run has printed on its stderr until now."""
        return (self.state_dir / "output" / f"{run}.err").read_text()

    def descriptors(self) -> int:
        """Return how many descriptors the daemon has open, once it watches its socket, its state
        directory and the output of runs. Skips the test where the kernel does not tell."""
        needs.insight()
        end = time.monotonic() + 5  # where the kernel cannot tell, it does not watch
        while not self._watches(found := self._open_files()) and time.monotonic() < end:
            time.sleep(0.01)
        return len(found)

    def _watches(self, opened: list[str]) -> bool:
        # after a change it begins again, and opens the mounts before inotify: beside a load, it may
        # stand still between the two
        mounts, changes = f"/proc/{self.pid}/mountinfo", "anon_inode:inotify"
        return opened.count(mounts) >= 4 and opened.count(changes) >= 3

    def _open_files(self) -> list[str]:
        found = []
        for entry in os.scandir(f"/proc/{self.pid}/fd"):
            with suppress(FileNotFoundError):
                found.append(os.readlink(entry.path))
        return found

    def leftovers(self) -> list[str]:
        """Return the processes and cgroups of its runs that still exist."""
        found = [f"process {stray.pid} {argv(stray.pid)}" for stray in strays(self.instance)]
        return found + [path for path in cgroups() if path.endswith(f"/sfad-{self.instance}")]

    def kill(self) -> None:
        """Kill the daemon with SIGKILL; its runs stay."""
        self.process.kill()
        self.process.wait()

    def restart(self, *, command: Sequence[str] | None = None, **environment: str) -> None:
        """Start another daemon in its place, with these variables in its environment. `command`:
        instead of the interpreter and its arguments."""
        self.process = self._start(environment, command)

    def reexecute(self) -> None:
        """Send SIGUSR2, and wait until the daemon serves again."""
        before = self.log.read_text().count('"message":"serving"')
        self.process.send_signal(signal.SIGUSR2)
        wait_until(
            lambda: self.log.read_text().count('"message":"serving"') > before, "it serves again"
        )

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the daemon as an operator would; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def running(directory: Path, **options: Any) -> Iterator[Daemon]:
    """Run a daemon that must end well: with exit code 0, and without processes or cgroups left."""
    daemon = Daemon(directory, **options)
    try:
        yield daemon
        code = daemon.stop()
        log = daemon.log.read_text()
        assert code == 0, log
        assert "internal error" not in log, log
        assert daemon.leftovers() == []
    finally:
        if daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait()
        for stray in strays(daemon.instance):
            with suppress(psutil.NoSuchProcess):
                stray.kill()


def strays(instance: str) -> list[psutil.Process]:
    """Return the live processes with a cookie of the instance's runs."""
    return [process for process, _ in carriers(instance)]


def other_boot(state_dir: Path) -> None:
    """Change the spool to one of another boot of the machine."""
    with closing(Store(state_dir / "spool" / "runs")) as spool:
        assert (
            spool.items["boot"]
            == Path("/proc/sys/kernel/random/boot_id").read_text().strip().encode()
        )
        spool.write({"boot": b"another"})


def alive(pid: int | None) -> bool:
    """Return whether the process has not ended. A zombie has."""
    try:
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def argv(pid: int) -> list[str]:
    """Return the command line of a process; empty if it has ended meanwhile, reaped or not."""
    with suppress(psutil.Error):
        return psutil.Process(pid).cmdline()
    return []


def carriers(instance: str) -> list[tuple[psutil.Process, str]]:
    """Return those processes, each with the run that its cookie names."""
    found = []
    for pid in psutil.pids():
        with suppress(psutil.Error, OSError):
            # a `Process` takes ten times as long, and most processes of the machine have no cookie
            if b"SFA_COOKIE=" not in Path(f"/proc/{pid}/environ").read_bytes():
                continue
            process = psutil.Process(pid)
            of, _, rest = process.environ().get("SFA_COOKIE", "").partition(":")
            if of == instance and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process, rest.partition(":")[0]))
    return found


def environment() -> list[bytes]:
    """Return this process's environment, as a client sends it."""
    return [key + b"=" + value for key, value in os.environb.items()]


def spawn(client: Client, argv: Sequence[str | Path], **options: Any) -> m.Reply:
    """Request a run as a client in another language would, without the command line."""
    where = {"cwd": os.getcwdb(), "env": environment()}
    request = m.Spawn(id=0, argv=[os.fsencode(word) for word in argv], **(where | options))
    number = client.send(request)
    while True:
        for answer in client.arrived():
            if answer.reply.id == number and not isinstance(answer.reply, m.EventPush):
                return answer.reply


def started(client: Client, argv: Sequence[str | Path], **options: Any) -> RunInfo:
    """Request a run that must be admitted."""
    reply = spawn(client, argv, **options)
    assert isinstance(reply, m.RunReply), reply
    return reply.run


def ended(client: Client, run: str) -> RunInfo:
    """Return the run once it has ended."""
    return client.call(m.Wait(id=client.next_id(), run=run, timeout=PATIENCE), m.RunReply).run


def stopped(client: Client, *runs: str, **options: Any) -> m.Stopped:
    """Stop runs."""
    return client.call(m.Stop(id=client.next_id(), runs=list(runs), **options), m.Stopped)


GONE = 65534

as_root = pytest.mark.needs("root")


def let_others_into(directory: Path) -> None:
    """Let every user enter the directories of pytest above this one, which are root's alone."""
    for parent in directory.parents:
        if not parent.stat().st_mode & 0o001:
            parent.chmod(0o755)


def as_nobody(call: Callable[[], object]) -> str:
    """Return as text what `call` returns or raises in a process of the user nobody."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.setgroups([])
            os.setgid(GONE)
            os.setuid(GONE)
            os.write(write, _text_of(call).encode())
        os._exit(0)
    os.close(write)
    os.waitid(os.P_PID, child, os.WEXITED)
    with os.fdopen(read) as answer:
        return answer.read()


def _text_of(call: Callable[[], object]) -> str:
    try:
        return str(call())
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return f"{type(error).__name__}: {error}"


@contextmanager
def _fuse(directory: Path, user: int = 0) -> Iterator[tuple[int, Callable[[], None]]]:
    """Mount a FUSE file system; yield the descriptor of its server, and a function that makes the
    server go away."""
    directory.mkdir()
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    with ExitStack() as stack:
        closing = stack.enter_context(ExitStack())
        closing.callback(os.close, server)
        options = b"fd=%d,rootmode=40000,user_id=%d,group_id=0,allow_other" % (server, user)
        if libc.mount(b"sfad-test", os.fsencode(directory), b"fuse", 0, options):
            pytest.skip(f"mounting with FUSE: {os.strerror(ctypes.get_errno())}")
        stack.callback(libc.umount2, os.fsencode(directory), 2)
        yield server, closing.close


@contextmanager
def unanswered(directory: Path, user: int = 0) -> Iterator[Callable[[], None]]:
    """Mount a file system of a user whose server does not answer; yield a function that makes the
    server go away."""
    with _fuse(directory, user) as (_, go_away):
        yield go_away


@contextmanager
def unkillable(directory: Path) -> Iterator[threading.Event]:
    """A mount whose server takes each request and never answers: a process that looks there cannot
    be killed until the end of the block. What it yields is set when one has looked."""
    asked, done = threading.Event(), threading.Event()
    with _fuse(directory) as (server, _):
        reader = threading.Thread(target=_take_requests, args=[server, asked, done])
        reader.start()
        try:
            yield asked
        finally:
            done.set()
            reader.join()


def _take_requests(server: int, asked: threading.Event, done: threading.Event) -> None:
    while not done.is_set():
        if select.select([server], [], [], 0.1)[0]:
            _length, opcode, unique = struct.unpack_from("=IIQ", os.read(server, 1 << 20))
            if opcode == 26:  # FUSE_INIT, without whose answer the kernel asks nothing else
                reply = struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, 0)
                os.write(server, struct.pack("=IiQ", 16 + len(reply), 0, unique) + reply)
            else:
                asked.set()


with_fuse = pytest.mark.needs("root", "FUSE")


def agent(directory: Path, name: str, text: str) -> list[str]:
    """Return the command of an agent in Python, with a function `sfactl(*words)` that returns the
    finished command."""
    path = directory / f"{name}.py"
    path.write_text(_PRELUDE + text)
    return [sys.executable, str(path)]


_PRELUDE = """\
import os, signal, subprocess, sys, time
def sfactl(*words, **options):
    words = [sys.executable, "-m", "sfactl", *words]
    return subprocess.run(words, capture_output=True, text=True, **options)
"""
