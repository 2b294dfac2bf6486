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

Arm = Callable[[RunId, Timer, float], None]
"""Run, timer, time."""


class Launching(Struct, frozen=True):
    """Launches attempts. The main process is saved before it executes anything."""

    resources: Resources
    catalogue: RunCatalogue
    metering: Metering
    descriptors: Descriptors
    feed: e.Feed
    arm: Arm
    leading: Leading
    parts: Parts

    def launch(self, run: Run) -> None:
        """Launch an attempt, or feed `LaunchFailed`."""
        live, resources = self.catalogue.live[run.id], self.resources
        if run.asked.in_program:
            self.metering.begin_attempt(live)
            self.parts.carrier().begin(live)
            self.resources.spool.spawns.launched(run)
            return
        if live.credentials is None and run.birth.uid != 0 and os.geteuid() == 0:
            self._fail(
                run, errno.EPERM, f"what user {run.birth.user} may do is not known", "launch"
            )
            return
        try:
            # it may have waited since it was admitted, or be one of many
            self.descriptors.check_launch()
        except OSError as error:
            self._fail(run, errno.EMFILE, str(error), "launch")
            return
        now, opened = trio.current_time(), list[int]()
        left = _left(run, now)
        try:
            try:
                spec = self._spec(live, left, now, opened)
                if not run.latest.stage:
                    self.metering.begin_attempt(live, opened[:2])  # files of the output, if any
                elif run.latest.exit is None:  # it comes before the command
                    self.metering.begin_attempt(live)
            except OSError as error:
                why = f"its output could not be opened: {error}"
                why += no_inodes(resources.output.directory)
                self._fail(run, error.errno or 0, why, "output")
                return
            # where the meter was in an earlier attempt says nothing about this one
            if run.latest.number > 1:
                resources.spool.journal.save([live], self.metering.position)
            if resources.spool.values.failing:
                # the next daemon would take it for queued, and launch it a second time
                self._fail(
                    run,
                    errno.ENOSPC,
                    "the disk has no room to save that it is launched; free some",
                    "output",
                )
                return
            parent = run.parent.id if run.parent is not None else None
            resources.launcher.launch(run.id, parent, spec, partial(self._save_main, live))
            last = run.latest.number >= run.asked.retries.attempts and not run.latest.stage
            if live.stdin is not None and last:
                live.stdin.leave_to_run()
            crash_point("launched")
            self.arm(run.id, Timer.DEADLINE, now + left)
            resources.spool.spawns.launched(run)
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def expect(self, run: Run, now: float) -> None:
        """Bound a launch by the time that the run may take. The core arms this timer again when the
        command is executed."""
        self.arm(run.id, Timer.DEADLINE, now + _left(run, now))

    def _fail(self, run: Run, number: int, why: str, kind: Literal["launch", "output"]) -> None:
        self.feed(
            e.LaunchFailed(
                trio.current_time(), run.id, number, f"run {run.id} was not started: {why}", kind
            )
        )

    def _save_main(self, live: Live, record: LaunchRecord) -> bool:
        live.set_main(record.pid, record.started, self.resources.output.inodes(live.run.id))
        self.resources.spool.journal.save([live])
        crash_point("main noted")
        return self.resources.spool.journal.is_saved(live.run.id)

    def _spec(self, live: Live, left: float, now: float, opened: list[int]) -> LaunchSpec:
        run, attempt = live.run, live.run.latest
        stdio = stdin, _, _ = (
            self._stdio_of_stage(live, opened) if attempt.stage else self._stdio(live, opened)
        )
        if run.ancestors:
            left = min(left, *[_left(above, now) for above in run.ancestors])
        deadline = wall_clock().timestamp() + left
        terminal = live.output.stdio == "inherit" and stdin is not None and _is_terminal(stdin)
        spec = LaunchSpec(
            _argv(live),
            live.command.cwd,
            run_environment(live, socket=self.resources.socket, deadline=deadline),
            live.command.umask,
            *stdio,
            terminal=terminal,
            bounds=bounds_of(run),
            user=live.credentials,
            nonce=live.nonce,
        )
        spec = self.parts.launch(live, spec, opened)
        if not spec.argv:
            raise OSError(errno.ENOTSUP, "this sfad has no feature that executes it")
        return self.leading.named(run.id, spec)

    def _stdio_of_stage(self, live: Live, opened: list[int]) -> tuple[int | None, None, None]:
        """Return the terminal in which the run was started, where there is one: Ctrl-C has to reach
        what is executed. What it prints goes where the feature says."""
        if live.output.stdio == "inherit":
            at_terminal = bool(live.descriptors) and _is_terminal(live.descriptors[0])
            return live.descriptors[0] if at_terminal else None, None, None
        if live.run.latest.exit is None:
            self._stdio(live, opened)  # of its command, which follows: readers may be there
        return None, None, None

    def _stdio(self, live: Live, opened: list[int]) -> tuple[int | None, int | None, int | None]:
        if live.output.stdio == "inherit":
            stdin, stdout, stderr = live.descriptors
            return stdin, stdout, stderr
        piped = (
            live.stdin.read_end
            if live.stdin is not None
            else (live.descriptors[0] if live.descriptors else None)
        )
        if not live.output.kept:
            return piped, None, None
        owner = None if live.credentials is None else (live.credentials.uid, live.credentials.gid)
        opened += self.resources.output.open_for_run(live.run.id, owner)
        return piped, opened[0], opened[1]


def _argv(live: Live) -> list[bytes]:
    """Return the command of an attempt. That of a stage is its feature's to know."""
    attempt, command = live.run.latest, live.command
    if attempt.stage:
        return []
    if attempt.number == 1 and not attempt.resumes:
        return command.argv
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
