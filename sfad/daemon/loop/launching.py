"""Launches the attempts of runs."""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import trio

from ...agents import OWN_SERVERS
from ...agents.registered import argv_of
from ...core import events as e
from ...core.state.run import Run
from ...core.state.vocabulary import Timer
from ...host.clock import wall_clock
from ...host.descriptors import Descriptors, Need
from ...host.faults import crash_point
from ...host.probe import is_noexec, no_inodes
from ...processes.launcher import LaunchRecord, LaunchSpec
from ...protocol import shim_files
from ...protocol.known import TIME_SAID
from ...protocol.messages import Spawn
from ...protocol.paths import SYSTEM_AUTOMATIC_SHIMS, SYSTEM_SHIMS, automatic_shim_dir, shim_dir
from ...protocol.types import RunId
from ...runs.catalogue import RunCatalogue
from ...runs.live import Live, bounds_of
from ...usage.metering import Metering
from . import worktrees
from .gateways import Gateways
from .isolating import Isolating
from .resources import Resources
from .shipping import Shipping

# ---- Directories of shims, which come first in the PATH of runs (docs/agents.md): the one that a
# person has installed, and those
# that the daemon makes for runs that use the gateway.
#
# A shim of a program that is not there would deceive `command -v`. So an automatic directory has
# shims of just the agent programs that a tree finds in its PATH, and there is one for each set of
# them.

THEIR_BASH_ENV, SHIMS = "SFA_BASH_ENV", "SFA_SHIMS"
"""Variables of a run: what BASH_ENV was before, which bash expands; and what its PATH begins
with."""


NOEXEC = (
    "its filesystem is mounted noexec, so runs do not find the shims: what they start by a "
    "program's name is no child run. Mount it without noexec, or set SFAD_STATE_DIR to a "
    "directory elsewhere"
)


class ShimDirectory:
    """What there is in the directory, as of the last look: at the start, at a reload, and at each
    `status`. No launch looks."""

    def __init__(self, state: Path) -> None:
        self.path = shim_dir(state)
        self.programs: Sequence[str] = ()
        self.in_path: bytes | None = None
        """What the PATH of a run begins with; `None` if there is no shim."""
        self.look()

    def look(self) -> None:
        # PATH could not hold it, or the kernel would execute nothing there
        useless = ":" in str(self.path) or is_noexec(self.path)
        self.programs = () if useless else sorted(_executables(self.path))
        self.in_path = os.fsencode(self.path) if self.programs else None

    def open_to(self, uid: int) -> bool:
        """Return whether a user can enter the directory: a state directory is open to the daemon's
        own user only."""
        return self.path == SYSTEM_SHIMS or uid == os.geteuid()


class AutomaticShims:
    """Makes the directories of automatic shims. `trouble` is told of one that cannot be made."""

    def __init__(self, state: Path, trouble: Callable[[str], object]) -> None:
        self._path = automatic_shim_dir(state)
        self._trouble = trouble
        self._made: dict[tuple[str, ...], bytes | None] = {}

    def in_path(self, programs: Sequence[str], uid: int) -> bytes | None:
        """Return the directory with shims of these programs, for a user's runs; `None` if there are
        none, or the user cannot enter it. What an earlier daemon has made is made again: it may be
        of another installation."""
        key = tuple(sorted(programs))
        if (
            not key
            or ":" in str(self._path)
            or not (self._path == SYSTEM_AUTOMATIC_SHIMS or uid == os.geteuid())
        ):
            return None
        if key not in self._made:
            self._made[key] = self._make(key)
        return self._made[key]

    def is_own(self, path: bytes) -> bool:
        return path.startswith(os.fsencode(self._path) + b"/")

    def _make(self, programs: tuple[str, ...]) -> bytes | None:
        # `naming.agent_of` takes a file in a directory called `shims` for no program
        directory = self._path / ",".join(programs) / "shims"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for each in (self._path, directory.parent, directory):
                each.chmod(0o755)
            for program in programs:
                _write(directory / program, shim_files.text(program, automatic=True), 0o755)
            _write(directory / shim_files.BASH_ENV, shim_files.FIND_AGAIN, 0o644)
            if is_noexec(directory):
                self._trouble(f"{directory}: {NOEXEC}")
        except OSError as error:
            self._trouble(
                f"{directory}: no automatic shims: {error.strerror}; "
                "what runs start by a program's name is no child run"
            )
            return None
        return os.fsencode(directory)


