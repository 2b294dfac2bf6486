"""What the shell keeps of a live run, and how a run is shown."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from msgspec import Struct

from ..core.account import Use
from ..core.limits import ActiveLimit
from ..core.money import to_usd, to_wire
from ..core.run import Run
from ..host.giveback import give_back
from ..launch.base import Launcher
from ..ledger import RunExtra
from ..meters import SESSION_VARIABLES, AgentProgram, Reading, session_files_of
from ..meters.program import SessionFiles
from ..protocol.kinds import COSTS, COUNTS, KINDS
from ..protocol.known import BY_REPORT, NO_METER
from ..protocol.messages import Spawn
from ..protocol.types import Action, LimitKind, LimitState, RunId, RunInfo, Source, Usage
from .stdin import StdinPipe

Enforcer = Literal["clock", "meter", "kernel", "watching", "nothing"]


class Main(Struct, frozen=True, array_like=True):
    """The main process of an attempt, as it was launched."""

    attempt: int
    pid: int
    started: int | None
    """In clock ticks since boot."""


@dataclass(slots=True, eq=False)
class Live:
    """The shell's side of a run. Descriptors in it are the daemon's own and end with `close`."""

    run: Run
    spawn: Spawn
    launcher: Launcher
    created_at: datetime
    program: AgentProgram | None = None
    """What its stdout is metered as."""
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    """Of its cookie (`LaunchSpec.nonce`)."""
    asker: RunId | None = None
    """The run that asked for it."""
    descriptors: list[int] = field(default_factory=list)
    stdin: StdinPipe | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    meter_silent: bool = False
    """The meter that was asked for has recognised nothing."""
    unused: list[LimitState] | None = None
    """The limits but time, as they are shown while nothing of them is known to be used; `None` if they have changed."""
    main: Main | None = None
    """Of the attempt that was launched last."""
    model: str | None = None
    """The one that was named last, or by its stream the one with most tokens."""
    saved: RunInfo | None = None
    """As the ledger was last given it."""
    attempted_at: datetime | None = None
    """When its latest attempt was launched."""
    sessions: tuple[Reading, ...] = ()
    """What the session files of its earlier attempts told."""

    def close(self) -> None:
        """Gives back every descriptor."""
        give_back(self.descriptors)
        self.descriptors.clear()
        if self.stdin is not None:
            self.stdin.close()
            self.stdin = None

    def attempt_begins(self, now: datetime, sessions: tuple[Reading, ...]) -> None:
        """Note when its next attempt is launched; `sessions`: what the session files of the earlier attempts told."""
        self.attempted_at, self.sessions = now, sessions

    def meter_is(self, *, silent: bool) -> None:
        """Note whether its meter recognises anything in its output; its limits are shown accordingly."""
        self.meter_silent, self.unused = silent, None

    def uses_model(self, model: str | None) -> None:
        """Note the model that was named last."""
        self.model = model or self.model

    def look_at_the_clock(self, now: datetime) -> None:
        """Notes when it started or ended, for people."""
        if self.run.started_at is not None and self.started_at is None:
            self.started_at = now
        if self.run.status.terminal and self.ended_at is None:
            self.ended_at = now

    @property
    def key(self) -> tuple[int, RunId | None, str] | None:
        """What its request is known by, if it has a key."""
        return (self.run.uid, self.asker, self.spawn.key) if self.spawn.key is not None else None

    @property
    def extra(self) -> RunExtra:
        """What its row in the ledger holds beside `info`."""
        spawn = self.spawn
        mode = "detached" if spawn.detach else "foreground" if spawn.tied else "background"
        return RunExtra(
            uid=self.run.uid,
            mode=mode,
            allowed_tools=spawn.allowed_tools,
            blocked_tools=spawn.blocked_tools,
            pid_started=self.main.started if self.main is not None and self.run.pid is not None else None,
            model=self.model,
        )

    @property
    def session_files(self) -> SessionFiles | None:
        """How its program keeps its sessions, if it is known to."""
        return None if self.spawn.meter == NO_METER else session_files_of(self.spawn.meter, self.run.asked.argv)

    @property
    def session_variables(self) -> list[bytes]:
        """Of its environment, what says where its session files are; nothing if there are none."""
        names = tuple(f"{name}=".encode() for name in SESSION_VARIABLES)
        return [item for item in self.spawn.env if item.startswith(names)] if self.session_files is not None else []

    @property
    def kept(self) -> bool:
        """Whether its output goes to files."""
        return self.spawn.log and self.spawn.stdio == "files"

    @property
    def chain(self) -> tuple[RunId, ...]:
        """Ids from the root to this run."""
        return tuple(run.id for run in self.run.lineage)

    def info(self, now: float, *, processes: int | None = None, memory_bytes: int | None = None) -> RunInfo:
        """The run as it is shown at `now`, on the core's clock."""
        run = self.run
        lineage = run.lineage
        exit_ = run.exit
        elapsed = round(run.clock.elapsed(now), 3) if run.started_at is not None else None
        return RunInfo(
            id=run.id,
            name=run.name,
            kind=run.kind,
            type=run.asked.type,
            status=run.status,
            parent_id=run.parent.id if run.parent is not None else None,
            root_id=lineage[0].id,
            depth=len(lineage) - 1,
            chain=[r.name for r in lineage],
            pid=run.pid,
            argv=list(run.asked.argv),
            cwd=run.asked.cwd,
            user=run.user,
            channel=run.channel,
            exit_code=exit_.code if exit_ is not None else None,
            signal=exit_.signal if exit_ is not None else None,
            reason=run.shown_reason,
            attempts=run.attempt,
            limits=self._limits(now),
            usage=self.usage(elapsed),
            processes=processes,
            memory_bytes=memory_bytes,
            descendants=run.admitted,
            deadline=self._deadline(now),
            milestone=None,
            created_at=self.created_at,
            started_at=self.started_at,
            ended_at=self.ended_at,
            labels=run.asked.labels,
            usage_by_source={source: _usage(source, use, elapsed) for source, use in run.account.sources.items()},
            meter=self.program.name if self.program is not None else None,
            api_trouble=run.api_trouble if not run.status.terminal else None,  # then its reason has it
        )

    def usage(self, elapsed: float | None = None) -> Usage:
        """What the run itself has used, after so many seconds."""
        best = self.run.account.best
        return Usage(elapsed_s=elapsed) if best is None else _usage(*best, elapsed)

    def _limits(self, now: float) -> list[LimitState]:
        """A short run is shown three times before more than its time is known to be used, and in a burst of them making all
        states each time would be a tenth of the daemon's work."""
        run, account = self.run, self.run.account
        if self.unused is None or account.sources or account.holds or account.below or account.levels:
            states = [self._limit(held, now) for held in run.limits.values()]
            self.unused = [state for state in states if state.kind is not LimitKind.TIME]
            return states
        time = run.limits.get(LimitKind.TIME)
        return [self._limit(time, now), *self.unused] if time is not None else list(self.unused)

    def _limit(self, held: ActiveLimit, now: float) -> LimitState:
        limit, kind = held.limit, held.limit.kind
        above = self._tighter(held)
        used = self.run.clock.elapsed(now) if kind is LimitKind.TIME else self.run.account.used(kind)
        return LimitState(
            kind=kind,
            threshold=limit.threshold,
            action=held.action,
            source=limit.source,
            used=None if used is None else round(to_wire(kind, used), 6),
            scope=KINDS[kind].scope,
            enforced_by=self._enforcer(held),
            bound_by=above.id if above is not None else None,
            bound=above.limits[kind].limit.threshold if above is not None else None,
        )

    def _tighter(self, held: ActiveLimit) -> Run | None:
        """The ancestor with the least of a tree's limit, if that is less than the run's own."""
        kind, found = held.limit.kind, self.run
        if found.parent is None or KINDS[kind].scope == "run":
            return None
        for above in self.run.lineage[:-1]:
            other = above.limits.get(kind)
            if other is not None and other.binds and other.limit.threshold < found.limits[kind].limit.threshold:
                found = above
        return found if found is not self.run else None

    def _enforcer(self, held: ActiveLimit) -> Enforcer:
        kind = held.limit.kind
        match KINDS[kind].counted_by:
            case "clock":
                return "clock"
            case "meter":
                return "meter" if self.run.account.used(kind) is not None or self._may_be_known(kind) else "nothing"
            case "kernel" if held.action is Action.TERMINATE or not KINDS[kind].acts:
                return self.launcher.enforcement(kind.value)
            case _:
                return "watching"  # the kernel would terminate

    def _may_be_known(self, kind: LimitKind) -> bool:
        """Whether the sources that there are may still tell. Of a model without a price they never will."""
        account = self.run.account
        unpriced = kind in COSTS and bool(account.used(LimitKind.TOKENS))
        told = self.program is not None or self.session_files is not None
        told = (told and not self.meter_silent) or account.metered or self.spawn.meter == BY_REPORT
        return told and not unpriced

    def _deadline(self, now: float) -> datetime | None:
        at = self.run.held_until if self.run.held_until is not None else self.run.deadline
        return wall_clock() + timedelta(seconds=at - now) if at is not None else None


def _usage(source: Source, use: Use, elapsed: float | None) -> Usage:
    return Usage(
        **{name: getattr(use, name) for name in COUNTS},
        input_tokens=use.input_tokens,
        output_tokens=use.output_tokens,
        cached_tokens=use.cached_tokens,
        tokens=use.tokens,
        cost_usd=to_usd(use.cost),
        cost_from=use.cost_from,
        unpriced_tokens=use.unpriced_tokens,
        planning_cost_usd=to_usd(use.planning_cost),
        execution_cost_usd=to_usd(use.execution_cost),
        elapsed_s=elapsed,
        source=source,
        partial=use.partial,
    )


def wall_clock() -> datetime:
    """Now, in UTC. For people only: nothing is decided by it, so a clock that is set cannot end a run."""
    return datetime.now(UTC)


def name_of_main(run: Run) -> str:
    """What systemd keeps the pidfd of its main process by: of another attempt it tells nothing."""
    return f"{run.id}.{run.attempt}"
