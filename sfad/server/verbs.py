"""One handler a verb: a request in, the reply out now or when the core has decided."""

from __future__ import annotations

import os
import signal
import sqlite3
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
import psutil
import trio

from .. import __version__
from ..agents import AgentError, resolve
from ..config import NAME_MAX, ConfigError
from ..core import commands as c
from ..core import events as e
from ..core.access import OUTSIDE, VERBS, Peer
from ..core.account import NOTHING, Use
from ..core.budgets import Budget
from ..core.labels import values_of
from ..core.limits import limits_of
from ..core.money import to_usd
from ..core.policy import MAX_LABELS
from ..core.run import Run
from ..durable.maintenance import Pruned, Wanted
from ..host import logout
from ..host.descriptors import Need
from ..host.giveback import give_back
from ..ledger.errors import LedgerError
from ..ledger.reader import Page, Selection
from ..ledger.summary import Unwritten, summarise
from ..ledger.totals import used_by, with_totals
from ..loop.runtime import Runtime
from ..meters import PROGRAMS, UNREAD, named
from ..meters.speech import FORM, Cursor, TextReader
from ..output import holes
from ..output.files import Replaced
from ..protocol import messages as m
from ..protocol.advice import Advice
from ..protocol.errors import ErrorCode
from ..protocol.summary import Summary
from ..protocol.types import BudgetState, Event, Limit, LimitRefusal, RunId, RunInfo, Status
from ..protocol.units import MOST_COUNTED, MOST_SPENT
from ..protocol.version import SUPPORTED
from .connection import Connection, Pending
from .errors import RequestFailed
from .handles import Handles
from .result import no_output, result
from .shares import Shares

MAX_ROWS = 1000
"""Ended runs in one page of a list: 50 ms. Clients ask for the next page."""

MAX_EXEC = 6 << 20
"""Bytes of argv and environment that execve(2) takes at most (3/4 of `_STK_LIM`), with a pointer and a NUL for each word."""

MAX_SECONDS = 36_525 * 86_400.0
"""A hundred years: further back than that nothing was recorded, and beyond some 8 000 years there is no `datetime`."""

EXPECTED = (RequestFailed, OSError, sqlite3.Error, LedgerError, CancelledError)
"""What work in a thread raises where the request, the machine, the disk or the ledger does not allow it."""

INTERNAL = "internal error; the daemon's log has the traceback"

MAX_CHOSEN = 1024
"""Runs named in one request; each is looked up."""

MAX_SOURCE = 128
"""Characters that say where a limit was set."""

MAX_REQUESTS = 16384
"""Requests that are not answered, of all connections together: of waits, stops, and of connections that have ended since. Each
costs 1 or 2 KiB."""

MAX_WATCHES = 2048
"""Watches of all connections together. Each event of a run is sent to each that watches it or an ancestor."""

WATCHES = 64
"""Watches of one connection."""

MAIN_SIGNALS = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT, signal.SIGUSR1,
                          signal.SIGUSR2, signal.SIGHUP})  # fmt: skip
"""What `Signal` may send. SIGTERM and SIGKILL have `Stop`, which is honest about the outcome; SIGSTOP has `Pause`."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answerer:
    """Who waits for an answer of the core."""

    answer: Callable[[Connection, int, c.Answer], None]
    connection: Connection
    request: int

    def __call__(self, answer: c.Answer) -> None:
        """Deliver the core's answer to the client."""
        self.answer(self.connection, self.request, answer)


