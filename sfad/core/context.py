"""What all components of the machine share: the policy, the live runs, and what the present event
calls for."""

from collections.abc import Callable, Hashable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..protocol.event_types import EventType
from ..protocol.types import ErrorCode, Event, RunId, Severity
from . import commands as c
from .barring import Barrier
from .elsewhere import Elsewhere
from .events import OfPeer
from .purses import Purses
from .state.access import (
    FULL,
    Peer,
    Permissions,
    Scope,
    unknown_run,
    why_sessions_refused,
    why_target_refused,
    why_verb_refused,
)
from .state.policy import Policy
from .state.quotas import Slots
from .state.run import Run, Token
from .state.tree import Tree
from .state.vocabulary import Timer

# ---- How many events may come of what an agent does at will: each is a row of the ledger, which it
# must not fill


MAX_EVENTS = 10
WINDOW = 60.0
"""Seconds."""
MAX_CAUSES = 1000
"""Causes that are remembered before those are forgotten that have caused nothing within the
window."""


class EventRate:
    """Admits `MAX_EVENTS` events in a `WINDOW` for each cause."""

    def __init__(self) -> None:
        self._told: dict[Hashable, list[float]] = {}
        self._forget_at = MAX_CAUSES

    def __len__(self) -> int:
        """Return how many causes are remembered."""
        return len(self._told)

    def admits(self, cause: Hashable, at: float) -> bool:
        """Return whether one more event may be published, and count it."""
        told = self._told.get(cause)
        if told is None:
            self._forget_old(at)
            told = self._told[cause] = []
        if len(told) == MAX_EVENTS:
            if at - told[0] < WINDOW:
                return False
            del told[0]
        told.append(at)
        return True

    def _forget_old(self, at: float) -> None:
        if len(self._told) >= self._forget_at:
            self._told = {
                cause: told for cause, told in self._told.items() if at - told[-1] < WINDOW
            }
            # so that each is looked at a few times only
            self._forget_at = max(MAX_CAUSES, 2 * len(self._told))


# ---- What features watch, beside runs (`watching`)


class Reading(Struct, frozen=True):
    """What is measured of all runs together, or of those of a user or a team."""

    value: float
    threshold: float | None
    """`None`: the value is a share of what is allowed, and each feature has its own threshold."""
    above: bool
    """Whether it has reached the threshold, or all of what is allowed."""
    message: str


Readings = Callable[[float, float], Mapping[tuple[str, str], Reading]]
"""Returns what is measured, given from which share on it matters and the present time: by what it
is, and the name of the user that it is about, `team NAME`, or what it is called otherwise."""


# ---- What all components share


