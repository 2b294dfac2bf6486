"""Launches the attempts of runs, each with its environment."""

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

import trio

from ...agents import OWN_SERVERS
from ...agents.registered import argv_of
from ...core import events as e
from ...core.state.run import Run
from ...core.state.vocabulary import Timer
from ...features.listed import FEATURES
from ...host.clock import wall_clock
from ...host.faults import crash_point
from ...host.linux.descriptors import Descriptors, Need
from ...host.probe import no_inodes
from ...processes.launcher import LaunchRecord, LaunchSpec
from ...protocol.known import TIME_SAID
from ...protocol.types import RunId
from ...runs.catalogue import RunCatalogue
from ...runs.live import Live, bounds_of
from ...usage.metering import Metering
from ..gateway.gateways import Gateways, with_token
from .resources import Resources
from .seam import Launch, Parts

LAUNCH = 8
"""Descriptors that a launch takes for some milliseconds: files for the output, pipes of the
trampoline, the way into the containment, a pidfd."""

Arm = Callable[[RunId, Timer, float], None]
"""Run, timer, time."""


def check_descriptors(descriptors: Descriptors) -> None:
    """Raise `OSError` where too few descriptors are left for a launch."""
    refusal = descriptors.refusal(Need.RUN, LAUNCH)
    if refusal is not None:
        raise OSError(refusal)


@dataclass(frozen=True, slots=True)
class Launching:
    """Launches attempts. The main process is saved before it executes anything."""

    resources: Resources
    catalogue: RunCatalogue
    metering: Metering
    descriptors: Descriptors
    feed: e.Feed
    arm: Arm
    gateways: Gateways
    parts: Parts

    def launch(self, run: Run) -> None:
        """Launch an attempt, or feed `LaunchFailed`."""
        live = self.catalogue.live[run.id]
        opened: list[int] = []
        if live.credentials is None and run.birth.uid != 0 and os.geteuid() == 0:
            self._fail(
                run, errno.EPERM, f"what user {run.birth.user} may do is not known", "launch"
            )
            return
        try:
            try:
                # it may have waited since it was admitted, or be one of many
                check_descriptors(self.descriptors)
            except OSError as error:
                self._fail(run, errno.EMFILE, str(error), "launch")
                return
            try:
                spec = self._spec(live, opened)
                self.metering.begin_attempt(live, opened[:2])  # files of the output, if any
            except OSError as error:
                why = f"its output could not be opened: {error}"
                why += no_inodes(self.resources.output.directory)
                self._fail(run, error.errno or 0, why, "output")
                return
            # where the meter was in an earlier attempt says nothing about this one
            if run.attempt > 1:
                self.resources.spool.journal.save([live], self.metering.position)
            if self.resources.spool.journal.failing:
                # the next daemon would take it for queued, and launch it a second time
                self._fail(
                    run,
                    errno.ENOSPC,
                    "the disk has no room to save that it is launched; free some",
                    "output",
                )
                return
            parent = run.parent.id if run.parent is not None else None
            self.resources.launcher.launch(run.id, parent, spec, partial(self._save_main, live))
            if live.stdin is not None and run.attempt >= run.asked.retries.attempts:
                live.stdin.leave_to_run()
            crash_point("launched")
            self.expect(run)
            self.resources.spool.spawns.launched(run)
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def expect(self, run: Run) -> None:
        """Bound a launch by the time that the run may take. The core arms this timer again when the
        command is executed."""
        now = trio.current_time()
        self.arm(run.id, Timer.DEADLINE, now + run.allowed_time - run.clock.elapsed(now))

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

    def _spec(self, live: Live, opened: list[int]) -> LaunchSpec:
        run = live.run
        stdio = stdin, _, _ = self._stdio(live, opened)
        left = [r.allowed_time - r.clock.elapsed(trio.current_time()) for r in run.lineage]
        deadline = wall_clock().timestamp() + min(left)
        terminal = live.output.stdio == "inherit" and stdin is not None and _is_terminal(stdin)
        env = run_environment(live, socket=self.resources.socket, deadline=deadline)
        asked = Launch(env, terminal, stdio=stdio, closes=opened.append)
        given = self.parts.launch(live, asked)
        argv, env = self._argv(live, terminal=given.terminal), given.env
        if (token := self.gateways.token(run.id)) is not None:
            argv, env = with_token(argv, token), with_token(env, token)
        return LaunchSpec(
            argv=argv,
            cwd=given.cwd or live.command.cwd,
            env=env,
            umask=live.command.umask,
            stdin=given.stdio[0],
            stdout=given.stdio[1],
            stderr=given.stdio[2],
            terminal=given.terminal,
            alone=given.alone,
            bounds=bounds_of(run),
            stand_ins=given.stand_ins,
            sandbox=given.sandbox,
            first_step=given.first_step,
            user=live.credentials,
            nonce=live.nonce,
        )

    def _argv(self, live: Live, *, terminal: bool) -> list[bytes]:
        run = live.run
        session = run.agent_session if run.latest.resumes else None
        terminal = terminal or live.output.stdio == "inherit"
        return argv_of(live.command, run.attempt, session, terminal=terminal)

    def _stdio(self, live: Live, opened: list[int]) -> tuple[int | None, int | None, int | None]:
        if live.output.stdio == "inherit":
            stdin, stdout, stderr = live.descriptors
            return stdin, stdout, stderr
        piped = (
            live.stdin.read_end
            if live.stdin is not None
            else (live.descriptors[0] if live.descriptors else None)
        )
        if not live.kept:
            return piped, None, None
        owner = None if live.credentials is None else (live.credentials.uid, live.credentials.gid)
        opened += self.resources.output.open_for_run(live.run.id, owner)
        return piped, opened[0], opened[1]


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
    lineage, terms = run.lineage, run.asked.terms
    above = lineage[:-1]
    # without the run itself: an agent that looks for its own name in the chain must not find itself
    chain = (
        [*run.claimed_chain, *[each.identity[1] for each in above]]
        if above
        else (run.claimed_chain)
    )
    told = {
        "SFA_RUN_ID": run.id,
        "SFA_ROOT_ID": lineage[0].id,
        "SFA_PARENT_ID": above[-1].id if above else "",
        # what the loop rule compares: a container passes it back in a claim
        "SFA_NAME": run.identity[1],
        "SFA_DEPTH": str(len(above) + run.root.birth.claimed_depth),
        "SFA_MAX_DEPTH": str(run.birth.max_depth.value),
        "SFA_MAX_DESCENDANTS": str(run.birth.max_descendants.value),
        "SFA_CALL_CHAIN": ",".join(chain),
        "SFA_DEADLINE": f"{deadline:.0f}",
        "SFA_ATTEMPT": str(run.attempt),
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
        told[TIME_SAID] = f"{min(each.allowed_time for each in lineage):.15g}"
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