class Verbs:
    """Translates requests into the core's events, and reads what needs no decision."""

    def __init__(self, runtime: Runtime, descriptors: Shares, *, connections: Callable[[], int]) -> None:
        """`descriptors`: what connections hold of them."""
        self._runtime = runtime
        self._descriptors = descriptors
        self._requests = Shares("open requests", MAX_REQUESTS)
        self._watches = Shares("open watches", MAX_WATCHES)
        self._handles = Handles(runtime)
        self._connections = connections
        self._handlers: dict[type, Callable[[Connection, Any], None]] = {
            m.Spawn: self._spawn,
            m.Stop: self._stop,
            m.Select: self._select,
            m.Pause: self._pause,
            m.Resume: self._resume,
            m.Approve: self._approve,
            m.Deny: self._deny,
            m.ChangeLimits: self._limit,
            m.Report: self._report,
            m.Reserve: self._reserve,
            m.Settle: self._settle,
            m.Signal: self._signal,
            m.Info: self._info,
            m.Wait: self._wait,
            m.List: self._list,
            m.Summarise: self._summarise,
            m.Logs: self._logs,
            m.Text: self._text,
            m.Result: self._result,
            m.Send: self._send,
            m.Watch: self._watch,
            m.DaemonInfo: self._status,
            m.Agents: self._agents,
            m.Config: self._config,
            m.Reload: self._reload,
            m.Prune: self._prune,
            m.Recommend: self._recommend,
        }

    def greet(self, connection: Connection, request: m.AnyRequest) -> bool:
        """Answers the first message. False if the connection is of no use."""
        peer = connection.peer
        if not isinstance(request, m.Hello):
            message = "the first message must be 'hello'"
            connection.send(m.Error(id=request.id, code=ErrorCode.BAD_REQUEST, message=message))
            return False
        self._runtime.log.debug("client", name=request.client[:100], user=peer.user, run=peer.run)
        common = set(request.versions) & set(SUPPORTED)
        if not common:
            message = (
                f"client speaks protocol versions {request.versions[:16]}, this daemon {list(SUPPORTED)}; update the older one"
            )
            connection.send(m.Error(id=request.id, code=ErrorCode.UNSUPPORTED_VERSION, message=message))
            return False
        connection.send(
            m.Welcome(
                id=request.id,
                version=max(common),
                daemon=__version__,
                pid=os.getpid(),
                state_dir=str(self._runtime.state_dir),
                run=peer.run,
            )
        )
        return True

    def handle(self, connection: Connection, request: m.AnyRequest) -> None:
        """Answers a request, now or later."""
        self._requests.add(connection.holder, 1)
        try:
            self._handler(connection, request)(connection, request)
        except RequestFailed as failed:
            self._fail(connection, request.id, failed.code, str(failed))
        except OSError as error:
            self._fail(connection, request.id, ErrorCode.UNAVAILABLE, f"the daemon could not do it: {error}")
        except Exception:  # noqa: BLE001 - a bug in one request must not leave every tree without a supervisor
            self._runtime.log.error(f"internal error while handling {type(request).__name__}", traceback=traceback.format_exc())
            self._fail(connection, request.id, ErrorCode.INTERNAL, INTERNAL)

    def _handler(self, connection: Connection, request: m.AnyRequest) -> Callable[[Connection, Any], None]:
        handler = self._handlers.get(type(request))
        try:
            if request.id in connection.pending:
                raise RequestFailed(ErrorCode.BAD_REQUEST, f"request id {request.id} is still in use on this connection")
            if handler is None:
                raise RequestFailed(ErrorCode.BAD_REQUEST, "'hello' is only said once")
            _demand(self._requests, connection, 0)
        except RequestFailed:
            give_back(connection.take(getattr(request, "descriptors", 0)) or ())
            raise
        return handler

    def _reply(self, connection: Connection, reply: m.Reply, descriptors: Sequence[int] = ()) -> None:
        """Send the one reply to a request. `descriptors` are closed."""
        self._requests.add(connection.holder, -1)
        connection.send(reply, descriptors)

    def _fail(self, connection: Connection, request: int, code: ErrorCode, message: str) -> None:
        self._reply(connection, m.Error(id=request, code=code, message=message))

    # ---- starting and steering

    def _spawn(self, connection: Connection, request: m.Spawn) -> None:
        descriptors = self._claimed(connection, request)
        try:
            if request.agent is not None:
                request = resolve(request, self._runtime.agents)
            _check_spawn(request)
            if request.watch:
                self._demand_watch(connection)
        except AgentError as error:
            give_back(descriptors)
            raise RequestFailed(ErrorCode.BAD_REQUEST, str(error)) from None
        except RequestFailed:
            give_back(descriptors)
            raise
        answer = self._answerer(connection, request.id)

        def admitted(run: RunId) -> None:
            if request.watch:
                self._push(connection, request.id, run)

        self._runtime.spawn(connection.peer, request, descriptors, connection.number, answer, admitted)

    def _claimed(self, connection: Connection, request: m.Spawn) -> list[int]:
        expected = 3 if request.stdio == "inherit" else 1 if request.stdin == "descriptor" else 0
        descriptors = connection.take(request.descriptors) if request.descriptors <= m.MAX_DESCRIPTORS else None
        if descriptors is not None and len(descriptors) == expected:
            return descriptors
        give_back(descriptors or [])
        raise RequestFailed(
            ErrorCode.BAD_REQUEST,
            f"stdio '{request.stdio}' with stdin '{request.stdin}' takes {expected} descriptors; {request.descriptors} announced",
        )

    def _stop(self, connection: Connection, request: m.Stop) -> None:
        _check_signal(request.signal, signal.valid_signals())
        runs = self._selected(connection, request)
        peer = connection.peer
        answer = self._answerer(connection, request.id)
        self._runtime.ask(answer, lambda token, now: e.StopRequested(now, token, peer, tuple(runs), request.signal, request.grace))

    def give_up(self, connection: Connection) -> None:
        """What another thread was asked for is not to be had any more: this process executes itself anew."""
        for request in sorted(connection.elsewhere):
            self._fail(connection, request, ErrorCode.UNAVAILABLE, "the daemon restarted itself before this was done; try again")
        connection.elsewhere.clear()

    def take_over(self, connection: Connection, pending: Sequence[m.Wait | m.Watch]) -> None:
        """Goes on with requests of a connection that was handed over."""
        for request in pending:
            if isinstance(request, m.Watch):
                self._push(connection, request.id, request.run)
            else:
                self.handle(connection, request)

    def answerer(self, connection: Connection, request: int) -> Answerer:
        """Who is to be told what the core answers to a request of a connection that was handed over."""
        self._requests.add(connection.holder, 1)
        return self._answerer(connection, request)

    def _selected(self, connection: Connection, request: m.Stop) -> list[RunId]:
        self._permit(connection, "stop")
        _check_choice(request)
        chosen = [self._resolve(connection, handle, "stop")[0].id for handle in request.runs]
        if not (request.runs or _sweeps(request)):
            raise RequestFailed(ErrorCode.BAD_REQUEST, "say what to stop: runs, a name, labels, or everything")
        return list(dict.fromkeys([*chosen, *self._swept(connection, request, "stop")]))

    def _swept(self, connection: Connection, request: m.Stop | m.Select, verb: str) -> list[RunId]:
        if not _sweeps(request):
            return []
        return self._handles.sweep(verb, connection.peer.run, name=request.name, labels=request.labels)

    def _select(self, connection: Connection, request: m.Select) -> None:
        if request.verb not in VERBS | OUTSIDE:
            raise RequestFailed(ErrorCode.BAD_REQUEST, f"unknown verb '{request.verb[:80]}'")
        self._permit(connection, request.verb)
        _check_choice(request)
        chosen, failed = [], []
        for handle in dict.fromkeys(request.runs):
            try:
                chosen.append(self._resolve(connection, handle, request.verb)[0].id)
            except RequestFailed as error:
                failed.append(m.Failure(run=handle, code=error.code, message=str(error)))
        runs = dict.fromkeys([*chosen, *self._swept(connection, request, request.verb)])
        self._reply(connection, m.Selected(id=request.id, runs=list(runs), failed=failed))

    def _pause(self, connection: Connection, request: m.Pause) -> None:
        asked = request.suspended
        self._steer(connection, request, "pause", lambda token, now, peer, run: e.PauseRequested(now, token, peer, run, asked))

    def _resume(self, connection: Connection, request: m.Resume) -> None:
        asked = (_checked(request.limits), request.suspended)
        self._steer(connection, request, "resume", lambda token, now, peer, run: e.ResumeRequested(now, token, peer, run, *asked))

    def _approve(self, connection: Connection, request: m.Approve) -> None:
        limits = _checked(request.limits)
        self._steer(connection, request, "approve", lambda token, now, peer, run: e.ApproveRequested(now, token, peer, run, limits))

    def _deny(self, connection: Connection, request: m.Deny) -> None:
        self._steer(connection, request, "deny", lambda token, now, peer, run: e.DenyRequested(now, token, peer, run))

    def _limit(self, connection: Connection, request: m.ChangeLimits) -> None:
        if not request.limits:
            raise RequestFailed(ErrorCode.BAD_REQUEST, "say which limits: KIND=VALUE")
        limits = _checked(request.limits)
        self._steer(connection, request, "limit", lambda token, now, peer, run: e.LimitRequested(now, token, peer, run, limits))

    def _steer(
        self,
        connection: Connection,
        request: m.Pause | m.Resume | m.Approve | m.Deny | m.ChangeLimits,
        verb: str,
        make: Callable[[int, float, Peer, RunId], e.Event],
    ) -> None:
        run, peer = self._resolve(connection, request.run, verb)[0].id, connection.peer
        self._runtime.ask(self._answerer(connection, request.id), lambda token, now: make(token, now, peer, run))

    # ---- use

    def _report(self, connection: Connection, request: m.Report) -> None:
        _check_amounts(request)
        run, peer = self._spender(connection, request.run, "report"), connection.peer
        metering, answer = self._runtime.metering, self._answerer(connection, request.id)

        def report() -> None:
            use = metering.use_of_report(run, request)
            self._runtime.ask(answer, lambda token, now: e.ReportRequested(now, token, peer, run, use))

        # what was used was used, whether its price can be told just now or not
        self._once_priced(connection, request.id, run, request.model if request.cost_usd is None else None, report)

    def _reserve(self, connection: Connection, request: m.Reserve) -> None:
        _check_amounts(request)
        run, peer = self._spender(connection, request.run, "reserve"), connection.peer
        metering, answer = self._runtime.metering, self._answerer(connection, request.id)

        def reserve() -> None:
            hold = metering.hold_of(run, request)
            self._runtime.ask(answer, lambda token, now: e.ReserveRequested(now, token, peer, run, hold))

        def unsure(why: str) -> None:
            message = f"nothing is reserved: what it would cost cannot be told now: {why}"
            self._fail(connection, request.id, ErrorCode.UNAVAILABLE, message)

        self._once_priced(connection, request.id, run, request.model, reserve, unsure)

    def _settle(self, connection: Connection, request: m.Settle) -> None:
        _check_amounts(request)
        self._permit(connection, "settle")
        held, peer = self._runtime.machine.limiter.reservation(request.reservation), connection.peer
        answer = self._answerer(connection, request.id)

        def settle(use: Use) -> None:
            self._runtime.ask(answer, lambda token, now: e.SettleRequested(now, token, peer, request.reservation, use))

        if held is None:
            settle(NOTHING)
            return
        run, hold = held[0].id, held[1]
        self._resolve(connection, run, "settle")
        metering, model = self._runtime.metering, hold.model if request.cost_usd is None else None
        # after a re-execution the daemon has not yet loaded the prices that the reservation was made with
        self._once_priced(connection, request.id, run, model, lambda: settle(metering.use_of_settlement(run, hold, request)))

    def _once_priced(
        self,
        connection: Connection,
        request: int,
        run: RunId,
        model: str | None,
        then: Callable[[], None],
        unsure: Callable[[str], None] | None = None,
    ) -> None:
        """Call `then` once the price of the model is known, or known not to be there, unless the request is given up before.
        `unsure`: what to call instead where that cannot be known now."""
        connection.elsewhere.add(request)

        def go_on(why: str | None = None) -> None:
            if request not in connection.elsewhere:
                return
            connection.elsewhere.discard(request)
            if why is None or unsure is None:
                then()
            else:
                unsure(why)

        self._runtime.metering.when_priced(run, model, go_on, go_on)

    def _spender(self, connection: Connection, run: str | None, verb: str) -> RunId:
        """The run whose use is spoken of: the one that is named, else the one that the peer is in."""
        name = run if run is not None else connection.peer.run
        if name is None:
            raise RequestFailed(ErrorCode.BAD_REQUEST, f"say whose use to {verb}: this process is in no run")
        return self._resolve(connection, name, verb)[0].id

    def _signal(self, connection: Connection, request: m.Signal) -> None:
        _check_signal(request.signal, MAIN_SIGNALS)
        info, _ = self._resolve(connection, request.run, "signal")
        if request.signal == signal.SIGCONT and info.status is Status.PAUSED:
            raise RequestFailed(ErrorCode.WRONG_STATE, f"run {info.id} is paused; 'sfactl resume {info.id}' lets it go on")
        if not self._runtime.launcher.signal_main(info.id, request.signal):
            raise RequestFailed(ErrorCode.WRONG_STATE, f"run {info.id} is {info.status}; it has no main process to signal")
        self._reply(connection, m.Done(id=request.id))

    def _send(self, connection: Connection, request: m.Send) -> None:
        info, _ = self._resolve(connection, request.run, "send")
        live = self._runtime.live.get(info.id)
        if live is None:
            raise RequestFailed(ErrorCode.WRONG_STATE, f"run {info.id} is {info.status}; it reads nothing any more")
        if live.stdin is None and live.spawn.stdin == "pipe":
            raise RequestFailed(
                ErrorCode.WRONG_STATE, f"run {info.id} reads nothing any more: its stdin ended with the daemon that held it"
            )
        if live.stdin is None:
            raise RequestFailed(ErrorCode.WRONG_STATE, f"run {info.id} was not started with --stdin, so nothing can be sent to it")
        refused = live.stdin.write(request.data, eof=request.eof)
        if refused is not None:
            raise RequestFailed(ErrorCode.UNAVAILABLE, f"run {info.id} was not sent {len(request.data)} bytes: {refused}")
        self._reply(connection, m.Done(id=request.id))

    # ---- reading

    def _info(self, connection: Connection, request: m.Info) -> None:
        info, _ = self._resolve(connection, request.run, "info")
        live = self._runtime.live.get(info.id)
        load = self._runtime.launcher.load(info.id) if live is not None and live.run.attempt else None
        if live is not None and load is not None:
            info = live.info(trio.current_time(), processes=load.processes, memory_bytes=load.memory_bytes)
        self._show(connection, request.id, info)

    def _show(self, connection: Connection, request: int, info: RunInfo) -> None:
        (shown,) = self._with_totals([info])
        self._reply(connection, m.RunReply(id=request, run=shown))

    def _with_totals(self, runs: Iterable[RunInfo]) -> list[RunInfo]:
        runs = list(runs)
        roots = {info.root_id for info in runs if info.descendants}
        if not roots:
            return with_totals(runs, {})
        used = self._runtime.ledger.used_below(roots)
        for live in self._runtime.live.values():
            parent = live.run.parent
            if parent is not None and live.run.root.id in roots:
                used[live.run.id] = used_by(parent.id, live.usage())
        return with_totals(runs, used)

    def _wait(self, connection: Connection, request: m.Wait) -> None:
        info, _ = self._resolve(connection, request.run, "wait")
        if request.tie:
            self._tie(connection, info.id)
        if self._runtime.over(info.id) or request.timeout == 0:
            self._show(connection, request.id, info)
            return
        timer = ("wait", connection.number, request.id)

        def answer(run: RunInfo | None) -> None:
            if connection.pending.pop(request.id, None) is None:
                return  # the connection was closed while waiters were told
            forget()
            self._runtime.timers.disarm(timer)
            if run is not None:
                self._show(connection, request.id, run)
            else:
                self._requests.add(connection.holder, -1)

        forget = self._runtime.on_end(info.id, answer)
        connection.pending[request.id] = Pending(request, lambda: answer(None))
        if request.timeout is not None:
            at = connection.pending[request.id].until = trio.current_time() + max(0.0, request.timeout)
            self._runtime.timers.arm(timer, at, lambda: answer(self._runtime.info(info.id)))

    def _tie(self, connection: Connection, run: RunId) -> None:
        """To tie a run is to be able to stop it."""
        self._permit(connection, "stop", self._runtime.chain(run))
        self._runtime.feed(e.ClientBack(trio.current_time(), connection.number, run))

    def _list(self, connection: Connection, request: m.List) -> None:
        self._permit(connection, "list")
        _check_filters(request)
        _check_most("statuses", len(request.status), MAX_LABELS)
        root = self._resolve(connection, request.root, "list")[0].id if request.root is not None else None
        query = msgspec.structs.replace(request, root=None, rows=max(0, min(request.rows, MAX_ROWS)))
        found = self._page(Page(query, within=root or connection.peer.run))
        self._reply(connection, m.RunList(id=request.id, runs=self._with_totals(found.runs), next=found.reached or None))

    def _page(self, page: Page) -> Selection:
        """What is live or recent is known better here: the ledger's writer may be behind."""
        older = self._runtime.ledger.select(page.query, within=page.within)
        runs = {info.id: info for info in older.runs}
        runs |= {run: entry.info for run, entry in self._runtime.recent.items() if _fits(page, entry.info, entry.chain)}
        live = self._runtime.live
        shown = (info for info in self._live_infos(detailed=page.query.live) if _fits(page, info, live[info.id].chain))
        known = {run: info for run, info in runs.items() if run not in live} | {info.id: info for info in shown}
        return Selection.of(known.values(), page.query.rows, older.reached)

    def _summarise(self, connection: Connection, request: m.Summarise) -> None:
        self._permit(connection, "summary")
        _check_filters(request)
        _check_since(request.since)
        query = m.List(id=0, since=request.since, name=request.name, user=request.user, labels=request.labels)
        page = Page(query, within=connection.peer.run)
        work = partial(summarise, self._runtime.ledger.directory, page, request.by, self._unwritten(page))

        def reply(found: Summary) -> m.Reply:
            return m.Summarised(id=request.id, summary=found)

        self._later(connection, request, lambda: self._runtime.walk(work), reply)

    def _unwritten(self, page: Page) -> Unwritten:
        """The runs of a page that the file does not know as they are now, with their models."""
        live, now = self._runtime.live, trio.current_time()
        ended = [(info, extra.model) for info, extra in self._runtime.ledger.unwritten(page) if info.id not in live]
        fitting = ((one.info(now), one) for one in live.values())
        return [*ended, *((info, one.model) for info, one in fitting if _fits(page, info, one.chain))]

    def _live_infos(self, *, detailed: bool) -> Iterable[RunInfo]:
        now = trio.current_time()
        live_runs = self._runtime.live
        loads = self._runtime.launcher.loads(live_runs) if detailed else {}
        for run, live in live_runs.items():
            load = loads.get(run)
            if load is None:
                yield live.info(now)
            else:
                yield live.info(now, processes=load.processes, memory_bytes=load.memory_bytes)

    def _logs(self, connection: Connection, request: m.Logs) -> None:
        info, _ = self._resolve(connection, request.run, "logs")
        _demand(self._descriptors, connection, 2)
        refusal = self._runtime.descriptors.refusal(Need.OWNER if connection.holder.owner else Need.CLIENT, 2)
        if refusal is not None:
            raise RequestFailed(ErrorCode.UNAVAILABLE, refusal)
        live = info.id in self._runtime.live
        try:
            descriptors = self._runtime.output.open_for_reader(info.id, create=live)
        except (FileNotFoundError, Replaced) as error:
            raise no_output(info.id, error) from None
        text = named(info.meter) is not None and self._wants_text(connection, request)
        reply = m.LogFiles(id=request.id, run=info.id, ended=not live, kept=self._kept(info.id), text=text, name=info.name)
        self._reply(connection, reply, descriptors)

    def _wants_text(self, connection: Connection, request: m.Logs) -> bool:
        caller = self._runtime.live.get(connection.peer.run) if connection.peer.run is not None else None
        return request.form == "text" or (request.form == "auto" and caller is not None and caller.program is not None)

    def _text(self, connection: Connection, request: m.Text) -> None:
        info, _ = self._resolve(connection, request.run, "logs")
        program = named(info.meter)
        if program is None:
            raise RequestFailed(ErrorCode.WRONG_STATE, f"run {info.id} has no meter that knows its events; read its logs")
        cursor = _cursor(request.cursor)
        ended = info.status.terminal
        try:
            with self._runtime.output.stdout(info.id) as descriptor:
                size = os.fstat(descriptor).st_size
                shown = TextReader(program, cursor, partial(holes.read, descriptor), size).step(ended=ended)
        except (FileNotFoundError, Replaced) as error:
            raise no_output(info.id, error) from None
        self._reply(
            connection,
            m.TextPart(
                id=request.id,
                run=info.id,
                text=bytes(shown.text),
                cursor=msgspec.msgpack.encode(cursor),
                tools=shown.tools,
                notes=shown.notes,
                more=shown.more,
                ended=ended,
            ),
        )

    def _kept(self, run: RunId) -> bool:
        live = self._runtime.live.get(run)
        if live is not None:
            return live.spawn.log and live.spawn.stdio == "files"
        recent = self._runtime.recent.get(run)
        return recent.kept if recent is not None else True

    def _result(self, connection: Connection, request: m.Result) -> None:
        info, _ = self._resolve(connection, request.run, "result")
        if not info.status.terminal:
            raise RequestFailed(ErrorCode.WRONG_STATE, f"run {info.id} is {info.status}; wait for its end, or read its logs")
        work = partial(result, self._runtime.output, info, request)
        self._later(connection, request, lambda: self._runtime.walk(work), lambda found: found)

    def _watch(self, connection: Connection, request: m.Watch) -> None:
        info, _ = self._resolve(connection, request.run, "watch")
        self._demand_watch(connection)
        self._push(connection, request.id, info.id)
        self._reply(connection, m.Done(id=request.id))

    def _demand_watch(self, connection: Connection) -> None:
        open_here = sum(isinstance(pending.request, m.Watch) for pending in connection.pending.values())
        if open_here >= WATCHES:
            message = (
                f"this connection has {open_here} open watches, at most {WATCHES} are allowed; watch a run that is above others"
            )
            raise RequestFailed(ErrorCode.UNAVAILABLE, message)
        _demand(self._watches, connection, 1)

    def _push(self, connection: Connection, request: int, run: RunId) -> None:
        def push(event: Event) -> None:
            connection.send(m.EventPush(id=request, event=event))

        forget = self._runtime.watch(run, push)
        if self._runtime.over(run):
            forget()
            return

        def over(_info: RunInfo | None = None) -> None:
            if connection.pending.pop(request, None) is None:
                return
            forget()
            unwait()
            self._watches.add(connection.holder, -1)

        unwait = self._runtime.on_end(run, over)
        self._watches.add(connection.holder, 1)
        connection.pending[request] = Pending(m.Watch(id=request, run=run), over)

    def _status(self, connection: Connection, request: m.DaemonInfo) -> None:
        self._permit(connection, "status")
        runtime, machine = self._runtime, self._runtime.machine
        backup = runtime.ledger.backup
        status = m.DaemonStatus(
            id=request.id,
            version=__version__,
            pid=os.getpid(),
            uptime_s=round(trio.current_time() - runtime.began, 3),
            socket=runtime.socket,
            state_dir=str(runtime.state_dir),
            containment=runtime.launcher.containment,
            containment_detail=runtime.launcher.detail,
            draining=machine.draining,
            live=len(machine.tree),
            queued=machine.slots.queued,
            admitted=machine.admitted,
            refused=machine.refused,
            connections=self._connections(),
            memory_bytes=psutil.Process().memory_info().rss,
            ledger_bytes=runtime.ledger.size_bytes,
            ledger_trouble=runtime.unwritable,
            backup_bytes=backup.size_bytes if backup is not None else None,
            backup_at=backup.at if backup is not None else None,
            adopted=runtime.adopted,
            enforcement={kind: runtime.launcher.enforcement(kind) for kind in ("memory", "pids", "cpu")},
            budgets=[_budget_state(budget, machine.tree) for budget in machine.limiter.budgets]
            if connection.peer.run is None
            else [],
            linger_command=logout.linger_command(),
        )
        self._reply(connection, status)

    def _recommend(self, connection: Connection, request: m.Recommend) -> None:
        self._permit(connection, "recommend")
        asked = e.Asked(argv=(), name=request.name, type=request.run_type)

        def reply(found: list[Advice]) -> m.Reply:
            in_force = [held.limit for held in limits_of(asked, None, self._runtime.machine.policy).values()]
            runs = max((advice.runs for advice in found), default=0)
            return m.Recommended(id=request.id, runs=runs, advice=found, in_force=in_force)

        self._later(connection, request, lambda: self._runtime.adviser.advise(request.run_type, request.name), reply)

    def _agents(self, connection: Connection, request: m.Agents) -> None:
        self._permit(connection, "agents")
        agents = [entry.info for entry in self._runtime.agents.values()]
        self._reply(connection, m.AgentList(id=request.id, agents=agents))

    def _config(self, connection: Connection, request: m.Config) -> None:
        self._permit(connection, "config")
        self._reply(connection, m.ConfigReply(id=request.id, settings=self._runtime.settings))

    def _reload(self, connection: Connection, request: m.Reload) -> None:
        self._permit(connection, "reload")
        try:
            loaded, changed = self._runtime.reload()
        except ConfigError as error:
            raise RequestFailed(ErrorCode.BAD_REQUEST, f"nothing was changed: {error}") from None
        self._reply(connection, m.Reloaded(id=request.id, files=[str(path) for path in loaded.files], changed=changed))

    def _prune(self, connection: Connection, request: m.Prune) -> None:
        self._permit(connection, "prune")
        _check_prune(request)
        uid = connection.peer.uid or None
        wanted = Wanted(older_than=request.older_than, keep=request.keep, uid=uid, dry_run=request.dry_run)

        def reply(found: Pruned) -> m.Reply:
            return m.Pruned(id=request.id, **asdict(found))

        self._later(connection, request, lambda: self._runtime.prune(wanted), reply, failing="not everything was removed: ")

    # ---- small things

    def _later(
        self,
        connection: Connection,
        request: m.Request,
        work: Callable[[], Awaitable[T]],
        reply: Callable[[T], m.Reply],
        *,
        failing: str = "",
    ) -> None:
        """Send the reply to what `work` returns, unless the request is given up before. `failing`: how the error begins if `work`
        raises one."""
        connection.elsewhere.add(request.id)

        def is_given_up() -> bool:
            before = request.id in connection.elsewhere
            connection.elsewhere.discard(request.id)
            return not before

        def done(found: T) -> None:
            message = reply(found)
            if not is_given_up():
                self._reply(connection, message)

        def failed(error: Exception) -> None:
            code, said = _told(error)
            if not is_given_up():
                self._fail(connection, request.id, code, f"{failing}{said}")

        self._runtime.in_background(work, done, failed, EXPECTED)

    def _permit(self, connection: Connection, verb: str, chain: list[RunId] | None = None) -> None:
        refused = self._runtime.machine.refuse(connection.peer, verb, chain)
        if refused is not None:
            raise RequestFailed(ErrorCode.NOT_PERMITTED, refused)

    def _resolve(self, connection: Connection, handle: str, verb: str) -> tuple[RunInfo, list[RunId]]:
        """The run that an id, a name or a unique prefix means, once the peer may use `verb` on it."""
        self._permit(connection, verb)
        info = self._handles.resolve(handle, connection.peer.run)
        chain = self._runtime.chain(info.id)
        self._permit(connection, verb, chain)
        return info, chain

    def _answerer(self, connection: Connection, request: int) -> Answerer:
        return Answerer(self.answer, connection, request)

    def answer(self, connection: Connection, request: int, answer: c.Answer) -> None:
        match answer:
            case c.Admitted(run) | c.Changed(run):
                info = self._runtime.info(run.id)
                assert info is not None
                self._reply(connection, m.RunReply(id=request, run=info))
            case c.Known(known):
                found = self._runtime.info(known)
                assert found is not None
                self._reply(connection, m.RunReply(id=request, run=found))
            case c.Refused(refusal, recorded):
                self._reply(connection, m.Refused(id=request, refused=refusal, run=recorded))
            case c.Reserved(run, reservation, refusal):
                self._reply(connection, _reserved(request, run, reservation, refusal))
            case c.StopDone(stopped, survivors, elapsed):
                reply = m.Stopped(id=request, stopped=list(stopped), survivors=list(survivors), elapsed_s=round(elapsed, 4))
                self._reply(connection, reply)
            case c.Failed(code, message):
                self._fail(connection, request, code, message)