class Context:
    """Holds the live runs, and gathers the outcome of the present event."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.tree = Tree()
        self.slots = Slots(
            per_user=policy.quotas.trees_per_user, total=policy.quotas.trees, groups=policy.groups
        )
        self.draining = False
        """Nothing starts any more, because the daemon was told to end."""
        self._event_rate = EventRate()
        self.begin()
        self.ended: list[Run] = []
        """Runs that have ended since the last `take_ended`."""
        self.barrier = Barrier()
        """What a feature holds calls and roots with."""
        self.purses = Purses()
        """What a feature has charged, and bounds calls and roots with."""
        self.elsewhere = Elsewhere()
        """What a feature decides about runs on other machines."""
        self.released: list[Run] = []
        """Roots that it has let wait, and that may start now."""
        self.watched: dict[RunId, Run] = {}
        """Live runs of which more is known than that they run: features look at them."""
        self.readings: list[Readings] = []
        """What components measure of all runs together."""
        self.measured = False
        """Something of that has changed since features looked."""

    def begin(self) -> c.Outcome:
        """Return the outcome of the next event, which the components fill."""
        self._outcome = c.Outcome()
        self.do = self._outcome.commands.append
        """Adds a command to what the present event calls for. There are ten of them for each run: a
        method would cost ten calls."""
        return self._outcome

    def reconfigure(self, policy: Policy) -> None:
        """Decide by other numbers from now on. Admitted runs keep their own bounds."""
        self.policy = policy
        self.slots.resize(
            per_user=policy.quotas.trees_per_user, total=policy.quotas.trees, groups=policy.groups
        )

    def drain(self) -> None:
        self.draining = True

    def changed(self, run: Run) -> None:
        """Have the run's snapshot saved before any command of the present event is applied."""
        self._outcome.changed[run.id] = run

    def used_more(self, run: Run) -> None:
        """Have the run's use saved when that is convenient, and have features look at it."""
        self._outcome.used[run.id] = run

    def watch(self, run: Run) -> None:
        """Have features look at the run after this event, and after each that changes it."""
        self.watched[run.id] = run

    def save_and_record(self, run: Run) -> None:
        self.changed(run)
        self.do(c.Record(run))

    def arm(self, run: Run, timer: Timer, at: float) -> None:
        self.do(c.Arm(run.id, timer, at))

    def disarm(self, run: Run, timer: Timer) -> None:
        self.do(c.Disarm(run.id, timer))

    def reply(self, token: Token, answer: c.Answer) -> None:
        self.do(c.AnswerRequest(token, answer))

    def fail(self, token: Token, code: ErrorCode, message: str) -> None:
        self.do(c.AnswerRequest(token, c.ErrorAnswer(code, message)))

    def publish(
        self, what: EventType, run: Run, message: str = "", severity: Severity = "low"
    ) -> None:
        """Have an event numbered, recorded, logged, and sent to each client that watches the run or
        an ancestor."""
        birth, lineage = run.birth, run.lineage_ids
        event = Event(
            type=what,
            severity=severity,
            message=message,
            run_id=birth.id,
            root_id=lineage[0],
            agent_name=birth.name,
            user=birth.user,
            channel=birth.channel,
        )
        self.do(c.Publish(event, lineage))

    def publish_event(self, event: Event, run: Run) -> None:
        """Publish an event that tells more than words; the fields about its run are filled in
        here."""
        lineage = run.lineage_ids
        birth = run.birth
        event = replace(
            event,
            run_id=birth.id,
            root_id=lineage[0],
            agent_name=birth.name,
            user=birth.user,
            channel=birth.channel,
        )
        self.do(c.Publish(event, lineage))

    def may_cause_event(self, peer: Peer, at: float) -> bool:
        """Return whether what the peer does at will is published. A run, and a user who is not the
        operator, could otherwise fill the ledger."""
        return (peer.owner and peer.run is None) or self._event_rate.admits(
            peer.run or peer.uid, at
        )

    def publish_at_will(self, run: Run, event: Event, at: float) -> None:
        """Publish what a run does, unless it was too often: a program that tries again would fill
        the ledger."""
        if self._event_rate.admits((event.type, run.id), at):
            self.publish_event(event, run)

    def end(self, run: Run) -> None:
        self.tree.remove(run)
        if run.parent is None:
            self.slots.leave(run.id)
        self.ended.append(run)

    def take_ended(self) -> list[Run]:
        ended, self.ended = self.ended, []
        return ended

    def permissions(self, peer: Peer) -> Permissions:
        """Return what the run that the peer is in may do; everything, outside any run."""
        if peer.run is None:
            return FULL
        run = self.tree.get(peer.run)
        return run.birth.permissions if run is not None else Permissions(frozenset(), leaf=True)

    def why_refused(
        self, peer: Peer, verb: str, lineage: Sequence[RunId] | None = None
    ) -> str | None:
        """Return why the peer may not use `verb` (on the run at the end of `lineage`), or
        `None`."""
        refused = why_verb_refused(peer, verb, self.permissions(peer), self.policy.access)
        if refused is None and lineage is not None:
            refused = why_target_refused(peer, verb, lineage, self.policy.access)
        return refused

    def why_sessions_refused(self, peer: Peer) -> str | None:
        """Return why the peer may neither start sessions nor stop them, or `None`."""
        return why_sessions_refused(peer, self.permissions(peer), self.policy.access)

    def scope(self, peer: Peer) -> Scope:
        """Return the runs that the peer may know of now."""
        return self.policy.access.scope(peer)

    def permitted_run(self, ev: OfPeer, verb: str, run_id: RunId) -> Run | None:
        """Return the live run of this id if the peer may use `verb` on it; else reply why not."""
        run = self.tree.get(run_id)
        if run is None:
            self.fail(ev.token, ErrorCode.WRONG_STATE, f"run {run_id} has ended")
            return None
        return None if self.denied(ev, verb, [run]) else run

    def denied(self, ev: OfPeer, verb: str, runs: list[Run]) -> bool:
        """Return whether the peer may not use `verb` on one of the runs; then reply why."""
        refused = self._refused(ev.peer, verb, runs)
        if refused is not None:
            self.fail(ev.token, *refused)
        return refused is not None

    def _refused(self, peer: Peer, verb: str, runs: list[Run]) -> tuple[ErrorCode, str] | None:
        refused = self.why_refused(peer, verb)
        if refused is not None:
            return ErrorCode.NOT_PERMITTED, refused
        scope = self.scope(peer)
        for run in runs:
            if not scope.knows(run.birth.uid, run.lineage_ids):
                return ErrorCode.NO_SUCH_RUN, unknown_run(run.id)
            refused = why_target_refused(peer, verb, run.lineage_ids, self.policy.access)
            if refused is not None:
                return ErrorCode.NOT_PERMITTED, refused
        return None


def grace_of(run: Run, policy: Policy, requested: float | None = None) -> float:
    """Return the seconds between signal and SIGKILL: as requested now, as the run asked, or as
    configured."""
    own = run.asked.terms.grace if run.asked.terms.grace is not None else policy.stop.grace
    return own if requested is None else requested
