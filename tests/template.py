"""Processes that have imported `sfad`, `sfactl` or a launcher of the tests, and fork the daemons
and the clients of a test.

The suite starts four hundred daemons and two thousand clients. Executed, a daemon takes 0.25 s of
processor time for its imports and a client 0.08 s; forked, 0.03 s and 0.005 s. A start that is
itself tested is executed: by systemd, by a shell or by an agent, as another user, with variables
that are read at import, after a re-execution.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from tests import leaks, outside

_LARGEST = 1 << 20
"""Bytes of a request, most of which is an environment."""


class Template:
    """The process for one program, and requests to it."""

    def __init__(self, program: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.template", program, outside.report()]
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), cwd=_ROOT, start_new_session=True
            )
        if program == EARLIER:
            self._process.wait()  # it goes on in a child
        self._socket = ours
        self._lock = threading.Lock()
        self._environment = _read_at_import(os.environ)
        leaks.keep(self._process.pid, ours.fileno())

    def fits(self, env: Mapping[str, str]) -> bool:
        """Whether a process with this environment would import the same."""
        return _read_at_import(env) == self._environment

    def start(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        descriptors: Mapping[int, int],
        *,
        cwd: str = "",
        patience: str = "sfad",
    ) -> Child:
        """Fork a process with these arguments. `descriptors`: those of this process, by the number
        that each gets there. `patience`: a module to import first, which may change time-outs."""
        numbers, given = list(descriptors), list(descriptors.values())
        place = {"cwd": cwd or os.getcwd(), "numbers": numbers, "patience": patience}
        start = place | {"words": words, "env": dict(env)}
        return Child(self, self.ask({"start": start}, given))

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Any:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            return json.loads(self._socket.recv(_LARGEST))

    def close(self) -> None:
        """End the process."""
        leaks.drop(self._process.pid, self._socket.fileno())
        self._socket.close()
        self._process.wait()


_ROOT = str(Path(__file__).parents[1])


def _read_at_import(env: Mapping[str, str]) -> dict[str, str]:
    names = ("SFAD_CRASH_AT", "LANG", "LC_ALL", "LC_CTYPE")
    found = {
        name: value for name, value in env.items() if name.startswith("PYTHON") or name in names
    }
    # the template has imported this checkout
    found["PYTHONPATH"] = os.pathsep.join(
        path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", _ROOT)
    )
    return found


class Child:
    """A child of the template, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, template: Template, pid: int) -> None:
        self._template = template
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Reap it if it has ended."""
        if self.returncode is None:
            self.returncode = self._template.ask({"reap": self.pid, "options": os.WNOHANG})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and reap it. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            pidfd = os.pidfd_open(self.pid)
            try:
                ended = select.select([pidfd], [], [], timeout)[0]
            finally:
                os.close(pidfd)
            if not ended:
                raise subprocess.TimeoutExpired("a child of the template", timeout or 0.0)
            self.returncode = self._template.ask({"reap": self.pid, "options": 0})
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


CONSOLE = "console"
"""`sfactl` with what its verb `web` imports, which takes 0.4 s."""
EARLIER = "tests.processes.earlier_daemon"
"""A program of the tests. Its template is no child of this process, which may be a launcher."""

_templates: dict[str, Template] = {}


def template(program: str = "sfad") -> Template:
    """Return the template of this process for `sfad`, `sfactl`, `CONSOLE` or `EARLIER`. There is
    none until a test needs it."""
    if program not in _templates:
        _templates[program] = Template(program)
    return _templates[program]


def close_templates(*, all_: bool = False) -> None:
    """End the templates that are children of this process, or all."""
    for program in [program for program in _templates if all_ or program != EARLIER]:
        _templates.pop(program).close()


def fork_daemon(env: Mapping[str, str], log: int, ready: int, *, patience: str = "sfad") -> Child:
    """Start a daemon. `log`: its stdout and stderr. `ready`: the descriptor that it tells when it
    serves. `patience`: a module with its time-outs."""
    with open(os.devnull) as nothing:
        descriptors = {0: nothing.fileno(), 1: log, 2: log, _READY: ready}
        words = ["serve", "--ready-fd", str(_READY)]
        return template().start(words, env, descriptors, patience=patience)


_READY = 3


def run_forked(
    program: str,
    words: Sequence[str],
    env: Mapping[str, str],
    *,
    stdin: str | IO[bytes] = "",
    cwd: str = "",
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    """Run `sfad` or `sfactl` to its end, and return what it printed. Raises
    `subprocess.TimeoutExpired`."""
    with ExitStack() as stack:
        if isinstance(stdin, str):
            stdin = stack.enter_context(_pipe_with(stdin.encode()))
        if _EXECUTED.intersection(words) or not template(program).fits(env):
            command = [sys.executable, "-m", program, *words]
            return subprocess.run(
                command,
                env=env,
                stdin=stdin,
                cwd=cwd or None,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        (read_out, write_out), (read_err, write_err) = os.pipe(), os.pipe()
        outputs = [stack.enter_context(open(pipe, "rb")) for pipe in (read_out, read_err)]
        with open(write_out, "wb") as out, open(write_err, "wb") as err:
            child = template(program).start(
                words, env, {0: stdin.fileno(), 1: out.fileno(), 2: err.fileno()}, cwd=cwd
            )
        stack.callback(child.wait)
        stack.callback(child.kill)
        said = _read_all(outputs, time.monotonic() + timeout)
        return subprocess.CompletedProcess([program, *words], child.wait(timeout), *said)


def fork_console(words: Sequence[str], env: Mapping[str, str]) -> tuple[Child, IO[str]]:
    """Start the console. Return it and its stdout; its stderr is discarded."""
    read, write = os.pipe()
    with open(os.devnull, "r+b") as nothing, open(write, "wb") as out:
        descriptors = {0: nothing.fileno(), 1: out.fileno(), 2: nothing.fileno()}
        child = template(CONSOLE).start(["web", *words], env, descriptors)
    return child, open(read)


_EXECUTED = frozenset({"top", "otel", "web"})
"""Verbs for which the client imports something else than for others."""


def _pipe_with(content: bytes) -> IO[bytes]:
    """Return the end of a pipe that has this content, and no writer."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, max(len(content), 1))
    with open(write, "wb") as writer:
        writer.write(content)
    return open(read, "rb")


