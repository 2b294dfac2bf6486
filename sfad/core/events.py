"""What happened: the input of the machine. Every event carries `at`, seconds on the shell's
monotonic clock.

What clients call events, which the ledger keeps, are `protocol.types.Event`s: the machine
publishes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import ClassVar, Literal, NamedTuple

from msgspec import Struct

from ..protocol import types
from ..protocol.requests.gateway import AdmitCall, EndCall, SeeWindows
from ..protocol.types import (
    ApiTrouble,
    Limit,
    LimitKind,
    RunId,
    Source,
    Status,
    Survivor,
)
from .state.access import Peer
from .state.account import OpenReservation, Silence, Use
from .state.policy import Learnt, Policy
from .state.quotas import Part, Quota
from .state.request import Asked
from .state.run import Token
from .state.tree import Remembered, StopTicket
from .state.vocabulary import Timer


class At(Struct, frozen=True):
    at: float


class OfRun(At, frozen=True):
    """Something happened to a run. Nothing follows if the run has ended."""

    run: RunId


class OfPeer(At, frozen=True):
    """A request. What cannot be carried out is answered by `AnswerRequest(ErrorAnswer)`."""

    token: Token
    peer: Peer


class OfPeerOnRun(OfPeer, frozen=True):
    """A peer asked for something of a run, which it may only with this verb."""

    verb: ClassVar[str]
    run: RunId


class OfCalls(At, frozen=True):
    """It is about model calls that are asked for before they are made (`calling.Calls`)."""


class SpawnRequested(OfPeer, frozen=True):
    """A peer asked for a run. Answered by `AnswerRequest(SpawnDone)` or
    `AnswerRequest(SpawnRefused)`."""

    asked: Asked
    ended: Mapping[RunId, Status] = {}
    """How those of `asked.queueing.after` have ended that are not live."""
    continued_by: RunId | None = None
    """The ended run that has continued `asked.continues` already."""
    lease_until: float | None = None
    """Of a grant with a lease: when that ends, on this node's clock."""
    unix_time: float = 0.0
    """When, for rules about the time of day, and to tell when a start will be possible."""


class StopRequested(OfPeer, frozen=True):
    """A peer asked to stop these runs. Answered by `AnswerRequest(StopDone)` once everything is
    gone or something survived."""

    runs: tuple[RunId, ...]
    signal: int = 15
    grace: float | None = None


class PauseRequested(OfPeerOnRun, frozen=True):
    """A peer asked to freeze a run and everything below it."""

    verb = "pause"
    suspended: bool = False
    """The peer is its foreground client, which is about to stop itself."""


class ResumeRequested(OfPeerOnRun, frozen=True):
    """A peer asked to thaw a paused run. `limits` give more room to what paused it."""

    verb = "resume"
    limits: tuple[Limit, ...] = ()
    suspended: bool = False
    """Only if it was paused as `suspended`."""


class ApproveRequested(OfPeerOnRun, frozen=True):
    """A peer granted the increase that a run waits for."""

    verb = "approve"
    limits: tuple[Limit, ...] = ()


class DenyRequested(OfPeerOnRun, frozen=True):
    """A peer refused the increase that a run waits for."""

    verb = "deny"


class LimitRequested(OfPeerOnRun, frozen=True):
    """A peer asked to change limits of a live run, up or down. Answered by
    `AnswerRequest(Changed)`."""

    verb = "limit"
    limits: tuple[Limit, ...]


class ReportRequested(OfPeerOnRun, frozen=True):
    """A peer told what a run has used since it last did. Answered by `AnswerRequest(Changed)`."""

    verb = "report"
    more: Use


class ReserveRequested(OfPeerOnRun, frozen=True):
    """A peer asked whether a run may use so much. Answered by `AnswerRequest(ReserveAnswer)`."""

    verb = "reserve"
    reservation: OpenReservation


