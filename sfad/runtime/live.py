"""What the shell keeps of a live run, and how a run is shown."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from ..core.run import Run
from ..protocol.messages import Spawn
from ..protocol.types import RunId, RunInfo, Usage
from .stdin import StdinPipe


@dataclass(slots=True, eq=False)
class Live:
    """The shell's side of a run. Descriptors in it are the daemon's own and end with `close`."""

    run: Run
    spawn: Spawn
    created_at: datetime
    descriptors: list[int] = field(default_factory=list)
    stdin: StdinPipe | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    saved: RunInfo | None = None
    """As the ledger was last given it."""

    def close(self) -> None:
        """Gives back every descriptor."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()
        if self.stdin is not None:
            self.stdin.close()
            self.stdin = None

    @property
    def chain(self) -> tuple[RunId, ...]:
        """Ids from the root to this run."""
        return tuple(run.id for run in self.run.lineage)

    def info(self, now: float, *, processes: int | None = None, memory_bytes: int | None = None) -> RunInfo:
        """The run as it is shown at `now`, on the core's clock."""
        run = self.run
        lineage = run.lineage
        exit_ = run.exit
        elapsed = run.clock.elapsed(now) if run.started_at is not None else None
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
            reason=run.reason,
            attempts=run.attempt,
            limits=[run.time_limit],
            usage=Usage(elapsed_s=round(elapsed, 3) if elapsed is not None else None),
            processes=processes,
            memory_bytes=memory_bytes,
            descendants=run.admitted,
            deadline=self._deadline(now),
            milestone=None,
            created_at=self.created_at,
            started_at=self.started_at,
            ended_at=self.ended_at,
            labels=run.asked.labels,
        )

    def _deadline(self, now: float) -> datetime | None:
        at = self.run.deadline
        return wall_clock() + timedelta(seconds=at - now) if at is not None else None


def wall_clock() -> datetime:
    """Now, in UTC. For people only: nothing is decided by it, so a clock that is set cannot end a run."""
    return datetime.now(UTC)
