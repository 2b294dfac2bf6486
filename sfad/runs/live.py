"""A live run as the daemon's shell knows it: what was decided about it, what is kept beside the
core's `Run`, and who waits for it."""

import os
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import trio
from msgspec import Struct, defstruct, field
from msgspec.structs import replace

from ..agents import SESSION_VARIABLES, AgentProgram, Reading
from ..agents.command import Command
from ..agents.program import AgentSessions
from ..agents.registered import session_of
from ..agents.setup_reader import NO_SETUPS, TreeSetups
from ..core.state.request import Asked
from ..core.state.run import Run
from ..features.listed import FEATURES
from ..host.linux.descriptors import close_soon
from ..processes.credentials import Credentials
from ..processes.launched_runs import new_nonce
from ..processes.launcher import Bounds, Launcher
from ..protocol.messages import Spawn
from ..protocol.requests.starting import Stdin as StdinKind
from ..protocol.requests.starting import Stdio
from ..protocol.types import (
    Action,
    CallInfo,
    Event,
    LimitKind,
    LimitState,
    RunId,
    RunInfo,
)
from ..storage.ledger import RunExtra
from ..storage.ledger.rows import SESSION

# ---- What was decided before the run starts, as far as the core does not have it


class Output(Struct, omit_defaults=True):
    """What a run reads and writes, and who reads that."""

    stdin: StdinKind = "null"
    stdio: Stdio = "files"
    log: bool = True
    quiet: bool = False
    meter: str | None = None
    """The meter that was asked for; `None`: that of the command."""

    @property
    def kept(self) -> bool:
        """Whether its output goes to files."""
        return self.log and self.stdio == "files"


def descriptors_of(request: Spawn | Output) -> int:
    """Return how many descriptors come with a request."""
    return 3 if request.stdio == "inherit" else 1 if request.stdin == "descriptor" else 0


_KINDS = {name: kind for each in FEATURES.values() for name, kind in each.decides.items()}
_SANDBOXES = [name for each in FEATURES.values() if each.sandboxes for name in each.decides]


class _Parts(Struct, omit_defaults=True):
    """What each capability has decided. The code around it does not look into them."""

    gateway: bool | None = None
    """Whether its model calls go through the gateway; `None`: nothing was decided."""
    direct: str | None = None
    """Why its program goes without the gateway although the run may use it."""

    def of(self, name: str) -> Any:
        """Return what a feature has decided under a name of its `Feature.decides`, or what was
        asked of it; `None` if it does nothing for the run, or is not there."""
        return getattr(self, name, None)

    def decide(self, name: str, decided: object) -> None:
        setattr(self, name, decided)

    @property
    def sandbox(self) -> Any:
        """What was decided about the sandbox in which the main process keeps the command; `None` if
        it is the command itself."""
        return next((found for name in _SANDBOXES if (found := self.of(name)) is not None), None)

    @sandbox.setter
    def sandbox(self, decided: object) -> None:
        for name in _SANDBOXES:
            self.decide(name, decided)


if TYPE_CHECKING:
    Parts = _Parts
else:
    Parts = defstruct(
        "Parts",
        [(name, kind | None, None) for name, kind in _KINDS.items()],
        bases=(_Parts,),
        omit_defaults=True,
    )
    """With what features decide, each under its name."""


# ---- The pipe behind `--stdin`: what `send` writes, the run reads

MAX_PENDING = 1024 * 1024
"""Bytes that may wait for a run that does not read. More is refused, so that the sender learns of
it."""


class Stdin(Struct, frozen=True):
    """A pipe as it is handed to the program that replaces this one."""

    read_end: int
    write_end: int
    pending: list[bytes]
    eof: bool