class SettleRequested(OfPeer, frozen=True):
    """A peer told what became of a reservation. Answered by `AnswerRequest(Changed)`."""

    reservation: str
    used: Use


class CallPrice(Struct, frozen=True):
    """What a call may cost, in nano-dollars."""

    input_cost: int | None
    """Of the input as it is estimated; `None`: no price of the model is known."""
    output_token: int = 0
    """Of a token of output."""
    more_input_cost: int = 0
    """Of the input that the call may have beyond the estimate."""
    estimated: bool = False
    """It is the price of another model."""
    unsure: str | None = None
    """Why it is not known now whether the model has a price."""
    likely_more_cost: int | None = None
    """The part of `more_input_cost` by which estimates are often wrong; `None`: all of it."""


class CallAsked(OfCalls, frozen=True):
    """The gateway asks whether a run may make a model call. Answered by
    `AnswerRequest(CallDecision)`, perhaps much later."""

    token: Token
    request: AdmitCall
    price: CallPrice
    least_output: int
    """Tokens to which its maximum output may be lowered."""
    time: datetime
    """When it was asked for, by the clock of the machine."""
    gateway_uid: int | None = None
    """As `OpenReservation` has it."""


class CallWithdrawn(OfCalls, frozen=True):
    """A call that waits is not to be made."""

    token: Token
    why: str | None
    """`None` if it will be asked for again."""


class CallSettled(OfCalls, frozen=True):
    """A call has ended, or was broken off. `used`: with its cost."""

    call: EndCall
    used: Use
    price_from: str | None = None
    """As `CallInfo` has it."""


class CallSilent(OfCalls, frozen=True):
    """No byte of a call's reply has come for a while; without `silence`, its first byte has come
    after all."""

    reservation: str
    silence: Silence | None


class GatewayGone(OfCalls, frozen=True):
    """A gateway is gone, and another may follow. What it had under way, and neither settled nor
    noted, counts in full."""

    noted: tuple[CallSettled, ...] = ()
    """What it had noted of its calls."""
    gateway_uid: int | None = None
    """As `OpenReservation` has it."""


class GatewayConnected(OfCalls, frozen=True):
    """The gateway has a new connection. Of reservations that are not among these, it never learnt:
    no call was made for them."""

    reservations: frozenset[str]
    gateway_uid: int | None = None
    """As `OpenReservation` has it."""


class WindowsSeen(At, frozen=True):
    """A reply to a run, or its session file, tells of the windows of the account that pays for it.
    The run may have ended; none is named where another machine tells of them."""

    time: datetime
    """When the reply came, in the zone in which people are told of times."""
    told: SeeWindows
    uid: int | None
    """The user to whom the account belongs; `None`: the operator, whose key the gateway has."""
    unix_time: float
    """Now, in seconds since 1970."""


class UseSeen(OfRun, frozen=True):
    """What a run has used in all its attempts, as a source tells it now."""

    source: Source
    use: Use


class ToolsCalled(OfRun, frozen=True):
    tools: tuple[str, ...]


class AgentSessionSaved(OfRun, frozen=True):
    """The agent of a run has saved its session, which its program can continue."""

    session: str


class AgentSaid(OfRun, frozen=True):
    """What this attempt's agent says of itself: whether its final result is out, why it failed, if
    it did, and whether it cannot reach its model."""

    finished: bool
    failed: str | None
    trouble: ApiTrouble | None = None


class LevelSeen(OfRun, frozen=True):
    """What the kernel tells of a run and its descendants: bytes of memory, or processes. Or for how
    many seconds they gave no sign of life, or the run waits for a person."""

    kind: LimitKind
    level: float
    refused: bool = False
    """The kernel has refused more, or killed for want of it."""
    doing: str = ""
    """What the run does meanwhile, as far as a feature knows: `waiting for a person`."""
    over: bool = False
    """It is over: the next level begins at zero."""


