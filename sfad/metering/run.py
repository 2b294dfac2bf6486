"""What the sources tell of the usage of one run, with its price, as the core counts it.

Functions that price also return the tokens by model that have no price: these are told, and never counted as 0 USD.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import trio

from ..core import events as e
from ..core.account import NOTHING, OpenReservation, Use
from ..core.money import to_nanos
from ..meters import Reading
from ..meters.base import MAX_LINE
from ..protocol import messages as m
from ..protocol.kinds import COUNTS
from ..protocol.types import ApiTrouble, RunId, Source, Tokens
from ..protocol.units import counted
from ..runs.live import Live
from .pricing import PriceList, Prices

Unpriced = dict[str, int]
"""Tokens by model, under `""` where no model is named."""


def use_of_readings(readings: Iterable[Reading], prices: Prices) -> tuple[Use, Unpriced]:
    """Return what all attempts have used."""
    total = NOTHING
    unpriced: Counter[str] = Counter()
    for reading in readings:
        use, without_price = _use_of_reading(reading, prices)
        total = total.plus(use)
        unpriced.update(without_price)
    return total, unpriced


def _use_of_reading(reading: Reading, prices: Prices) -> tuple[Use, Unpriced]:
    told = reading.models.values()
    price, unpriced = _price(reading, prices)
    cost = reading.cost_usd if price is None else price + (reading.cost_usd or 0.0)
    use = Use(
        **_counts(reading),
        input_tokens=sum(tokens.input for tokens in told) if told else None,
        output_tokens=sum(tokens.output for tokens in told) if told else None,
        cached_tokens=sum(tokens.cached for tokens in told) if told else None,
        cost=to_nanos(cost),
        cost_from=None if cost is None else "agent" if price is None else "prices",
        unpriced_tokens=sum(unpriced.values()) or None,
        partial=reading.partial,
    )
    return use, unpriced


def _price(reading: Reading, prices: Prices) -> tuple[float | None, Unpriced]:
    """Return the price of the tokens whose cost the agent has not told."""
    # the tokens are sums over messages, and the price of a message depends on its length
    messages = max(1, reading.messages or 1)
    known: list[float] = []
    unpriced: Unpriced = {}
    for model, tokens in reading.to_price.items():
        if not tokens.input and not tokens.output:
            continue
        cost = prices.cost(model, tokens, request_input=tokens.input // messages)
        if cost is None:
            unpriced[model] = tokens.input + tokens.output
        else:
            known.append(cost)
    return (sum(known) if known else None), unpriced


def use_of_report(request: m.Report, prices: Prices) -> tuple[Use, Unpriced]:
    cached, written = request.cached_tokens or 0, request.cache_write_tokens or 0
    tokens = Tokens(input=request.input_tokens or 0, output=request.output_tokens or 0, cached=cached, cache_write=written)
    cost, unpriced = request.cost_usd, Unpriced()
    if cost is None and tokens.input + tokens.output:
        cost, unpriced = _price_of_call(request.model, tokens, prices)
    nanos = to_nanos(cost)
    use = Use(
        **_counts(request),
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        cached_tokens=request.cached_tokens,
        cost=nanos,
        cost_from=None if cost is None else "prices" if request.cost_usd is None else "agent",
        planning_cost=nanos if request.role == "planning" else None,
        execution_cost=nanos if request.role == "execution" else None,
        unpriced_tokens=sum(unpriced.values()) or None,
    )
    return use, unpriced


def reservation_of(request: m.Reserve, prices: Prices) -> tuple[OpenReservation, Unpriced]:
    tokens = Tokens(input=request.input_tokens, output=request.max_output_tokens)
    cost, unpriced = _price_of_call(request.model, tokens, prices)
    return OpenReservation(request.model, request.input_tokens, request.max_output_tokens, to_nanos(cost), request.role), unpriced


def report_of_settlement(reservation: OpenReservation, request: m.Settle) -> m.Report:
    told = {name: getattr(request, name) for name in m.Settle.__struct_fields__ if name != "reservation"}
    cache = {name: told[name] or None for name in ("cached_tokens", "cache_write_tokens")}
    return m.Report(**told | cache, model=reservation.model, role=reservation.role)


def _counts(told: Reading | m.Report) -> dict[str, Any]:
    return {name: getattr(told, name, None) for name in COUNTS}  # not each count can be reported


def _price_of_call(model: str | None, tokens: Tokens, prices: Prices) -> tuple[float | None, Unpriced]:
    cost = prices.cost(model, tokens) if model is not None else None
    return cost, {} if cost is not None else {model or "": tokens.input + tokens.output}


def most_used_model(readings: Iterable[Reading]) -> str | None:
    tokens: Counter[str] = Counter()
    for reading in readings:
        for model, used in reading.models.items():
            tokens[model] += used.input + used.output
    return max(filter(None, tokens), key=tokens.__getitem__, default=None)


Feed = Callable[[e.Event], None]
Publish = Callable[[str, RunId, str], None]
"""Type of event, run, message."""

MAX_UNPRICED = 16


class MeteredRun:
    """Takes what the meters of a run read, in its stdout and in its session files. `publish` is for events that only inform."""

    def __init__(self, live: Live, price_list: PriceList, *, feed: Feed, publish: Publish) -> None:
        self.live = live
        self._price_list = price_list
        self.prices = price_list.current
        self._feed = feed
        self._publish = publish
        self._stream: Sequence[Reading] = ()
        self._session: Sequence[Reading] = ()
        self._said = _said(Reading())
        self._skipped = 0
        self._unpriced: set[str] = set()
        self._told_unloaded = False

    @property
    def has_meter(self) -> bool:
        return self.live.program is not None or self.live.session_files is not None

    def resume(self, readings: Sequence[Reading]) -> None:
        self._stream = readings
        if readings:
            self._said = _said(readings[-1])

    def read_in_stream(self, readings: Sequence[Reading]) -> None:
        """Take what its stdout tells by now: a reading for each attempt."""
        self._stream = readings
        if self.silent():
            return
        if self.live.meter_silent:
            self.live.meter_is(silent=False)
        self.live.uses_model(most_used_model(readings))
        self._tell("stream", readings)
        latest = readings[-1]
        if latest.tools:
            self._feed(e.ToolsCalled(trio.current_time(), self.live.run.id, tuple(latest.tools)))
        self._tell_skipped(sum(reading.skipped_lines for reading in readings))
        said = _said(latest)
        if said != self._said:
            self._said = said
            self._feed(e.AgentSaid(trio.current_time(), self.live.run.id, *said))

    def read_in_session(self, readings: Sequence[Reading]) -> None:
        self._session = readings
        if self.live.model is None:
            self.live.uses_model(most_used_model(readings))
        self._tell("session", readings)

    def session_lost(self, message: str) -> None:
        """Its session files cannot be told from those of another run."""
        if self.live.program is None:
            self.live.meter_is(silent=True)
        self._publish("meter_silent", self.live.run.id, message)

    def price_again(self) -> None:
        """Count what is known at the prices that are known by now."""
        if any(not reading.blank for reading in self._stream):
            self._tell("stream", self._stream)
        if self._session:
            self._tell("session", self._session)

    def tell_unloaded(self) -> None:
        """Publish, if it matters, that its end has waited for the price list in vain."""
        if self._price_list.settled or self._told_unloaded:
            return
        if any(use_of_readings(source, self.prices)[0].unpriced_tokens for source in (self._stream, self._session)):
            self._told_unloaded = True
            message = "the price list could not be loaded before the run ended: the cost of its tokens is not counted"
            self._publish("meter_unpriced", self.live.run.id, message)

    def report(self, request: m.Report) -> Use:
        self.live.uses_model(request.model)
        use, unpriced = use_of_report(request, self.prices)
        self._tell_unpriced(unpriced)
        return use

    def reserve(self, request: m.Reserve) -> OpenReservation:
        reservation, unpriced = reservation_of(request, self.prices)
        self._tell_unpriced(unpriced)
        return reservation

    def _tell(self, source: Source, readings: Sequence[Reading]) -> None:
        run = self.live.run
        use, unpriced = use_of_readings(readings, self.prices)
        self._tell_unpriced(unpriced)
        known = run.account.sources.get(source, NOTHING)
        if use.unpriced_tokens and not self._price_list.settled and (use.cost or 0) < (known.cost or 0):
            # an earlier daemon had prices: keep the cost that it counted while this daemon loads them
            more = use.unpriced_tokens - (known.tokens or 0) + (known.unpriced_tokens or 0)
            use = replace(use, cost=known.cost, cost_from=known.cost_from, unpriced_tokens=max(0, more) or None)
        self._feed(e.UseSeen(trio.current_time(), run.id, source, use))

    def silent(self) -> bool:
        """Return whether the meter has recognised nothing. Tell so once, unless the meter was chosen by the command alone: then the
        agent may have failed before it printed any event."""
        if not all(reading.blank for reading in self._stream):
            return False
        live = self.live
        if live.program is not None and live.spawn.meter is not None and not live.meter_silent:
            live.meter_is(silent=True)
            message = (
                f"the meter {live.program.name} recognises nothing in what the run prints: its turns, messages, tokens and cost "
                "are NOT ENFORCEABLE. Have the agent print JSON events, or name another --meter"
            )
            self._publish("meter_silent", live.run.id, message)
        return True

    def _tell_skipped(self, skipped: int) -> None:
        # only when the number has doubled: each message is a row of the ledger, and an agent can print such lines without end
        if skipped and skipped >= 2 * self._skipped:
            self._skipped = skipped
            lines = counted(skipped, "line")
            self._publish("meter_gap", self.live.run.id, f"{lines} of more than {MAX_LINE} bytes could not be metered so far")

    def _tell_unpriced(self, models: Collection[str]) -> None:
        fresh = [model for model in models if model not in self._unpriced]
        if not fresh:
            return
        if not self._price_list.settled:
            self._price_list.load_soon()
            return
        if len(self._unpriced) >= MAX_UNPRICED:
            return
        self._unpriced.update(fresh)
        names = ", ".join(model[:80] or "a model that is not named" for model in fresh[:4])
        program = self.live.program
        counts = "counts when the agent tells it" if program is not None and program.tells_cost else "is not counted"
        message = f'no price is known of {names}: its cost {counts} (set [prices."MODEL"] in the config)'
        self._publish("meter_unpriced", self.live.run.id, message)


def _said(reading: Reading) -> tuple[bool, str | None, ApiTrouble | None]:
    return reading.finished, reading.failed, reading.trouble
