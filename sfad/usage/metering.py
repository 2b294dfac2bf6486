"""The interface of the package: what the loop calls in the life of a run and of the daemon."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from math import ceil
from signal import SIGKILL

import psutil
import trio
from msgspec import Struct, field

from ..agents import SESSION_VARIABLES, UNREAD, AgentProgram, Reading, chosen, named
from ..agents.program import is_session_id
from ..agents.registered import session_of
from ..config import Price
from ..core import events as e
from ..core.events import AgentProcess, CallPrice
from ..core.state.account import OpenReservation, Use
from ..core.state.money import to_nanos
from ..core.state.naming import is_launcher
from ..core.state.run import Run
from ..host.clock import wall_clock
from ..processes import kernel, observed
from ..processes.launcher import Launcher
from ..protocol import messages as m
from ..protocol.event_types import EventType
from ..protocol.known import NO_METER
from ..protocol.types import LimitKind, Modality, RunId, Tokens
from ..runs.live import Live, bounds_of
from ..storage.output.files import OutputFiles
from .metered_run import (
    MeteredRun,
    PriceGaps,
    Publish,
    report_of_settlement,
    reservation_of,
    use_of_report,
)
from .pricing import Cost, PriceList, Prices
from .sampling import KernelLevels
from .sessions import Session, Sessions
from .silence import Signs, SilenceWatch
from .tail import Tail

# ---- What agents report and reserve, and model calls of the gateway, with their price


class NotedCalls(Struct, frozen=True):
    """What the gateway of a user, or the service's own, has noted of its calls."""

    gateway_uid: int | None
    calls: Sequence[m.EndCall]
    complete: bool
    """No other call was sent."""


_UNSENT = "the gateway was killed before it was sent; it costs nothing"
MAX_ANSWERS = 1000
"""Names without a price whose answers are remembered: an agent can invent any number."""
_COMPARED = Tokens(input=10_000, output=1000)


