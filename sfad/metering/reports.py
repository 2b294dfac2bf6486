"""What agents report and reserve, with its price."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..core.account import OpenReservation, Use
from ..protocol import messages as m
from ..protocol.types import RunId
from .metered_run import MeteredRun
from .price_list import PriceList
from .pricing import Prices
from .use import report_of_settlement, reservation_of, use_of_report


@dataclass(frozen=True, slots=True)
class ReportPricing:
    """Uses the prices that a run began with. A run that has not been launched has none yet."""

    runs: Mapping[RunId, MeteredRun]
    price_list: PriceList

    def use_of_report(self, run: RunId, request: m.Report) -> Use:
        use, unpriced = use_of_report(request, self._prices(run))
        if run in self.runs:
            self.runs[run].live.uses_model(request.model)
            self.runs[run].notices.unpriced(unpriced)
        return use

    def reservation_of(self, run: RunId, request: m.Reserve) -> OpenReservation:
        reservation, unpriced = reservation_of(request, self._prices(run))
        if run in self.runs:
            self.runs[run].notices.unpriced(unpriced)
        return reservation

    def use_of_settlement(self, run: RunId, reservation: OpenReservation, request: m.Settle) -> Use:
        return self.use_of_report(run, report_of_settlement(reservation, request))

    def when_known(self, run: RunId, model: str | None, then: Callable[[], None], unsure: Callable[[str], None]) -> None:
        """Call `then` when the price of a model is known, or known to be unknown: now, unless the price list must be loaded first.
        Call `unsure` with the reason if it cannot be loaded now."""
        self.price_list.when_known(self._prices(run), model, then, unsure)

    def _prices(self, run: RunId) -> Prices:
        return self.runs[run].prices if run in self.runs else self.price_list.current
