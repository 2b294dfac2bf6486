"""What the sources tell of the use of one run, told to the core; and what people are told where it
is not known in full."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from ..agents import Reading
from ..agents.counters import MAX_LINE, WindowsTold, minus, printable
from ..agents.line_meter import OPENAI_FACTORS, factor_of
from ..agents.program import digest
from ..core import events as e
from ..core.state.account import NOTHING, OpenReservation, Use
from ..core.state.money import to_nanos
from ..core.state.run import MAX_FREE
from ..host.clock import wall_clock
from ..protocol import messages as m
from ..protocol.event_types import EventType
from ..protocol.kinds import COUNTS
from ..protocol.texts.units import counted
from ..protocol.types import ApiTrouble, RunId, Source, Tokens
from ..runs.live import Live
from .pricing import PriceList, Prices

# ---- What readings, reports and reservations amount to, with their price, in the core's terms
#
# Each function also returns which models have no price: that is told, and their tokens never count
# as 0 USD.


class PriceGaps(Struct):
    """Models without a price."""

    unpriced: Counter[str] = field(default_factory=Counter)
    """Tokens that are not in the cost, by model, under `""` where no model is named."""
    estimated: dict[str, str] = field(default_factory=dict)
    """By model: the model at whose price it counts."""

    def add(self, more: "PriceGaps") -> None:
        self.unpriced.update(more.unpriced)
        self.estimated.update(more.estimated)

    def cost(
        self,
        prices: Prices,
        model: str,
        tokens: Tokens,
        hint: str | None,
        *,
        request_input: int | None = None,
    ) -> float | None:
        """Return USD for the tokens of a model, and note whether it has no price."""
        name = prices.charged_as(model, hint)
        cost = prices.cost(name, tokens, request_input=request_input)
        if cost is None:
            self.unpriced[model] += tokens.input + tokens.output
        elif name != model:
            self.estimated[model] = name
        return cost


def use_of_readings(
    readings: Iterable[Reading],
    prices: Prices,
    program: str | None = None,
    unnamed: str | None = None,
    tier: str = "",
    provider: str = "",
) -> tuple[Use, PriceGaps]:
    """`program`: the agent's, which tells the provider of a model without a price. `unnamed`,
    `tier`, `provider`: the model of tokens, the tier and the provider where the readings name
    none."""
    total, gaps = NOTHING, PriceGaps()
    for reading in readings:
        sold = prices.at(reading.provider or provider)
        use, more = _use_of_reading(reading, sold, program, unnamed or "", reading.tier or tier)
        total = total.plus(use)
        gaps.add(more)
    return total, gaps


def _use_of_reading(
    reading: Reading, prices: Prices, program: str | None, unnamed: str, tier: str
) -> tuple[Use, PriceGaps]:
    told = reading.models.values()
    gaps = PriceGaps()
    price, least, guess = _price(reading, prices, program, unnamed, tier, gaps)
    cost = reading.cost_usd if price is None else price + (reading.cost_usd or 0.0)
    use = Use(
        **_counts(reading),
        input_tokens=sum(tokens.input for tokens in told) if told else None,
        output_tokens=sum(tokens.output for tokens in told) if told else None,
        cached_tokens=sum(tokens.cached for tokens in told) if told else None,
        cost=to_nanos(cost),
        cost_from=None if cost is None else "agent" if price is None else "prices",
        unpriced_tokens=gaps.unpriced.total() or None,
        unsure_cost=None if price is None else to_nanos(price - least) or None,
        guessed_tokens=sum(reading.guessed.values()) or None,
        guessed_cost=to_nanos(guess) or None,
        # a call that failed or was broken off may be billed, and the agent does not know of it
        partial=reading.partial
        or reading.broken
        or reading.failed is not None
        or reading.trouble is not None,
        estimated=bool(gaps.estimated),
    )
    return use, gaps


def _price(
    reading: Reading, prices: Prices, program: str | None, unnamed: str, tier: str, gaps: PriceGaps
) -> tuple[float | None, float, float]:
    """Return the price of the tokens whose cost the agent has not told, the least that it may be,
    since only the provider's reply tells whether it gave a cheaper tier than its usual one; and the
    part of the price that is of estimated tokens."""
    costs = [
        gaps.cost(prices, model or unnamed, tokens, program, request_input=request_input)
        for model, of_model in reading.to_price.items()
        for tokens, request_input in _by_request(reading, model, of_model)
        if tokens.input or tokens.output
    ]
    known = [cost for cost in costs if cost is not None]
    factor = (
        factor_of(OPENAI_FACTORS, unnamed or next(iter(reading.to_price), ""), [tier])
        if tier
        else 1.0
    )
    most = max(1.0, factor)
    guess = sum(_guesses(reading, prices, program, unnamed)) if known else 0.0
    return most * sum(known) if known else None, factor * sum(known), most * guess


def _guesses(
    reading: Reading, prices: Prices, program: str | None, unnamed: str
) -> Iterator[float]:
    """Yield the price of the tokens that are estimated, of each model."""
    for model, tokens in reading.guessed.items():
        to_price = reading.to_price.get(model, Tokens())
        output = min(tokens, to_price.output)
        request_input = to_price.input // max(1, reading.messages or 1)
        cost = PriceGaps().cost(
            prices, model or unnamed, Tokens(output=output), program, request_input=request_input
        )
        yield cost or 0.0


def _by_request(reading: Reading, model: str, tokens: Tokens) -> Iterator[tuple[Tokens, int]]:
    """Yield the tokens of a model, each with the input of the requests that they are of: the price
    of a request depends on its length. Where a program tells only sums, all are taken to be
    equal."""
    for size, part in reading.by_size.get(model, {}).items():
        tokens = minus(tokens, part)
        yield part, size + 1
    yield tokens, tokens.input // max(1, reading.messages or 1)


def use_of_report(
    request: m.Report, prices: Prices, program: str | None = None
) -> tuple[Use, PriceGaps]:
    cached, written = request.cached_tokens or 0, request.cache_write_tokens or 0
    tokens = Tokens(
        input=request.input_tokens or 0,
        output=request.output_tokens or 0,
        cached=cached,
        cache_write=written,
    )
    cost, gaps = request.cost_usd, PriceGaps()
    if cost is None and tokens.input + tokens.output:
        of_one = tokens.input // max(1, request.messages or 1)
        cost = gaps.cost(prices, request.model or "", tokens, program, request_input=of_one)
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
        unpriced_tokens=gaps.unpriced.total() or None,
        estimated=bool(gaps.estimated),
    )
    return use, gaps


def reservation_of(
    request: m.Reserve, prices: Prices, program: str | None = None
) -> tuple[OpenReservation, PriceGaps]:
    tokens, gaps = Tokens(input=request.input_tokens, output=request.max_output_tokens), PriceGaps()
    cost = gaps.cost(prices, request.model, tokens, program)
    reservation = OpenReservation(
        request.model,
        request.input_tokens,
        request.max_output_tokens,
        to_nanos(cost),
        request.role,
        estimated=bool(gaps.estimated),
    )
    return reservation, gaps


def report_of_settlement(reservation: OpenReservation, request: m.Settle) -> m.Report:
    told = {
        name: getattr(request, name) for name in m.Settle.__struct_fields__ if name != "reservation"
    }
    cache = {name: told[name] or None for name in ("cached_tokens", "cache_write_tokens")}
    return m.Report(**told | cache, model=reservation.model, role=reservation.role)


def _counts(told: Reading | m.Report) -> dict[str, Any]:
    return {name: getattr(told, name, None) for name in COUNTS}  # not each count can be reported


def most_used_model(readings: Iterable[Reading]) -> str | None:
    tokens: Counter[str] = Counter()
    for reading in readings:
        for model, used in reading.models.items():
            tokens[model] += used.input + used.output
    return max(filter(None, tokens), key=tokens.__getitem__, default=None)


# ---- What people are told, once, of a run whose use is not known in full


Publish = Callable[[EventType, RunId, str], None]
"""Type of event, run, message."""

MAX_UNPRICED = 16


class MeterNotices(Struct):
    """`publish` is for events that only inform."""

    live: Live
    prices: PriceList
    publish: Publish
    _skipped: int = 0
    _unpriced: set[str] = field(default_factory=set)
    _free: set[str] = field(default_factory=set)
    _told_unloaded: bool = False

    def tell_silent(self) -> None:
        """Tell that its meter has recognised nothing. That is not told if the meter was chosen by
        the command alone: then the agent may have failed before it printed any event."""
        live = self.live
        if live.program is not None and live.output.meter is not None and not live.meter_silent:
            live.set_meter(silent=True)
            message = (
                f"the meter {live.program.name} recognises nothing in what the run prints: "
                "its turns, messages, tokens and cost are NOT ENFORCEABLE. "
                "Have the agent print JSON events, or name another --meter"
            )
            self.publish(EventType.METER_SILENT, live.run.id, message)

    def session_lost(self, message: str) -> None:
        """Its session files cannot be told from those of another run."""
        if self.live.program is None:
            self.live.set_meter(silent=True)
        if (
            not self.live.gated or self.live.run.seen.bypassed
        ):  # else the gateway knows what it uses
            self.publish(EventType.METER_SILENT, self.live.run.id, message)

    def skipped(self, count: int) -> None:
        """So many lines of its stdout were too long."""
        # only when the number has doubled: each message is a row of the ledger, and an agent can
        # print such lines without end
        if count and count >= 2 * self._skipped:
            self._skipped = count
            lines = counted(count, "line")
            self.publish(
                EventType.METER_GAP,
                self.live.run.id,
                f"{lines} of more than {MAX_LINE} bytes could not be metered so far",
            )

    def unpriced(self, gaps: PriceGaps, *, replies: bool = False) -> None:
        """These models have no price, as far as that is known yet. `replies`: the replies of their
        calls may tell one."""
        if not self.prices.ready:
            if gaps.unpriced:
                self.prices.load_soon()
            return
        program = self.live.program
        counts = (
            "counts when the agent tells it"
            if program is not None and program.tells_cost
            else "is not counted"
        )
        if names := self._fresh(gaps.unpriced):
            message = (
                f'no price is known of {names}: its cost {counts} (set [prices."MODEL"] in the '
                "config)"
            )
            self.publish(EventType.METER_UNPRICED, self.live.run.id, message)
        for model, like in gaps.estimated.items():
            if name := self._fresh([model]):
                unless = "unless its reply tells a price, or a model that has one, "
                message = (
                    f"no price is known of {name}: {unless if replies else ''}"
                    f"it counts at the price of {like}, until "
                    f'[prices."{name}"] in the config says what it costs (0 if it is free)'
                )
                self.publish(EventType.METER_UNPRICED, self.live.run.id, message)

    def free(self, model: str, why: Literal["local", "config"]) -> None:
        """A model costs nothing."""
        if model in self.live.run.free_models or model in self._free or len(self._free) >= MAX_FREE:
            return
        self._free.add(model)
        name = printable(model, 80) or "a model that is not named"
        words = "local model, free" if why == "local" else "free by the config"
        self.publish(EventType.MODEL_FREE, self.live.run.id, f"{name}: {words}")

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
            message = (
                "the price list could not be loaded before the run ended: "
                "the cost of its tokens is not counted"
            )
            self.publish(EventType.METER_UNPRICED, self.live.run.id, message)


# ---- What the sources tell of the use of one run, told to the core


class MeteredRun:
    """Takes what the meters of a run read, in its stdout and in its session files."""

    def __init__(
        self, live: Live, price_list: PriceList, *, feed: e.Feed, publish: Publish
    ) -> None:
        self.live = live
        self.notices = MeterNotices(live, price_list, publish)
        self.prices = price_list.current
        self._prices_of_readings: tuple[frozenset[str], Prices] = frozenset(), self.prices
        """The models that are free, and the prices with them."""
        self._price_list = price_list
        self._feed = feed
        self._stream: Sequence[Reading] = ()
        self._session: Sequence[Reading] = ()
        self._around: Sequence[Reading] = ()
        self._windows: WindowsTold | None = None
        self._tier = self._provider = ""
        self._said = _NOTHING_SAID

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
        if self.tell_if_silent():
            return
        if self.live.meter_silent:
            self.live.set_meter(silent=False)
        self.live.set_model(most_used_model(readings))
        self._tell("stream", readings)
        latest = readings[-1]
        if latest.tools:
            self._feed(e.ToolsCalled(trio.current_time(), self.live.run.id, tuple(latest.tools)))
        self.notices.skipped(sum(reading.skipped_lines for reading in readings))
        said = _said(latest)
        if said != self._said:
            self._said = said
            self._feed(e.AgentSaid(trio.current_time(), self.live.run.id, *said))

    def tell_if_silent(self) -> bool:
        """Return whether the meter of its stdout has recognised nothing. If so, tell it."""
        if not all(reading.blank for reading in self._stream):
            return False
        self.notices.tell_silent()
        return True

    def read_in_session(self, readings: Sequence[Reading], around: Sequence[Reading] = ()) -> None:
        """Take what its session files tell by now: a reading for each file. `around`: those of
        programs that go around the gateway."""
        self._session, self._around = readings, around
        model = most_used_model(readings)
        tier = next((reading.tier for reading in readings if reading.tier), "")
        provider = next((reading.provider for reading in readings if reading.provider), "")
        named = self.live.model is None and model is not None
        if named or (tier, provider) != (self._tier, self._provider):
            self.live.set_model(model)
            self._tier, self._provider = tier, provider
            if any(not reading.blank for reading in self._stream):
                self._tell("stream", self._stream)  # Codex's events do not name the model
        self._tell("session", readings)
        if around:
            self._tell("around", around)
        self._tell_windows(
            max(
                (reading.windows for reading in readings if reading.windows is not None),
                key=_time_of,
                default=None,
            )
        )

    def _tell_windows(self, told: WindowsTold | None) -> None:
        """Tell what Codex has written of windows. Its file does not say whose that is:
        what the gateway has heard does, or the login, when its root was started."""
        if told is None or told == self._windows:
            return
        self._windows = told
        run = self.live.run
        is_known = run.has_used_windows("openai")
        if run.account.seen_by_gateway is not None and not is_known:
            return  # its calls went to a server that is not believed about windows
        login = run.root.asked.sources.logins.get("openai") or digest(
            f"Codex's login of user {run.birth.uid}"
        )
        # what an agent writes with a date in the future would hide what is heard next
        now = wall_clock().timestamp()
        time = datetime.fromtimestamp(min(max(told.time, 0.0), now), UTC).astimezone()
        seen = m.SeeWindows(
            id=0, run=run.id, provider="openai", time=time.timestamp(),
            login="" if is_known else login, plan_type=told.plan_type,
            windows=list(told.windows), credits=told.credits,
        )  # fmt: skip
        self._feed(e.WindowsSeen(trio.current_time(), time, seen, run.birth.uid, now))

    def price_again(self) -> None:
        """Count what is known at the prices that are known by now."""
        if any(not reading.blank for reading in self._stream):
            self._tell("stream", self._stream)
        if self._session:
            self._tell("session", self._session)
        if self._around:
            self._tell("around", self._around)

    def tell_unloaded(self) -> None:
        """Tell if its cost is not known because the price list is not loaded."""
        if not self._price_list.ready:
            sources = (self._stream, self._session)
            if any(self._use(source)[0].unpriced_tokens for source in sources):
                self.notices.unloaded()

    def _tell(self, source: Source, readings: Sequence[Reading]) -> None:
        run = self.live.run
        use, gaps = self._use(readings)
        if (
            self.live.session_files is not None
            and not self.live.run.account.sources.get("session", NOTHING).tokens
        ):
            gaps.unpriced.pop("", None)  # the session file will name the model
        self.notices.unpriced(gaps)
        known = run.account.sources.get(source, NOTHING)
        if (
            use.unpriced_tokens
            and not self._price_list.ready
            and (use.cost or 0) < (known.cost or 0)
        ):
            # an earlier daemon had prices: keep the cost that it counted while this daemon loads
            # them
            more = use.unpriced_tokens - (known.tokens or 0) + (known.unpriced_tokens or 0)
            use = replace(
                use,
                cost=known.cost,
                cost_from=known.cost_from,
                guessed_cost=known.guessed_cost,
                unpriced_tokens=max(0, more) or None,
            )
        self._feed(e.UseSeen(trio.current_time(), run.id, source, use))

    def _use(self, readings: Sequence[Reading]) -> tuple[Use, PriceGaps]:
        free = self.live.run.free_models
        if free != self._prices_of_readings[0]:
            self._prices_of_readings = frozenset(free), self.prices.with_free(*free)
        prices = self._prices_of_readings[1]
        return use_of_readings(
            readings, prices, self.program, self.live.model, self._tier, self._provider
        )


def _time_of(told: WindowsTold) -> float:
    return told.time


def _said(reading: Reading) -> tuple[bool, str | None, ApiTrouble | None]:
    return reading.finished, reading.failed, reading.trouble


_NOTHING_SAID = _said(Reading())
