"""Requests of agents that tell their own use: report, reserve and settle."""

from msgspec import Struct

from ...protocol.kinds import KINDS
from ...protocol.types import ErrorCode, LimitRefusal, Status
from .. import commands as c
from .. import events as e
from ..context import Context
from ..life.spending import Spending
from ..state.limits import ActiveLimit, amount, and_reserved, bare
from ..state.money import to_wire
from ..state.run import Run
from .enforcement import LimitEnforcement

MAX_RESERVATIONS = 1000
"""Reservations that one run may have open, one for each call under way. A thousand are a leak."""


class UseRequests(Struct, frozen=True):
    _ctx: Context
    _spending: Spending
    _limit_enforcement: LimitEnforcement

    def report_requested(self, run: Run, ev: e.ReportRequested) -> None:
        self._spending.add_use(run, ev.more)
        self._limit_enforcement.enforce(run, ev.at)
        self._ctx.reply(ev.token, c.Changed(run))

    def reserve_requested(self, run: Run, ev: e.ReserveRequested) -> None:
        """Reserve an amount, unless it would take a limit or a purse too far."""
        if run.status is Status.STOPPING or len(run.account.reservations) >= MAX_RESERVATIONS:
            why = (
                "is being stopped"
                if run.status is Status.STOPPING
                else f"holds {MAX_RESERVATIONS} reservations; settle some"
            )
            self._ctx.fail(
                ev.token, ErrorCode.WRONG_STATE, f"nothing is reserved: run {run.id} {why}"
            )
        elif not self._refuse_reservation(run, ev):
            self._ctx.reply(
                ev.token, c.ReserveAnswer(run, self._spending.reserve(run, ev.reservation))
            )
            self._limit_enforcement.enforce(run, ev.at)

    def _refuse_reservation(self, run: Run, ev: e.ReserveRequested) -> bool:
        for limited in run.lineage:
            for kind, more in ev.reservation.amounts.items():
                active = limited.limits.get(kind)
                used = limited.account.used(kind) or 0
                if active is not None and active.binds and active.above(used + more):
                    self._ctx.reply(
                        ev.token,
                        c.ReserveAnswer(run, None, over_limit(limited, active, used, more)),
                    )
                    self._limit_enforcement.reservation_refused(limited, active, more, ev.at)
                    return True
        return bool(self._ctx.purses.known) and self._ctx.purses.refuses(run, ev)

    def settle_requested(self, ev: e.SettleRequested) -> None:
        found = self._spending.reservation(ev.reservation)
        if found is None or not self._ctx.scope(ev.peer).knows(
            found[0].birth.uid, found[0].lineage_ids
        ):
            message = (
                f"no reservation '{ev.reservation}' is open: "
                "it was settled, or its run has ended and it was charged in full"
            )
            self._ctx.fail(ev.token, ErrorCode.WRONG_STATE, message)
        elif (run := self._ctx.permitted_run(ev, "settle", found[0].id)) is not None:
            self._spending.add_use(run, ev.used, settled=ev.reservation)
            self._limit_enforcement.enforce(run, ev.at)
            self._ctx.reply(ev.token, c.Changed(run))


def over_limit(limited: Run, active: ActiveLimit, used: float, more: float) -> LimitRefusal:
    limit, reserved = active.limit, limited.account.reserved(active.limit.kind)
    whose = f"run {limited.id} ('{limited.name}') above its {limit.kind} limit"
    so_far = bare(limit.kind, used - reserved, unit=False)
    numbers = (
        f"{so_far} of {bare(limit.kind, active.threshold)} are used"
        f"{and_reserved(limit.kind, reserved)}, set by {limit.source}"
    )
    return LimitRefusal(
        scope=KINDS[limit.kind].scope,
        whose=limited.id,
        limit_kind=limit.kind,
        threshold=limit.threshold,
        used=to_wire(limit.kind, used - reserved),
        reserved=to_wire(limit.kind, reserved),
        asked=to_wire(limit.kind, more),
        message=(
            f"not reserved: {amount(limit.kind, more)} more would take {whose}: {numbers}. "
            "Finish with what you have."
        ),
    )