def _told(error: Exception) -> tuple[ErrorCode, str]:
    if isinstance(error, RequestFailed):
        return error.code, str(error)
    return (
        (ErrorCode.UNAVAILABLE, str(error) or type(error).__name__)
        if isinstance(error, EXPECTED)
        else (ErrorCode.INTERNAL, INTERNAL)
    )


def _cursor(data: bytes) -> Cursor:
    try:
        cursor = msgspec.msgpack.decode(data, type=Cursor) if data else Cursor()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestFailed(ErrorCode.BAD_REQUEST, f"the cursor is none of this daemon's: {error}") from error
    if cursor.form != FORM:
        raise RequestFailed(ErrorCode.BAD_REQUEST, f"the cursor has form {cursor.form}, this daemon's have form {FORM}")
    return cursor


def _demand(shares: Shares, connection: Connection, more: int) -> None:
    refusal = shares.refusal(connection.holder, more)
    if refusal is not None:
        raise RequestFailed(ErrorCode.UNAVAILABLE, refusal)


def _check_signal(number: int, allowed: Iterable[int]) -> None:
    if number not in allowed:
        names = ", ".join(sorted(signal.Signals(n).name for n in allowed)) if len(list(allowed)) < 16 else "1 to 64"
        raise RequestFailed(ErrorCode.BAD_REQUEST, f"signal {number} cannot be sent here; allowed: {names}")