class UsePricing(Struct, frozen=True):
    """Uses the prices that a run began with. A run that has not been launched has none yet."""

    runs: Mapping[RunId, MeteredRun]
    price_list: PriceList
    _answers: dict[tuple[int, str, str], str] = field(default_factory=dict)
    """The dearest model that has answered for a name without a price, such as a deployment's: by
    user, upstream and name."""

    def use_of_report(self, run: RunId, request: m.Report) -> Use:
        use, gaps = use_of_report(request, self._prices(run), self._program(run))
        if run in self.runs:
            self.runs[run].live.set_model(request.model)
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
        if request.run in self.runs:
            self.runs[request.run].live.set_provider(request.upstream)
        prices, size = self._call_prices(request), request.input_tokens
        most, model = size + request.more_input, prices.charged_as(request.model, request.api)
        if not prices.knows(request.model):
            model = self._answers.get(self._asked(request, request.upstream), model)
        usual = most if request.likely_more is None else size + request.likely_more

        def cost(tokens: int, media: Mapping[Modality, int]) -> float | None:
            text = max(0, tokens - sum(media.values()))
            written = text if request.caches else 0
            return prices.cost(
                model,
                Tokens(
                    input=tokens,
                    cache_write=written,
                    long_write=written if request.long_cache else 0,
                    modes={mode: Tokens(input=count) for mode, count in media.items()},
                ),
            )

        media = request.most_media or request.media
        likely, more, dearest = cost(size, request.media), cost(usual, media), cost(most, media)
        million = prices.output_million(model, usual, text_only=request.text_only)
        if likely is None or more is None or dearest is None or million is None:
            return CallPrice(None)

        def beyond(cost: float) -> int:
            return to_nanos(request.factor * max(0.0, cost - likely) + request.fees_usd)

        estimated = model != request.model
        if estimated and request.run in self.runs:
            gaps = PriceGaps(estimated={request.model: model})
            self.runs[request.run].notices.unpriced(gaps, replies=True)
        return CallPrice(
            to_nanos(request.factor * likely),
            ceil(request.factor * million * 1000),
            beyond(dearest),
            estimated=estimated,
            likely_more_cost=beyond(more) if request.likely_more is not None else None,
        )

    def settled(self, at: float, request: m.EndCall, reservation: OpenReservation) -> e.CallSettled:
        used = self.use_of_call(request, reservation)
        if reservation.call is not None:
            self._note_answer(request, reservation.call.upstream)
        return e.CallSettled(at, request, used, self.price_of_reply(request)[0])

    def _asked(self, request: m.AdmitCall | m.EndCall, upstream: str) -> tuple[int, str, str]:
        # a tree's person says where its upstreams lead, so one user's reply tells others nothing
        metered = self.runs.get(request.run)
        return metered.live.uid if metered is not None else -1, upstream, request.model

    def _note_answer(self, request: m.EndCall, upstream: str) -> None:
        """Remember which model has answered for a name without a price."""
        prices = self._call_prices(request)
        if prices.knows(request.model) or not prices.knows(request.served):
            return
        asked = self._asked(request, upstream)
        answers = [request.served, self._answers.get(asked, request.served)]
        self._answers.pop(asked, None)
        self._answers[asked] = max(answers, key=lambda model: prices.cost(model, _COMPARED) or 0.0)
        if len(self._answers) > MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]

    def settled_noted(
        self, at: float, noted: NotedCalls, reservations: Mapping[str, OpenReservation]
    ) -> Iterator[e.CallSettled]:
        """Yield the calls that a gateway had under way: for what had passed by what it has noted,
        for nothing if it has not noted that it sends one. A call whose price was known, and is not
        now, counts as reserved."""
        ends = {end.reservation: end for end in noted.calls}
        for name, reservation in reservations.items():
            if reservation.source != "gateway" or reservation.gateway_uid != noted.gateway_uid:
                continue
            if (end := ends.get(name)) is not None:
                settled = self.settled(at, end, reservation)
                if settled.used.cost is not None or reservation.cost is None:
                    yield settled
            elif noted.complete:
                unsent = m.EndCall(
                    id=0, run=name.rpartition("-")[0], reservation=name, model=reservation.model,
                    tokens=Tokens(), error=_UNSENT,
                )  # fmt: skip
                yield e.CallSettled(at, unsent, Use())

    def use_of_call(self, request: m.EndCall, reservation: OpenReservation) -> Use:
        """Return what a call has used; what was reserved for it where its reply could not be
        read."""
        if request.run in self.runs:
            self.runs[request.run].live.set_model(request.model)
        if request.tokens is None:
            return reservation.use
        tokens, found = request.tokens, _cost_of_call(request, self._call_prices(request))
        cost = None if found is None else found.usd
        sure = tokens if request.sure is None else request.sure
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
            unsure_cost=None
            if found is None
            else max(0, to_nanos(found.usd) - to_nanos(found.sure)) or None,
            partial=request.partial,
            estimated=self.price_of_reply(request)[1],
        )

    def price_of_reply(self, request: m.EndCall) -> tuple[str | None, bool]:
        """Return where the price of a call is from: `reply`, or the model at whose price it counts;
        and whether that stands in for another one."""
        if request.tokens is None or not request.tokens.input + request.tokens.output:
            return None, False
        if request.cost_usd is not None:
            return "reply", False
        prices, tokens = self._call_prices(request), request.tokens
        names = _priced_names(request, prices)
        dearest = max(names, key=lambda name: prices.cost(name, tokens) or 0.0)
        cost = prices.price(dearest, tokens)
        stands_in = dearest not in {request.model, request.served}
        stands_in |= not all(map(prices.knows, request.others))
        estimated = stands_in or (cost is not None and cost.sure < cost.usd)
        return prices.source(dearest), estimated

    def when_known(
        self, run: RunId, model: str | None, then: Callable[[], None], unsure: Callable[[str], None]
    ) -> None:
        """Call `then` when the price of a model is known, or known to be unknown: now, unless the
        price list must be loaded first. Call `unsure` with the reason if it cannot be loaded
        now."""
        self.price_list.when_known(self._prices(run), model, then, unsure)

    def _call_prices(self, call: m.AdmitCall | m.EndCall) -> Prices:
        """Return the prices that count for a call, and tell of a free one."""
        prices = self._prices(call.run).at(call.url)
        if call.free is None:
            return prices
        if call.run in self.runs:
            self.runs[call.run].notices.free(call.model, call.free)
        served = call.served if isinstance(call, m.EndCall) else ""
        return prices.with_free(call.model, served or call.model)

    def _prices(self, run: RunId) -> Prices:
        return self.runs[run].prices if run in self.runs else self.price_list.current

    def _program(self, run: RunId) -> str | None:
        return self.runs[run].program if run in self.runs else None


def _priced_names(request: m.EndCall, prices: Prices) -> list[str]:
    """Return the models at whose prices a call may count: that which has answered and that which
    was asked for, as far as they have a price; else a stand-in."""
    if request.free is not None:
        return [request.model]
    names = list(dict.fromkeys((request.served or request.model, request.model)))
    # what the config says of one counts before the list price of the other
    known = [name for name in names if prices.owns(name)] or list(filter(prices.knows, names))
    return known or [prices.charged_as(names[0], request.api)]