def _write(path: Path, text: bytes, mode: int) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with open(
        os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb"
    ) as file:
        file.write(text)
        os.fchmod(file.fileno(), mode)
    new.replace(path)


def _executables(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [
                entry.name
                for entry in entries
                if entry.is_file() and stat.S_IMODE(entry.stat().st_mode) & 0o111
            ]
    except OSError:
        return []


# ---- The environment of a run: what the client sent, without variables of the daemon or of another
# run, plus SFA_*


_FOREIGN = (b"NOTIFY_SOCKET=", b"LISTEN_", b"WATCHDOG_", b"MAINPID=", b"FDSTORE=")
"""Variables by which systemd speaks to one service. A run that inherits them could answer in the
service's name."""

_OWN = (
    b"SFA_RUN_ID=", b"SFA_ROOT_ID=", b"SFA_PARENT_ID=", b"SFA_NAME=", b"SFA_DEPTH=",
    b"SFA_MAX_DEPTH=", b"SFA_CALL_CHAIN=", b"SFA_DEADLINE=", b"SFA_ATTEMPT=", b"SFA_SOCKET=",
    b"SFA_COOKIE=", b"SFA_ALLOWED_TOOLS=", b"SFA_BLOCKED_TOOLS=", b"SFA_NO_LOG=", b"SFA_QUIET=",
    b"SFA_SHIMS=", b"SFA_TASK=", b"SFA_MODEL=", b"SFA_PROVIDER=", b"SFA_INSTRUCTIONS=",
    b"SFA_MAX_DESCENDANTS=", TIME_SAID.encode() + b"=",
)  # fmt: skip


def run_environment(
    run: Run,
    spawn: Spawn,
    *,
    socket: str,
    deadline: float,
    shims: Sequence[bytes] = (),
) -> list[bytes]:
    """Return `KEY=VALUE` for execve(2). `deadline` is in Unix seconds; `shims` are the directories
    that come first in PATH. The daemon does not trust these variables itself."""
    told = [*_told(run, spawn, socket, deadline)]
    if shims:
        told.append((SHIMS, os.fsdecode(b":".join(shims))))
    kept = [
        item for item in spawn.env if not item.startswith(_FOREIGN) and not item.startswith(_OWN)
    ]
    if shims:
        kept = _finding_shims(kept, shims)
    set_by_client = {item.partition(b"=")[0] for item in kept}
    kept += [item for name, item in _ALONE.items() if name not in set_by_client]
    return kept + [f"{key}={value}".encode(errors="surrogateescape") for key, value in told]


_ALONE = {
    name.encode(): f"{name}={value}".encode()
    for server in OWN_SERVERS.values()
    for name, value in server.variables.items()
}
"""Variables with which programs hand nothing to servers of their own."""


def _finding_shims(env: Sequence[bytes], shims: Sequence[bytes]) -> list[bytes]:
    """Return an environment whose PATH begins with directories of shims, also after a login shell
    has set it."""
    kept, own = [], b"/" + shim_files.BASH_ENV.encode()
    for item in env:
        if item.startswith(b"PATH="):
            others = [directory for directory in item[5:].split(b":") if directory not in shims]
            kept.append(b"PATH=" + b":".join([*shims, *others]))
        elif not item.startswith(b"BASH_ENV="):
            kept.append(item)
        elif not item.endswith(own):
            # else it is that of a run above, and SFA_BASH_ENV holds the person's
            kept.append(f"{THEIR_BASH_ENV}=".encode() + item[9:])
    return [*kept, b"BASH_ENV=" + shims[-1] + own]


def _told(run: Run, spawn: Spawn, socket: str, deadline: float) -> Sequence[tuple[str, str]]:
    lineage = run.lineage
    told = [
        ("SFA_RUN_ID", run.id),
        ("SFA_ROOT_ID", lineage[0].id),
        ("SFA_PARENT_ID", run.parent.id if run.parent is not None else ""),
        # what the loop rule compares: a container passes it back in a claim
        ("SFA_NAME", run.identity[1]),
        ("SFA_DEPTH", str(len(lineage) - 1 + run.root.birth.claimed_depth)),
        ("SFA_MAX_DEPTH", str(run.birth.max_depth.value)),
        ("SFA_MAX_DESCENDANTS", str(run.birth.max_descendants.value)),
        # without the run itself: an agent that looks for its own name in the chain must not find
        # itself
        (
            "SFA_CALL_CHAIN",
            ",".join([*run.claimed_chain, *(r.identity[1] for r in lineage[:-1])]),
        ),
        ("SFA_DEADLINE", f"{deadline:.0f}"),
        ("SFA_ATTEMPT", str(run.attempt)),
        ("SFA_SOCKET", socket),
    ]
    optional = [
        ("SFA_ALLOWED_TOOLS", ",".join(spawn.allowed_tools)),
        ("SFA_BLOCKED_TOOLS", ",".join(spawn.blocked_tools)),
        ("SFA_NO_LOG", "" if spawn.log else "1"),
        ("SFA_QUIET", "1" if spawn.quiet else ""),
        (
            TIME_SAID,
            f"{min(each.allowed_time for each in lineage):.15g}" if run.time_said else "",
        ),
    ]
    agent = [(f"SFA_{name.upper()}", text) for name, text in spawn.placeholders.items()]
    return told + [(key, value) for key, value in optional if value] + agent


# ---- Launches attempts


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
    shims: ShimDirectory
    automatic_shims: AutomaticShims
    isolating: Isolating
    shipping: Shipping

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
                self.metering.begin_attempt(live, opened)
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
        run, spawn = live.run, live.spawn
        stdin, stdout, stderr = self._stdio(live, opened)
        left = [r.allowed_time - r.clock.elapsed(trio.current_time()) for r in run.lineage]
        deadline = wall_clock().timestamp() + min(left)
        shims = self._shims(live)
        terminal = spawn.stdio == "inherit" and stdin is not None and _is_terminal(stdin)
        env = run_environment(
            run, spawn, socket=self.resources.socket, deadline=deadline, shims=shims
        )
        env = self.shipping.environment(live, worktrees.environment(live, env))
        step, cwd = self._first_step(live)
        return LaunchSpec(
            argv=self.gateways.with_token(run.id, self._argv(live)),
            cwd=cwd,
            env=self.isolating.environment(live, self.gateways.with_token(run.id, env)),
            umask=spawn.umask,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            terminal=terminal,
            bounds=bounds_of(run),
            shims=shims,
            sandbox=self.isolating.sandbox(live, terminal=terminal, shims=shims),
            first_step=step,
            user=live.credentials,
            nonce=live.nonce,
        )

    def _first_step(self, live: Live) -> tuple[list[bytes] | None, bytes]:
        """Return `LaunchSpec.first_step` and where the attempt starts. Raise `OSError`."""
        spawn = live.spawn
        if (unpacks := self.shipping.first_step(live)) is not None:
            return unpacks
        step = worktrees.first_step(live, self.resources.socket, sealed=spawn.isolation is not None)
        return step, spawn.cwd if step is None or spawn.worktree is None else spawn.worktree.origin

    def _argv(self, live: Live) -> list[bytes]:
        run = live.run
        return argv_of(live.spawn, run.attempt, run.agent_session if run.latest.resumes else None)

    def _shims(self, live: Live) -> list[bytes]:
        """Return the directories that come first in the run's PATH: the installed shims, then the
        automatic ones."""
        run = live.run
        installed = self.shims.in_path is not None and self.shims.open_to(run.birth.uid)
        found = [self.shims.in_path if installed else None]
        if live.spawn.gateway:
            found.append(
                self.automatic_shims.in_path(
                    self.catalogue.live[run.root.id].setups.programs, run.birth.uid
                )
            )
        return [each for each in found if each is not None]

    def _stdio(self, live: Live, opened: list[int]) -> tuple[int | None, int | None, int | None]:
        if live.spawn.stdio == "inherit":
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
