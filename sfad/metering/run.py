"""What the sources tell of the use of one run, with its price, as the core counts it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import trio

from ..core import events as e
from ..core.account import NOTHING, OpenReservation, Use
from ..meters import Reading
from ..meters.base import MAX_LINE
from ..protocol import messages as m
from ..protocol.types import ApiTrouble, RunId, Source
from ..protocol.units import counted
from ..runs.live import Live
from .price_list import PriceList
from .use import most_used_model, reservation_of, use_of_readings, use_of_report

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
        if self._price_list.ready or self._told_unloaded:
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
        if use.unpriced_tokens and not self._price_list.ready and (use.cost or 0) < (known.cost or 0):
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
        if not self._price_list.ready:
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