def _cost_of_call(request: m.EndCall, prices: Prices) -> Cost | None:
    """Return what a call has cost: what its reply says, else what the dearer model costs."""
    if request.cost_usd is not None:
        return Cost(request.cost_usd, request.cost_usd)
    assert request.tokens is not None
    sure = request.tokens if request.sure is None else request.sure
    names = _priced_names(request, prices)
    most = [cost for name in names if (cost := prices.price(name, request.tokens)) is not None]
    least = prices.price(names[0], sure)
    if not most or least is None:
        return None
    others = sum(
        prices.cost(prices.charged_as(other, request.api), used) or 0.0
        for other, used in request.others.items()
    )
    usd = request.factor * max(cost.usd for cost in most) + request.fees_usd + others
    factor = request.factor if request.least_factor is None else request.least_factor
    surely = factor * least.sure + others
    return Cost(usd, min(usd, surely + request.fees_usd - request.unsure_fees_usd))


# ---- The interface of the package: what the loop calls in the life of a run and of the daemon

ENDED_SECONDS = 2.0
"""Seconds of reading what runs wrote that ended while no daemon was running, for all of them
together, before a daemon serves: 20 MB of the densest lines."""


class Metering:
    """Has the output, session files, processes and memory of runs followed. `publish` is for events
    that only inform, `milestone` for the newest one of a run. What is told of an earlier daemon's
    runs is kept for `read_ended`."""

    def __init__(
        self,
        *,
        feed: e.Feed,
        publish: Publish,
        milestone: Callable[[RunId, str], None],
        trouble: Callable[[str], None],
        output: OutputFiles,
        launcher: Launcher,
        prices: Mapping[str, Price],
        nearing: float,
        lives: Mapping[RunId, Live],
        led: Callable[[AgentProcess], bool],
    ) -> None:
        """`led`: `Gateways.lead`."""
        self._feed = feed
        self._led = led
        self._learnt: list[e.Event] | None = []
        """What was told before the core knows the runs; `None` once it does."""
        self._publish = publish
        self._milestone = milestone
        self._launcher = launcher
        self._runs: dict[RunId, MeteredRun] = {}
        self._prices = PriceList(prices, loaded=self._price_again, trouble=trouble)
        self._tail = Tail(
            output,
            seen=self._read_in_stream,
            lost=partial(publish, EventType.METER_GAP),
            trouble=trouble,
        )
        self._sessions = Sessions(
            seen=self._read_in_session, lost=self._session_lost, trouble=trouble
        )
        self._levels = KernelLevels(launcher, self._tell, nearing=nearing)
        signs = Signs(lives, output, self._sessions.written)
        self.silence = SilenceWatch(signs, launcher, feed, nearing, self._sessions.look_again)
        self.use_pricing = UsePricing(self._runs, self._prices)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._prices.serve)
            nursery.start_soon(self._sessions.serve)
            await nursery.start(self._tail.serve)
            task_status.started()

    async def sample(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._levels.sampler.serve)
            nursery.start_soon(self.silence.serve)

    def close(self) -> None:
        self._tail.close()

    def reconfigure(self, prices: Mapping[str, Price], nearing: float) -> None:
        """Use other prices for the runs that begin from now on, and another share of limits for
        all."""
        self._prices.reconfigure(prices)
        self._levels.sampler.set_nearing(nearing)
        self.silence.nearing = nearing

    def begin_attempt(self, live: Live, opened: Sequence[int] = ()) -> None:
        """`opened`: as `Tail.begin_attempt` takes it."""
        run = live.run.id
        if run not in self._runs:
            self._begin(live, fresh=True)
        self._tail.begin_attempt(run, opened)
        earlier = self._sessions.told(run) if live.run.latest.number > 1 else ()
        live.attempt_begins(wall_clock(), earlier)
        self._find_session(live)

    def adopt(self, live: Live, position: bytes | None) -> None:
        """Continue with a run that an earlier daemon launched; `position` is what its `position`
        returned."""
        readings = self._begin(live, position)
        self._find_session(live)
        for reading in readings[-1:]:
            self._sessions.name(live.run.id, reading.session)
        self._tail.look(live.run.id)

    def follow_agent(self, live: Live, process: AgentProcess) -> None:
        """Read also what the session file of an agent program says that a run has started
        itself."""
        self._follow(live, process, fresh=live.output.meter != NO_METER)

    def agent_seen(self, run: RunId, process: AgentProcess) -> None:
        """Read also the session file of an agent program that goes around the gateway, whether the
        run was asked to start it or not, and of the one that the run's script has become."""
        if run in self._runs:
            live = self._runs[run].live
            becomes = process.is_main and not live.gated and live.output.meter != NO_METER
            self._follow(live, process, fresh=becomes)

    def _follow(self, live: Live, process: AgentProcess, *, fresh: bool) -> None:
        session = _session_of(process, live.uid) if live.run.id in self._runs else None
        if session is not None:
            session.around = live.gated and not self._led(process)
            session.guesses = session.around or not live.gated
            known = self._sessions.follow(live.run.id, session, process)
            if not known and (fresh or session.around):
                self._sessions.add(live.run.id, session)
            self._prices.load_soon()

    def position(self, run: RunId) -> bytes | None:
        """Return where the run's meter is, for a later daemon; `None` if it has no meter."""
        return self._tail.position(run)

    def rebound(self, run: Run) -> None:
        if run.id in self._runs:
            self._tail.set_limit(run.id, _output_limit(run))
            self._levels.watch(run)
            self.silence.watch(self._runs[run.id].live)
            self._launcher.bound(run.id, bounds_of(run))

    def catch_up(self, run: Run, signal: int | None = None) -> None:
        """Read what is left to be read of a run and its descendants before the core decides about
        the end of the run or attempt. `signal` ended its main process."""
        subtree = [each.id for each in run.subtree()] if run.children else [run.id]
        metered = list[RunId]()
        for each in subtree:
            self._tail.read_milestones(each)
            if self._has_meter(each):
                metered.append(each)
        if metered:
            self._tail.drain(metered)
        for each in metered:
            self._runs[each].tell_unloaded()
        if run.id in metered:
            self._runs[run.id].tell_if_silent()
        if signal == SIGKILL:
            self._levels.killed(run)

    def last_line(self, run: RunId) -> str | None:
        """Return the last line that the run's attempt has written on stderr, without secrets, if
        its output is kept."""
        return self._tail.last_line(run)

    def may_wait(self, run: Run) -> bool:
        if run.id in self._sessions:
            return True
        if not run.children:  # most runs have no meter
            return self._has_meter(run.id) and not self._prices.ready
        return not self._prices.ready and any(self._has_meter(each.id) for each in run.subtree())

    async def learn_use(self, run: Run, *, succeeded: bool) -> None:
        """Wait for what the core must know before it decides about the end of a run: what its
        session files say, and the prices of its tokens. `succeeded`: its main process exited with
        0."""
        await self._sessions.catch_up(run.id, succeeded=succeeded)
        if self.may_wait(run) and not self._prices.ready:
            await self._prices.load_for_an_end()

    async def read_ended(self, runs: Sequence[Run], *, calls: bool) -> tuple[e.Event, ...]:
        """Read all that runs, which ended while no daemon was running, and their agents have
        written. Return what the core must know before it decides about them. `calls`: the prices of
        model calls are needed, too. Call this once, before the core knows any run."""
        ended = [run.id for run in runs if self._has_meter(run.id)]
        for run in ended:
            self._tail.drain((run,), seconds=ENDED_SECONDS)
            await self._sessions.catch_up(run)
        if (ended or calls) and not self._prices.ready:
            await self._prices.load_for_an_end()
        learnt, self._learnt = self._learnt or [], None
        return tuple(learnt)

    def forget(self, run: RunId) -> None:
        if run in self._runs:
            self._tail.forget(run)  # it may still read the last output
            self._sessions.forget(run)
            self._levels.sampler.forget(run)
            self.silence.watched.pop(run, None)
            del self._runs[run]

    @property
    def waiting(self) -> int:
        return self._sessions.waiting

    def look_after(self) -> None:
        """Create the directory of all output again if another process has removed or replaced
        it."""
        self._tail.look_after()

    def _begin(
        self, live: Live, position: bytes | None = None, *, fresh: bool = False
    ) -> tuple[Reading, ...]:
        run, program = live.run, live.program
        metered = self._runs[run.id] = MeteredRun(
            live, self._prices, feed=self._tell, publish=self._publish
        )
        readings: tuple[Reading, ...] = ()
        if live.output.kept:
            argv = run.asked.shown.argv
            meter = (
                (lambda saved: program.meter(argv, saved, resumed=_resumes(run)))
                if program is not None
                else None
            )
            readings = (
                self._tail.follow(run.id, limit=_output_limit(run), meter=meter, saved=position)
                or ()
            )
            if readings:
                metered.resume(readings)
            self._tail.tell_milestones(run.id, run.name, partial(self._reached, live))
        self._levels.watch(run, fresh=fresh)
        if LimitKind.SILENCE in run.limits:
            self.silence.watch(live)
        if metered.has_meter:
            self._prices.load_soon()
        return readings

    def _find_session(self, live: Live) -> None:
        files, run, first = live.session_files, live.run, live.command.agent_session
        began = live.attempted_at or live.started_at or live.created_at
        session = None
        if files is not None:
            given = (
                session_of(first, run.attempt)
                if first is not None
                else files.session_id(run.asked.shown.argv)
            )
            given = run.agent_session if _resumes(run) else given
            env = dict(os.fsdecode(item).split("=", 1) for item in live.session_variables)
            session = Session(
                files,
                run.asked.shown.argv,
                env,
                run.asked.shown.cwd,
                run.birth.uid,
                began,
                given,
                guesses=not live.gated,
            )
        elif live.command.resume_argv and not _resumes(run):
            # where an agent of the config keeps its sessions is not known: one is taken to be there
            # from its start
            continued = live.command.continued_session
            given = session_of(first, run.attempt) if first is not None else continued
            if given is not None:
                self._session_saved(run, given)
        if session is not None or run.latest.number > 1:
            self._sessions.begin(run.id, session, live.sessions)

    def _has_meter(self, run: RunId) -> bool:
        return run in self._runs and self._runs[run].has_meter

    def _tell(self, event: e.Event) -> None:
        if self._learnt is None:
            self._feed(event)
        else:
            self._learnt.append(event)

    def _read_in_stream(self, run: RunId, readings: tuple[Reading, ...]) -> None:
        if run in self._runs:
            self._runs[run].read_in_stream(readings)
            self._sessions.name(run, readings[-1].session)
            live, latest = self._runs[run].live, readings[-1]
            if live.session_files is None and latest.session and not latest.blank:
                self._session_saved(live.run, latest.session)

    def _read_in_session(self, run: RunId, readings: tuple[Reading, ...]) -> None:
        if run in self._runs:
            self._runs[run].live.hear(trio.current_time())
            self._runs[run].read_in_session(readings, self._sessions.around(run))
            if (session := self._sessions.saved(run)) is not None:
                self._session_saved(self._runs[run].live.run, session)

    def _session_saved(self, run: Run, session: str) -> None:
        if is_session_id(session) and session != run.agent_session:
            self._tell(e.AgentSessionSaved(trio.current_time(), run.id, session))

    def _reached(self, live: Live, text: str) -> None:
        if text == live.milestone:
            return
        live.reach(text)
        self._milestone(live.run.id, text)

    def _session_lost(self, run: RunId, message: str) -> None:
        self._runs[run].notices.session_lost(message)

    def _price_again(self) -> None:
        for metered in list(self._runs.values()):
            metered.price_again()