def _check_spawn(request: m.Spawn) -> None:
    size = sum(map(len, request.argv)) + sum(map(len, request.env)) + 9 * (len(request.argv) + len(request.env))
    _check_most("bytes of argv and environment with 9 more for each word (argument list too long)", size, MAX_EXEC)
    for what, words in (("argv", request.argv), ("env", request.env), ("cwd", [request.cwd])):
        for word in words:
            if b"\0" in word:
                raise RequestFailed(ErrorCode.BAD_REQUEST, f"a NUL byte in {what}: {word[:80]!r}")
    if not request.cwd.startswith(b"/"):
        raise RequestFailed(ErrorCode.BAD_REQUEST, f"cwd must be absolute, got {request.cwd!r}")
    _check_sizes(request)
    _checked(request.limits)
    _check_meter(request)
    unknown = (set(request.allow) | set(request.deny)) - VERBS
    if unknown:
        known = ", ".join(sorted(VERBS))
        raise RequestFailed(
            ErrorCode.BAD_REQUEST, f"unknown verb to allow or deny: {', '.join(sorted(unknown))}; choose from: {known}"
        )


def _checked(limits: list[Limit]) -> tuple[Limit, ...]:
    kinds = [limit.kind for limit in limits]
    twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
    if twice is not None:
        raise RequestFailed(ErrorCode.BAD_REQUEST, f"the limit '{twice}' is given more than once")
    if any(len(limit.source) > MAX_SOURCE for limit in limits):
        raise RequestFailed(ErrorCode.BAD_REQUEST, f"the source of a limit has more than {MAX_SOURCE} characters")
    return tuple(limits)


