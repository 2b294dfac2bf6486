"""Transcripts: `t >> event` happened, `t << "command"` is what it called for, in order, nothing
more and nothing less.

Commands are written as one line each (`show`). What every step does anyway (Record, Publish,
Disarm) is left out unless a test asks for it; `Ended` too, since it always stands beside the end.
That whatever changes is kept is looked at each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from signal import Signals
from typing import Any

import msgspec

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.machine import Components, Machine, NewBarrier, NewCalls, NewElsewhere, NewPurses
from sfad.core.purses import Purses
from sfad.core.state.access import Peer
from sfad.core.state.account import NOTHING, ChargedTo, OpenReservation, Use
from sfad.core.state.limits import ActiveLimit
from sfad.core.state.money import to_nanos, to_usd
from sfad.core.state.policy import Policy
from sfad.core.state.run import Run
from sfad.core.state.vocabulary import Timer
from sfad.core.watching import NewWatcher
from sfad.durable.snapshots import to_saved
from sfad.protocol.kinds import COSTS
from sfad.protocol.requests.gateway import AdmitCall, CallDecision, EndCall
from sfad.protocol.types import (
    Action,
    ApiTrouble,
    Bound,
    CallInfo,
    Event,
    Limit,
    LimitKind,
    LimitRefusal,
    Reason,
    Refusal,
    Role,
    RunId,
    Source,
    Survivor,
)
from tests.core.asking import asked_for
from tests.core.holding import check_holds
from tests.core.policies import policy as policy_with

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
ANN = Peer(1000, "ann")
BOB = Peer(1001, "bob")
NOISE = frozenset({"save", "publish", "disarm", "ended", "call", "waits", "meter"})
LIMIT_EVENTS = {"limit_nearing": "near", "limit_exceeded": "over"}


def inside(run: RunId, user: str = "ann") -> Peer:
    """Return a peer inside this run."""
    return Peer(1000, user, run=run)


def bound(value: int, source: str = "--flag") -> Bound:
    """Return a bound from this source."""
    return Bound(value=value, source=source)


def seconds(value: float, source: str = "--timeout") -> Limit:
    """Return a time limit."""
    return Limit(kind=LimitKind.TIME, threshold=value, source=source)


def limits(words: str, source: str = "--limit") -> tuple[Limit, ...]:
    """`turns=10:pause cost=2.5` as limits."""
    return tuple(_limit(word, source) for word in words.split())


def _limit(word: str, source: str) -> Limit:
    kind, _, rest = word.partition("=")
    threshold, _, action = rest.partition(":")
    return Limit(
        kind=LimitKind(kind),
        threshold=float(threshold),
        action=Action(action) if action else None,
        source=source,
    )


def use(**amounts: Any) -> Use:
    """What a source tells, with costs in USD."""
    return Use(
        **{
            name: to_nanos(amount) if name in COSTS | {"guessed_cost"} else amount
            for name, amount in amounts.items()
        }
    )


def at_once(run: Run) -> dict[str, Any]:
    """Return what must be saved of it at once: not its use, which the model checks
    (`check_account`)."""
    state: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(run, enc_hook=to_saved))
    return state | {
        "account": {
            part: state["account"][part] for part in ("reservations", "reserved_by_agent", "ended")
        }
    }


class Sums(Purses):
    """Adds up what the runs of each user are charged, and refuses nothing."""

    known = ("sums",)

    def __init__(self, _components: Components) -> None:
        self.sums: dict[str, int] = {}

    def charge(self, run: Run, nanos: int | None, _charged_to: ChargedTo | None) -> None:
        if nanos:
            self.sums[run.user] = self.sums.get(run.user, 0) + nanos


class Transcript:
    """A machine whose commands are expected one by one."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        hear: frozenset[str] = frozenset(),
        watchers: Mapping[str, NewWatcher] | None = None,
        barrier: NewBarrier | None = None,
        purses: NewPurses | None = None,
        elsewhere: NewElsewhere | None = None,
        calls: NewCalls | None = None,
        **numbers: Any,
    ) -> None:
        self.halves: dict[str, Any] = {
            "watchers": watchers, "barrier": barrier, "purses": purses, "elsewhere": elsewhere,
            "calls": calls,
        }  # fmt: skip
        """Those of features in the core."""
        self.machine = Machine(policy or policy_with(**numbers), **self.halves)
        self.machine.purses()
        self.charged: dict[str, float] = {}
        """What was charged in USD, beside the accounts of runs."""
        self.at = 0.0
        self.answers: dict[int, c.Answer] = {}
        self.events: list[str] = []
        self.said: list[str] = []
        """Of limits, and of what else is charged: `near a1 turns 8/10`."""
        self.progress: list[str] = []
        """Messages of `run_progress`."""
        self.repeated: list[Event] = []
        """Events `run_repeating`."""
        self.published: list[Event] = []
        self.reasons: dict[RunId, Reason | None] = {}
        self.of_features: list[c.Command] = []
        """Commands of features that watch, which stand beside those of the components."""
        self.calls: list[CallInfo] = []
        """Those that are recorded."""
        self._quiet = NOISE - hear
        self.changed: set[RunId] = set()
        """Runs that are saved at once because of the last event."""
        self.noted: set[RunId] = set()
        """Runs that have used more by it."""
        self.left: list[str] = []
        """Commands of the last event that are not expected yet."""
        self._copies: dict[RunId, dict[str, Any]] = {}
        self.last_token = 0
        """That of the last request."""

    def __rshift__(self, event: e.Event) -> Transcript:
        """Handle an event. Each of its commands must be expected before the next `>>`."""
        self.quiet()
        outcome = self.machine.handle(event)
        if isinstance(purses := self.machine.purses(), Sums):
            self.charged = {user: to_usd(nanos) for user, nanos in purses.sums.items()}
        commands = [command for command in outcome.commands if not _of_feature(command)]
        self.of_features += [command for command in outcome.commands if _of_feature(command)]
        self.changed, self.noted = set(outcome.changed), set(outcome.used)
        self._keep(outcome)
        self.answers |= {x.token: x.answer for x in commands if isinstance(x, c.AnswerRequest)}
        for command in commands:
            self._note(command)
        shown = [self._show(command) for command in commands]
        self.left = [line for line in shown if line.split(" ", 1)[0] not in self._quiet]
        return self

    def __lshift__(self, line: str) -> Transcript:
        """Expect this command next."""
        assert self.left, f"nothing more was called for, expected: {line}"
        assert self.left.pop(0) == line
        return self

    def quiet(self) -> None:
        """Expect no more commands."""
        assert not self.left, f"not expected: {self.left}"

    def skip(self) -> Transcript:
        """Ignore the commands: another test checks them."""
        self.left = []
        return self

    def later(self, by: float) -> Transcript:
        """Let time pass."""
        self.at += by
        return self

    def _keep(self, outcome: c.Outcome) -> None:
        kept = {*outcome.changed, *(x.run.id for x in outcome.commands if isinstance(x, c.Admit))}
        for run in self.machine.tree:
            now = at_once(run)
            if run.id in kept:
                self._copies[run.id] = now
            assert self._copies[run.id] == now, f"{run.id} was not kept"
        check_holds(self.machine, self.at)

    def _note(self, command: c.Command) -> None:
        match command:
            case c.Publish(event):
                self.published.append(event)
                self.events.append(f"{event.type} {event.run_id}")
                if event.type == "run_progress":
                    self.progress.append(event.message)
                if event.type == "run_repeating":
                    self.repeated.append(event)
                if event.type == "limit_changed":
                    self.said.append(event.message)
                if event.type in LIMIT_EVENTS:
                    whose = event.run_id if event.scope in {"run", "tree"} else event.scope
                    held = f"+{event.reserved:g}" if event.reserved else ""
                    told = f"{whose} {event.limit_kind} {event.used:g}{held}/{event.threshold:g}"
                    told += " refused" if event.refused else ""
                    self.said.append(f"{LIMIT_EVENTS[event.type]} {told}")
            case c.Tell(_, what):
                self._note_told(what)
            case c.RecordCall(call):
                self.calls.append(call)
            case c.Retire(run):
                self.reasons[run.id] = run.shown_reason

    # ---- what a feature's half in the core tells, for a transcript with one

    def _note_told(self, what: object) -> None:
        """Take what it tells."""

    def _words_of(self, what: object) -> str:
        """Return the line for it."""
        return type(what).__name__.lower()

    # ---- events by short names

    def token(self) -> int:
        """Return a new token; `t.answers` has its replies."""
        self.last_token += 1
        return self.last_token

    def spawn(self, name: str | None, peer: Peer = ANN, **asked: Any) -> e.SpawnRequested:
        """A peer asks for a run. `timeout=seconds(9)` and `limits="turns=10:pause"` are limits."""
        bounds = asked.pop("limits", ())
        bounds = limits(bounds) if isinstance(bounds, str) else tuple(bounds)
        timeout = asked.pop("timeout", None)
        if timeout is not None:
            bounds = (*bounds, timeout)
        return e.SpawnRequested(
            self.at,
            self.token(),
            peer,
            asked_for(**{"name": name, "limits": bounds} | asked),
            unix_time=1_800_014_400.0,  # 2027-01-15 12:00:00 UTC
        )

    def stop(
        self, *runs: RunId, peer: Peer = ANN, grace: float | None = None, signal: int = 15
    ) -> e.StopRequested:
        """A peer stops runs."""
        return e.StopRequested(self.at, self.token(), peer, runs, signal, grace)

    def pause(self, run: RunId, peer: Peer = ANN, *, suspended: bool = False) -> e.PauseRequested:
        """A peer pauses a run."""
        return e.PauseRequested(self.at, self.token(), peer, run, suspended)

    def resume(self, run: RunId, peer: Peer = ANN, room: str = "") -> e.ResumeRequested:
        """A peer resumes a run, with more room."""
        return e.ResumeRequested(self.at, self.token(), peer, run, limits(room))

    def fg(self, run: RunId, peer: Peer = ANN) -> e.ResumeRequested:
        """A suspended foreground client continues."""
        return e.ResumeRequested(self.at, self.token(), peer, run, suspended=True)

    def approve(self, run: RunId, peer: Peer = ANN, room: str = "") -> e.ApproveRequested:
        """A peer grants an increase."""
        return e.ApproveRequested(self.at, self.token(), peer, run, limits(room))

    def limit(self, run: RunId, change: str, peer: Peer = ANN) -> e.LimitRequested:
        """A peer changes limits."""
        return e.LimitRequested(self.at, self.token(), peer, run, limits(change))

    def deny(self, run: RunId, peer: Peer = ANN) -> e.DenyRequested:
        """A peer refuses an increase."""
        return e.DenyRequested(self.at, self.token(), peer, run)

    def used(self, run: RunId, source: Source = "stream", **amounts: Any) -> e.UseSeen:
        """A source tells what the run has used in all."""
        return e.UseSeen(self.at, run, source, use(**amounts))

    def report(self, run: RunId, peer: Peer = ANN, **more: Any) -> e.ReportRequested:
        """A peer tells what more the run has used."""
        return e.ReportRequested(self.at, self.token(), peer, run, use(**more))

    def reserve(
        self,
        run: RunId,
        cost: float | None = None,
        tokens: int = 0,
        *,
        peer: Peer = ANN,
        role: Role | None = None,
    ) -> e.ReserveRequested:
        """A peer reserves an amount."""
        return e.ReserveRequested(
            self.at, self.token(), peer, run, OpenReservation("m", tokens, 0, to_nanos(cost), role)
        )

    def settle(self, reservation: str, peer: Peer = ANN, **used: Any) -> e.SettleRequested:
        """A peer settles a reservation."""
        return e.SettleRequested(self.at, self.token(), peer, reservation, use(**used))

    def call(
        self, run: RunId, output: int = 20_000, *, least: int = 4096, tokens: int = 1000,
        priced: bool = True, choices: int = 1, model: str = "m", more: int = 0,
        likely: int | None = None, api: str = "", login: str = "", others: tuple[str, ...] = (),
    ) -> e.CallAsked:  # fmt: skip
        """The gateway asks for a call, at 3 USD for a million tokens of input and 15 of output.
        `more`: input it may have, too; `likely`: the part of it by which estimates are wrong.
        `others`: further models that the provider may ask."""
        asked = AdmitCall(
            id=0, run=run, model=model, input_tokens=tokens, more_input=more, likely_more=likely,
            max_output=output, choices=choices, upstream="anthropic", api=api, login=login,
            others=list(others),
        )  # fmt: skip
        price = e.CallPrice(
            tokens * 3000 if priced else None, 15_000, more * 3000,
            likely_more_cost=None if likely is None else likely * 3000,
        )  # fmt: skip
        time = NOON + timedelta(seconds=self.at) if api else NOON
        return e.CallAsked(self.at, self.token(), asked, price, min(least, output), time)

    def call_ended(self, name: str, used: Use = NOTHING, **how: Any) -> e.CallSettled:
        """A call has ended so."""
        return e.CallSettled(
            self.at,
            EndCall(id=0, run=name.partition("-")[0], reservation=name, model="m", **how),
            used,
        )

    def called(
        self, name: str, tools: str = "", *, cut: bool = False, **used: Any
    ) -> e.CallSettled:
        """A call has ended, having used this. `tools`: that its reply asks for, as
        `name/arguments`."""
        asked_for = [(tool.partition("/")[0], tool.partition("/")[2]) for tool in tools.split()]
        return self.call_ended(name, use(messages=1, **used), cut=cut, tools=asked_for)

    def level(self, run: RunId, kind: str, level: float, *, refused: bool = False) -> e.LevelSeen:
        """The kernel tells memory or processes."""
        return e.LevelSeen(self.at, run, LimitKind(kind), level, refused)

    def said_by_agent(
        self,
        run: RunId,
        *,
        finished: bool = False,
        failed: str | None = None,
        trouble: ApiTrouble | None = None,
    ) -> e.AgentSaid:
        """The agent prints its state."""
        return e.AgentSaid(self.at, run, finished, failed, trouble)

    def committed(self, *runs: RunId) -> e.Committed:
        """The ledger commits these admissions."""
        return e.Committed(self.at, runs)

    def commit_failed(self, *runs: RunId) -> e.CommitFailed:
        """The ledger fails to commit these admissions."""
        return e.CommitFailed(self.at, runs, "disk full")

    def launched(self, run: RunId) -> e.LaunchSucceeded:
        """The command is executed."""
        return e.LaunchSucceeded(self.at, run, 77)

    def exited(
        self, run: RunId, code: int | None = 0, *, signal: int | None = None, empty: bool = True
    ) -> e.MainExited:
        """The main process was reaped."""
        return e.MainExited(self.at, run, code, signal, empty)

    def emptied(self, run: RunId) -> e.Emptied:
        """Nothing is alive."""
        return e.Emptied(self.at, run)

    def fired(self, run: RunId, timer: Timer | str) -> e.TimerFired:
        """A timer came due."""
        return e.TimerFired(self.at, run, Timer(timer))

    def reminded(self, feature: str, key: str = "") -> e.Reminded:
        """The time has come that a feature has asked for."""
        return e.Reminded(self.at, feature, key, NOON + timedelta(seconds=self.at))

    def surveyed(self, run: RunId, **alive: int) -> e.Surveyed:
        """Answer a survey: these are alive, as run=pid."""
        return e.Surveyed(
            self.at, run, tuple(Survivor(pid=p, run_id=r, why="state D") for r, p in alive.items())
        )

    # ---- whole scenes

    def reserved(self, event: e.ReserveRequested) -> str:
        """Return the name of the reservation."""
        (self >> event).skip()
        answer = self.answers[event.token]
        assert isinstance(answer, c.ReserveAnswer), answer
        assert answer.reservation is not None, answer.refusal
        return answer.reservation

    def not_reserved(self, event: e.ReserveRequested) -> LimitRefusal:
        """Return why it is not reserved."""
        (self >> event).skip()
        answer = self.answers[event.token]
        assert isinstance(answer, c.ReserveAnswer), answer
        assert answer.refusal is not None
        assert answer.reservation is None
        return answer.refusal

    def admitted(self, event: e.CallAsked) -> tuple[str, int | None]:
        """The call may be made; its reservation, and what it is lowered to."""
        (self >> event).skip()
        return self.admission(event)

    def admission(self, event: e.CallAsked) -> tuple[str, int | None]:
        """A call that was asked for earlier may be made."""
        answer = self.answers[event.token]
        assert isinstance(answer, CallDecision), answer
        assert answer.reservation is not None, answer.refused
        return answer.reservation, answer.max_output

    def not_called(self, event: e.CallAsked) -> str:
        """The call must not be made; why."""
        (self >> event).skip()
        answer = self.refusal(event)
        assert answer.retry_after is None, answer
        return answer.refused or ""

    def postponed(self, event: e.CallAsked) -> CallDecision:
        """The call must not be made now."""
        (self >> event).skip()
        answer = self.refusal(event)
        assert answer.retry_after is not None, answer
        return answer

    def refusal(self, event: e.CallAsked) -> CallDecision:
        """How a call that was asked for earlier was refused."""
        answer = self.answers[event.token]
        assert isinstance(answer, CallDecision), answer
        assert answer.reservation is None, answer
        assert answer.refused
        return answer

    def held(self, run: RunId, kind: str) -> ActiveLimit:
        """Return a limit of a live run."""
        return self.run(run).limits[LimitKind(kind)]

    def start(self, name: str, peer: Peer = ANN, **asked: Any) -> RunId:
        """Ask, commit and launch; return the run's id."""
        self >> self.spawn(name, peer, **asked)
        run = next(run for run in reversed(list(self.machine.tree)) if run.name == name)
        self.left = []
        (self >> self.committed(run.id)).skip()
        (self >> self.launched(run.id)).skip()
        return run.id

    def chain(self, *names: str, **asked: Any) -> list[RunId]:
        """Start a root, and below each run the next; return their ids."""
        runs: list[RunId] = []
        for name in names:
            runs.append(
                self.start(name, inside(runs[-1]) if runs else ANN, **({} if runs else asked))
            )
        return runs

    def refused(self, name: str, peer: Peer = ANN, **asked: Any) -> Refusal:
        """Ask for a run that is refused; return the answer."""
        (self >> self.spawn(name, peer, **asked)).skip()
        answer = self.answers[self.last_token]
        assert isinstance(answer, c.SpawnRefused), answer
        return answer.refusal

    def failed(self, event: e.Event) -> str:
        """Return why the request fails. It changes nothing."""
        self >> event
        answer = self.answers[self.last_token]
        assert isinstance(answer, c.ErrorAnswer), answer
        self << f"reply {self.last_token} Failed {answer.code}"
        self.quiet()
        return answer.message

    def run(self, run: RunId) -> Run:
        """Return a live run."""
        found = self.machine.tree.get(run)
        assert found is not None, f"{run} is not live"
        return found

    def _show(self, command: c.Command) -> str:
        match command:
            case c.Admit(run) | c.Launch(run) | c.RecordRefusal(run):
                return f"{type(command).__name__.lower()} {run.id}"
            case c.Record(run):
                return f"save {run.id} {run.status}"
            case c.Retire(run):
                return f"ended {run.id} {run.status}"
            case c.Terminate(name, signal):
                return f"terminate {name} {Signals(signal).name}"
            case c.Arm(name, timer, at):
                return f"arm {name} {timer} +{at - self.at:g}"
            case c.Disarm(name, timer):
                return f"disarm {name} {timer}"
            case c.Publish(event):
                return f"publish {event.type} {event.run_id}"
            case c.AnswerRequest(token, answer):
                return f"reply {token} {_answer(answer)}"
            case c.Rebound(run):
                return f"{type(command).__name__.lower()} {run.id}"
            case c.Tell(_, what):
                return self._words_of(what)
            case c.TellCall(call):
                return f"waits {call.run_id}"
            case c.RecordCall(call):
                return f"call {call.run_id} {call.state}"
            case c.MeterAgent(name, process):
                return f"meter {name} {process.program}"
            case c.Shutdown() | c.Remind() | c.SaveOf():
                return type(command).__name__.lower()
            case _:
                return f"{type(command).__name__.lower()} {command.run}"