class AgentProcess(NamedTuple):
    """A process of a run that executes an agent program."""

    pid: int
    started: int
    """Clock ticks since boot."""
    program: str
    command: str
    above: tuple[tuple[int, str | None], ...] = ()
    """Its ancestors up to the run's main process, the nearest first, each with the agent program
    that it executes, if any."""
    is_main: bool = False
    below_main: bool = False
    own_group: bool = False
    """It is not in its parent's process group."""
    serves: bool = False
    """Its command is one with which the program serves itself (`KnownProgram.serves`)."""
    word: int | None = None
    """Which word of its command stands for the program, if its files tell what it executes."""

    @property
    def is_part(self) -> bool:
        """Whether it is a part of the agent that has started it."""
        return (
            bool(self.above)
            and self.above[0][1] == self.program
            and (self.serves or not self.own_group)
        )


class HeardOf(OfRun, frozen=True):
    """Something was heard of a run that executes, or is to execute, on another machine, or of one
    that was granted from there. What that is, is the feature's own (`core.elsewhere`)."""

    what: object


class AgentSeen(OfRun, frozen=True):
    """An agent program was seen in a run: its own, one that it has started itself, or a part of one
    of these. The same process may be told again."""

    process: AgentProcess


class ModelReached(OfRun, frozen=True):
    """A connection from a run to a model's API has carried what looks like a call, which did not
    come through the gateway."""

    program: str
    """An agent program that is alive in the run; empty: none is."""
    api: str
    """The host and the port."""
    sent: int = 0
    """Bytes of the request."""


class HandedOff(OfRun, frozen=True):
    """An agent program in the run hands work to a server of its own outside of the run's tree."""

    program: str
    what: str
    """What was seen of it."""


class Did(OfRun, frozen=True):
    """A feature has seen the run do something, which is published unless it was too often."""

    what: types.Event


class PersonAsked(OfRun, frozen=True):
    """A run asks a person for something, and its clock stands until it is answered. `words`: for
    what, as a feature says; empty: for nothing any more."""

    words: str


class LimitsLearnt(At, frozen=True):
    """A feature has learnt about limits, which replaces what it had learnt before."""

    feature: str
    learnt: Learnt


class Told(At, frozen=True):
    """A feature's part tells its half in the core (`core.purses`) something. Only these two know
    what that means. `token`: of the request that it is about."""

    what: object
    token: Token | None = None


class Reminded(At, frozen=True):
    """The time has come for which a feature has asked with `Remind`. `key`: the id of a run, or
    empty; `time`: now, in the zone in which people are told of times."""

    feature: str
    key: str
    time: datetime


class ClientGone(At, frozen=True):
    """A connection ended; runs tied to it end with it."""

    client: int


class ClientBack(OfRun, frozen=True):
    """A client that had lost its connection ties a run to the one it has now."""

    client: int


class RunsAdopted(At, frozen=True):
    """What is left of an earlier daemon's runs, parents before children. The first event of all: no
    process of any other run is alive."""

    runs: tuple[Remembered, ...]
    why: str
    """What became of that daemon, as the beginning of a sentence about a run: `the daemon was
    killed`."""
    continued: bool = False
    """It was this very process: requests and connections are still there."""
    tickets: tuple[StopTicket, ...] = ()
    learnt: tuple[Event, ...] = ()
    """What was read of these runs since they were saved: their use, and what their agents said."""
    ended: Mapping[RunId, Status] = {}
    """How runs have ended that one of these waits for and that are not among them, as far as it is
    known."""


class Committed(At, frozen=True):
    """The ledger holds the admission of these runs: they may start."""

    runs: tuple[RunId, ...]


class CommitFailed(At, frozen=True):
    """The ledger could not take the admission of these runs: they must not start."""

    runs: tuple[RunId, ...]
    error: str


class LaunchSucceeded(OfRun, frozen=True):
    """The run's command has been executed (execve returned into it)."""

    pid: int


