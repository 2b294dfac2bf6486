"""What agents report and reserve, with its price."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from msgspec.structs import replace as changed

from ..core.events import CallPrice
from ..core.state.account import OpenReservation, Use
from ..core.state.budgets import to_nanos
from ..protocol import messages as m
from ..protocol.types import RunId, Tokens
from .metered_run import MeteredRun, PriceGaps, report_of_settlement, reservation_of, use_of_report
from .pricing import PriceList, Prices


@dataclass(frozen=True, slots=True)
class ReportPricing:
    """Uses the prices that a run began with. A run that has not been launched has none yet."""

    runs: Mapping[RunId, MeteredRun]
    price_list: PriceList

    def use_of_report(self, run: RunId, request: m.Report) -> Use:
        use, gaps = use_of_report(request, self._prices(run), self._program(run))
        if run in self.runs:
            self.runs[run].live.uses_model(request.model)
            self.runs[run].notices.unpriced(gaps)
        return use

    def reservation_of(self, run: RunId, request: m.Reserve) -> OpenReservation:
        reservation, gaps = reservation_of(request, self._prices(run), self._program(run))
        if run in self.runs:
            self.runs[run].notices.unpriced(gaps)
        return reservation

    def use_of_settlement(self, run: RunId, reservation: OpenReservation, request: m.Settle) -> Use:
        return self.use_of_report(run, report_of_settlement(reservation, request))

    def price_of_call(self, request: m.AdmitCall) -> CallPrice:
        prices, size = self._prices(request.run), request.input_tokens
        most, model = size + request.more_input, prices.charged_as(request.model, request.api)

        def cost(tokens: int) -> float | None:
            written = tokens if request.caches else 0
            return prices.cost(model, Tokens(input=tokens, cache_write=written, long_write=written if request.long_cache else 0))

        likely, dearest = cost(size), cost(most)
        million = prices.cost(model, Tokens(output=1_000_000), request_input=most)
        if likely is None or dearest is None or million is None:
            return CallPrice(None)
        estimated = model != request.model
        if estimated and request.run in self.runs:
            self.runs[request.run].notices.unpriced(PriceGaps(estimated={request.model: model}))
        more = request.factor * max(0.0, dearest - likely) + request.fees_usd
        return CallPrice(to_nanos(request.factor * likely), ceil(request.factor * million * 1000), to_nanos(more), estimated)

    def use_of_call(self, request: m.EndCall, reservation: OpenReservation) -> Use:
        """Return what a call has used; what was reserved for it where its reply could not be read."""
        if request.run in self.runs:
            self.runs[request.run].live.uses_model(request.model)
        if request.tokens is None:
            return reservation.use
        tokens, prices = request.tokens, self._prices(request.run)
        model = prices.charged_as(request.model, request.api)
        cost = _cost_of_call(request, model, tokens, prices)
        sure = tokens if request.sure is None else request.sure
        sure_cost = cost if request.sure is None else _cost_of_call(request, model, sure, prices)
        return Use(
            turns=len(request.tools),
            messages=int(request.status is not None and request.status < 400),
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            cached_tokens=tokens.cached,
            cost=to_nanos(cost),
            cost_from=None if cost is None else "prices",
            unpriced_tokens=tokens.input + tokens.output if cost is None else None,
            unsure_tokens=max(0, tokens.input + tokens.output - sure.input - sure.output) or None,
            unsure_cost=max(0, to_nanos(cost) - to_nanos(sure_cost or 0.0)) or None if cost is not None else None,
            partial=request.partial,
            estimated=model != request.model,
        )

    def when_known(self, run: RunId, model: str | None, then: Callable[[], None], unsure: Callable[[str], None]) -> None:
        """Call `then` when the price of a model is known, or known to be unknown: now, unless the price list must be loaded first.
        Call `unsure` with the reason if it cannot be loaded now."""
        self.price_list.when_known(self._prices(run), model, then, unsure)

    def _prices(self, run: RunId) -> Prices:
        return self.runs[run].prices if run in self.runs else self.price_list.current

    def _program(self, run: RunId) -> str | None:
        return self.runs[run].program if run in self.runs else None


def _cost_of_call(request: m.EndCall, model: str, tokens: Tokens, prices: Prices) -> float | None:
    cost = prices.cost(model, changed(tokens, long_write=request.long_cached))
    others = [prices.cost(prices.charged_as(other, request.api), used) for other, used in request.others.items()]
    return None if cost is None else request.factor * cost + request.fees_usd + sum(each or 0.0 for each in others)
