"""Admits runs or refuses them. Launches them when the ledger holds their admission, the runs that
they wait for have ended, and there is a slot."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from ...protocol.event_types import EventType
from ...protocol.known import CODING_AGENT, PROFILES
from ...protocol.types import After, ErrorCode, Reason, Refusal, RunId, Status
from .. import commands as c
from .. import events as e
from ..barring import Bar
from ..context import Context
from ..life.lifecycle import Lifecycle
from ..life.spending import Spending
from ..life.stopping import Stopping
from ..limits.enforcement import LimitEnforcement
from ..state.holds import why_queued
from ..state.limits import (
    PROFILED,
    ActiveLimit,
    is_default,
    is_from_above,
    narrow,
    profile_limits,
    step,
)
from ..state.naming import AGENT_COMMANDS, program_name
from ..state.policy import Invalid
from ..state.quotas import HOUR, QuotaUse, SlidingRate
from ..state.run import Ending, Run
from ..state.vocabulary import ReasonKind, Timer
from .candidate import Draft, candidate, draft, limits_for
from .guard import MayStart, Question, first_refusal

# ---- Runs that start when others have ended (`spawn --after`): whom each still waits for, and what
# an end means for them


@dataclass(frozen=True, slots=True)
class Awaiting:
    _ctx: Context
    _stopping: Stopping
    waiters: dict[RunId, list[RunId]] = field(default_factory=dict)
    """By the run that they wait for."""

    def awaited_by(self, run: Run, ev: e.SpawnRequested) -> tuple[After, ...]:
        """Return what a run that is to be admitted has to wait for. Raise `Invalid` if it could
        never start."""
        ended = ev.ended
        for after in run.asked.queueing.after:
            if after.at is not None or self._is_awaited(after):
                continue
            status = ended.get(after.run)
            if status is None:
                raise Invalid(f"run {after.run} ended while the request was read; send it again")
            if after.ok and status is not Status.COMPLETED:
                raise Invalid(
                    f"run {after.run} ended as {status}, "
                    f"so what waits for its success cannot start (--after {after.words}); "
                    f"with --after {after.run} it starts all the same"
                )
        found = tuple(
            dict.fromkeys(
                after
                for after in run.asked.queueing.after
                if self._is_awaited(after) or _is_later(after, ev.unix_time)
            )
        )
        self._refuse_circle(run, found)
        return found

    def _is_awaited(self, after: After) -> bool:
        """Return whether the run has not ended, as far as it is known here."""
        return after.elsewhere or self._ctx.tree.get(after.run) is not None

    def _refuse_circle(self, run: Run, awaits: Iterable[After]) -> None:
        """Raise `Invalid` if one of the runs that it waits for, or that these wait for, ends only
        after it: one above it. No other circle is possible, because a run can only wait for runs
        that were admitted before it."""
        above = {each.id for each in run.ancestors}
        paths = [[after.run] for after in awaits if after.at is None] if above else []
        seen: set[RunId] = set()
        for path in paths:
            last = path[-1]
            if last in above:
                through = " → ".join([f"'{run.name}'", *path])
                raise Invalid(
                    f"it would wait for itself: run {last} is above it and ends only after it "
                    f"({through}). Wait for another run, or start it from outside the tree"
                )
            if last not in seen and (waits := self._ctx.tree.get(last)) is not None:
                seen.add(last)
                paths += [[*path, after.run] for after in waits.awaits if after.at is None]

    def wait(self, run: Run) -> None:
        """Let the run wait for each of `run.awaits`."""
        # once, also where it waits for an end and for a success
        for awaited in dict.fromkeys(after.run for after in run.awaits if after.at is None):
            self.waiters.setdefault(awaited, []).append(run.id)

    def ended(self, ends: Mapping[RunId, Status], at: float) -> list[Run]:
        """Take the ends of these runs, and end each run that waited for the success of one that did
        not complete. Return those that wait for no run any more."""
        released: list[Run] = []
        for ended, status in ends.items():
            for waiter in self.waiters.pop(ended, ()):
                run = self._ctx.tree.get(waiter)
                if run is None or run.status is not Status.QUEUED:
                    continue
                if status is not Status.COMPLETED and any(
                    after.ok and after.run == ended for after in run.awaits
                ):
                    message = (
                        f"run {ended} ended as {status}, "
                        f"and it was to start only if that completed (--after {ended}:ok)"
                    )
                    reason = Reason(kind=ReasonKind.AFTER, message=message, by=ended)
                    self._stopping.stop(run, at, Ending(Status.CANCELLED, reason))
                    continue
                run.awaits = tuple(after for after in run.awaits if after.run != ended)
                self._ctx.changed(run)
                if not run.awaits:
                    released.append(run)
        return released

    def ended_before(self, ends: Mapping[RunId, Status], at: float) -> list[Run]:
        """Do the same for runs that ended before an earlier daemon's runs were adopted. Nothing
        that is unknown is a success."""
        gone = {
            run: ends.get(run, Status.LOST)
            for run in self.waiters
            if self._ctx.tree.get(run) is None and not After(run=run).elsewhere
        }
        for run in self._ctx.ended:
            gone.pop(run.id, None)  # the end is told in a moment
        return self.ended(gone, at)

    def forget(self, ended: Iterable[Run]) -> None:
        """Forget what runs waited for that have ended themselves."""
        for run in ended:
            for after in run.awaits:
                waiters = self.waiters.get(after.run)
                if waiters is not None and run.id in waiters:
                    waiters.remove(run.id)
                    if not waiters:
                        del self.waiters[after.run]


# ---- Gives runs the profile of agent programs when one starts in them
#
# A night is often `sh night.sh`, and that may run `sh part.sh` as a child run. Their commands are
# no agent programs, so they have the defaults, which would end them in the middle of their work.
# Only limits that come from the defaults are raised: not those that a person, the entry of an agent
# or a type has set.


@dataclass(frozen=True, slots=True)
class Widening:
    _ctx: Context
    _limit_enforcement: LimitEnforcement

    def agent_started(self, run: Run, program: str, at: float) -> bool:
        """Raise the limits of the run and of those above it, because an agent program starts in it.
        Return whether that changed any."""
        if program not in AGENT_COMMANDS or not self._ctx.policy.program_profile:
            return False
        # from the root down, because the limits of a run are never above those of its parent
        widened = [each for each in run.lineage if self._widen(each, program, at)]
        return bool(widened)

    def _widen(self, run: Run, program: str, at: float) -> bool:
        if not _untouched(run):
            return False
        found = profile_limits(f"profile {CODING_AGENT}", PROFILES[CODING_AGENT], self._ctx.policy)
        if run.parent is not None:
            narrow(found, run.parent)
        raised = [
            found[kind]
            for kind in PROFILED
            if _is_higher(run.limits.get(kind), found[kind].threshold)
        ]
        if not raised:
            return False
        steps = ", ".join(step(run.limits[limit.kind], limit) for limit in raised)
        for limit in raised:
            # what `--on-limit` says holds for the profile, too
            run.limits[limit.kind] = ActiveLimit(
                replace(limit, action=run.limits[limit.kind].action)
            )
        self._ctx.changed(run)
        self._ctx.used_more(run)  # its row shows its limits
        self._ctx.do(c.Rebound(run))
        why = f"'{program}' starts in it, so it has the profile {CODING_AGENT}"
        self._ctx.publish(
            EventType.LIMITS_WIDENED,
            run,
            f"{why}: {steps}; to set limits yourself: --timeout, --limit",
        )
        self._limit_enforcement.limits_changed(run, {limit.kind for limit in raised}, at)
        return True


def _untouched(run: Run) -> bool:
    """Return whether no one has set the limits that a profile sets, and none of them holds or ends
    the run already."""
    if (
        run.status is Status.STOPPING
        or run.limit_hold is not None
        or any(limit.kind in PROFILED for limit in run.asked.terms.limits)
    ):
        return False
    return all(
        is_default(found.limit) or is_from_above(found.limit)
        for kind in PROFILED
        if (found := run.limits.get(kind))
    )


def _is_higher(active: ActiveLimit | None, threshold: float) -> bool:
    return active is not None and threshold > active.limit.threshold


# ---- Admits, queues, refuses and launches


REFUSALS_WRITTEN = 10
"""Refusals a minute of one caller by one rule that get a row of their own. Others are counted in
the last of these rows."""


class _Refusals:
    def __init__(self) -> None:
        self.window = SlidingRate(REFUSALS_WRITTEN, 60.0)
        self.last: RunId = ""


class Admission:
    def __init__(
        self,
        context: Context,
        lifecycle: Lifecycle,
        spending: Spending,
        widening: Widening,
        awaiting: Awaiting,
        next_number: int,
        may_start: Sequence[MayStart] = (),
    ) -> None:
        """`may_start`: rules of features."""
        self._ctx = context
        self._awaiting = awaiting
        self._widening = widening
        self._lifecycle = lifecycle
        self._spending = spending
        self._number = next_number
        self._may_start = may_start
        self._rates: dict[str, SlidingRate] = {}
        self._session_rates: dict[str, SlidingRate] = {}
        self._made: Draft | None = None
        """The last one of a request from outside of any run: equal requests have the same `Asked`
        (`daemon.loop.starting`)."""
        self._refusals: dict[str, dict[str, _Refusals]] = {}
        """By caller and rule."""
        self.ready: dict[RunId, Run] = {}
        """Queued runs that need no slot, and wait for no run any more, but perhaps for the ledger,
        or for the end of a pause."""
        self.admitted = 0
        self.refused = 0

    def count_before(self, *, admitted: int, refused: int) -> None:
        """Continue the counters of an earlier daemon."""
        self.admitted += admitted
        self.refused += refused

    def number_from(self, number: int) -> None:
        """Give the next run this number."""
        self._number = number

    @property
    def refused_callers(self) -> Collection[str]:
        """The callers whose refusals are counted: `user NAME`, or the id of a live run."""
        return self._refusals.keys()

    def reconfigure(self) -> None:
        for rate in self._rates.values():
            rate.limit = self._ctx.policy.quotas.spawns_per_hour
        for rate in self._session_rates.values():
            rate.limit, rate.span = (
                self._ctx.policy.sessions.spawn_rate_limit.max_requests,
                self._ctx.policy.sessions.spawn_rate_limit.window_seconds,
            )

    def spawn_requested(self, ev: e.SpawnRequested) -> None:
        caller = self._ctx.tree.get(ev.peer.run) if ev.peer.run is not None else None
        made, policy = self._made, self._ctx.policy
        try:
            if (
                made is None
                or ev.asked is not made.asked
                or ev.peer != made.peer
                or policy is not made.policy
            ):
                rights = self._ctx.permissions(ev.peer)
                made = draft(ev, policy=policy, caller=caller, rights=rights)
                outside = ev.peer.run is None and ev.asked.grant is None
                self._made = made if outside and not policy.learnt else None
            run = candidate(made, ev, self._number)
            if run.asked.placing is not None:
                if self._ctx.purses.postpones(run, ev):
                    return
                self._ctx.elsewhere.share_out(run)
                self._ctx.purses.share_out(run)
            awaits = self._awaiting.awaited_by(run, ev) if ev.asked.queueing.after else ()
        except Invalid as invalid:
            self._ctx.fail(ev.token, ErrorCode.BAD_REQUEST, str(invalid))
            return
        busy = (
            self._continued(ev.asked.continues, ev.continued_by)
            if ev.asked.continues is not None
            else None
        )
        if busy is not None:
            self._ctx.fail(ev.token, ErrorCode.WRONG_STATE, busy)
            return
        refusal = first_refusal(
            self._question(ev, run, caller, waits=bool(awaits)), self._may_start
        )
        if refusal is not None:
            self._refuse(ev, run, caller, refusal)
        else:
            self._admit(run, awaits, ev.at)
            if awaits and any(after.at is not None for after in awaits):
                self.time_due(run, ev.at, ev.unix_time)

    def _continued(self, run: RunId, by: RunId | None) -> str | None:
        """Return why a run cannot be continued: it lives, or another run continues it. Two would
        write to one session."""
        if self._ctx.tree.get(run) is not None:
            return f"run {run} has not ended: wait for it (sfactl wait {run}) or stop it first"
        by = by or next((each.id for each in self._ctx.tree if each.asked.continues == run), None)
        return (
            f"run {run} was continued by {by} already; to continue that one: sfactl continue {by}"
            if by is not None
            else None
        )

    def _question(
        self, ev: e.SpawnRequested, run: Run, caller: Run | None, *, waits: bool
    ) -> Question:
        peer = ev.peer
        if peer.run is not None and caller is None:
            peer = replace(peer, unidentified=f"its run {peer.run} has ended")
        is_session = run.asked.session is not None
        purses = self._ctx.purses
        return Question(
            at=ev.at,
            policy=self._ctx.policy,
            draining=self._ctx.draining,
            peer=peer,
            run=run,
            caller=caller,
            rate=self._rate(peer.user),
            slots=self._ctx.slots,
            live=self._ctx.tree,
            shortage=purses.shortage(peer.user, ev.at) if purses.known else None,
            session_rate=self._session_rate(peer.user) if is_session else None,
            sessions=[live for live in self._ctx.tree if live.asked.session is not None]
            if is_session
            else (),
            waits=waits,
            window=self._window(run, ev.at) if self._ctx.barrier.known else None,
            unix_time=ev.unix_time,
        )

    def _window(self, run: Run, at: float) -> str | None:
        """Return why a root has to wait for the reset of a window."""
        bar = self._ctx.barrier.bar_root(run, at) if run.parent is None else None
        return bar.message if bar is not None else None

    def quotas(self, user: str, at: float) -> list[QuotaUse]:
        """Return what the user has of each quota."""
        policy, slots, sessions = self._ctx.policy, self._ctx.slots, self._ctx.policy.sessions
        live = sum(run.user == user and run.asked.session is not None for run in self._ctx.tree)
        return [
            QuotaUse("quotas.trees_per_user", slots.user_count(user), slots.per_user),
            *(
                QuotaUse(f"groups.{group}.slots", slots.group_count(user, group), most)
                for group, most in slots.groups.items()
            ),
            QuotaUse(
                "quotas.queued_per_user", slots.queued_of(user), policy.quotas.queued_per_user
            ),
            _use_of(
                self._rates.get(user), "quotas.spawns_per_hour", policy.quotas.spawns_per_hour, at
            ),
            QuotaUse("sessions.max_concurrent_per_user", live, sessions.max_concurrent_per_user),
            _use_of(
                self._session_rates.get(user),
                "sessions.spawn_rate_limit",
                sessions.spawn_rate_limit.max_requests,
                at,
            ),
        ]

    def _rate(self, user: str) -> SlidingRate:
        if (found := self._rates.get(user)) is None:
            found = self._rates[user] = SlidingRate(self._ctx.policy.quotas.spawns_per_hour, HOUR)
        return found

    def _session_rate(self, user: str) -> SlidingRate:
        rules = self._ctx.policy.sessions
        return self._session_rates.setdefault(
            user,
            SlidingRate(rules.spawn_rate_limit.max_requests, rules.spawn_rate_limit.window_seconds),
        )

    def session_started_before(self, user: str, at: float) -> None:
        """Count a session that an earlier daemon admitted against its rate. The oldest has to come
        first."""
        self._session_rate(user).take(at)

    def spawned_before(self, user: str, at: float) -> None:
        """Count a root that an earlier daemon admitted against the rate. The oldest has to come
        first."""
        self._rate(user).take(at)

    def _refuse(self, ev: e.SpawnRequested, run: Run, caller: Run | None, refusal: Refusal) -> None:
        self.refused += 1
        # a caller's run that has ended is not counted by itself: its count would be kept for ever
        who = caller.id if caller is not None else f"user {ev.peer.user}"
        seen = self._refusals.setdefault(who, {}).setdefault(refusal.kind, _Refusals())
        if seen.window.full(ev.at):
            self._ctx.do(c.CountRefusal(seen.last))
            self._ctx.reply(ev.token, c.SpawnRefused(refusal, None))
            return
        seen.window.take(ev.at)
        seen.last = run.id
        self._number += 1
        run.status = refusal.kind.status
        run.ended_at = ev.at
        run.ending = Ending(run.status, Reason(kind=refusal.kind, message=refusal.message))
        self._ctx.do(c.RecordRefusal(run))
        self._ctx.publish(EventType.RUN_REJECTED, run, refusal.detail)
        self._ctx.reply(ev.token, c.SpawnRefused(refusal, run.id))

    def _admit(self, run: Run, awaits: tuple[After, ...], at: float) -> None:
        agent = run.asked.sources.agent_program
        if (
            agent
            and run.parent is not None
            and run.remote is None
            and self._widening.agent_started(run.parent, program_name(run.asked.shown.argv), at)
        ):
            run.limits = limits_for(run.asked, run.parent, self._ctx.policy, run.birth.uid)
        self._number += 1
        self.admitted += 1
        self._ctx.tree.add(run)
        if run.ancestors:
            self._changed_above(run)
        if run.remote is not None or run.lease is not None:
            self._ctx.elsewhere.admitted(run)
        if run.lease is None and run.parent is None:
            self._rate(run.user).take(run.birth.created_at)
        if awaits:
            run.awaits = awaits
            run.move(Status.QUEUED)
            self._hold(run)
        elif self._needs_slot(run):
            self._take_slot_or_queue(run, at)
        if run.remote is not None or run.status is Status.QUEUED:
            run.queued_at = at
        if run.asked.session is not None:
            self._session_rate(run.user).take(run.birth.created_at)
        self._ctx.do(c.Admit(run))

    def _needs_slot(self, run: Run) -> bool:
        """Return whether the run takes a slot for trees. A root that is to execute on another
        machine does where these are shared."""
        placed = self._ctx.slots.parts is not None and run.remote is not None
        return run.needs_slot or (placed and run.parent is None)

    def _hold(self, run: Run) -> None:
        """Let a queued run wait for other runs."""
        self._awaiting.wait(run)
        if self._needs_slot(run):
            self._ctx.slots.wait_outside(run.id, run.user)

    def _take_slot_or_queue(self, root: Run, at: float) -> None:
        bar = self._bar(root, at)
        if bar is not None:
            root.move(Status.QUEUED)
            self._wait_for_reset(root, bar, at)
        elif self._ctx.slots.free_for(root.user, root.asked.queueing.group):
            self._ctx.slots.take(root.id, root.user, root.asked.queueing.group)
        else:
            root.move(Status.QUEUED)
            self._enqueue(root)

    def _bar(self, root: Run, at: float) -> Bar | None:
        known = self._ctx.barrier.known and root.remote is None
        return self._ctx.barrier.bar_root(root, at) if known else None

    def _wait_for_reset(self, root: Run, bar: Bar, at: float) -> None:
        """Let a root that is queued wait until nothing bars it, without a place in the queue for
        slots."""
        bar.queue(root, at)
        self._ctx.slots.wait_outside(root.id, root.user)

    def _enqueue(self, root: Run) -> None:
        self._ctx.slots.enqueue(
            root.id, root.user, root.asked.queueing.priority, root.asked.queueing.group
        )

    def _changed_above(self, run: Run) -> None:
        for above in run.ancestors:
            self._ctx.changed(above)

    def committed(self, ev: e.Committed) -> None:
        """Launch runs whose admission the ledger holds."""
        for run_id in ev.runs:
            run = self._ctx.tree.get(run_id)
            if run is None or run.committed:
                continue
            run.committed = True
            self._ctx.changed(run)
            self._ctx.publish(EventType.RUN_ACCEPTED, run)
            if run.status is Status.QUEUED and (
                run.awaits or run.id in self.ready or self._ctx.slots.waits(run.id)
            ):
                self._ctx.publish(EventType.RUN_QUEUED, run, why_queued(run, self._ctx.slots))
                self._lifecycle.answer_spawn(run)
            elif run.status in {Status.ACCEPTED, Status.QUEUED}:
                self._lifecycle.launch(run)

    def commit_failed(self, ev: e.CommitFailed) -> None:
        """End runs that could not be recorded. They cost nothing."""
        for run_id in ev.runs:
            run = self._ctx.tree.get(run_id)
            if run is None or run.committed:
                continue
            message = (
                f"run {run.id} was not started, because it could not be recorded: {ev.error}; "
                "try again when that is fixed"
            )
            if run.admit_token is not None:
                self._ctx.fail(run.admit_token, ErrorCode.UNAVAILABLE, message)
                run.admit_token = None
            self._give_back(run)
            if run.status is not Status.STOPPING:
                reason = Reason(kind=ReasonKind.LEDGER, message=message)
                self._lifecycle.decide_end(run, ev.at, Ending(Status.FAILED, reason))
            self._lifecycle.finish(run, ev.at, recorded=False)

    def _give_back(self, run: Run) -> None:
        self.admitted -= 1
        self._ctx.tree.refund(run)
        self._changed_above(run)
        if run.parent is None and run.lease is None:
            self._rate(run.user).give_back(run.birth.created_at)
        if run.asked.session is not None:
            self._session_rate(run.user).give_back(run.birth.created_at)

    def runs_ended(self, ended: Iterable[Run], at: float) -> None:
        """Release the runs that wait for these."""
        if self._awaiting.waiters:
            self._release(self._awaiting.ended({run.id: run.status for run in ended}, at))

    def ended_elsewhere(self, ends: Mapping[RunId, Status], at: float) -> None:
        """Release the runs that wait for these, which are not this daemon's."""
        self._release(self._awaiting.ended(ends, at))

    def ended_before(self, ends: Mapping[RunId, Status], at: float) -> None:
        """Release what waits for runs that ended before the runs of an earlier daemon were
        adopted."""
        self._release(self._awaiting.ended_before(ends, at))
        for run in self._ctx.tree:
            if run.awaits and any(after.at is not None for after in run.awaits):
                self._ctx.arm(run, Timer.AT, at)

    def time_due(self, run: Run, at: float, unix_time: float) -> None:
        """Release a run if the time has come for which it waits; else look again: soon, because the
        clock of the machine may be set, or stand while the machine sleeps."""
        left = tuple(
            after for after in run.awaits if after.at is None or _is_later(after, unix_time)
        )
        if run.status is not Status.QUEUED:
            return
        if left != run.awaits:
            run.awaits = left
            self._ctx.changed(run)
            if not left:
                self._ctx.released.append(run)
        times = [after.at.timestamp() for after in left if after.at is not None]
        if times:
            wait = min(max(times) - unix_time, LOOK_AGAIN)
            self._ctx.arm(run, Timer.AT, at + wait)

    def _release(self, runs: Iterable[Run]) -> None:
        for run in runs:
            if not self._needs_slot(run):
                self.ready[run.id] = run
                continue
            # `launch_waiting` follows, and gives it a slot if there is one for it
            self._ctx.slots.end_waiting_outside(run.id)
            self._enqueue(run)

    def launch_waiting(self, at: float) -> None:
        """Launch the trees that wait for a slot, as far as there are any, and what waits below a
        root and may start."""
        if self._ctx.draining:
            return
        if self._ctx.released:
            self._release(self._ctx.released)
            self._ctx.released.clear()
        while (run_id := self._ctx.slots.give_next()) is not None:
            run = self._ctx.tree.get(run_id)
            if run is not None and (bar := self._bar(run, at)) is not None:
                self._ctx.slots.leave(run_id)
                self._wait_for_reset(run, bar, at)
            elif run is not None and run.committed:
                self._lifecycle.launch(run)
        for run in list(self.ready.values()):
            if run.status is not Status.QUEUED:
                del self.ready[run.id]
            elif run.committed and not run.paused_in_lineage:
                del self.ready[run.id]
                self._lifecycle.launch(run)

    def restore(self, run: Run) -> None:
        """Continue with a run that an earlier daemon has admitted. A root keeps its slot, or its
        place in the queue."""
        self._ctx.tree.put(run)
        self._number = max(self._number, run.birth.number + 1)
        if run.status is Status.QUEUED and run.awaits:
            self._hold(run)
        elif run.status is Status.QUEUED and run.window_hold is not None:
            self._ctx.slots.wait_outside(run.id, run.user)
        elif run.status is Status.QUEUED and self._needs_slot(run):
            self._enqueue(run)
        elif run.status is Status.QUEUED:
            self.ready[run.id] = run
        elif self._needs_slot(run):
            self._ctx.slots.take(run.id, run.user, run.asked.queueing.group)

    def forget(self, ended: Iterable[Run]) -> None:
        """Forget what was refused to runs that have ended, and what they waited for."""
        if self._awaiting.waiters:
            self._awaiting.forget(ended)
        for run in ended:
            self._refusals.pop(run.id, None)
            if run.awaits and any(after.at is not None for after in run.awaits):
                self._ctx.disarm(run, Timer.AT)


LOOK_AGAIN = 60.0
"""Seconds after which the clock of the machine is looked at again at the latest."""


def _is_later(after: After, unix_time: float) -> bool:
    return after.at is not None and after.at.timestamp() > unix_time


def _use_of(rate: SlidingRate | None, key: str, limit: int, at: float) -> QuotaUse:
    return (
        QuotaUse(key, 0, limit, 0.0)
        if rate is None
        else QuotaUse(key, rate.used(at), limit, rate.room_in(at))
    )