class StdinPipe:
    """Both ends of a pipe: the run inherits `read_end`; `write` never blocks."""

    def __init__(self, pipe: Stdin) -> None:
        self.read_end, self._write_end = pipe.read_end, pipe.write_end
        # one object, because a sender may send a byte at a time
        self._pending = bytearray().join(pipe.pending)
        self._eof = pipe.eof
        self._unread = False
        """No process can read it any more."""
        self._more = trio.Event()

    @classmethod
    def new(cls) -> Self:
        """Make a pipe. Raises `OSError`."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write_end, False)
        return cls(Stdin(read_end, write_end, [], eof=False))

    def hand_over(self) -> Stdin:
        """Return what the next program needs to go on with the pipe."""
        return Stdin(self.read_end, self._write_end, [bytes(self._pending)], self._eof)

    @property
    def over(self) -> str | None:
        """Why nothing can be written any more, or `None`."""
        if self._unread:
            return "it has closed its stdin"
        return "its stdin was closed by an earlier send" if self._eof else None

    def leave_to_run(self) -> None:
        """Close the read end once the last attempt has it: when the run closes its own, writing
        must fail."""
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end = -1

    def write(self, data: bytes, *, eof: bool) -> str | None:
        """Write `data`, or queue what the pipe has no room for. Return why not, or `None`."""
        if self.over is not None:
            return self.over
        if len(self._pending) + len(data) > MAX_PENDING:
            return (
                f"{len(self._pending)} bytes already wait for it to read its stdin; "
                f"at most {MAX_PENDING} may"
            )
        if data and not self._pending:
            try:
                data = data[os.write(self._write_end, data) :]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                self._unread = True
                self._more.set()
                return self.over
        self._pending += data
        self._eof = eof
        self._more.set()
        return None

    async def serve(self) -> None:
        """Write what is queued, until the end of file or of the reader, or until cancelled."""
        try:
            while not (self._unread or (self._eof and not self._pending)):
                if not self._pending:
                    self._more = trio.Event()
                    await self._more.wait()
                    continue
                await self._write_some()
        except BrokenPipeError:
            self._unread = True
        finally:
            self._close_write_end()

    async def _write_some(self) -> None:
        try:
            written = os.write(self._write_end, self._pending)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(self._write_end)
            return
        del self._pending[:written]

    def _close_write_end(self) -> None:
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1

    def discard(self) -> None:
        """Close both ends of a pipe that is not served."""
        self.leave_to_run()
        self._close_write_end()

    def close(self) -> None:
        """The run is over. Writing fails with EPIPE, so `serve` ends."""
        self.leave_to_run()
        self._eof = True
        self._more.set()


# ---- Calls of a live run that the ledger's file may not have yet


KEPT = 100
"""More of them wait only while the disk is full. Each is saved with the run whenever that
changes."""

ROWS_A_MINUTE = 10
"""Rows that a run's calls get that were refused or withdrawn; further ones are counted in the last
one's row. An agent that asks again and again must not fill the disk."""

_MINUTE = 60.0


class UnrecordedCalls:
    def __init__(self) -> None:
        self._calls: dict[tuple[float, int], CallInfo] = {}
        self._began = -_MINUTE
        self._rows = 0
        self._last: CallInfo | None = None
        """The last one that was not made."""

    def __iter__(self) -> Iterator[CallInfo]:
        return iter(self._calls.values())

    def add(self, call: CallInfo) -> None:
        """Keep a call until its row is in the file. Another one with its key replaces it."""
        self._calls[call.time.timestamp(), call.number] = call
        if len(self._calls) > KEPT:
            del self._calls[next(iter(self._calls))]

    def add_not_made(self, call: CallInfo, now: float) -> CallInfo:
        """Keep a call that was refused or withdrawn at `now`, in seconds. Return what to record."""
        if now - self._began >= _MINUTE:
            self._began, self._rows = now, 0
        self._rows += 1
        if self._rows > ROWS_A_MINUTE and self._last is not None:
            call = replace(self._last, more=self._last.more + 1)
        self._last = call
        self.add(call)
        return call

    def recorded(self, time: float, number: int) -> None:
        self._calls.pop((time, number), None)


# ---- A live run as the daemon's shell knows it


SpawnKey = tuple[int, RunId | None, str]
"""What a client calls its request (`Spawn.key`), after its uid and the run that it is in."""


