"""What runs use, as the shell learns it, in the core's terms.

output files ─▶ Following ─▶ meters ─▶ ┐
session files ─▶ Sessions ────────────▶┤
reports, reservations ─────────────────┼▶ priced ─▶ the core's events
launcher ─▶ Sampler ──────────────────▶┘
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from signal import SIGKILL
from typing import Any

import trio

from ..agents import session_of
from ..config import Price
from ..core import events as e
from ..core.account import NOTHING, Hold, Use
from ..core.guard import counted
from ..core.money import to_nanos
from ..core.run import Run
from ..launch.base import Bounds, Launcher
from ..meters import UNREAD, Program, Reading, chosen, named
from ..meters.base import MAX_LINE
from ..output.files import OutputStore
from ..protocol import messages as m
from ..protocol.kinds import BY_KERNEL, COUNTS, KINDS
from ..protocol.types import Action, ApiTrouble, LimitKind, RunId, Source, Tokens
from ..runs.live import Live, wall_clock
from .pricing import Catalogue, Prices, PricesUnavailable
from .sampling import Sampler
from .sessions import Session, Sessions, environment_of
from .tail import Following

Feed = Callable[[e.Event], None]
Publish = Callable[[str, RunId, str], None]
"""Type of event, run, message."""

LOAD_AGAIN, LOAD_AGAIN_MAX = 1.0, 60.0
"""Seconds between two tries to import the price list, where the machine was short of something: doubled each time."""

PRICES_WAIT = 10.0
"""Seconds that an end waits at most for the price list, which takes 0.2 s to load on an idle machine."""

ENDED_SECONDS = 2.0
"""Seconds of reading what runs wrote that ended while no daemon was there, all of them together, before a daemon serves: 20 MB of
the densest lines there are."""

MAX_UNPRICED = 16
"""Models without a price that are named for one run."""

_WATCHED = tuple(kind for kind in BY_KERNEL if KINDS[kind].acts)


Said = tuple[bool, str | None, ApiTrouble | None]
"""Whether the final result is out, why the agent failed, whether it cannot reach its model."""


@dataclass(slots=True)
class _Metered:
    live: Live
    prices: Prices
    """Those that were in force when it began."""
    readings: tuple[Reading, ...] = ()
    session: tuple[Reading, ...] = ()
    """From the agent's session files."""
    said: Said = (False, None, None)
    skipped: int = 0
    """Lines of which it has been said that they were not read."""
    unpriced: set[str] = field(default_factory=set)
    """Models of which it has been said that they have no price."""
    unloaded: bool = False
    """It has been said that the price list could not be loaded."""


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
        self._catalogue = Catalogue()
        self._prices = Prices(prices, self._catalogue)
        self._following = Following(output, seen=self._seen, lost=self._lost, trouble=trouble)
        self._sessions = Sessions(seen=self._session_seen, lost=self._session_lost, trouble=trouble)
        self._sampler = Sampler(launcher, self._level_seen, nearing=nearing)
        self._nursery: trio.Nursery
        self._loading = False

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follows what runs write, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await self._nursery.start(self._following.serve)
            await self._nursery.start(self._sessions.serve)
            task_status.started()

    async def sample(self) -> None:
        """Watch memory and processes, until cancelled."""
        await self._sampler.serve()

    def close(self) -> None:
        """Gives back every descriptor."""
        self._following.close()

    def reconfigure(self, prices: Mapping[str, Price], nearing: float) -> None:
        """Other prices for the runs that begin from now on, and another share for all."""
        self._prices = Prices(prices, self._catalogue)
        self._sampler.nearing = nearing

    # ---- the life of a run

    def begin_attempt(self, live: Live) -> None:
        """Before each attempt is launched."""
        run = live.run
        if run.id not in self._runs:
            self._begin(live)
        self._following.begin_attempt(run.id)
        live.attempted_at, live.sessions = wall_clock(), self._sessions.told(run.id)
        self._find_session(live)

    def take_over(self, live: Live, position: bytes | None) -> None:
        """Goes on with a run that an earlier daemon has launched; `position` is what `position` said there."""
        self._begin(live, position, fresh=False)
        self._find_session(live)
        for reading in self._runs[live.run.id].readings[-1:]:
            self._sessions.name(live.run.id, reading.session)
        self._following.look(live.run.id)

    def position(self, run: RunId) -> bytes | None:
        """Where the run's meter is, for who goes on; `None` if it has none."""
        return self._following.saved(run)

    def _begin(self, live: Live, position: bytes | None = None, *, fresh: bool = True) -> None:
        run, program = live.run, live.program
        metered = self._runs[run.id] = _Metered(live, self._prices)
        if live.kept:
            limit = run.limits.get(LimitKind.OUTPUT)
            argv = run.asked.argv
            readings = self._following.follow(
                run.id,
                limit=int(limit.limit.threshold) if limit is not None else None,
                meter=(lambda saved: program.meter(argv, saved)) if program is not None else None,
                saved=position,
            )
            metered.readings = readings or ()
            metered.said = _said(readings[-1]) if readings else metered.said
        self._sample(run, fresh=fresh)
        if program is not None or live.session_files is not None:
            self._load_soon()

    def _find_session(self, live: Live) -> None:
        files, run = live.session_files, live.run
        began = live.attempted_at or live.started_at or live.created_at
        if files is not None:
            env = environment_of(live.spawn.env)
            given = session_of(live.spawn.session, run.attempt) if live.spawn.session is not None else files.named(run.asked.argv)
            session = Session(files, run.asked.argv, env, run.asked.cwd, run.uid, began, given)
            self._sessions.begin(run.id, session, live.sessions)

    def _sample(self, run: Run, *, fresh: bool = False) -> None:
        for kind in _WATCHED:
            held = run.limits.get(kind)
            if held is not None:
                self._sampler.watch(run.id, kind.value, held.limit.threshold, fresh=fresh)

    def catch_up(self, run: Run, signal: int | None = None) -> None:
        """Learns what is left to be learnt before the core decides about the end of a run, or of an attempt, and of what is
        below it. `signal` ended the main process: it may have been the kernel's answer to a limit of the run or of an ancestor."""
        metered = [each.id for each in run.subtree() if self._has_meter(each.id)]
        if metered:
            self._following.drain(metered)
        for name in metered:
            self._say_unloaded(self._runs[name])
        if run.id in metered and _blank(self._runs[run.id].readings):
            self._say_silent(self._runs[run.id])
        if signal == SIGKILL:
            for above in run.lineage:
                for kind in self._launcher.breaches(above.id):
                    self._level_seen(above.id, kind, 0, refused=True)

    def may_wait(self, run: Run) -> bool:
        """Whether `settle` has anything to wait for."""
        loads = not self._catalogue.settled and any(self._has_meter(each.id) for each in run.subtree())
        return loads or run.id in self._sessions

    async def settle(self, run: Run, *, succeeded: bool) -> None:
        """Wait for what the core must know before it decides about the end of a run: what its session says, and the prices of its
        tokens. `succeeded`: its main process exited with 0."""
        await self._sessions.catch_up(run.id, succeeded=succeeded)
        if not self._catalogue.settled and self.may_wait(run):
            await self._load_for_an_end()

    @property
    def waiting(self) -> int:
        """Threads that wait for file systems of agents."""
        return self._sessions.waiting

    async def read_ended(self, runs: Sequence[Run]) -> tuple[e.Event, ...]:
        """Read to its end what these runs, which ended while no daemon was there, and their agents have written. Returns what the
        core is to know before it decides about them."""
        ended = [run.id for run in runs if self._has_meter(run.id)]
        learnt: list[e.Event] = []
        feed, self._feed = self._feed, learnt.append
        try:
            for run in ended:
                self._following.drain((run,), seconds=ENDED_SECONDS)
                await self._sessions.catch_up(run)
            if ended and not self._catalogue.settled:
                await self._load_for_an_end()
        finally:
            self._feed = feed
        return tuple(learnt)

    def _has_meter(self, run: RunId) -> bool:
        live = self._runs[run].live if run in self._runs else None
        return live is not None and (live.program is not None or live.session_files is not None)

    def look_after(self) -> None:
        """Another process may have removed or replaced the directory of all output."""
        self._following.look_after()

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
        if run in self._runs:
            self._following.forget(run)  # which may have a last word
            self._sessions.forget(run)
            self._sampler.forget(run)
            del self._runs[run]

    # ---- from the kernel

    def _level_seen(self, run: RunId, kind: str, used: int, refused: bool) -> None:
        self._feed(e.LevelSeen(trio.current_time(), run, LimitKind(kind), used, refused))

    # ---- from the stream

    def _seen(self, run: RunId, readings: tuple[Reading, ...]) -> None:
        metered = self._runs.get(run)
        if metered is None:
            return
        metered.readings = readings
        if _blank(readings):
            self._say_silent(metered)
            return
        self._heard(metered)
        metered.live.model = _most_used(readings) or metered.live.model
        self._stream_told(metered)
        latest = readings[-1]
        self._sessions.name(run, latest.session)
        if latest.tools:
            self._feed(e.ToolsCalled(trio.current_time(), run, tuple(latest.tools)))
        skipped = sum(reading.skipped_lines for reading in readings)
        if skipped and skipped >= 2 * metered.skipped:
            # an agent could write such lines all night, and each word about them is a row of the ledger
            metered.skipped = skipped
            self._publish("meter_gap", run, f"{counted(skipped, 'line')} of more than {MAX_LINE} bytes could not be metered so far")
        said = _said(latest)
        if said != metered.said:
            metered.said = said
            self._feed(e.AgentSaid(trio.current_time(), run, *said))

    def _session_seen(self, run: RunId, readings: tuple[Reading, ...]) -> None:
        metered = self._runs.get(run)
        if metered is not None:
            metered.session = readings
            metered.live.model = metered.live.model or _most_used(readings)
            self._session_told(metered)

    def _stream_told(self, metered: _Metered) -> None:
        self._told(metered, "stream", metered.readings)

    def _session_told(self, metered: _Metered) -> None:
        self._told(metered, "session", metered.session)

    def _told(self, metered: _Metered, source: Source, readings: Sequence[Reading]) -> None:
        run, use = metered.live.run, self._use_of(metered, readings)
        known = run.account.sources.get(source, NOTHING)
        if use.unpriced_tokens and not self._catalogue.settled and (use.cost or 0) < (known.cost or 0):
            # an earlier daemon had prices: what the run had cost by then is not taken back while this one loads them
            more = use.unpriced_tokens - (known.tokens or 0) + (known.unpriced_tokens or 0)
            use = replace(use, cost=known.cost, cost_from=known.cost_from, unpriced_tokens=max(0, more) or None)
        self._feed(e.UseSeen(trio.current_time(), run.id, source, use))

    def _say_silent(self, metered: _Metered) -> None:
        """Nothing that the meter knows is in what the run prints. One that was chosen by the command alone is left in peace: its
        agent may have failed before it printed any event."""
        live = metered.live
        if live.program is None or live.spawn.meter is None or live.meter_silent:
            return
        live.meter_silent, live.unused = True, None
        self._publish(
            "meter_silent", live.run.id,
            f"the meter {live.program.name} recognises nothing in what the run prints: its turns, messages, tokens and cost are "
            "NOT ENFORCEABLE. Have the agent print JSON events, or name another --meter",
        )  # fmt: skip

    def _heard(self, metered: _Metered) -> None:
        if metered.live.meter_silent:
            metered.live.meter_silent, metered.live.unused = False, None

    def _session_lost(self, run: RunId, message: str) -> None:
        live = self._runs[run].live
        if live.program is None:
            live.meter_silent, live.unused = True, None
        self._publish("meter_silent", run, message)

    def _lost(self, run: RunId, message: str) -> None:
        self._publish("meter_gap", run, message)

    def _use_of(self, metered: _Metered, readings: Sequence[Reading]) -> Use:
        total = NOTHING
        for reading in readings:
            total = total.plus(self._use_of_attempt(metered, reading))
        return total

    def _use_of_attempt(self, metered: _Metered, reading: Reading) -> Use:
        told = reading.models.values()
        price, unpriced = self._price_of(metered, reading)
        cost = reading.cost_usd if price is None else price + (reading.cost_usd or 0.0)
        return Use(
            **_counts(reading),
            input_tokens=sum(tokens.input for tokens in told) if told else None,
            output_tokens=sum(tokens.output for tokens in told) if told else None,
            cached_tokens=sum(tokens.cached for tokens in told) if told else None,
            cost=to_nanos(cost),
            cost_from=None if cost is None else "agent" if price is None else "prices",
            unpriced_tokens=unpriced or None,
            partial=reading.partial,
        )

    def _price_of(self, metered: _Metered, reading: Reading) -> tuple[float | None, int]:
        """What the tokens whose cost the agent has not told come to, and how many of them have no price: those are said, and
        never counted as 0 USD."""
        # these are sums over messages; what one of them cost depends on how long it was
        each = max(1, reading.messages or 1)
        known: list[float] = []
        unpriced: dict[str, int] = {}
        for model, tokens in reading.to_price.items():
            if not tokens.input and not tokens.output:
                continue
            cost = metered.prices.cost(model, tokens, request_input=tokens.input // each)
            if cost is None:
                unpriced[model] = tokens.input + tokens.output
            else:
                known.append(cost)
        self._say_unpriced(metered, unpriced)
        return (sum(known) if known else None), sum(unpriced.values())

    def _say_unpriced(self, metered: _Metered, models: Mapping[str, int]) -> None:
        fresh = [model for model in models if model not in metered.unpriced]
        if not fresh:
            return
        if not self._catalogue.settled:
            self._load_soon()
            return
        if len(metered.unpriced) >= MAX_UNPRICED:
            return
        metered.unpriced.update(fresh)
        names = ", ".join(model[:80] or "a model that is not named" for model in fresh[:4])
        self._publish(
            "meter_unpriced", metered.live.run.id,
            f"no price is known of {names}: {self._unpriced_until(metered.live)} (set [prices.\"MODEL\"] in the config)",
        )  # fmt: skip

    def _say_unloaded(self, metered: _Metered) -> None:
        """The run's end has waited for the price list in vain."""
        sources = (metered.readings, metered.session)
        if self._catalogue.settled or metered.unloaded or not any(self._use_of(metered, each).unpriced_tokens for each in sources):
            return
        metered.unloaded = True
        message = "the price list could not be loaded before it ended: what its tokens cost is not counted"
        self._publish("meter_unpriced", metered.live.run.id, message)

    @staticmethod
    def _unpriced_until(live: Live) -> str:
        if live.program is not None and live.program.tells_cost:
            return "its cost counts when the agent tells it"
        return "its cost is not counted"

    # ---- prices

    def _load_soon(self) -> None:
        if not self._catalogue.settled and not self._loading:
            self._loading = True
            self._nursery.start_soon(self._load)

    async def _load(self) -> None:
        pause = LOAD_AGAIN
        try:
            while await self._not_loaded() is not None and not self._catalogue.settled:
                await trio.sleep(pause)
                pause = min(2 * pause, LOAD_AGAIN_MAX)
        finally:
            self._loading = False
        self._price_again()

    async def _load_for_an_end(self) -> None:
        """Without the list an end has to go on: what is then not priced is said of each run."""
        with trio.move_on_after(PRICES_WAIT):
            await self._not_loaded()
        self._price_again()

    def _price_again(self) -> None:
        for metered in list(self._runs.values()):
            if not _blank(metered.readings):
                self._stream_told(metered)
            if metered.session:
                self._session_told(metered)

    async def _not_loaded(self) -> str | None:
        """Loads the price list; why that cannot be."""
        try:
            await self._catalogue.load()
        except PricesUnavailable as error:
            self._trouble(f"{error}; costs are computed from the config's [prices] alone")
            return str(error)
        return None

    def when_priced(self, run: RunId, model: str | None, then: Callable[[], None], unsure: Callable[[str], None]) -> None:
        """Calls `then` once the price of a model can be told or is known not to be there, which is now unless the price list
        has still to be loaded; `unsure`, with the reason, if that cannot be known now."""
        if model is None or self._catalogue.settled or self._prices_of(run).cost(model, Tokens()) is not None:
            then()
        else:
            self._nursery.start_soon(self._wait_for_prices, then, unsure)

    async def _wait_for_prices(self, then: Callable[[], None], unsure: Callable[[str], None]) -> None:
        why = await self._not_loaded()
        if why is None or self._catalogue.settled:
            then()
        else:
            unsure(why)

    def _prices_of(self, run: RunId) -> Prices:
        metered = self._runs.get(run)
        return metered.prices if metered is not None else self._prices

    # ---- reports and reservations

    def use_of_report(self, run: RunId, request: m.Report) -> Use:
        """What a report adds."""
        tokens = Tokens(
            input=request.input_tokens or 0,
            output=request.output_tokens or 0,
            cached=request.cached_tokens or 0,
            cache_write=request.cache_write_tokens or 0,
        )
        if request.model is not None and (metered := self._runs.get(run)) is not None:
            metered.live.model = request.model
        cost = request.cost_usd
        unpriced = False
        if cost is None and tokens.input + tokens.output:
            cost = self._priced(run, request.model, tokens)
            unpriced = cost is None
        nanos = to_nanos(cost)
        return Use(
            **_counts(request),
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            cached_tokens=request.cached_tokens,
            cost=nanos,
            cost_from=None if cost is None else "prices" if request.cost_usd is None else "agent",
            planning_cost=nanos if request.role == "planning" else None,
            execution_cost=nanos if request.role == "execution" else None,
            unpriced_tokens=tokens.input + tokens.output if unpriced else None,
        )

    def hold_of(self, run: RunId, request: m.Reserve) -> Hold:
        """What a reservation holds."""
        tokens = Tokens(input=request.input_tokens, output=request.max_output_tokens)
        cost = self._priced(run, request.model, tokens)
        return Hold(request.model, request.input_tokens, request.max_output_tokens, to_nanos(cost), request.role)

    def use_of_settlement(self, run: RunId, hold: Hold, request: m.Settle) -> Use:
        """What was used instead of what was held."""
        return self.use_of_report(
            run,
            m.Report(
                id=request.id,
                model=hold.model,
                **_counts(request),
                input_tokens=request.input_tokens,
                output_tokens=request.output_tokens,
                cached_tokens=request.cached_tokens or None,
                cache_write_tokens=request.cache_write_tokens or None,
                cost_usd=request.cost_usd,
                role=hold.role,
            ),
        )

    def _priced(self, run: RunId, model: str | None, tokens: Tokens) -> float | None:
        cost = self._prices_of(run).cost(model, tokens) if model is not None else None
        metered = self._runs.get(run)
        if cost is None and metered is not None:
            self._say_unpriced(metered, {model or "": 1})
        return cost


def _counts(told: Reading | m.Report | m.Settle) -> dict[str, Any]:
    return {name: getattr(told, name) for name in COUNTS}


def _most_used(readings: Iterable[Reading]) -> str | None:
    tokens: Counter[str] = Counter()
    for reading in readings:
        for model, used in reading.models.items():
            tokens[model] += used.input + used.output
    return max(filter(None, tokens), key=tokens.__getitem__, default=None)


def _blank(readings: Sequence[Reading]) -> bool:
    return all(reading.blank for reading in readings)


def _said(reading: Reading) -> Said:
    return reading.finished, reading.failed, reading.trouble


def program_of(meter: str | None, argv: Sequence[str], *, kept: bool) -> Program | None:
    """The program whose stream the run's stdout is, if any. Raises `ValueError` for a meter that there is not."""
    if meter in UNREAD or (meter is None and not kept):
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