def _check_meter(request: m.Spawn) -> None:
    known = [program.name for program in PROGRAMS]
    if request.meter is None or request.meter in UNREAD:
        return
    if request.meter not in known:
        names = ", ".join([*known, *UNREAD])
        raise RequestFailed(ErrorCode.BAD_REQUEST, f"unknown meter '{request.meter[:80]}'; choose from: {names}")
    if request.stdio != "files" or not request.log:
        raise RequestFailed(
            ErrorCode.BAD_REQUEST, f"the meter '{request.meter}' has nothing to read: this run's output is not kept in files"
        )


def _check_amounts(request: m.Report | m.Reserve | m.Settle) -> None:
    """Amounts are added up, and names are kept, for as long as a run lives: no negative amount, none that is no number, none
    beyond belief, and no name that is a book."""
    for field in request.__struct_fields__:
        value = getattr(request, field)
        if isinstance(value, str) and len(value) > NAME_MAX:
            raise RequestFailed(ErrorCode.BAD_REQUEST, f"{field} has {len(value)} characters; at most {NAME_MAX}")
        most = MOST_SPENT if field == "cost_usd" else MOST_COUNTED
        if field != "id" and isinstance(value, int | float) and not 0 <= value <= most:
            raise RequestFailed(
                ErrorCode.BAD_REQUEST, f"{field} = {value} is outside 0 to {most:.0f}; nothing was counted: check its unit"
            )
    if not isinstance(request, m.Reserve):
        _check_cached(request.input_tokens or 0, request.cached_tokens or 0, request.cache_write_tokens or 0)


