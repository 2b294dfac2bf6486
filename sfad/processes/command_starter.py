"""Starts the attempts of runs, and adopts the runs of an earlier daemon."""

import errno
import fcntl
import os
import signal
from time import monotonic, sleep

from msgspec import Struct
from msgspec.structs import replace

from ..host.faults import crash_point
from ..protocol.types import RunId
from . import kernel
from .contain.interface import AdoptedRuns, RunContainment
from .contain.membership import RunCpus
from .credentials import COOKIE, sealed
from .helper import completed
from .kernel import Stat
from .launched_runs import LaunchedRun, LaunchedRuns, MainProcess
from .launcher import Adopted, LaunchError, LaunchRecord, LaunchSpec, Remember
from .trampoline.creating import NewChild, ProcessCreator, files_to_try
from .trampoline.executable import AS_IT_IS, AS_USER, REPORT, is_one, reported
from .watch import Mains, Orphans

# ---- Starting a run's command: its containment is entered, a trampoline is spawned, and waits at a
# gate until it is saved


_COOKIE_IS = COOKIE + b"="
_HINTS = {
    errno.EAGAIN: " (no more processes or threads: RLIMIT_NPROC, pids.max, or kernel.pid_max)"
}
"""What the system's message does not say."""


class CommandStarter(Struct):
    """Starts commands. `nofile` is their soft RLIMIT_NOFILE."""

    creator: ProcessCreator
    containment: RunContainment
    mains: Mains
    orphans: Orphans
    nofile: int

    def start(self, run: LaunchedRun, spec: LaunchSpec, remember: Remember) -> None:
        """Start one attempt. Raises `LaunchError` if there is no process; a later failure is
        reported by `Mains`."""
        if run.main is not None:
            raise LaunchError(errno.EBUSY, "cannot start again", run.id.encode())
        words = b"\0".join((spec.cwd, *spec.argv, *spec.env))
        if words.count(b"\0") != len(spec.argv) + len(spec.env):
            raise LaunchError(
                errno.EINVAL, "cannot execute", b"".join(spec.argv[:1]), " (null byte)"
            )
        if b"\0" + _COOKIE_IS in words:  # that of another run
            env = [item for item in spec.env if not item.startswith(_COOKIE_IS)]
            spec = replace(spec, env=env)
        name = spec.argv[0] if spec.argv else b""
        files = files_to_try(name, spec.env, spec.stand_ins)
        executed = (
            spec
            if spec.sandbox is None
            else replace(spec, argv=completed(spec.sandbox, files, spec.argv))
        )
        if spec.first_step is not None:
            searched = files if spec.sandbox is None else executed.argv[:1]
            executed = replace(executed, argv=completed(spec.first_step, searched, executed.argv))
        # one Unix socket instead of the two pipes takes three system calls less, and as much time:
        # 12.5 us of CPU both (measured)
        try:
            far_gate, gate = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            raise _shortage(error, name) from error
        try:
            try:
                child, report = self._spawn(
                    run, executed, files if executed is spec else executed.argv[:1], far_gate
                )
            finally:
                os.close(far_gate)
            crash_point("spawned")
            # a pidfd needs no descriptor more than there are: that of `far_gate` at least is free
            # again
            self._let_through(run, self._own(run, child, report, spec), gate, spec, remember)
        finally:
            os.close(gate)

    def _spawn(
        self, run: LaunchedRun, spec: LaunchSpec, files: list[bytes], gate: int
    ) -> tuple[NewChild, int]:
        """Return the child and the near end of its report. It is not watched yet."""
        name = spec.argv[0] if spec.argv else b""
        opened: list[int] = []
        try:
            door = self.containment.make(run)
            if door.cgroup is not None:
                opened.append(door.cgroup)
            report, far_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            opened.append(far_end)
            env = [*spec.env, _COOKIE_IS + run.cookie]
            try:
                child = self.creator.create(
                    spec,
                    files,
                    env if spec.sandbox is None else sealed(env),
                    door=door,
                    report=far_end,
                    gate=gate,
                    nofile=self.nofile,
                    cpus=run.bound_to,
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

    def _own(self, run: LaunchedRun, child: NewChild, report: int, spec: LaunchSpec) -> MainProcess:
        name = spec.argv[0] if spec.argv else b""
        pid, pidfd, clone_block, started = child
        sandboxed = spec.sandbox is not None
        main = MainProcess(
            pid,
            report,
            name,
            spec.cwd,
            pidfd,
            started=started,
            sandboxed=sandboxed,
            clone_block=clone_block,
        )
        try:
            self.mains.own(run, main)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)  # an unreaped child of ours: no other process has its pid
            self.orphans.notice()
            raise LaunchError(error.errno or errno.EIO, "cannot watch", name) from error
        return main

    def _let_through(
        self, run: LaunchedRun, main: MainProcess, gate: int, spec: LaunchSpec, remember: Remember
    ) -> None:
        remembered = False
        try:
            remembered = remember(run.record())
            if remembered:
                os.write(gate, AS_IT_IS if spec.user is None else AS_USER + spec.user.record())
        except BrokenPipeError:  # the trampoline failed before it came to the gate
            pass
        except OSError as error:  # no descriptor, or no memory, to look at it
            main.failure = _shortage(error, main.name)
        finally:
            if not remembered and main.failure is None:
                main.failure = LaunchError(
                    errno.ENOSPC, "cannot remember the start of", main.name, kind="output"
                )
        if main.failure:
            main.signal(signal.SIGKILL)  # it may hang before the gate, for long


