"""Launches the attempts of runs, each with its environment."""

import errno
import os
import stat
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Literal

import trio
from msgspec import Struct

from ...agents import OWN_SERVERS
from ...agents.registered import argv_of
from ...core import events as e
from ...core.state.run import Run
from ...core.state.vocabulary import Timer
from ...features.listed import FEATURES
from ...host.clock import wall_clock
from ...host.faults import crash_point
from ...host.linux.descriptors import Descriptors
from ...host.probe import no_inodes
from ...processes.launcher import LaunchRecord, LaunchSpec
from ...protocol.known import TIME_SAID
from ...protocol.types import RunId
from ...runs.catalogue import RunCatalogue
from ...runs.live import Live, bounds_of
from ...usage.metering import Metering
from .leading import Leading
from .resources import Resources
from .seam import Parts


class NotLaunched(Exception):
    def __init__(self, number: int, why: str, kind: Literal["launch", "output"]) -> None:
        """As `LaunchFailed` has them."""
        super().__init__(why)
        self.number, self.kind = number, kind


class Launching(Struct, frozen=True):
    """Launches attempts. The main process is saved before it executes anything."""

    resources: Resources
    catalogue: RunCatalogue
    metering: Metering
    descriptors: Descriptors
    feed: e.Feed
    arm: Callable[[RunId, Timer, float], None]
    """Given run, timer and time."""
    leading: Leading
    parts: Parts

    def launch(self, run: Run) -> None:
        """Launch an attempt, or feed `LaunchFailed`."""
        live, opened = self.catalogue.live[run.id], list[int]()
        try:
            if run.asked.in_program:
                self.metering.begin_attempt(live)
                self.parts.carrier().begin(live)
            else:
                self._launch(live, opened)
            self.resources.spool.spawns.launched(run)
        except NotLaunched as why:
            message = f"run {run.id} was not started: {why}"
            self.feed(e.LaunchFailed(trio.current_time(), run.id, why.number, message, why.kind))
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _launch(self, live: Live, opened: list[int]) -> None:
        """Raise `NotLaunched`. `opened` gets descriptors that are needed until then."""
        run, resources, now = live.run, self.resources, trio.current_time()
        if live.credentials is None and run.birth.uid != 0 and os.geteuid() == 0:
            why = f"what user {run.birth.user} may do is not known"
            raise NotLaunched(errno.EPERM, why, "launch")
        try:
            # it may have waited since it was admitted, or be one of many
            self.descriptors.check_launch()
        except OSError as error:
            raise NotLaunched(errno.EMFILE, str(error), "launch") from error
        attempt, left = run.latest, _left(run, now)
        try:
            spec = self._spec(live, left, now, opened)
            if not attempt.stage or attempt.exit is None:  # a stage may come before the command
                self.metering.begin_attempt(live, () if attempt.stage else opened[:2])
        except OSError as error:
            why = f"its output could not be opened: {error}"
            why += no_inodes(resources.output.directory)
            raise NotLaunched(error.errno or 0, why, "output") from error
        # where the meter was in an earlier attempt says nothing about this one
        if attempt.number > 1:
            resources.spool.journal.save([live], self.metering.position)
        if resources.spool.values.failing:
            # the next daemon would take it for queued, and launch it a second time
            why = "the disk has no room to save that it is launched; free some"
            raise NotLaunched(errno.ENOSPC, why, "output")
        parent = run.parent.id if run.parent is not None else None
        resources.launcher.launch(run.id, parent, spec, partial(self._save_main, live))
        is_last = attempt.number >= run.asked.retries.attempts and not attempt.stage
        if live.stdin is not None and is_last:
            live.stdin.leave_to_run()
        crash_point("launched")
        self.arm(run.id, Timer.DEADLINE, now + left)

    def expect(self, run: Run, now: float) -> None:
        """Bound a launch by the time that the run may take. The core arms this timer again when the
        command is executed."""
        self.arm(run.id, Timer.DEADLINE, now + _left(run, now))

    def _save_main(self, live: Live, record: LaunchRecord) -> bool:
        live.set_main(record.pid, record.started, self.resources.output.inodes(live.run.id))
        self.resources.spool.journal.save([live])
        crash_point("main noted")
        return self.resources.spool.journal.is_saved(live.run.id)

    def _spec(self, live: Live, left: float, now: float, opened: list[int]) -> LaunchSpec:
        run, attempt = live.run, live.run.latest
        is_first = attempt.number == 1 and not (attempt.stage or attempt.resumes)
        stdin, stdout, stderr = self._stdio(live, opened)
        if run.ancestors:
            left = min(left, *[_left(above, now) for above in run.ancestors])
        deadline = wall_clock().timestamp() + left
        terminal = live.output.stdio == "inherit" and stdin is not None and _is_terminal(stdin)
        spec = LaunchSpec(
            live.command.argv if is_first else _argv(live),
            live.command.cwd,
            run_environment(live, socket=self.resources.socket, deadline=deadline),
            live.command.umask,
            stdin,
            stdout,
            stderr,
            terminal=terminal,
            bounds=bounds_of(run),
            user=live.credentials,
            nonce=live.nonce,
        )
        spec = self.parts.launch(live, spec, opened)
        if not spec.argv:
            raise OSError(errno.ENOTSUP, "this sfad has no feature that executes it")
        return self.leading.named(run.id, spec)

    def _stdio(self, live: Live, opened: list[int]) -> tuple[int | None, int | None, int | None]:
        """Return stdin, stdout and stderr. Ctrl-C has to reach a stage, too, but what it prints
        goes where its feature says."""
        output, given, attempt = live.output, live.descriptors, live.run.latest
        if output.stdio == "inherit":
            if not attempt.stage:
                return given[0], given[1], given[2]
            return given[0] if given and _is_terminal(given[0]) else None, None, None
        # before the command comes a stage: readers of its output may be there
        if output.kept and (not attempt.stage or attempt.exit is None):
            user = live.credentials
            owner = None if user is None else (user.uid, user.gid)
            opened += self.resources.output.open_for_run(live.run.id, owner)
        if attempt.stage:
            return None, None, None
        stdin = given[0] if given else None
        if live.stdin is not None:
            stdin = live.stdin.read_end
        return (stdin, opened[0], opened[1]) if output.kept else (stdin, None, None)