class SavedMain(Struct, frozen=True, array_like=True):
    """The main process of an attempt, as it is saved for the next daemon."""

    attempt: int
    pid: int
    started: int | None
    """Clock ticks since boot."""
    files: tuple[int, ...] = ()
    """The inodes of its output files; empty if no output is kept."""
    stage: int = 0
    """As in `core.state.run.Attempt`."""

    def is_of(self, run: Run) -> bool:
        """Return whether it is what the run executes now."""
        return (self.attempt, self.stage) == (run.latest.number, run.latest.stage)


class ContinuedWith(Struct, frozen=True, array_like=True):
    """What a run is continued with at the next daemon's start, if this one or the machine ends it
    (`service.continue_lost`)."""

    env: list[bytes]
    """As its client sent it."""
    umask: int
    uid: int
    user: str
    credentials: Credentials | None


class SignsOfLife(NamedTuple):
    """What a look at a run's files and main process found."""

    looked_at: float
    """On trio's clock, as `heard`."""
    pid: int | None
    heard: float | None
    is_stopped: bool


class Live(Struct, eq=False):
    """What the shell holds of a live run, beside the core's `Run`. It owns the descriptors in
    it."""

    run: Run
    command: Command
    output: Output
    parts: Parts
    launcher: Launcher
    created_at: datetime
    program: AgentProgram | None = None
    """The agent program whose events its stdout holds."""
    session_files: AgentSessions | None = None
    """How its program keeps its sessions."""
    nonce: str = field(default_factory=new_nonce)
    """The random part of its cookie (`LaunchSpec.nonce`)."""
    order: Spawn | None = None
    """Of a run that is to execute on another machine: what was asked."""
    caller: RunId | None = None
    """The run that asked for it."""
    request_key: str | None = None
    """What its client called its request."""
    descriptors: list[int] = field(default_factory=list)
    stdin: StdinPipe | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    attempted_at: datetime | None = None
    main: SavedMain | None = None
    model: str | None = None
    """The model that was named last, or the one with most tokens in the stream."""
    provider: str | None = None
    """The upstream of its last call of the gateway."""
    sessions: tuple[Reading, ...] = ()
    """What the session files of its earlier attempts told."""
    meter_silent: bool = False
    """The meter that was asked for has recognised nothing."""
    calls: UnrecordedCalls | None = None
    """`None` until there is one."""
    milestone: str | None = None
    """The newest."""
    begun: RunInfo | None = None
    """As its client is to be told that it has started."""
    end: RunInfo | None = None
    """As the ledger was given its end."""
    credentials: Credentials | None = None
    """Who executes its command (`LaunchSpec.user`)."""
    setups: TreeSetups = NO_SETUPS
    """How the agent programs of its tree are routed through the gateway."""
    for_recall: bytes | None = None
    """The request that it was started with, as `recall` shows it."""
    continued_with: ContinuedWith | None = None
    """What it is continued with if the daemon ends it; until it is saved."""
    unused: list[LimitState] | None = None
    """The limits but time, as they are shown while none of them is known to be used; `None` if they
    have changed since."""
    revision: int = 0
    """Counts what is changed here that is shown. What the core changes, `RunCatalogue.version`
    counts."""
    fixed: RunInfo | None = None
    """What does not change of how it is shown; `None` until it is shown first."""
    fixed_of: Asked | None = None
    """The request that this is made of."""
    signs: SignsOfLife | None = None
    """As they were shown last."""
    shown: dict[str, Any] = field(default_factory=dict)
    """Fields of its `RunInfo` that features have."""
    heard: float | None = None
    """When the loop was told of its last sign of life, on trio's clock. Its output and CPU are
    others (`usage.silence`)."""

    def take(
        self,
        command: Command,
        output: Output,
        parts: Parts,
        program: AgentProgram | None,
        session_files: AgentSessions | None,
    ) -> None:
        """Be started on this node after all, as was decided now."""
        self.command, self.output, self.parts, self.program = command, output, parts, program
        self.order, self.session_files = None, session_files

    def fix(self, info: RunInfo, asked: Asked) -> None:
        self.fixed, self.fixed_of = info, asked

    def hear(self, at: float) -> None:
        self.heard = at

    def look_at_the_clock(self, now: datetime) -> None:
        """Note for people when it started or ended."""
        if self.run.started_at is not None and self.started_at is None:
            self.started_at = now
        if self.run.status.terminal and self.ended_at is None:
            self.ended_at = now

    def attempt_begins(self, now: datetime, sessions: tuple[Reading, ...]) -> None:
        """Note when its next attempt is launched. `sessions`: what the session files of the earlier
        ones told."""
        self.attempted_at, self.sessions = now, sessions

    def set_main(self, pid: int, started: int | None, files: tuple[int, ...]) -> None:
        latest = self.run.latest
        self.main = SavedMain(latest.number, pid, started, files, latest.stage)

    def set_model(self, model: str | None) -> None:
        if model and model != self.model:
            self.model = model
            self.revision += 1

    def set_provider(self, upstream: str) -> None:
        if upstream and upstream != self.provider:
            self.provider = upstream
            self.revision += 1

    def set_meter(self, *, silent: bool) -> None:
        """Note whether its meter recognises anything in its output; its limits are shown
        accordingly."""
        self.meter_silent, self.unused = silent, None
        self.revision += 1

    def show(self, **fields: Any) -> None:
        """Have features' fields of its `RunInfo` shown so from now on; `None`: not any more."""
        for name, value in fields.items():
            if value is None:
                self.shown.pop(name, None)
            else:
                self.shown[name] = value
        self.revision += 1

    def reach(self, milestone: str) -> None:
        self.milestone = milestone
        self.revision += 1

    @property
    def unrecorded_calls(self) -> UnrecordedCalls:
        """Its calls, where one is to be added."""
        if self.calls is None:
            self.calls = UnrecordedCalls()
        return self.calls

    def set_end(self, info: RunInfo) -> None:
        self.end = info

    def limits_changed(self) -> None:
        self.unused = None
        self.revision += 1

    def close(self) -> None:
        if self.descriptors:
            close_soon(self.descriptors, self.sender)
            self.descriptors.clear()
        if self.stdin is not None:
            self.stdin.close()
            self.stdin = None

    @property
    def key(self) -> SpawnKey | None:
        return (
            (self.run.birth.uid, self.caller, self.request_key)
            if self.request_key is not None
            else None
        )

    @property
    def sender(self) -> str:
        """Who has sent its descriptors, for `Descriptors`."""
        return (
            f"the tree of run {self.lineage_ids[0]}"
            if self.caller is not None
            else f"user {self.run.birth.user}"
        )

    @property
    def lineage_ids(self) -> tuple[RunId, ...]:
        return self.run.lineage_ids

    @property
    def uid(self) -> int:
        return self.run.birth.uid

    @property
    def kept(self) -> bool:
        """Whether its output goes to files."""
        return self.output.kept

    @property
    def gated(self) -> bool:
        """Whether its calls go through the gateway."""
        return bool(self.parts.gateway) and self.parts.direct is None

    @property
    def session_id(self) -> str | None:
        """What its agent calls its session: the one that it has saved, else the one that its
        command names."""
        attempt = self.run.latest.number
        if self.run.agent_session is not None or not attempt:
            return self.run.agent_session
        if self.command.agent_session is not None:
            return session_of(self.command.agent_session, attempt)
        if self.command.continued_session is not None:
            return self.command.continued_session
        return (
            self.session_files.session_id(self.run.asked.shown.argv)
            if self.session_files is not None
            else None
        )

    @property
    def session_variables(self) -> list[bytes]:
        """The part of its environment that says where its session files are."""
        return (
            [item for item in self.command.env if item.startswith(_SESSION_VARIABLES)]
            if self.session_files is not None
            else []
        )

    @property
    def extra(self) -> RunExtra:
        asked = self.run.asked
        tied = asked.tied_to is not None
        mode = "detached" if asked.queueing.detach else "foreground" if tied else "background"
        if self.run.asked.session is not None:
            mode = SESSION
        return RunExtra(
            uid=self.run.birth.uid,
            mode=mode,
            pid_started=self.main.started
            if self.main is not None and self.run.pid is not None
            else None,
            request=self.for_recall,
        )


