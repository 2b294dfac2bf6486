"""A process that has imported `sfad`, and forks the daemon of a test.

The suite starts four hundred daemons. Executed, each takes 0.25 s of processor time for its imports; forked, 0.03 s. A start that
is itself tested is executed: by systemd, by `sfactl`, as another user, with variables that are read at import, after a
re-execution.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests import leaks, outside

_LARGEST = 1 << 20
"""Bytes of a request, most of which is an environment."""


class Template:
    """The process, and requests to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.template", outside.report()]
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), cwd=_ROOT, start_new_session=True)
        self._socket = ours
        self._lock = threading.Lock()
        self._environment = _read_at_import(os.environ)
        leaks.keep(self._process.pid, ours.fileno())

    def fits(self, env: Mapping[str, str]) -> bool:
        """Whether a daemon with this environment would import the same."""
        return _read_at_import(env) == self._environment

    def start(self, words: Sequence[str], env: Mapping[str, str], *, output: int, ready: int) -> Child:
        """Fork `sfad WORDS --ready-fd N`. `output` is its stdout and stderr; `ready` becomes descriptor N."""
        start = {"words": words, "env": dict(env), "cwd": os.getcwd()}
        return Child(self, self.ask({"start": start}, [output, ready]))

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
    found = {name: value for name, value in env.items() if name.startswith("PYTHON") or name == "SFAD_CRASH_AT"}
    # the template has imported this checkout
    found["PYTHONPATH"] = os.pathsep.join(path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", _ROOT))
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
                raise subprocess.TimeoutExpired("sfad serve", timeout or 0.0)
            self.returncode = self._template.ask({"reap": self.pid, "options": 0})
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def template() -> Template:
    """Return the template of this process. There is none until a test needs it."""
    return Template()


def close_template() -> None:
    """End the template if there is one."""
    if template.cache_info().currsize:
        template().close()
        template.cache_clear()


def _serve() -> None:
    """Carry out requests until their end; then return in the template. In each daemon, return at once."""
    with socket.socket(fileno=os.dup(0)) as requests:
        while True:
            content, descriptors, _, _ = socket.recv_fds(requests, _LARGEST, 2)
            if not content:
                sys.exit()
            request = json.loads(content)
            answer = _reaped(request["reap"], request["options"]) if "reap" in request else os.fork()
            if answer == 0 and "start" in request:
                _become(request["start"], *descriptors)
                return
            for descriptor in descriptors:
                os.close(descriptor)
            requests.send(json.dumps(answer).encode())


def _reaped(pid: int, options: int) -> int | None:
    found, status = os.waitpid(pid, options)  # noqa: TID251 - the pid of its own child
    return os.waitstatus_to_exitcode(status) if found else None


def _become(start: Mapping[str, Any], output: int, ready: int) -> None:
    os.setsid()
    os.chdir(start["cwd"])
    os.environ.clear()
    os.environ.update(start["env"])
    nothing = os.open("/dev/null", os.O_RDONLY)
    for number, descriptor in ((0, nothing), (1, output), (2, output)):
        os.dup2(descriptor, number)
    os.close(nothing)
    os.close(output)
    os.set_inheritable(ready, True)
    sys.argv[1:] = [*start["words"], "--ready-fd", str(ready)]


if __name__ == "__main__":
    import sfad.daemon.serving  # noqa: F401 - what each daemon imports
    from sfad.__main__ import main

    outside.watch(sys.argv.pop())
    _serve()
    main()