class LaunchFailed(OfRun, frozen=True):
    """The run's command could not be executed. Nothing of this attempt is alive."""

    errno: int
    error: str
    kind: Literal["launch", "output"] = "launch"
    """`output`: not the command is to blame, but the place where its output, or what is remembered
    of it, was to go."""
    about: Literal["command", "directory"] = "command"
    """What the error is about, for `launch`."""


class MainExited(OfRun, frozen=True):
    """The run's main process has been reaped, or a program has ended the run that it carries out.
    It comes after `LaunchSucceeded`, and before
    `Emptied` of the run or of an ancestor."""

    code: int | None
    """The exit code, or `None` if a signal ended it."""
    signal: int | None = None
    """Neither: how it ended cannot be known, since it was not this process's child."""
    empty: bool = False
    """Nothing else is alive in the run's containment, child runs included."""
    last_line: str | None = None
    """The last line that the attempt wrote on stderr, fit to be shown, if it failed by its exit
    code."""
    failed: str | None = None
    """Why a run that a program carries out has failed, as that says."""
    left: bool = False
    """It is taken for ended: its program has not ended it within the grace."""
    last_lines: tuple[str, ...] = ()
    """Of a stage that has failed: the last lines of its output, fit to be shown."""


class Emptied(OfRun, frozen=True):
    """Nothing is alive in the run's containment, child runs included. Only reported for a run that
    is being emptied."""


class Frozen(OfRun, frozen=True):
    """The containment that `Freeze` named stands still."""


class Surveyed(OfRun, frozen=True):
    survivors: tuple[Survivor, ...]


class TimerFired(OfRun, frozen=True):
    timer: Timer
    last_lines: tuple[str, ...] = ()
    """As in `MainExited`, of a stage that may take too long."""
    unix_time: float = 0.0
    """Now, of the timer `at`."""


class DrainRequested(At, frozen=True):
    """The daemon was told to end: nothing starts any more and every tree is stopped. A second one
    skips the grace."""

    signal: int = 15
    cause: str | None = None
    """Why, in words, where more is known than the signal."""


class Reconfigured(At, frozen=True):
    """The configuration was read again. What was admitted keeps its own bounds; who waited may have
    room now."""

    policy: Policy


class QuotasShared(At, frozen=True):
    """This daemon shares its quotas of trees with other machines, and may use these parts of them.
    `trouble`: why no more."""

    parts: Mapping[Quota, Part]
    trouble: str = ""


class EndedElsewhere(At, frozen=True):
    """How runs have ended that runs wait for and that are not this daemon's."""

    ends: Mapping[RunId, Status]


OfLauncher = (
    LaunchSucceeded
    | LaunchFailed
    | MainExited
    | Emptied
    | Frozen
    | Surveyed
    | AgentSeen
    | ModelReached
    | HandedOff
)
OfMeters = AgentSessionSaved | UseSeen | LevelSeen | ToolsCalled | AgentSaid
OfRuns = OfLauncher | OfMeters | HeardOf | ClientBack | TimerFired | Did | PersonAsked
OfAgentsOnRuns = ReportRequested | ReserveRequested
OfPeopleOnRuns = (
    PauseRequested | ResumeRequested | ApproveRequested | DenyRequested | LimitRequested
)
OfPeersOnRuns = OfAgentsOnRuns | OfPeopleOnRuns
OfPeers = SpawnRequested | StopRequested | SettleRequested
OfCallers = CallAsked | CallWithdrawn | CallSettled | CallSilent | GatewayGone | GatewayConnected
OfDaemon = (
    Committed
    | CommitFailed
    | ClientGone
    | Told
    | LimitsLearnt
    | Reminded
    | WindowsSeen
    | Reconfigured
    | QuotasShared
    | EndedElsewhere
    | DrainRequested
    | RunsAdopted
)

Event = OfRuns | OfPeersOnRuns | OfPeers | OfCallers | OfDaemon
Feed = Callable[[Event], None]
"""Hands an event to the machine."""
