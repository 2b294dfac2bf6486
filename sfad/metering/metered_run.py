"""What the sources tell of the use of one run, told to the core."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import trio

from ..core import events as e
from ..core.account import NOTHING, Use
from ..meters import Reading
from ..protocol.types import ApiTrouble, Source
from ..runs.live import Live
from .notices import MeterNotices, Publish
from .price_list import PriceList
from .use import PriceGaps, most_used_model, use_of_readings

Feed = Callable[[e.Event], None]


class MeteredRun:
    """Takes what the meters of a run read, in its stdout and in its session files."""

    def __init__(self, live: Live, price_list: PriceList, *, feed: Feed, publish: Publish) -> None:
        self.live = live
        self.notices = MeterNotices(live, price_list, publish)
        self.prices = price_list.current
        self._price_list = price_list
        self._feed = feed
        self._stream: Sequence[Reading] = ()
        self._session: Sequence[Reading] = ()
        self._tier = ""
        self._said = _said(Reading())

    @property
    def has_meter(self) -> bool:
        return self.live.program is not None or self.live.session_files is not None

    @property
    def program(self) -> str | None:
        """The agent program whose events or session files are read."""
        program, files = self.live.program, self.live.session_files
        return program.name if program is not None else files.program if files is not None else None

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
        self.notices.skipped(sum(reading.skipped_lines for reading in readings))
        said = _said(latest)
        if said != self._said:
            self._said = said
            self._feed(e.AgentSaid(trio.current_time(), self.live.run.id, *said))

    def silent(self) -> bool:
        """Return whether the meter of its stdout has recognised nothing."""
        if not all(reading.blank for reading in self._stream):
            return False
        self.notices.silent()
        return True

    def read_in_session(self, readings: Sequence[Reading]) -> None:
        """Take what its session files tell by now: a reading for each file."""
        self._session = readings
        model, tier = most_used_model(readings), next((reading.tier for reading in readings if reading.tier), "")
        if (self.live.model is None and model is not None) or tier != self._tier:
            self.live.uses_model(model)
            self._tier = tier
            if any(not reading.blank for reading in self._stream):
                self._tell("stream", self._stream)  # Codex's events do not name the model
        self._tell("session", readings)

    def price_again(self) -> None:
        """Count what is known at the prices that are known by now."""
        if any(not reading.blank for reading in self._stream):
            self._tell("stream", self._stream)
        if self._session:
            self._tell("session", self._session)

    def tell_unloaded(self) -> None:
        """Tell if its cost is not known because the price list is not loaded."""
        if not self._price_list.ready:
            sources = (self._stream, self._session)
            if any(self._use(source)[0].unpriced_tokens for source in sources):
                self.notices.unloaded()

    def _tell(self, source: Source, readings: Sequence[Reading]) -> None:
        run = self.live.run
        use, gaps = self._use(readings)
        if self.live.session_files is not None and not self.live.run.account.sources.get("session", NOTHING).tokens:
            gaps.unpriced.pop("", None)  # the session file will name the model
        self.notices.unpriced(gaps)
        known = run.account.sources.get(source, NOTHING)
        if use.unpriced_tokens and not self._price_list.ready and (use.cost or 0) < (known.cost or 0):
            # an earlier daemon had prices: keep the cost that it counted while this daemon loads them
            more = use.unpriced_tokens - (known.tokens or 0) + (known.unpriced_tokens or 0)
            use = replace(use, cost=known.cost, cost_from=known.cost_from, unpriced_tokens=max(0, more) or None)
        self._feed(e.UseSeen(trio.current_time(), run.id, source, use))

    def _use(self, readings: Sequence[Reading]) -> tuple[Use, PriceGaps]:
        return use_of_readings(readings, self.prices, self.program, self.live.model, self._tier)


def _said(reading: Reading) -> tuple[bool, str | None, ApiTrouble | None]:
    return reading.finished, reading.failed, reading.trouble