def _check_cached(whole: int, cached: int, written: int) -> None:
    """Tokens from or to a cache are part of the input (SPEC section 8); more of them than input would be priced all the same."""
    if cached + written > whole:
        raise RequestFailed(
            ErrorCode.BAD_REQUEST,
            f"cached_tokens = {cached} and cache_write_tokens = {written} are more than input_tokens = {whole}, which they are "
            "part of; nothing was counted: add them to input_tokens",
        )


def _budget_state(budget: Budget, tree: Iterable[Run]) -> BudgetState:
    return BudgetState(
        scope=budget.scope,
        name=budget.name,
        period=budget.period,
        usd=to_usd(budget.allowed),
        used_usd=to_usd(budget.charged),
        renews=budget.renews,
        partial=budget.partial or any(run.user in budget.members and run.account.grows for run in tree),
    )


def _reserved(request: int, run: Run, reservation: str | None, refusal: LimitRefusal | None) -> m.Reserved:
    cost = run.account.holds[reservation].cost if reservation is not None else None
    return m.Reserved(id=request, run=run.id, reservation=reservation, cost_usd=to_usd(cost), refused=refusal)


def _check_choice(request: m.Stop | m.Select) -> None:
    _check_most("runs in one request", len(request.runs), MAX_CHOSEN)
    _check_filters(request)