def _shortage(error: OSError, name: bytes) -> LaunchError:
    """Return the error for a command that the system had no resources to start."""
    return LaunchError(
        error.errno or errno.EIO, "cannot start", name, _HINTS.get(error.errno or 0, "")
    )


# ---- Adopting runs that an earlier daemon launched
#
# The earlier daemon is a dead process, or this very process before an execve(2). In the second case
# main processes are still unreaped children of ours. In the first they are not our children:
# another process reaps them, and their pidfds tell how they ended.


_TRAMPOLINES_DONE_WITHIN, _LOOK_EVERY = 0.5, 0.002
"""Seconds that the trampolines of a dead daemon get, and between two looks: attaching takes 6 ms,
and starting Python 20."""


class Adopter:
    def __init__(
        self, runs: LaunchedRuns, adopted: AdoptedRuns, cpus: RunCpus, mains: Mains
    ) -> None:
        self._runs = runs
        self._adopted = adopted
        self._cpus = cpus
        self._mains = mains
        self._trampolines_done_by = 0.0
        """When every trampoline of the dead daemon has become its command, or hangs; set when the
        first is met."""

    def adopt(self, run_id: RunId, parent: RunId | None, record: LaunchRecord) -> Adopted:
        assert run_id not in self._runs
        run = self._runs.add(run_id, parent, record.nonce, record.bounds, record.started or 0)
        try:
            self._adopted.rejoin(run)
            if record.report is None:
                self._find_main(run, record)
            elif record.pid:
                # a launch in flight, of a child of ours; one that could not be spawned has only the
                # report
                again = fcntl.fcntl(record.report, fcntl.F_DUPFD_CLOEXEC, 0)
                self._mains.own(
                    run,
                    MainProcess(
                        record.pid, again, started=record.started, sandboxed=record.sandboxed
                    ),
                )
            alive = self._adopted.finish(run)
            self._cpus.recall(run)
        except BaseException:
            self._mains.disown(run)
            self._runs.drop(run)
            self._adopted.forget(run)
            raise
        if record.report is not None:
            if run.main is None:
                self._mains.fail_soon(run, reported(os.read(record.report, REPORT.size)))
            os.close(record.report)
        return Adopted(
            run.main.pid if run.main else None,
            run.main is None and not alive,
            record.report is not None,
        )

    def _find_main(self, run: LaunchedRun, record: LaunchRecord) -> None:
        """Own the main process, if it lives or waits to be reaped by us."""
        process = self._main_process(run, record)
        if process is None:
            return
        ours = process.parent == os.getpid()
        main = MainProcess(
            process.pid, None, started=process.started, ours=ours, sandboxed=record.sandboxed
        )
        try:
            self._mains.own(run, main)
        except ProcessLookupError:
            return
        now = kernel.stat(main.pid)
        # it is gone, and the pid may be another's by now
        if now is None or now.started != main.started:
            self._mains.disown(run)
        elif not record.executed and self._hangs(main.pid):
            # the daemon that would hear its report has died, and how far it has come is not known
            main.signal(signal.SIGKILL)
            self._mains.disown(run)

    def _main_process(self, run: LaunchedRun, record: LaunchRecord) -> Stat | None:
        process = kernel.stat(record.pid) if record.pid else None
        if process is None or record.started not in (None, process.started):
            return None
        # unreaped, perhaps ended: no other process has its pid
        if process.parent == os.getpid() and record.started is not None:
            return process
        return process if process.alive and self._adopted.is_of(run, process.pid) else None

    def _hangs(self, pid: int) -> bool:
        """Return whether a process is still a trampoline, when all of them have had the time that
        they need."""
        while is_one(pid):
            self._trampolines_done_by = (
                self._trampolines_done_by or monotonic() + _TRAMPOLINES_DONE_WITHIN
            )
            if monotonic() > self._trampolines_done_by:
                return True
            sleep(_LOOK_EVERY)
        return False
