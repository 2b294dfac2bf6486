"""What people are told, once, of a run whose use is not known in full."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..meters.counters import printable
from ..meters.reading import MAX_LINE
from ..protocol.event_types import EventType
from ..protocol.types import RunId
from ..protocol.units import counted
from ..runs.live import Live
from .price_list import PriceList
from .use import PriceGaps

Publish = Callable[[EventType, RunId, str], None]
"""Type of event, run, message."""

MAX_UNPRICED = 16


@dataclass(slots=True)
class MeterNotices:
    """`publish` is for events that only inform."""

    live: Live
    prices: PriceList
    publish: Publish
    _skipped: int = 0
    _unpriced: set[str] = field(default_factory=set)
    _told_unloaded: bool = False

    def silent(self) -> None:
        """Its meter has recognised nothing. That is not told if the meter was chosen by the command alone: then the agent may have
        failed before it printed any event."""
        live = self.live
        if live.program is not None and live.spawn.meter is not None and not live.meter_silent:
            live.meter_is(silent=True)
            message = (
                f"the meter {live.program.name} recognises nothing in what the run prints: its turns, messages, tokens and cost "
                "are NOT ENFORCEABLE. Have the agent print JSON events, or name another --meter"
            )
            self.publish(EventType.METER_SILENT, live.run.id, message)

    def session_lost(self, message: str) -> None:
        """Its session files cannot be told from those of another run."""
        if self.live.program is None:
            self.live.meter_is(silent=True)
        if not self.live.gated or self.live.run.bypassed:  # else the gateway knows what it uses
            self.publish(EventType.METER_SILENT, self.live.run.id, message)

    def skipped(self, count: int) -> None:
        """So many lines of its stdout were too long."""
        # only when the number has doubled: each message is a row of the ledger, and an agent can print such lines without end
        if count and count >= 2 * self._skipped:
            self._skipped = count
            lines = counted(count, "line")
            self.publish(
                EventType.METER_GAP, self.live.run.id, f"{lines} of more than {MAX_LINE} bytes could not be metered so far"
            )

    def unpriced(self, gaps: PriceGaps) -> None:
        """These models have no price, as far as that is known yet."""
        if not self.prices.ready:
            if gaps.unpriced:
                self.prices.load_soon()
            return
        program = self.live.program
        counts = "counts when the agent tells it" if program is not None and program.tells_cost else "is not counted"
        if names := self._fresh(gaps.unpriced):
            message = f'no price is known of {names}: its cost {counts} (set [prices."MODEL"] in the config)'
            self.publish(EventType.METER_UNPRICED, self.live.run.id, message)
        for model, like in gaps.estimated.items():
            if name := self._fresh([model]):
                message = (
                    f"no price is known of {name}: it is estimated to cost as much as {like}, the dearest known model of its "
                    f'provider, until [prices."{name}"] in the config says what it costs (0 if it is free)'
                )
                self.publish(EventType.METER_UNPRICED, self.live.run.id, message)

    def _fresh(self, models: Iterable[str]) -> str:
        """Return the names of the models that were not told yet, if so many may still be told."""
        fresh = [model for model in models if model not in self._unpriced]
        if len(self._unpriced) >= MAX_UNPRICED:
            return ""
        self._unpriced.update(fresh)
        return ", ".join(printable(model, 80) or "a model that is not named" for model in fresh[:4])

    def unloaded(self) -> None:
        """Its end has waited for the price list in vain."""
        if not self._told_unloaded:
            self._told_unloaded = True
            message = "the price list could not be loaded before the run ended: the cost of its tokens is not counted"
            self.publish(EventType.METER_UNPRICED, self.live.run.id, message)