def _check_filters(request: m.Stop | m.Select | m.List | m.Summarise) -> None:
    _check_most("names", len(values_of(request.name or ())), MAX_CHOSEN)
    # a key without a value fits no run, and is a condition in the query all the same
    _check_most("labels", sum(max(1, len(values_of(value))) for value in request.labels.values()), MAX_LABELS)


def _check_since(since: float) -> None:
    if not abs(since) <= MAX_SECONDS:  # false for a NaN, too
        raise RequestFailed(ErrorCode.BAD_REQUEST, f"since must be Unix seconds, at most {MAX_SECONDS:.0f} from 1970")


def _sweeps(request: m.Stop | m.Select) -> bool:
    return request.everything or request.name is not None or bool(request.labels)


def _check_prune(request: m.Prune) -> None:
    if request.keep < 0 or not 0 <= (request.older_than or 0) <= MAX_SECONDS:
        raise RequestFailed(ErrorCode.BAD_REQUEST, f"keep must be 0 or more, and older_than 0 to {MAX_SECONDS:.0f} seconds")


def _check_sizes(request: m.Spawn) -> None:
    """What is kept and shown as long as the run is remembered has its bounds; argv and env have the frame's, and execve's."""
    tools = sum(map(len, request.allowed_tools)) + sum(map(len, request.blocked_tools))
    labels = max((len(word) for pair in request.labels.items() for word in pair), default=0)
    for what, value, limit in (
        ("bytes of cwd", len(request.cwd), 4096),
        ("characters of key", len(request.key or ""), 64),
        ("characters of session", len(request.session or ""), 64),
        ("labels", len(request.labels), MAX_LABELS),
        ("characters of a label", labels, 256),
        ("characters of --type", len(request.run_type or ""), 64),
        ("characters of --channel", len(request.channel or ""), 64),
        ("characters of tool names", tools, 65536),
        ("names in the claimed chain", len(request.claim.names), 64),
        ("characters of a claimed name", max(map(len, request.claim.names), default=0), 64),
    ):
        _check_most(what, value, limit)


def _check_most(what: str, value: int, limit: int) -> None:
    if value > limit:
        raise RequestFailed(ErrorCode.BAD_REQUEST, f"{value} {what}; at most {limit}")


def _fits(page: Page, info: RunInfo, chain: Sequence[RunId]) -> bool:
    return page.admits(info) and (page.within is None or page.within in chain)
