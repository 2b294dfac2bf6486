"""What the core decides about runs on other nodes, and about runs that these have granted."""

from typing import assert_never, cast

from ....core.elsewhere import Elsewhere
from ....core.machine import Components
from ....core.state.run import Run
from ....core.state.tree import Remembered
from . import heard as h
from .giving import Giving
from .taking import Taking


class OnNodes(Elsewhere):
    def __init__(self, core: Components) -> None:
        self._giving = Giving(
            core.context, core.lifecycle, core.spending, core.stopping, core.stop_requests,
            core.pausing, core.attempts,
        )  # fmt: skip
        self._taking = Taking(core.context, core.stopping, core.pausing)

    def share_out(self, run: Run) -> None:
        self._giving.share_out(run)

    def admitted(self, run: Run) -> None:
        if run.remote is not None:
            self._giving.grant(run)
        self._taking.expect(run)

    def heard(self, run: Run, what: object, at: float) -> None:
        match cast(h.Heard, what):
            case h.PlacementWaits() as heard:
                self._giving.placement_waits(run, heard)
            case h.Placed() as heard:
                self._giving.placed(run, heard, at)
            case h.GrantRefused() as heard:
                self._giving.refused(run, heard, at)
            case h.GrantSeen() as heard:
                self._giving.seen(run, heard, at)
            case h.GrantUsed() as heard:
                self._giving.used(run, heard)
            case h.GrantLate() as heard:
                self._giving.late(run, heard, at)
            case h.GrantLost() as heard:
                self._giving.lost(run, heard, at)
            case h.GrantRenewed():
                self._giving.renewed(run, at)
            case h.GrantTended() as heard:
                self._taking.tended(run, heard, at)
            case _ as never:
                assert_never(never)

    def lease_due(self, run: Run, at: float) -> None:
        (self._giving if run.remote is not None else self._taking).lease_due(run, at)

    def never_sent(self, run: Run) -> None:
        self._giving.never_sent(run)

    def limits_of(self, run: Run) -> str:
        assert run.remote is not None
        number = run.remote.id
        where = f"{run.remote.node}/{number}" if number else "there, once it has started"
        return (
            f"run {run.id} has its limits on the node where it executes: "
            f"sfactl limit --fleet {where}"
        )

    def adopt(self, one: Remembered, at: float) -> bool:
        return self._giving.adopt(one, at)

    def expect(self, run: Run) -> None:
        self._taking.expect(run)


elsewhere = OnNodes
