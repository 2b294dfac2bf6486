"""Runs that another node has granted: they end with their lease, and do what their giver wants."""

from msgspec import Struct

from ....core.context import Context
from ....core.life.pausing import Pausing
from ....core.life.stopping import Stopping
from ....core.state.run import Ending, Run
from ....core.state.vocabulary import ReasonKind, Timer
from ....protocol.types import Reason, Status
from .heard import GrantTended


class Taking(Struct, frozen=True):
    _ctx: Context
    _stopping: Stopping
    _pausing: Pausing

    def expect(self, run: Run) -> None:
        """Have the run stopped when its lease is over."""
        if run.lease is not None and run.lease.until is not None:
            self._ctx.arm(run, Timer.LEASE, run.lease.until)

    def tended(self, run: Run, heard: GrantTended, at: float) -> None:
        lease, wanted = run.lease, heard.wanted
        if lease is None:
            return
        if (
            lease.until is not None
            and heard.lease_until is not None
            and heard.lease_until > lease.until
        ):
            lease.until = heard.lease_until
            self._ctx.changed(run)
            self.expect(run)
        if wanted.number <= lease.number:
            return
        lease.number, lease.paused = wanted.number, wanted.paused
        self._ctx.changed(run)
        if wanted.stop is not None:
            reason = Reason(
                kind=ReasonKind.STOP,
                message=f"stopped by {self._giver(run)}",
                by=self._giver(run),
                signal=wanted.stop,
            )
            self._stopping.stop_or_hasten(run, at, reason, signal=wanted.stop, grace=wanted.grace)
        elif wanted.paused and run.status is Status.RUNNING and run.paused is None:
            self._pausing.pause(run, at, f"paused by {self._giver(run)}", by_giver=True)
        elif not wanted.paused and run.paused is not None and run.paused.by_giver:
            self._pausing.resume(run, at)

    def lease_due(self, run: Run, at: float) -> None:
        lease = run.lease
        if lease is None or lease.until is None or run.status is Status.STOPPING:
            return
        if at < lease.until:
            self.expect(run)
            return
        message = (
            f"{self._giver(run)} was not heard of for its lease (fleet.lease); "
            "another node may have begun the run again"
        )
        self._stopping.stop(
            run, at, Ending(Status.CANCELLED, Reason(kind=ReasonKind.LEASE, message=message))
        )

    def _giver(self, run: Run) -> str:
        grant = run.asked.grant
        return f"node {grant.giver}" if grant is not None else "its giver"
