"""Starting a run's command: its containment is entered, a trampoline is spawned, and waits at a gate until it is saved."""

import errno
import os
import signal
from dataclasses import replace

from ..faults import crash_point
from . import procfs
from .contain.cpu_binding import RunCpus
from .contain.interface import RunContainment
from .isolation.sandbox import in_sandbox
from .launched_runs import LaunchedRun, MainProcess
from .launcher import LaunchError, LaunchSpec, Remember
from .sealed_environment import COOKIE, sealed
from .trampoline.contract import AS_IT_IS, AS_USER
from .trampoline.spawner import Spawned, Spawner, candidates
from .watch.mains import Mains
from .watch.reaper import Orphans

_COOKIE_IS = COOKIE + b"="
_HINTS = {errno.EAGAIN: " (no more processes or threads: RLIMIT_NPROC, pids.max, or kernel.pid_max)"}
"""What the system's message does not say."""


class CommandStarter:
    """Starts commands. `nofile` is their soft RLIMIT_NOFILE."""

    def __init__(
        self, spawner: Spawner, containment: RunContainment, cpus: RunCpus, mains: Mains, orphans: Orphans, nofile: int
    ) -> None:
        self._spawner = spawner
        self._containment = containment
        self._cpus = cpus
        self._mains = mains
        self._orphans = orphans
        self._nofile = nofile

    def start(self, run: LaunchedRun, spec: LaunchSpec, remember: Remember) -> None:
        """Start one attempt. Raises `LaunchError` if there is no process; a later failure is reported by `Mains`."""
        if run.main is not None:
            raise LaunchError(errno.EBUSY, "cannot start again", run.id.encode())
        if b"\0" in b"".join((spec.cwd, *spec.argv, *spec.env)):
            raise LaunchError(errno.EINVAL, "cannot execute", b"".join(spec.argv[:1]), " (null byte)")
        name = spec.argv[0] if spec.argv else b""
        files = candidates(name, spec.env, spec.shims)
        executed = spec if spec.sandbox is None else replace(spec, argv=in_sandbox(spec.sandbox, files, spec.argv))
        try:
            far_gate, gate = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            raise _shortage(error, name) from error
        try:
            try:
                before = procfs.ticks_since_boot()
                child, report = self._spawn(run, executed, files if spec.sandbox is None else executed.argv[:1], far_gate)
                started = before if before == procfs.ticks_since_boot() else None  # else /proc tells it
            finally:
                os.close(far_gate)
            crash_point("spawned")
            # a pidfd needs no descriptor more than there are: that of `far_gate` at least is free again
            self._let_through(run, self._own(run, child, report, spec, started), gate, spec, remember)
        finally:
            os.close(gate)

    def _spawn(self, run: LaunchedRun, spec: LaunchSpec, files: list[bytes], gate: int) -> tuple[Spawned, int]:
        """Return the child and the near end of its report. It is not watched yet."""
        name = spec.argv[0] if spec.argv else b""
        opened: list[int] = []
        try:
            door = self._containment.enter(run)
            if door.cgroup is not None:
                opened.append(door.cgroup)
            report, far_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            opened.append(far_end)
            env = [item for item in spec.env if not item.startswith(_COOKIE_IS)]
            env.append(_COOKIE_IS + run.cookie)
            try:
                child = self._spawner.spawn(
                    spec,
                    files,
                    env if spec.sandbox is None else sealed(env),
                    door=door,
                    report=far_end,
                    gate=gate,
                    nofile=self._nofile,
                    cpus=self._cpus.of(run),
                )
            except BaseException:
                os.close(report)
                raise
            return child, report
        except OSError as error:
            raise _shortage(error, name) from error
        finally:
            for fd in opened:
                os.close(fd)

    def _own(self, run: LaunchedRun, child: Spawned, report: int, spec: LaunchSpec, started: int | None) -> MainProcess:
        name = spec.argv[0] if spec.argv else b""
        pid, pidfd, memory = child
        isolated = spec.sandbox is not None
        main = MainProcess(pid, report, name, spec.cwd, pidfd, started=started, isolated=isolated, memory=memory)
        try:
            self._mains.own(run, main)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)  # an unreaped child of ours: no other process has its pid
            self._orphans.notice()
            raise LaunchError(error.errno or errno.EIO, "cannot watch", name) from error
        return main

    def _let_through(self, run: LaunchedRun, main: MainProcess, gate: int, spec: LaunchSpec, remember: Remember) -> None:
        main.failure = LaunchError(errno.ENOSPC, "cannot remember the start of", main.name, kind="output")
        try:
            remains = run.remains()
            if remember(remains):
                main.failure = None
                os.write(gate, AS_IT_IS if spec.user is None else AS_USER + spec.user.record())
        except BrokenPipeError:  # the trampoline failed before it came to the gate
            pass
        except OSError as error:  # no descriptor, or no memory, to look at it
            main.failure = _shortage(error, main.name)
        if main.failure:
            main.signal(signal.SIGKILL)  # it may hang before the gate, for long


def _shortage(error: OSError, name: bytes) -> LaunchError:
    """Return the error for a command that the system had no resources to start."""
    return LaunchError(error.errno or errno.EIO, "cannot start", name, _HINTS.get(error.errno or 0, ""))