_SESSION_VARIABLES = tuple(f"{name}=".encode() for name in SESSION_VARIABLES)


def bounds_of(run: Run) -> Bounds:
    """Return what the kernel enforces: limits that terminate, and cores. Limits that only warn must
    not take anything away."""
    memory, pids, cpu = (
        run.limits.get(LimitKind.MEMORY),
        run.limits.get(LimitKind.PIDS),
        run.limits.get(LimitKind.CPU),
    )
    return Bounds(
        memory=int(memory.limit.threshold)
        if memory is not None and memory.limit.action is Action.TERMINATE
        else None,
        pids=int(pids.limit.threshold)
        if pids is not None and pids.limit.action is Action.TERMINATE
        else None,
        cpu=cpu.limit.threshold if cpu is not None else None,
    )


# ---- Clients that wait for the end of a run, or watch its events


Waiter = Callable[[RunInfo], None]
Watcher = Callable[[Event], None]
CallWatcher = Callable[[CallInfo], None]
GiveUp = Callable[[], None]

T = TypeVar("T")


class Watchers:
    def __init__(self) -> None:
        self._waiters: dict[RunId, set[Waiter]] = {}
        self.watched: dict[RunId, set[Watcher]] = {}
        """While there is nothing in it, `happened` need not be called."""
        self._call_watchers: dict[RunId, set[CallWatcher]] = {}

    def wait_for_end(self, run: RunId, waiter: Waiter) -> GiveUp:
        """Call `waiter` when a run that is not over is. Return how to give up waiting."""
        return _added(self._waiters, run, waiter)

    def watch(self, run: RunId, watcher: Watcher) -> GiveUp:
        """Call `watcher` with each event of a run and of its descendants. Return how to stop it."""
        return _added(self.watched, run, watcher)

    def watch_calls(self, run: RunId, watcher: CallWatcher) -> GiveUp:
        """Call `watcher` with each call of a run and of its descendants that begins to wait, has
        ended or is not made. Return how to stop it."""
        return _added(self._call_watchers, run, watcher)

    def called(self, call: CallInfo, lineage: tuple[RunId, ...]) -> None:
        """Tell those that watch the calls of a run of `lineage`."""
        for run in lineage if self._call_watchers else ():
            for watcher in list(self._call_watchers.get(run, ())):
                watcher(call)

    def ended(self, info: RunInfo) -> None:
        for waiter in list(self._waiters.pop(info.id, ())):
            waiter(info)

    def happened(self, event: Event, lineage: tuple[RunId, ...]) -> None:
        """Tell those that watch a run of `lineage`."""
        for run in lineage:
            for watcher in list(self.watched.get(run, ())):
                watcher(event)


def _added(table: dict[RunId, set[T]], run: RunId, one: T) -> GiveUp:
    entries = table.setdefault(run, set())
    entries.add(one)

    def forget() -> None:
        entries.discard(one)
        if not entries and table.get(run) is entries:
            del table[run]

    return forget


class Environments:
    """Those of the latest requests, at most so many, and so many bytes each: runs of a shell loop
    have the same, and wait by thousands."""

    def __init__(self, most: int, largest: int) -> None:
        self._most, self._largest = most, largest
        self._known: dict[tuple[int | bytes, ...], list[bytes]] = {}
        """By their number of variables, the first and the last one."""

    def same(self, env: list[bytes]) -> list[bytes]:
        """Return an equal environment: that of an earlier request, if there is one. Nothing changes
        it."""
        about: tuple[int | bytes, ...] = (len(env), *env[:1], *env[-1:])
        if (known := self._known.get(about)) == env:
            return known
        self._known.pop(about, None)
        if sum(map(len, env)) <= self._largest:
            self._known[about] = env
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return env