def _resumes(run: Run) -> bool:
    """Return whether the run's attempt continues the session of the one before."""
    return run.latest.resumes and run.agent_session is not None


def _session_of(process: AgentProcess, uid: int) -> Session | None:
    """Return the session of an agent program, as /proc shows it; `None` if the program keeps none
    or has ended."""
    program = named(process.program)
    files = program.session_files if program is not None else None
    if files is None:
        return None
    argv, values = (
        kernel.command(process.pid),
        {name: kernel.variable(process.pid, name.encode()) for name in SESSION_VARIABLES},
    )
    cwd = observed.ask(lambda: psutil.Process(process.pid).cwd(), None)
    began = wall_clock() - timedelta(seconds=kernel.age(process.started))
    if not cwd or not kernel.is_alive(process.pid, process.started):
        return None
    env = {name: os.fsdecode(value) for name, value in values.items() if value is not None}
    return Session(
        files,
        argv,
        env,
        cwd,
        uid,
        began,
        files.session_id(argv),
        process=(process.pid, process.started),
        pids=frozenset({process.pid}),
        runs=process.word is not None or not is_launcher(argv),
    )


def _output_limit(run: Run) -> int | None:
    bound = run.limits.get(LimitKind.OUTPUT)
    return int(bound.limit.threshold) if bound is not None else None


def program_of(meter: str | None, argv: Sequence[str], *, kept: bool) -> AgentProgram | None:
    """Return the program whose stream the run's stdout is, if any. Raises `ValueError` for an
    unknown meter."""
    if meter in UNREAD or (meter is None and not kept):
        return None
    if meter is None:
        return chosen(argv)
    program = named(meter)
    if program is None:
        raise ValueError(f"there is no meter '{meter}'")
    return program
