"""Feeds the machine and applies its commands, in order, in the trio thread."""

from __future__ import annotations

import errno
import os
import stat
import traceback
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import Any, Literal, TypeVar

import msgspec
import trio

from .. import config as configuration
from ..agents import argv_of, registered
from ..core import commands as c
from ..core import events as e
from ..core.access import Peer
from ..core.ids import run_number
from ..core.machine import HOUR, Machine
from ..core.run import Run
from ..durable.adoption import Recovery
from ..durable.budgets import BudgetKeeper
from ..durable.handover import Held
from ..durable.journal import Memory, SpawnKey, nowhere
from ..durable.maintenance import Maintenance, Pruned, Wanted
from ..faults import effect
from ..host.descriptors import Descriptors, Need
from ..host.giveback import give_back
from ..host.lasting import lasting
from ..host.systemd import FdStore
from ..host.threads import in_thread
from ..host.timers import Timers
from ..launch.base import Launcher, LaunchSpec, Remains
from ..ledger import Ledger
from ..metering.metering import PRICES_WAIT, Metering, bounds_of, program_of
from ..metering.sessions import PATIENCE
from ..meters import AgentProgram
from ..observe.log import Log
from ..output.files import OutputStore
from ..protocol import types
from ..protocol.errors import ErrorCode
from ..protocol.messages import Change, Spawn
from ..protocol.types import RunId, RunInfo
from ..runs.live import Live, Main, name_of_main, wall_clock
from ..runs.stdin import StdinPipe
from .advising import Adviser
from .environment import run_environment
from .translate import asked_of, policy_of

RECENT = 1000
"""Ended runs kept in memory. It covers what the ledger's writer has not committed yet, and the pages people ask for most."""

RESERVED = 1000
"""Numbers of events that are reserved at once; so many are left out by the daemon that follows one which was killed."""

LAUNCH = 8
"""Descriptors that a launch takes for some milliseconds: files for the output, pipes of the trampoline, the way into the
containment, a pidfd."""

NO_ROOM = 64 * 1024
"""Bytes on a disk that is as good as full."""

LOOK = 5.0
"""Seconds between two looks whether the state directory, and the files in it, are where they were. Each admission and each write
look as well."""

SAVE_USE = 1.0
"""Seconds until a changed use is in the ledger: what a daemon that is killed forgets, and a row a run in that time."""

_WITHIN = c.Arm | c.Disarm
"""Nothing of these is seen outside of the process: to die before one or after it is the same."""

ENDS_WAIT = PRICES_WAIT + PATIENCE
"""Seconds that a re-execution waits at most for ends that wait themselves: reported sooner, they would stay without price."""

T = TypeVar("T")

Asker = Callable[[c.Answer], None]
Waiter = Callable[[RunInfo], None]
Watcher = Callable[[types.Event], None]
Admitted = Callable[[RunId], None]


@dataclass(frozen=True, slots=True)
class Recent:
    """An ended run, and the ids of its chain."""

    info: RunInfo
    chain: tuple[RunId, ...]
    kept: bool
    key: SpawnKey | None = None


@dataclass(frozen=True, slots=True)
class _Held:
    """Ends in a tree about which something is still being learnt, and timers that came due meanwhile."""

    learning: trio.CancelScope
    """For all of them together: a tree of 1 000 runs must not outlive its time by as many waits, nor a stop its grace."""
    events: deque[e.MainExited | e.Emptied | e.TimerFired] = field(default_factory=deque)


@dataclass(slots=True)
class Request:
    """A spawn that the guard has not answered. What it holds is handed to the run if the answer is yes."""

    spawn: Spawn
    descriptors: list[int]
    admitted: Admitted
    program: AgentProgram | None = None
    stdin: StdinPipe | None = None
    asker: RunId | None = None

    def close(self) -> None:
        """Gives back every descriptor."""
        give_back(self.descriptors)
        if self.stdin is not None:
            self.stdin.discard()