def _argv(live: Live) -> list[bytes]:
    """Return the command of an attempt that is not the first. That of a stage is its feature's to
    know."""
    attempt, command = live.run.latest, live.command
    if attempt.stage:
        return []
    session = live.run.agent_session if attempt.resumes else None
    terminal = live.output.stdio == "inherit" or live.parts.of("terminal") is not None
    return argv_of(command, attempt.number, session, terminal=terminal, told=attempt.told)


def _left(run: Run, now: float) -> float:
    """Return the seconds that its clock may count yet."""
    return run.allowed_time - run.clock.elapsed(now)


def _is_terminal(descriptor: int) -> bool:
    # isatty(3) is an ioctl, for which a file on a FUSE mount would wait; a terminal is a character
    # device
    return stat.S_ISCHR(os.fstat(descriptor).st_mode) and os.isatty(descriptor)


# ---- The environment of a run: what the client sent, without variables of the daemon or of another
# run, plus SFA_*


_FOREIGN = (b"NOTIFY_SOCKET=", b"LISTEN_", b"WATCHDOG_", b"MAINPID=", b"FDSTORE=")
"""Variables by which systemd speaks to one service. A run that inherits them could answer in the
service's name."""

_OWN = (
    b"SFA_RUN_ID=", b"SFA_ROOT_ID=", b"SFA_PARENT_ID=", b"SFA_NAME=", b"SFA_DEPTH=",
    b"SFA_MAX_DEPTH=", b"SFA_CALL_CHAIN=", b"SFA_DEADLINE=", b"SFA_ATTEMPT=", b"SFA_SOCKET=",
    b"SFA_COOKIE=", b"SFA_ALLOWED_TOOLS=", b"SFA_BLOCKED_TOOLS=", b"SFA_NO_LOG=", b"SFA_QUIET=",
    b"SFA_TASK=", b"SFA_MODEL=", b"SFA_PROVIDER=", b"SFA_INSTRUCTIONS=",
    b"SFA_MAX_DESCENDANTS=", TIME_SAID.encode() + b"=",
    *(f"{name}=".encode() for each in FEATURES.values() for name in each.variables),
)  # fmt: skip


def run_environment(live: Live, *, socket: str, deadline: float) -> list[bytes]:
    """Return `KEY=VALUE` for execve(2). `deadline` is in Unix seconds. The daemon does not trust
    these variables itself."""
    run, output = live.run, live.output
    above, terms = run.ancestors, run.asked.terms
    # without the run itself: an agent that looks for its own name in the chain must not find itself
    chain = list(run.claimed_chain)
    if above:
        chain += [each.identity[1] for each in above]
    told = {
        "SFA_RUN_ID": run.id,
        "SFA_ROOT_ID": run.root.id,
        "SFA_PARENT_ID": above[-1].id if above else "",
        # what the loop rule compares: a container passes it back in a claim
        "SFA_NAME": run.identity[1],
        "SFA_DEPTH": str(len(above) + run.root.birth.claimed_depth),
        "SFA_MAX_DEPTH": str(run.birth.max_depth.value),
        "SFA_MAX_DESCENDANTS": str(run.birth.max_descendants.value),
        "SFA_CALL_CHAIN": ",".join(chain),
        "SFA_DEADLINE": f"{deadline:.0f}",
        "SFA_ATTEMPT": str(run.latest.number),
        "SFA_SOCKET": socket,
    }
    if terms.allowed_tools:
        told["SFA_ALLOWED_TOOLS"] = ",".join(terms.allowed_tools)
    if terms.blocked_tools:
        told["SFA_BLOCKED_TOOLS"] = ",".join(terms.blocked_tools)
    if not output.log:
        told["SFA_NO_LOG"] = "1"
    if output.quiet:
        told["SFA_QUIET"] = "1"
    if run.time_said:
        told[TIME_SAID] = f"{min(each.allowed_time for each in run.lineage):.15g}"
    for name, text in live.command.placeholders.items():
        told[f"SFA_{name.upper()}"] = text
    env = [*_kept(tuple(live.command.env))]
    for name, text in told.items():
        env.append(f"{name}={text}".encode(errors="surrogateescape"))
    return env


@lru_cache(maxsize=1)  # runs of a shell loop have the same
def _kept(env: tuple[bytes, ...]) -> list[bytes]:
    """Return what a run keeps of what its client sent."""
    kept = [item for item in env if not item.startswith(_FOREIGN + _OWN)]
    set_by_client = {item.partition(b"=")[0] for item in kept}
    return kept + [item for name, item in _ALONE.items() if name not in set_by_client]


_ALONE = {
    name.encode(): f"{name}={value}".encode()
    for server in OWN_SERVERS.values()
    for name, value in server.variables.items()
}
"""Variables with which programs hand nothing to servers of their own."""
