"""What runs use, as the shell learns it, in the core's terms.

output files ─▶ Following ─▶ meters ─▶ ┐
reports, reservations ─────────────────┼▶ priced ─▶ the core's events
launcher ─▶ Sampler ──────────────────▶┘
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from signal import SIGKILL

import trio

from ..config import Price
from ..core import events as e
from ..core.guard import counted
from ..core.run import Run
from ..core.usage import Hold, Use
from ..launch.base import Bounds, Launcher
from ..meters import Program, Reading, chosen, named
from ..meters.base import MAX_LINE
from ..output.files import OutputStore
from ..pricing import Prices, PricesUnavailable
from ..protocol import messages as m
from ..protocol.types import Action, LimitKind, RunId, Tokens
from .following import Following
from .live import Live
from .sampling import Sampler

Feed = Callable[[e.Event], None]
Publish = Callable[[str, RunId, str], None]
"""Type of event, run, message."""

NO_METER = "none"
"""What `--meter` says for none."""

_WATCHED = (LimitKind.MEMORY, LimitKind.PIDS)


@dataclass(slots=True)
class _Metered:
    live: Live
    reading: Reading | None = None
    said: tuple[bool, str | None] = (False, None)
    skipped: int = 0
    """Lines of which it has been said that they were not read."""
    unpriced: bool = False
    """It has been said that a model of this run has no price."""


class Metering:
    """Follows output, samples processes and memory, prices tokens. `publish` is for what no decision hangs on."""

    def __init__(
        self,
        *,
        feed: Feed,
        publish: Publish,
        trouble: Callable[[str], None],
        output: OutputStore,
        launcher: Launcher,
        prices: Mapping[str, Price],
        nearing: float,
    ) -> None:
        self._feed = feed
        self._publish = publish
        self._trouble = trouble
        self._launcher = launcher
        self._runs: dict[RunId, _Metered] = {}
        self._prices = Prices(prices)
        self._following = Following(output, seen=self._seen, lost=self._lost, trouble=trouble)
        self._sampler = Sampler(launcher, self._level_seen, nearing=nearing)
        self._nursery: trio.Nursery
        self._loading = False

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follows and samples, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await self._nursery.start(self._following.serve)
            self._nursery.start_soon(self._sampler.serve)
            task_status.started()

    def close(self) -> None:
        """Gives back every descriptor."""
        self._following.close()

    def reconfigure(self, prices: Mapping[str, Price], nearing: float) -> None:
        """Other prices and another share, for what is used from now on."""
        loaded = self._prices.loaded
        self._prices = Prices(prices)
        self._sampler.nearing = nearing
        if loaded:
            self._load_soon()

    # ---- the life of a run

    def begin_attempt(self, live: Live) -> None:
        """Before each attempt is launched."""
        run = live.run
        if run.id not in self._runs:
            self._begin(live)
        self._following.begin_attempt(run.id)

    def _begin(self, live: Live) -> None:
        run, program = live.run, live.program
        self._runs[run.id] = _Metered(live)
        if live.kept:
            limit = run.limits.get(LimitKind.OUTPUT)
            argv = run.asked.argv
            self._following.follow(
                run.id,
                limit=int(limit.limit.threshold) if limit is not None else None,
                meter=(lambda: program.meter(argv)) if program is not None else None,
            )
        self._sample(run, fresh=True)
        if program is not None:
            self._load_soon()

    def _sample(self, run: Run, *, fresh: bool = False) -> None:
        for kind in _WATCHED:
            held = run.limits.get(kind)
            if held is not None:
                self._sampler.watch(run.id, kind.value, held.limit.threshold, fresh=fresh)

    def catch_up(self, run: Run, signal: int | None = None) -> None:
        """Learns what is left to be learnt before the core decides about the end of a run, or of an attempt, and of what is
        below it. `signal` ended the main process: it may have been the kernel's answer to a limit of the run or of an ancestor."""
        for each in run.subtree():
            if each.id in self._runs:
                self._following.drain(each.id)
        if signal == SIGKILL:
            for above in run.lineage:
                for kind in self._launcher.breaches(above.id):
                    self._level_seen(above.id, kind, 0, refused=True)

    def rebound(self, run: Run) -> None:
        """The run's limits have changed."""
        if run.id not in self._runs:
            return
        output = run.limits.get(LimitKind.OUTPUT)
        self._following.set_limit(run.id, int(output.limit.threshold) if output is not None else None)
        self._sample(run)
        self._launcher.bound(run.id, bounds_of(run))

    def forget(self, run: RunId) -> None:
        """Nothing of the run is alive any more."""
        if self._runs.pop(run, None) is not None:
            self._following.forget(run)
            self._sampler.forget(run)

    # ---- from the kernel

    def _level_seen(self, run: RunId, kind: str, used: int, refused: bool) -> None:
        self._feed(e.LevelSeen(trio.current_time(), run, LimitKind(kind), used, refused))

    # ---- from the stream

    def _seen(self, run: RunId, reading: Reading) -> None:
        metered = self._runs.get(run)
        if metered is None:
            return
        metered.reading = reading
        self._feed(e.UseSeen(trio.current_time(), run, "stream", self._use_of(metered, reading)))
        if reading.tools:
            self._feed(e.ToolsCalled(trio.current_time(), run, tuple(reading.tools)))
        if reading.skipped_lines > metered.skipped:
            lines, metered.skipped = reading.skipped_lines - metered.skipped, reading.skipped_lines
            self._publish("meter_gap", run, f"{counted(lines, 'line')} of more than {MAX_LINE} bytes could not be metered")
        said = (reading.finished, reading.failed)
        if said != metered.said:
            metered.said = said
            self._feed(e.AgentSaid(trio.current_time(), run, *said))

    def _lost(self, run: RunId, count: int) -> None:
        self._publish("meter_gap", run, f"{count} bytes of its stdout were freed before its meter read them")

    def _use_of(self, metered: _Metered, reading: Reading) -> Use:
        told = reading.models.values()
        cost, origin = reading.cost_usd, "agent"
        if cost is None:
            cost, origin = self._cost_of(metered, reading), "prices"
        return Use(
            turns=reading.turns,
            messages=reading.messages,
            input_tokens=sum(tokens.input for tokens in told) if told else None,
            output_tokens=sum(tokens.output for tokens in told) if told else None,
            cached_tokens=sum(tokens.cached for tokens in told) if told else None,
            cost=cost,
            cost_from=None if cost is None else "agent" if origin == "agent" else "prices",
        )

    def _cost_of(self, metered: _Metered, reading: Reading) -> float | None:
        """The sum of what has a price: what has none is said, once, and never counted as 0."""
        if not reading.models:
            return None
        # tokens are sums over messages; the price of one depends on how long that was
        each = max(1, reading.messages or 1)
        costs = {
            model: self._prices.cost(model, tokens, request_input=tokens.input // each) for model, tokens in reading.models.items()
        }
        known = [cost for cost in costs.values() if cost is not None]
        if len(known) < len(costs):
            self._say_unpriced(metered, [model for model, cost in costs.items() if cost is None])
        return sum(known) if known else None

    def _say_unpriced(self, metered: _Metered, models: Sequence[str]) -> None:
        if metered.unpriced or not self._settled:
            return
        metered.unpriced = True
        names = ", ".join(model[:80] or "a model that its output does not name" for model in models[:4])
        self._publish(
            "meter_unpriced", metered.live.run.id,
            f"no price is known of {names}: its cost is not counted (set [prices.\"MODEL\"] in the config)",
        )  # fmt: skip

    # ---- prices

    @property
    def _settled(self) -> bool:
        """Whether it is known what the library knows."""
        return self._prices.loaded or self._prices.failure is not None

    def _load_soon(self) -> None:
        if not self._settled and not self._loading:
            self._loading = True
            self._nursery.start_soon(self._load)

    async def _load(self) -> None:
        try:
            await self._prices.load()
        except PricesUnavailable as error:
            self._trouble(f"{error}; costs are computed from the config's [prices] alone")
        self._loading = False
        for run, metered in list(self._runs.items()):
            if metered.reading is not None and metered.reading.models:
                use = self._use_of(metered, metered.reading)
                self._feed(e.UseSeen(trio.current_time(), run, "stream", use))

    def when_priced(self, model: str | None, then: Callable[[], None]) -> None:
        """Calls `then` when the price of a model can be told, which is now unless prices have still to be loaded."""
        if model is None or self._settled or self._prices.cost(model, Tokens()) is not None:
            then()
        else:
            self._nursery.start_soon(self._wait_for_prices, then)

    async def _wait_for_prices(self, then: Callable[[], None]) -> None:
        try:
            await self._prices.load()
        except PricesUnavailable as error:
            self._trouble(f"{error}; costs are computed from the config's [prices] alone")
        then()

    def use_of_report(self, run: RunId, request: m.Report) -> Use:
        """What a report adds."""
        tokens = Tokens(
            input=request.input_tokens or 0,
            output=request.output_tokens or 0,
            cached=request.cached_tokens or 0,
            cache_write=request.cache_write_tokens or 0,
        )
        told = any(n is not None for n in (request.input_tokens, request.output_tokens))
        cost = request.cost_usd if request.cost_usd is not None else self._priced(run, request.model, tokens) if told else None
        return Use(
            turns=request.turns,
            messages=request.messages,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            cached_tokens=request.cached_tokens,
            cost=cost,
            cost_from=None if cost is None else "agent" if request.cost_usd is not None else "prices",
            planning_cost=cost if request.role == "planning" else None,
            execution_cost=cost if request.role == "execution" else None,
        )

    def hold_of(self, run: RunId, request: m.Reserve) -> Hold:
        """What a reservation holds."""
        tokens = Tokens(input=request.input_tokens, output=request.max_output_tokens)
        cost = self._priced(run, request.model, tokens)
        return Hold(request.model, request.input_tokens, request.max_output_tokens, cost, request.role)

    def use_of_settlement(self, run: RunId, hold: Hold, request: m.Settle) -> Use:
        """What was used instead of what was held."""
        return self.use_of_report(
            run,
            m.Report(
                id=request.id,
                model=hold.model,
                turns=request.turns,
                messages=request.messages,
                input_tokens=request.input_tokens,
                output_tokens=request.output_tokens,
                cached_tokens=request.cached_tokens or None,
                cache_write_tokens=request.cache_write_tokens or None,
                cost_usd=request.cost_usd,
                role=hold.role,
            ),
        )

    def _priced(self, run: RunId, model: str | None, tokens: Tokens) -> float | None:
        cost = self._prices.cost(model, tokens) if model is not None else None
        metered = self._runs.get(run)
        if cost is None and metered is not None:
            self._say_unpriced(metered, [model or ""])
        return cost


def program_of(meter: str | None, argv: Sequence[str], *, kept: bool) -> Program | None:
    """The program whose stream the run's stdout is, if any. Raises `ValueError` for a meter that there is not."""
    if meter == NO_METER or (meter is None and not kept):
        return None
    if meter is None:
        return chosen(argv)
    program = named(meter)
    if program is None:
        raise ValueError(f"there is no meter '{meter}'")
    return program


def bounds_of(run: Run) -> Bounds:
    """What the kernel is to enforce: limits that terminate, and cores. It may not take from a run that is only to be warned."""
    memory, pids, cpu = (run.limits.get(kind) for kind in (LimitKind.MEMORY, LimitKind.PIDS, LimitKind.CPU))
    return Bounds(
        memory=int(memory.limit.threshold) if memory is not None and memory.action is Action.TERMINATE else None,
        pids=int(pids.limit.threshold) if pids is not None and pids.action is Action.TERMINATE else None,
        cpu=cpu.limit.threshold if cpu is not None else None,
    )