def _of_feature(command: c.Command) -> bool:
    if isinstance(command, c.Publish):
        return command.event.state is not None
    return isinstance(command, c.Remind | c.SaveOf)


def _answer(answer: c.Answer) -> str:
    match answer:
        case c.SpawnDone(run) | c.Changed(run):
            return f"{type(answer).__name__} {run.id} {run.status}"
        case c.Known(run):
            return f"Known {run}"
        case c.SpawnRefused(refusal, run):
            return f"Refused {refusal.kind} {run or 'counted'}"
        case c.StopDone(stopped, survivors, _):
            alive = [f"{s.run_id}:{s.pid}" for s in survivors]
            return f"StopDone {' '.join((*stopped, *alive))}".rstrip()
        case c.ReserveAnswer(run, reservation, refusal):
            return (
                f"Reserved {reservation}"
                if refusal is None
                else f"NotReserved {refusal.whose} {refusal.limit_kind}"
            )
        case c.OnRecord(reply):
            return type(reply).__name__
        case CallDecision():
            lowered = "" if answer.max_output is None else f" lowered to {answer.max_output}"
            return (
                f"Called {answer.reservation}{lowered}"
                if answer.refused is None
                else f"NotCalled {answer.refused}"
            )
        case c.ErrorAnswer(code, _):
            return f"Failed {code}"