def _read_all(files: Sequence[IO[bytes]], until: float) -> list[str]:
    """Return what each of the pipes says to its end."""
    said = dict.fromkeys(files, b"")
    with selectors.DefaultSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(until - time.monotonic())
            if not ready:
                raise subprocess.TimeoutExpired(
                    "a child of the template", until, b"".join(said.values())
                )
            for key, _ in ready:
                read = os.read(key.fd, 1 << 16)
                said[key.fileobj] += read  # type: ignore[index]
                if not read:
                    selector.unregister(key.fileobj)
    return [text.decode().replace("\r\n", "\n") for text in said.values()]


_ABOVE = 100


def _serve() -> None:
    """Carry out requests until their end; then return in the template. In each child, return at
    once."""
    gc.freeze()  # or a child's collections would look through, and copy, all that is imported here
    # above all numbers that a child gets
    with socket.socket(fileno=fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, _ABOVE)) as requests:
        while True:
            content, descriptors, _, _ = socket.recv_fds(requests, _LARGEST, 4)
            if not content:
                sys.exit()
            request = json.loads(content)
            answer = (
                _reaped(request["reap"], request["options"]) if "reap" in request else os.fork()
            )
            if answer == 0 and "start" in request:
                _become(request["start"], descriptors)
                return
            for descriptor in descriptors:
                os.close(descriptor)
            requests.send(json.dumps(answer).encode())


def _reaped(pid: int, options: int) -> int | None:
    found, status = os.waitpid(pid, options)  # noqa: TID251 - the pid of its own child
    return os.waitstatus_to_exitcode(status) if found else None


def _become(start: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    os.setsid()
    os.chdir(start["cwd"])
    os.environ.clear()
    os.environ.update(start["env"])
    time.tzset()
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for number, descriptor in zip(start["numbers"], moved, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # their buffers follow what the descriptors are now
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", errors=sys.stdout.errors, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv[1:] = start["words"]
    import_module(start["patience"])


def _become_client() -> None:
    from sfactl import app, verbs
    from sfactl.__main__ import main

    app.root()
    for verb in verbs.everything():
        if not _EXECUTED.intersection(verb.split(" ")):
            app.load(verb)
    _serve()
    _to_its_end(main)


def _become_console() -> None:
    from sfactl import app
    from sfactl.__main__ import main

    app.load("web")
    _serve()
    _to_its_end(main)


def _become_daemon() -> None:
    # what a daemon imports once it has to know a price, which takes as long as all the rest
    import genai_prices.data
    import genai_prices.data_snapshot  # noqa: F401
    import typer.main

    import sfad.cli
    import sfad.daemon.serving
    from sfad.__main__ import main

    # typer would build it again in each child
    sfad.cli.app = typer.main.get_command(sfad.cli.app)  # type: ignore[assignment]
    _serve()
    _to_its_end(main)


def _become_earlier_daemon() -> None:
    if os.fork():  # the child is no child of the tests' process
        os._exit(0)
    from tests.processes.earlier_daemon import main

    _serve()
    main()


def _to_its_end(main: Callable[[], None]) -> None:
    """Run a program, and end as the interpreter does after it, but leave the memory to the kernel:
    to free what the template has imported takes longer than most programs."""
    try:
        main()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    else:
        code = 0
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    sys.stderr.flush()
    sys.stdout.flush()  # an error ends the process as at the end of the interpreter
    os._exit(code)


if __name__ == "__main__":
    outside.watch(sys.argv.pop())
    become = {
        "sfad": _become_daemon,
        "sfactl": _become_client,
        CONSOLE: _become_console,
        EARLIER: _become_earlier_daemon,
    }
    become[sys.argv.pop()]()
