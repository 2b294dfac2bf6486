"""Admits runs or refuses them, and launches them when the ledger holds their admission and there is a slot."""

from collections.abc import Iterable

from msgspec.structs import replace

from ..protocol.types import ErrorCode, Reason, Refusal, RunId, Status
from . import commands as c
from . import events as e
from .candidate import candidate, limits_for
from .context import Context
from .guard import Question, first_refusal
from .lifecycle import Lifecycle
from .naming import program_name
from .policy import Invalid
from .quotas import HOUR, QuotaUse, SlidingWindow
from .run import Ending, Run
from .spending import Spending
from .vocabulary import EventType, ReasonKind
from .widening import Widening

REFUSALS_WRITTEN = 10
"""Refusals a minute of one caller by one rule that get a row of their own. Others are counted in the last of these rows."""


class _Refusals:
    def __init__(self) -> None:
        self.window = SlidingWindow(REFUSALS_WRITTEN, 60.0)
        self.last: RunId = ""


class Admission:
    def __init__(self, context: Context, lifecycle: Lifecycle, spending: Spending, widening: Widening, next_number: int) -> None:
        self._ctx = context
        self._widening = widening
        self._lifecycle = lifecycle
        self._spending = spending
        self._number = next_number
        self._rates: dict[str, SlidingWindow] = {}
        self._session_rates: dict[str, SlidingWindow] = {}
        self._refusals: dict[str, dict[str, _Refusals]] = {}
        """By caller and rule."""
        self.admitted = 0
        self.refused = 0

    def count_before(self, *, admitted: int, refused: int) -> None:
        """Continue the counters of an earlier daemon."""
        self.admitted += admitted
        self.refused += refused

    def reconfigure(self) -> None:
        for rate in self._rates.values():
            rate.limit = self._ctx.policy.spawns_per_hour
        for rate in self._session_rates.values():
            rate.limit, rate.span = self._ctx.policy.sessions.starts, self._ctx.policy.sessions.window

    def spawn_requested(self, ev: e.SpawnRequested) -> None:
        caller = self._ctx.tree.get(ev.peer.run) if ev.peer.run is not None else None
        try:
            run = candidate(
                ev,
                number=self._number,
                policy=self._ctx.policy,
                peer_run=caller,
                permissions=self._ctx.permissions(ev.peer),
            )
        except Invalid as invalid:
            self._ctx.fail(ev.token, ErrorCode.BAD_REQUEST, str(invalid))
            return
        refusal = first_refusal(self._question(ev, run, caller))
        if refusal is not None:
            self._refuse(ev, run, caller, refusal)
        else:
            self._admit(run, ev.at)

    def _question(self, ev: e.SpawnRequested, run: Run, caller: Run | None) -> Question:
        peer = ev.peer
        if peer.run is not None and caller is None:
            peer = replace(peer, unplaced=f"its run {peer.run} has ended")
        is_session = run.asked.session is not None
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
            exhausted=self._spending.budgets.exhausted(peer.user),
            session_rate=self._session_rate(peer.user) if is_session else None,
            sessions=[live for live in self._ctx.tree if live.asked.session is not None] if is_session else (),
        )

    def quotas(self, user: str, at: float) -> list[QuotaUse]:
        """Return what the user has of each quota."""
        policy, slots, sessions = self._ctx.policy, self._ctx.slots, self._ctx.policy.sessions
        live = sum(run.user == user and run.asked.session is not None for run in self._ctx.tree)
        return [
            QuotaUse("quotas.trees_per_user", slots.user_count(user), slots.per_user),
            QuotaUse("quotas.queued_per_user", slots.queued_of(user), policy.queued_per_user),
            _use_of(self._rates.get(user), "quotas.spawns_per_hour", policy.spawns_per_hour, at),
            QuotaUse("sessions.max_concurrent_per_user", live, sessions.per_user),
            _use_of(self._session_rates.get(user), "sessions.spawn_rate_limit", sessions.starts, at),
        ]

    def _rate(self, user: str) -> SlidingWindow:
        if (found := self._rates.get(user)) is None:
            found = self._rates[user] = SlidingWindow(self._ctx.policy.spawns_per_hour, HOUR)
        return found

    def _session_rate(self, user: str) -> SlidingWindow:
        rules = self._ctx.policy.sessions
        return self._session_rates.setdefault(user, SlidingWindow(rules.starts, rules.window))

    def session_started_before(self, user: str, at: float) -> None:
        """Count a session that an earlier daemon admitted against its rate. The oldest has to come first."""
        self._session_rate(user).take(at)

    def spawned_before(self, user: str, at: float) -> None:
        """Count a root that an earlier daemon admitted against the rate. The oldest has to come first."""
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

    def _admit(self, run: Run, at: float) -> None:
        agent = run.asked.agent_program
        if agent and run.parent is not None and self._widening.agent_started(run.parent, program_name(run.asked.argv), at):
            run.limits = limits_for(run.asked, run.parent, self._ctx.policy, run.birth.uid)
        self._number += 1
        self.admitted += 1
        self._ctx.tree.add(run)
        self._changed_above(run)
        if run.parent is None:
            self._rate(run.user).take(run.birth.created_at)
            self._take_slot(run)
        if run.asked.session is not None:
            self._session_rate(run.user).take(run.birth.created_at)
        self._ctx.do(c.Admit(run))

    def _take_slot(self, root: Run) -> None:
        if self._ctx.slots.free_for(root.user):
            self._ctx.slots.take(root.id, root.user)
        else:
            root.move(Status.QUEUED)
            self._ctx.slots.enqueue(root.id, root.user, root.asked.priority)

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
            if run.status is Status.QUEUED and self._ctx.slots.waits(run.id):
                self._ctx.publish(EventType.RUN_QUEUED, run, f"{self._ctx.slots.queued} trees wait")
                self._lifecycle.answer_spawn(run)
            elif run.status in {Status.ACCEPTED, Status.QUEUED}:
                self._lifecycle.launch(run)

    def commit_failed(self, ev: e.CommitFailed) -> None:
        """End runs that could not be recorded. They cost nothing."""
        for run_id in ev.runs:
            run = self._ctx.tree.get(run_id)
            if run is None or run.committed:
                continue
            message = f"run {run.id} was not started, because it could not be recorded: {ev.error}; try again when that is fixed"
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
        if run.parent is None:
            self._rate(run.user).give_back(run.birth.created_at)
        if run.asked.session is not None:
            self._session_rate(run.user).give_back(run.birth.created_at)

    def launch_waiting(self) -> None:
        """Launch the trees that wait for a slot, as far as there are any."""
        while not self._ctx.draining and (run_id := self._ctx.slots.next_waiting()) is not None:
            run = self._ctx.tree.get(run_id)
            if run is not None and run.committed:
                self._lifecycle.launch(run)

    def restore(self, run: Run) -> None:
        """Continue with a run that an earlier daemon has admitted. A root keeps its slot, or its place in the queue."""
        self._ctx.tree.put(run)
        self._number = max(self._number, run.birth.number + 1)
        if run.parent is None and run.status is Status.QUEUED:
            self._ctx.slots.enqueue(run.id, run.user, run.asked.priority)
        elif run.parent is None:
            self._ctx.slots.take(run.id, run.user)

    def forget(self, ended: Iterable[Run]) -> None:
        """Forget what was refused to runs that have ended."""
        for run in ended:
            self._refusals.pop(run.id, None)


def _use_of(rate: SlidingWindow | None, key: str, limit: int, at: float) -> QuotaUse:
    return QuotaUse(key, 0, limit, 0.0) if rate is None else QuotaUse(key, rate.used(at), limit, rate.room_in(at))