class Runtime:
    """Owns the machine and everything its commands act on. `trio.current_time()` is the core's clock."""

    def __init__(
        self,
        *,
        loaded: configuration.Loaded,
        ledger: Ledger,
        output: OutputStore,
        launcher: Launcher,
        log: Log,
        socket: str,
        state_dir: str,
        memory: Memory,
        on_shutdown: Callable[[], None],
        reload: Callable[[], tuple[configuration.Loaded, list[Change]]] | None = None,
        state_dir_lost: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`state_dir_lost` returns why `state_dir` does not lead to the directory that was opened; `None` while it does."""
        # a reservation's name is not used again by a later daemon: its clock has gone on
        self.machine = Machine(policy_of(loaded), next_number=ledger.next_number, reservations=int(1000 * trio.current_time()))
        self.config = loaded.config
        self.ledger = ledger
        self.output = output
        self.launcher = launcher
        self.log = log
        self.socket = socket
        self.state_dir = state_dir
        self.settings = loaded.settings
        self.began = trio.current_time()
        self.timers = Timers(self.internal_error)
        self.memory = memory
        memory.begin(self.timers, os.path.realpath(state_dir))
        ledger.skip_events(memory.events)
        self._numbers = 0
        """Numbers of events that are reserved."""
        self.metering = Metering(
            feed=self.feed,
            publish=self._tell,
            trouble=log.warning,
            output=output,
            launcher=launcher,
            prices=loaded.config.prices,
            nearing=loaded.config.limits.nearing,
        )
        self.adviser = Adviser(Path(state_dir), self.feed, log.warning)
        self._budgets = BudgetKeeper(self.machine.limiter.budgets, ledger, self.timers, self.feed, log.warning, self.memory)
        self.descriptors = Descriptors()
        self.live: dict[RunId, Live] = {}
        self.fd_store = FdStore()
        self.recent: OrderedDict[RunId, Recent] = OrderedDict()
        self._on_shutdown = on_shutdown
        self._reload = reload
        self._state_dir_lost = state_dir_lost
        self._lost: str | None = None
        self._events: deque[e.Event] = deque()
        self._feeding = False
        self._with_admission: list[Live] = []
        """What has changed with the admission that is being handled: they are remembered together."""
        self._early: list[e.Event] | None = None
        """What the launcher has reported of runs that were taken over, before the core knows of them."""
        self._held: dict[RunId, _Held] = {}
        """By root."""
        self._none_held = trio.lowlevel.ParkingLot()
        self._to_meter: list[tuple[Live, bytes | None]] = []
        """Runs that were taken over, and where their meters were."""
        self.adopted = 0
        """Live runs that were taken over from an earlier daemon."""
        self._token = 0
        self._answers: dict[int, list[Asker]] = {}
        """Several, where one has asked again what another has lost the connection over."""
        self._spawns: dict[int, Request] = {}
        self._waiters: dict[RunId, set[Waiter]] = {}
        self.maintenance = Maintenance(
            ledger, output, loaded.config.retention, live=lambda: self.live, report=log.warning, say=log.info
        )
        self._keys = memory.keys()
        """The run that was admitted for a spawn, as long as it is live or recent."""
        self._unrecorded: dict[RunId, tuple[RunInfo, set[Waiter]]] = {}
        self._watchers: dict[RunId, set[Watcher]] = {}
        self._used: set[RunId] = set()
        """Runs whose use the ledger does not know yet."""
        self._one_walk = trio.CapacityLimiter(1)
        self._nursery: trio.Nursery
        self._appliers = self._table()

    def _table(self) -> dict[type, Callable[[Any], None]]:
        """What is done for each command."""
        return {
            c.Admit: self._admit,
            c.Save: self._save,
            c.RecordRefusal: self._record_refusal,
            c.Rebound: self._rebound,
            c.Charge: lambda x: self._budgets.charge(x.scope, x.name, x.nanos),
            c.CountRefusal: lambda x: self.ledger.count_refusal(x.run),
            c.Launch: self._launch,
            c.Terminate: lambda x: self.launcher.terminate(x.run, x.signal),
            c.Interrupt: self._interrupt,
            c.Kill: lambda x: self.launcher.kill(x.run),
            c.Survey: lambda x: self.launcher.survey(x.run),
            c.Freeze: lambda x: self.launcher.freeze(x.run),
            c.Thaw: lambda x: self.launcher.thaw(x.run),
            c.Release: self._release,
            c.Arm: self._arm,
            c.Disarm: lambda x: self.timers.disarm((x.run, x.timer)),
            c.Publish: self._publish,
            c.Ended: self._ended,
            c.Reply: self._reply,
            c.Shutdown: lambda _: self._on_shutdown(),
        }

    def _interrupt(self, command: c.Interrupt) -> None:
        self.launcher.signal_main(command.run, SIGINT)  # if it has ended meanwhile, the core will hear of that

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Launcher and timers, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await self._nursery.start(self.metering.serve)
            await self._nursery.start(self.launcher.serve)
            await self._nursery.start(self.adviser.serve)
            for serve in (self.timers.serve, self.maintenance.serve, self.metering.sample, self._look_after_files):
                self._nursery.start_soon(lasting, serve, self.internal_error)
            self._configure()
            self._remember_spawns()
            task_status.started()

    def hand_over(self) -> dict[RunId, Held]:
        """What of each live run is not in the spool, which is brought up to date. Raises `OSError` where that cannot be, and where
        something could not be remembered before."""
        self.report_held()  # of what was reaped here, the next daemon could not learn how it ended
        self.memory.bring_up_to_date(self.live.values(), self.metering.position)
        remains = self.launcher.hand_over()
        return {
            run: Held(remains.get(run), live.descriptors, live.stdin.hand_over() if live.stdin is not None else None)
            for run, live in self.live.items()
        }

    async def recover(self, recovery: Recovery) -> None:
        """Goes on with what an earlier daemon held. To be called once, when served, before anything is asked."""
        unwritten = [info.id for info, _ in recovery.unwritten]
        for info, extra in recovery.unwritten:
            self.ledger.mend_later(info, extra)
        closed = [info.id for info, _ in recovery.rows if info.status.terminal and info.id not in unwritten]
        self.memory.recorded([*closed, *recovery.over])
        self.memory.forget_entirely(recovery.never)
        self.memory.forget_spawns(but=self.live)
        self._keys = {key: run for key, run in self._keys.items() if run not in recovery.never}
        for live in self.live.values():
            if live.stdin is not None:
                self._nursery.start_soon(live.stdin.serve)
        for live, position in self._to_meter:
            self.metering.take_over(live, position)
        self._to_meter.clear()
        gone = [one.run for one in recovery.event.runs if one.run.pid is None and not one.starting]
        learnt = await self.metering.read_ended(gone)
        self.adopted = sum(1 for one in recovery.event.runs if one.run.pid is not None)
        self.feed(replace(recovery.event, learnt=learnt))
        for one in recovery.event.runs:
            if one.starting:  # not sooner: its time may come while ended runs are read, when the core does not know it yet
                self.await_launch(one.run)
        self._budgets.look()  # a tree that was paused for a budget goes on if that was renewed or raised meanwhile
        early, self._early = self._early or [], None
        for event in early:
            self.reported(event)
        if recovery.event.continued:
            return
        for run, live in self.live.items():
            if live.spawn.stdin == "pipe" and live.stdin is None:
                self._tell("run_progress", run, "its stdin has ended: the daemon that held it died")

    def tell_recovered(self, recovery: Recovery) -> None:
        """Says what became of an earlier daemon's runs, if there were any."""
        if not recovery.event.runs and not recovery.rows:
            return
        message = f"{recovery.event.why}: {recovery}"
        event = types.Event(type="daemon_recovered", severity="medium", message=message)
        if recovery.event.continued:
            event = msgspec.structs.replace(event, type="daemon_reexecuted", severity="low")
        self._record(event)

    def tell(self, what: str, message: str, severity: Literal["low", "medium", "high"] = "low") -> None:
        """Says something about the daemon itself."""
        self._record(types.Event(type=what, message=message, severity=severity))

    @property
    def last_token(self) -> int:
        """Of the requests that were put to the core."""
        return self._token

    def _remember_spawns(self) -> None:
        """A restart is no way around the spawn rate."""
        now, at = wall_clock(), trio.current_time()
        for user, created in self.ledger.root_spawns(now - timedelta(seconds=HOUR)):
            ago = (now - created).total_seconds()
            if ago >= 0:  # else somebody has set the clock
                self.machine.spawned_before(user, at - ago)

    def take_over(self, live: Live, position: bytes | None, ended: e.MainExited | None = None) -> None:
        """Holds an earlier daemon's run; `position` is where its meter was, `ended` how its main process has ended meanwhile."""
        self.live[live.run.id] = live
        if live.key is not None:
            self._keys[live.key] = live.run.id
        if live.run.attempt:
            self._early = self._early or []
            self._to_meter.append((live, position))
            if ended is not None:
                self._early.append(ended)

    def close(self) -> None:
        """Gives back what live runs still hold; on the orderly way there are none."""
        for live in self.live.values():
            live.close()
        self.live.clear()
        self.metering.close()
        self.memory.reserve_events(self.ledger.last_event)
        self.memory.close()
        self.fd_store.close()

    def reload(self) -> tuple[configuration.Loaded, list[Change]]:
        """Read the config again; what was read, and what changed. Raises `ConfigError`, and nothing has changed."""
        if self._reload is None:
            raise configuration.ConfigError("this daemon was started without config files")
        return self._reload()

    async def prune(self, wanted: Wanted) -> Pruned:
        """Remove what `wanted` says, in a thread. Raises what `Maintenance.prune` raises."""
        return await self.maintenance.prune(wanted, self._forget)

    def _forget(self, runs: Iterable[RunId]) -> None:
        """The ledger does not know these runs any more."""
        runs = list(runs)
        self.memory.pruned(runs)
        for run in runs:
            recent = self.recent.pop(run, None)
            if recent is not None:
                self._drop(run, recent)

    def _drop(self, run: RunId, recent: Recent) -> None:
        self.output.forget(run)
        if recent.key is not None:
            self._keys.pop(recent.key, None)

    def reconfigure(self, loaded: configuration.Loaded) -> None:
        """Decides by other numbers from now on. What was admitted keeps its own."""
        self.config, self.settings = loaded.config, loaded.settings
        self.metering.reconfigure(loaded.config.prices, loaded.config.limits.nearing)
        self.maintenance.reconfigure(loaded.config.retention)
        self.feed(e.Reconfigured(trio.current_time(), policy_of(loaded)))
        self._configure()

    def _configure(self) -> None:
        self.agents = registered(self.config, self.settings)
        self._budgets.know(self.config.budgets)
        self.adviser.configure(adaptive=self.config.limits.adaptive, policy=self.machine.policy)

    # ---- events in

    def feed(self, event: e.Event) -> None:
        """Handles an event and whatever its commands cause at once. An event from within is handled after the current one."""
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._feeding = False

    def reported(self, event: e.Event) -> None:
        """What the launcher says. Before an end is decided upon, everything is learnt that was written or used until then."""
        if self._early is not None:
            self._early.append(event)
            return
        run = self.machine.tree.get(event.run) if isinstance(event, e.LaunchSucceeded | e.MainExited | e.Emptied) else None
        if run is not None and isinstance(event, e.LaunchSucceeded):
            self._store(run, event.pid)
        elif isinstance(event, e.MainExited | e.Emptied) and run is not None and self._must_wait(run):
            self._hold(run, event)
            return
        self._report(event)

    def _report(self, event: e.Event) -> None:
        run = self.machine.tree.get(event.run) if isinstance(event, e.MainExited | e.Emptied) else None
        if run is not None:
            self.metering.catch_up(run, event.signal if isinstance(event, e.MainExited) else None)
            if isinstance(event, e.MainExited):
                self.fd_store.forget(name_of_main(run))
        self.feed(event)

    def _must_wait(self, run: Run) -> bool:
        """A tree's ends stay in their order."""
        return run.root.id in self._held or self.metering.may_wait(run)

    def _hold(self, run: Run, event: e.MainExited | e.Emptied) -> None:
        root = run.root.id
        if root not in self._held:
            self._held[root] = _Held(trio.CancelScope(deadline=trio.current_time() + PRICES_WAIT))
            self._nursery.start_soon(self._report_later, root)
        self._held[root].events.append(event)

    async def _report_later(self, root: RunId) -> None:
        held = self._held[root]
        with held.learning:
            while held.events:
                first = held.events[0]
                run = self.machine.tree.get(first.run)
                if run is not None:
                    await self.metering.settle(run, succeeded=isinstance(first, e.MainExited) and first.code == 0)
                if held.events:  # else a re-execution could not wait
                    self._report(held.events.popleft())
        self._report_all(held)
        self._held.pop(root, None)
        if not self._held:
            self._none_held.unpark_all()

    async def ends_reported(self) -> None:
        """Wait until no end waits for the price list or for a session file, at most `ENDS_WAIT`."""
        with trio.move_on_after(ENDS_WAIT):
            while self._held:
                await self._none_held.park()

    def report_held(self) -> None:
        """Report the ends that wait, at once."""
        for held in list(self._held.values()):
            self._report_all(held)

    def _report_all(self, held: _Held) -> None:
        while held.events:
            self._report(held.events.popleft())

    def _store(self, run: Run, pid: int) -> None:
        """Should this daemon die, the next one learns from the pidfd how the process has ended, where the kernel tells."""
        if self.fd_store.there:
            with suppress(OSError):  # then it does not
                pidfd = os.pidfd_open(pid)
                self.fd_store.keep(name_of_main(run), pidfd)
                os.close(pidfd)

    def _handle(self, event: e.Event) -> None:
        try:
            outcome = self.machine.handle(event)
        except Exception:  # noqa: BLE001 - a bug in one request must not leave every tree without a supervisor
            self.internal_error(event)
            token = getattr(event, "token", None)
            if token is not None:
                self._answer(token, c.Failed(ErrorCode.INTERNAL, "internal error; the daemon's log has the traceback"))
            return
        self._keep(outcome)
        if outcome.used:
            self._note_use(outcome.used)
        for command in outcome.commands:
            if not isinstance(command, _WITHIN):
                effect(type(command).__name__)
            try:
                self._appliers[type(command)](command)
            except Exception:  # noqa: BLE001 - what was decided stands: the commands after it, a timer, a reply, must be applied
                self.internal_error(command)

    def _keep(self, outcome: c.Outcome) -> None:
        """What was decided is remembered before any of it is done: whatever is done may be found half done by the next daemon."""
        charges = [command for command in outcome.commands if isinstance(command, c.Charge)]
        for charge in charges:
            self._budgets.remember(charge.scope, charge.name)
        # where a budget was charged for more use, the next daemon would charge it again
        changed = self._changed(outcome.changed | outcome.used if charges else outcome.changed)
        if any(isinstance(command, c.Admit) for command in outcome.commands):
            self._with_admission = changed
        elif changed:
            self.memory.keep(changed, self.metering.position if charges else nowhere)

    def _changed(self, runs: Iterable[RunId]) -> list[Live]:
        changed = [live for run in runs if (live := self.live.get(run)) is not None]
        if changed:
            now = wall_clock()  # the same for all: no run has ended before its descendants
            for live in changed:
                live.look_at_the_clock(now)
        return changed

    def internal_error(self, what: object) -> None:
        """Log the exception that is being handled, and what was being done."""
        self.log.error(
            f"internal error while handling {type(what).__name__}", about=repr(what)[:1000], traceback=traceback.format_exc()
        )

    def ask(self, answer: Callable[[c.Answer], None], make: Callable[[int, float], e.Event]) -> None:
        """Feeds the event that `make(token, now)` returns; `answer` is called once, when the core replies to it."""
        self._token += 1
        self._answers[self._token] = [answer]
        self.feed(make(self._token, trio.current_time()))

    def spawn(
        self,
        peer: Peer,
        spawn: Spawn,
        descriptors: list[int],
        client: int,
        answer: Callable[[c.Answer], None],
        admitted: Admitted,
    ) -> None:
        """Asks the guard. `descriptors` become the runtime's, whatever the answer. `admitted` is called first if it is yes. To what
        was asked before with the same key the answer is the same.

        Raises `OSError` where too few descriptors are left; then nothing was asked."""
        before = self._keys.get((peer.uid, peer.run, spawn.key)) if spawn.key is not None else None
        if before is not None and self.info(before) is not None:
            give_back(descriptors)
            admitted(before)
            self._answer_again(before, client if spawn.tied else None, answer)
            return
        asked = asked_of(spawn, client)
        kept = spawn.log and spawn.stdio == "files"
        request = Request(spawn, descriptors, admitted, program_of(spawn.meter, asked.argv, kept=kept), asker=peer.run)
        try:
            self._check_descriptors()
            if spawn.stdin == "pipe":
                request.stdin = StdinPipe()
        except OSError:
            request.close()
            raise
        self._token += 1
        token = self._token
        self._answers[token] = [answer]
        self._spawns[token] = request
        self.feed(e.SpawnRequested(trio.current_time(), token, peer, asked))

    def _check_descriptors(self) -> None:
        refusal = self.descriptors.refusal(Need.RUN, LAUNCH)
        if refusal is not None:
            raise OSError(refusal)

    def answerers(self) -> dict[int, list[Asker]]:
        """Who waits for an answer of the core, by token."""
        return dict(self._answers)

    def expect_answers(self, answerers: Mapping[int, Sequence[Asker]], *, last_token: int) -> None:
        """Restore the pending callbacks after re-exec."""
        self._answers |= {token: list(waiting) for token, waiting in answerers.items()}
        self._token = last_token

    def _answer_again(self, run: RunId, client: int | None, answer: Callable[[c.Answer], None]) -> None:
        """To who lost the connection before the answer came."""
        if client is not None:
            self.feed(e.ClientBack(trio.current_time(), client, run))
        live = self.live.get(run)
        if live is not None and live.run.admit_token is not None:
            self._answers[live.run.admit_token].append(answer)
        else:
            answer(c.Known(run))

    def committed(self, runs: Iterable[RunId]) -> None:
        """The ledger's writer reports admissions that are safe."""
        self.feed(e.Committed(trio.current_time(), tuple(runs)))

    def commit_failed(self, runs: Iterable[RunId], error: str) -> None:
        """The ledger's writer reports admissions that it could not write."""
        runs = list(runs)
        self.memory.never_again(max(map(run_number, runs)))
        self.log.error(f"the ledger cannot be written: {error}", runs=runs)
        self.feed(e.CommitFailed(trio.current_time(), tuple(runs), error))

    # ---- commands out

    def _admit(self, command: c.Admit) -> None:
        run = command.run
        assert run.admit_token is not None
        request = self._spawns.pop(run.admit_token)
        spawn = request.spawn
        live = Live(
            run,
            spawn,
            self.launcher,
            wall_clock(),
            request.program,
            asker=request.asker,
            descriptors=request.descriptors,
            stdin=request.stdin,
        )
        self.live[run.id] = live
        if live.stdin is not None:
            self._nursery.start_soon(live.stdin.serve)
        request.admitted(run.id)
        self.adviser.noticed(run.asked.type, run.name)
        if (lost := self.notice_state_dir()) is not None:
            self.commit_failed([run.id], lost)
            return
        if self.ledger.trouble is not None and self.ledger.held:
            # it is tried again for what is held; who asks without pause meanwhile must not use up what the spool has left for ends
            self.commit_failed([run.id], self.ledger.trouble)
            return
        try:
            self.memory.admit(live, self._with_admission)
            effect("admitted, not on record")
        except OSError as error:
            self.commit_failed([run.id], f"the spool: {error}")
            return
        if live.key is not None:
            self._keys[live.key] = run.id
        self.ledger.admit(live.info(run.created_at), live.extra)

    def _save(self, command: c.Save) -> None:
        run = command.run
        live = self.live[run.id]
        live.saved = live.info(trio.current_time())
        self._used.discard(run.id)
        self.ledger.save(live.saved, live.extra)

    def _note_use(self, runs: Iterable[RunId]) -> None:
        if not self._used:
            self.timers.arm("save use", trio.current_time() + SAVE_USE, self._save_use)
        self._used.update(runs)

    def _save_use(self) -> None:
        used, self._used = self._used, set()
        for run in used:
            live = self.live.get(run)
            if live is not None:
                self._save(c.Save(live.run))
        self.memory.keep([self.live[run] for run in used if run in self.live], self.metering.position)

    def _rebound(self, command: c.Rebound) -> None:
        self.live[command.run.id].unused = None
        self.metering.rebound(command.run)

    def _release(self, command: c.Release) -> None:
        self.metering.forget(command.run)
        self.launcher.release(command.run)

    def _record_refusal(self, command: c.RecordRefusal) -> None:
        run = command.run
        assert run.admit_token is not None
        spawn = self._spawns[run.admit_token].spawn
        now = wall_clock()
        refused = Live(run, spawn, self.launcher, now, ended_at=now)
        info = refused.info(run.created_at)
        self.memory.never_again(run.number)
        self.ledger.refuse(info, refused.extra)
        self._remember(Recent(info, refused.chain, kept=False))

    def _launch(self, command: c.Launch) -> None:
        run = command.run
        live = self.live[run.id]
        try:
            self._check_descriptors()  # it may have waited long since it was admitted, or be one of many
        except OSError as error:
            message = f"run {run.id} was not started: {error}"
            self.feed(e.LaunchFailed(trio.current_time(), run.id, errno.EMFILE, message))
            return
        try:
            spec, opened = self._spec(live)
            self.metering.begin_attempt(live)
        except OSError as error:
            message = f"run {run.id} was not started: its output could not be opened: {error}"
            self.feed(e.LaunchFailed(trio.current_time(), run.id, error.errno or 0, message, "output"))
            return
        try:
            if run.attempt > 1:  # where the meter was before says nothing of the new attempt
                self.memory.keep([live], self.metering.position)
            if not self.memory.remembers(run.id):
                message = f"run {run.id} was not started: the disk has no room to remember that it was, free some"
                self.feed(e.LaunchFailed(trio.current_time(), run.id, errno.ENOSPC, message, "output"))
                return
            self.launcher.launch(run.id, run.parent.id if run.parent is not None else None, spec, partial(self._note_main, live))
            effect("launched")
            self.await_launch(run)
            self.memory.started(run)
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def await_launch(self, run: Run) -> None:
        """For no longer than the run may take. Its clock begins when its command is executed, and arms this anew."""
        now = trio.current_time()
        self._arm(c.Arm(run.id, "deadline", now + run.allowed_time - run.clock.elapsed(now)))

    def _note_main(self, live: Live, remains: Remains) -> bool:
        """Whether the next daemon would know the main process. It executes nothing before that."""
        live.main = Main(live.run.attempt, remains.pid, remains.started)
        self.memory.keep([live])
        effect("main noted")
        return self.memory.remembers(live.run.id)

    def _spec(self, live: Live) -> tuple[LaunchSpec, list[int]]:
        run, spawn = live.run, live.spawn
        opened: list[int] = []
        stdin, stdout, stderr = self._stdio(live, opened)
        left = [r.allowed_time - r.clock.elapsed(trio.current_time()) for r in run.lineage]
        deadline = wall_clock().timestamp() + min(left)
        spec = LaunchSpec(
            argv=argv_of(spawn, run.attempt),
            cwd=spawn.cwd,
            env=run_environment(run, spawn, socket=self.socket, deadline=deadline),
            umask=spawn.umask,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            terminal=spawn.stdio == "inherit" and stdin is not None and _is_terminal(stdin),
            bounds=bounds_of(run),
            nonce=live.nonce,
        )
        return spec, opened

    def _stdio(self, live: Live, opened: list[int]) -> tuple[int | None, int | None, int | None]:
        spawn = live.spawn
        if spawn.stdio == "inherit":
            stdin, stdout, stderr = live.descriptors
            return stdin, stdout, stderr
        stdin_ = live.stdin.read_end if live.stdin is not None else (live.descriptors[0] if live.descriptors else None)
        if not spawn.log:
            return stdin_, None, None
        out, err = self.output.open_for_run(live.run.id)
        opened += [out, err]
        return stdin_, out, err

    def _arm(self, command: c.Arm) -> None:
        run, timer = command.run, command.timer
        self.timers.arm((run, timer), command.at, lambda: self._due(run, timer))

    def _due(self, run: RunId, timer: str) -> None:
        """A run whose end waits must not exceed its time meanwhile."""
        event, known = e.TimerFired(trio.current_time(), run, timer), self.machine.tree.get(run)
        held = self._held.get(known.root.id) if known is not None else None
        if held is not None:
            held.events.append(event)
            held.learning.deadline = min(held.learning.deadline, trio.current_time() + PATIENCE)
        else:
            self.feed(event)

    def _tell(self, what: str, run: RunId, message: str, severity: Literal["medium", "high"] = "medium") -> None:
        live = self.live.get(run)
        if live is not None:
            event = types.Event(
                type=what, severity=severity, run_id=run, root_id=live.chain[0], agent_name=live.run.name, message=message
            )
            self._publish(c.Publish(event, live.chain))

    def _publish(self, command: c.Publish) -> None:
        event = self._record(command.event)
        for run in command.chain if self._watchers else ():
            for watcher in list(self._watchers.get(run, ())):
                watcher(event)

    def _record(self, event: types.Event) -> types.Event:
        event = self.ledger.event(msgspec.structs.replace(event, time=wall_clock()))
        number = self.ledger.last_event
        if number > self._numbers:
            self._numbers = number + RESERVED
            self.memory.reserve_events(self._numbers)
        self.log.event(event)
        return event

    def _ended(self, command: c.Ended) -> None:
        live = self.live.pop(command.run.id)
        saved = live.saved if live.saved is not None and live.saved.status.terminal else None
        info = saved or live.info(trio.current_time())
        self._remember(Recent(info, live.chain, live.kept, live.key))
        self.adviser.noticed(info.type, info.name)
        self._unrecorded[info.id] = (info, self._waiters.pop(info.id, set()))
        if saved is None:  # it never was: who asks again, with the same key, is to have another
            self._keys = {key: run for key, run in self._keys.items() if run != info.id}
            self.memory.forget_entirely([info.id])
            self._tell_waiters([info.id])
        elif self.ledger.trouble is not None:
            self._tell_waiters([info.id])
        live.close()

    def recorded(self, runs: Iterable[RunId]) -> None:
        """The ledger holds the end of these runs: whoever waits may be told. Not before, or a daemon that is killed a moment
        later would call a run lost that it has called completed."""
        ended = list(runs)
        effect("end on record")
        self.memory.recorded(ended)
        effect("forgotten")
        self._tell_waiters(ended)

    def _tell_waiters(self, runs: Iterable[RunId]) -> None:
        for run in runs:
            info, waiters = self._unrecorded.pop(run, (None, ()))
            for waiter in list(waiters):
                assert info is not None
                waiter(info)

    def checkpointed(self) -> None:
        """The ledger's database holds whatever was recorded."""
        self.memory.checkpointed()

    def put_back(self, note: str) -> None:
        """Another process had removed or replaced the ledger, and it was written again."""
        self.log.error(note)
        self.tell("daemon_ledger_replaced", note, "high")

    def trouble(self, error: str | None, lost: int) -> None:
        """The ledger's writer cannot write, or can again. Ends are held in memory meanwhile, and nobody waits for that."""
        if error is None:
            self.log.warning("the ledger can be written again", lost=lost)
            return
        self.log.error(f"the ledger cannot be written: {error}; new runs are refused, ends are held in memory", lost=lost)
        self.tell("daemon_ledger_failing", f"the ledger cannot be written: {error}; new runs are refused", "medium")
        self._tell_waiters(list(self._unrecorded))
        self._tell_of_full_disk()

    @property
    def unwritable(self) -> str | None:
        """Why nothing new is started, and what helps; `None` if the ledger can be written."""
        return self.notice_state_dir() or self.ledger.trouble

    def notice_state_dir(self) -> str | None:
        """Look whether the state directory, and the spool in it, is where it was. Return why the directory is not, and tell of each
        change once."""
        lost, before = self._state_dir_lost(), self._lost
        self._lost = lost
        if lost is None:
            self.memory.look_after(self.live.values())
        if lost is not None and before is None:
            self.log.error(f"{lost}; new runs are refused, and live runs go on")
            self.tell("daemon_state_dir_lost", f"{lost}; new runs are refused", "medium")
        elif lost is None and before is not None:
            self.log.warning(f"the state directory {self.state_dir} is back; new runs are admitted again")
            self.tell("daemon_state_dir_back", f"the state directory {self.state_dir} is back", "medium")
        return lost

    async def _look_after_files(self) -> None:
        """Another process may move, remove or replace what the daemon has open. What writes looks for itself."""
        # The kernel notifies of neither a renamed ancestor nor a mount. It sends IN_DELETE_SELF only when the last descriptor of
        # a file is closed, and this daemon holds one.
        while True:
            if self.notice_state_dir() is None:
                self.ledger.look_after()
                self.metering.look_after()
            await trio.sleep(LOOK)

    def _tell_of_full_disk(self) -> None:
        """Runs write their output themselves, and nobody tells the daemon that it found no room."""
        with suppress(OSError):
            disk = os.statvfs(self.output.directory)
            if disk.f_bavail * disk.f_frsize < NO_ROOM:
                for run in [run for run, live in self.live.items() if live.kept]:
                    self._tell(
                        "alert_disk_full", run, f"no room is left in {self.output.directory}: what it prints is lost", "high"
                    )

    def _remember(self, recent: Recent) -> None:
        self.recent[recent.info.id] = recent
        if len(self.recent) > RECENT:
            self._drop(*self.recent.popitem(last=False))

    def _reply(self, command: c.Reply) -> None:
        self._answer(command.token, command.answer)

    def _answer(self, token: int, answer: c.Answer) -> None:
        unclaimed = self._spawns.pop(token, None)  # of a spawn that was not admitted
        if unclaimed is not None:
            unclaimed.close()
        for asker in self._answers.pop(token, ()):
            asker(answer)

    # ---- reading

    def info(self, run: RunId) -> RunInfo | None:
        """A run by its whole id, live, recent or from the ledger."""
        live = self.live.get(run)
        if live is not None:
            return live.info(trio.current_time())
        recent = self.recent.get(run)
        return recent.info if recent is not None else self.ledger.get(run)

    def chain(self, run: RunId) -> list[RunId]:
        """Ids from the root to the run."""
        live = self.live.get(run)
        if live is not None:
            return list(live.chain)
        recent = self.recent.get(run)
        return list(recent.chain) if recent is not None else self.ledger.chain(run)

    def root(self, run: RunId) -> RunId:
        """The root of the tree of a run that is live or recent, else the run itself. Reads no ledger."""
        known = self.live.get(run) or self.recent.get(run)
        return known.chain[0] if known is not None else run

    def find(self, prefix: str) -> list[RunId]:
        """Ids that begin with `prefix`; at most some ten of the ledger's."""
        known = [run for run in (*self.live, *self.recent) if run.startswith(prefix)]
        return sorted({*known, *self.ledger.find(prefix)})

    async def walk(self, work: Callable[[], T]) -> T:
        """Return what `work`, which keeps a CPU busy, returns in a thread; one such work at a time. Raises what it raises."""
        async with self._one_walk:
            return await in_thread(work)

    def in_background(
        self,
        work: Callable[[], Awaitable[T]],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        expected: tuple[type[Exception], ...],
    ) -> None:
        """Call `done` with the result of `work`, or `failed` with what it raised; what was not `expected` is logged. A bug in one
        request must not leave every tree without a supervisor."""

        async def run() -> None:
            try:
                done(await work())
            except expected as error:
                failed(error)
            except Exception as error:  # noqa: BLE001 - see above
                self.internal_error(work)
                failed(error)

        self._nursery.start_soon(run)

    def over(self, run: RunId) -> bool:
        """Whether a run has ended and the ledger knows it."""
        return run not in self.live and run not in self._unrecorded

    def on_end(self, run: RunId, waiter: Waiter) -> Callable[[], None]:
        """Calls `waiter` when a run that is not over is; returns how to give up waiting."""
        unrecorded = self._unrecorded.get(run)
        waiters = unrecorded[1] if unrecorded is not None else self._waiters.setdefault(run, set())
        waiters.add(waiter)

        def forget() -> None:
            waiters.discard(waiter)
            if not waiters and self._waiters.get(run) is waiters:
                del self._waiters[run]

        return forget

    def watch(self, run: RunId, watcher: Watcher) -> Callable[[], None]:
        """Pushes the events of a run and its descendants; returns how to stop it."""
        watchers = self._watchers.setdefault(run, set())
        watchers.add(watcher)

        def forget() -> None:
            watchers.discard(watcher)
            if not watchers:
                with suppress(KeyError):
                    del self._watchers[run]

        return forget


def _is_terminal(descriptor: int) -> bool:
    # isatty(3) is an ioctl, for which a file on a FUSE mount would wait; a terminal is a character device
    return stat.S_ISCHR(os.fstat(descriptor).st_mode) and os.isatty(descriptor)
