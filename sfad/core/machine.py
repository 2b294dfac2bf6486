"""The machine: one event in, its outcome out. It routes each event and each timer to the component
that handles it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from ..protocol.types import CallInfo, ErrorCode, Hold, RunId, Status
from . import commands as c
from . import events as e
from .admission.admission import Admission, Awaiting, Widening
from .admission.adopting import Adopting
from .admission.guard import MayStart
from .barring import Barrier
from .calling import Calls
from .context import Context
from .elsewhere import Elsewhere
from .life.attempts import AttemptTracker
from .life.lifecycle import Lifecycle
from .life.pausing import Pausing
from .life.spending import Spending
from .life.stopping import Stopping, StopRequests
from .limits.enforcement import LimitEnforcement, LimitHolds
from .limits.limit_requests import LimitRequests
from .limits.use_requests import UseRequests
from .limits.violations import Bypasses, HandOffs, ToolRules, Unadmitted
from .purses import Purses
from .state.holds import Moment, holds_of
from .state.policy import Policy
from .state.run import Run
from .state.vocabulary import Timer
from .watching import NewWatcher, Watching

_FOLLOWED_UP = (
    e.Reconfigured, e.RunsAdopted, e.DrainRequested, e.QuotasShared, e.EndedElsewhere
)  # fmt: skip
"""They may make room for waiting trees, or leave no live run, though no run ends."""

_NOWHERE = "what places runs on other machines is not there, or cannot be loaded now; try again"


class Components(Struct, frozen=True):
    """What halves of features may use of the core."""

    context: Context
    lifecycle: Lifecycle
    spending: Spending
    stopping: Stopping
    pausing: Pausing
    attempts: AttemptTracker
    limit_holds: LimitHolds
    limits: LimitEnforcement
    stop_requests: StopRequests


NewBarrier = Callable[[Components], Barrier | None]
NewPurses = Callable[[Components], Purses | None]
NewElsewhere = Callable[[Components], Elsewhere | None]
NewCalls = Callable[[Components], Calls | None]
"""`None`: it cannot be made now, and is asked for again."""


class Machine:
    """All live runs and every decision about them."""

    def __init__(
        self,
        policy: Policy,
        *,
        next_number: int = 1,
        reservations: int = 0,
        may_start: Sequence[MayStart] = (),
        watchers: Mapping[str, NewWatcher] | None = None,
        barrier: NewBarrier | None = None,
        purses: NewPurses | None = None,
        elsewhere: NewElsewhere | None = None,
        calls: NewCalls | None = None,
    ) -> None:
        """`reservations`: so many may have been made before; their names are not used again.
        `may_start`: rules that features add to the guard's. `watchers`: what features watch, by
        their names. `barrier`: what holds calls and roots for one. `purses`: what one charges.
        `elsewhere`: what decides about runs on other machines for one. `calls`: what decides about
        model calls for one."""
        self._ctx = context = Context(policy)
        self._spending = Spending(context, reservations)
        self.watching = Watching(context, watchers or {})
        self._lifecycle = Lifecycle(context, self._spending, self.watching)
        self._stopping = Stopping(context, self._lifecycle)
        self._stop_requests = StopRequests(context, self._stopping)
        self._pausing = Pausing(context, self._lifecycle, self._stop_requests)
        self._attempts = AttemptTracker(context, self._lifecycle, self._stopping, self._pausing)
        self._tool_rules = ToolRules(context, self._stopping)
        self._unadmitted = Unadmitted(context, self._stopping)
        self._hand_offs = HandOffs(context, self._stopping)
        self._limit_holds = LimitHolds(context, self._stopping, self._pausing)
        self._limit_enforcement = LimitEnforcement(
            context,
            self._lifecycle,
            self._stopping,
            self._limit_holds,
            self._spending,
            self._attempts.retry_in_session,
        )
        self._bypasses = Bypasses(context, self._spending, self._limit_enforcement, self._stopping)
        self._components = Components(
            context, self._lifecycle, self._spending, self._stopping, self._pausing,
            self._attempts, self._limit_holds, self._limit_enforcement, self._stop_requests,
        )  # fmt: skip
        self._limit_requests = LimitRequests(
            context, self._lifecycle, self._pausing, self._limit_holds, self._limit_enforcement
        )
        self._use_requests = UseRequests(context, self._spending, self._limit_enforcement)
        self._new_barrier, self._new_purses, self._new_elsewhere = barrier, purses, elsewhere
        self._calls, self._new_calls = Calls(), calls
        self._widening = Widening(context, self._limit_enforcement)
        awaiting = Awaiting(context, self._stopping)
        self._admission = Admission(
            context,
            self._lifecycle,
            self._spending,
            self._widening,
            awaiting,
            next_number,
            may_start,
        )
        self._adopting = Adopting(
            context, self._lifecycle, self._spending, self._stopping, self._stop_requests,
            self._pausing, self._attempts, self._limit_holds, self._admission,
        )  # fmt: skip

        # what the shell reads and asks
        self.tree = context.tree
        self.slots = context.slots
        self.why_refused = context.why_refused
        self.scope = context.scope
        self.why_sessions_refused = context.why_sessions_refused
        self.reservation = self._spending.reservation
        self.calls_of_users = self._spending.under_way
        self.tickets = self._stop_requests.tickets
        self.drained_at = self._stopping.drained_at
        self.count_before = self._admission.count_before
        self.number_from = self._admission.number_from
        self.quotas = self._admission.quotas
        self.spawned_before = self._admission.spawned_before
        self.session_started_before = self._admission.session_started_before

    @property
    def policy(self) -> Policy:
        return self._ctx.policy

    @property
    def draining(self) -> bool:
        return self._ctx.draining

    @property
    def admitted(self) -> int:
        return self._admission.admitted

    @property
    def refused(self) -> int:
        return self._admission.refused

    @property
    def refused_callers(self) -> Collection[str]:
        """The callers whose refusals are counted: `user NAME`, or the id of a live run."""
        return self._admission.refused_callers

    def barrier(self) -> Barrier:
        """Return what a feature holds calls and roots with, and make it if there was no need of it
        so far."""
        make = self._new_barrier
        if make is not None and (made := make(self._components)) is not None:
            self._ctx.barrier, self._new_barrier = made, None
        return self._ctx.barrier

    def purses(self) -> Purses:
        """Return what a feature charges, and make it if there was no need of it so far."""
        make = self._new_purses
        if make is not None and (made := make(self._components)) is not None:
            self._ctx.purses, self._new_purses = made, None
        return self._ctx.purses

    def calls(self) -> Calls:
        """Return what a feature decides about model calls with, and make it if there was no need of
        it so far."""
        make = self._new_calls
        if make is not None and (made := make(self._components)) is not None:
            self._calls, self._new_calls = made, None
        return self._calls

    def waiting_calls(self, run: RunId) -> list[CallInfo]:
        """Return the calls of a run that wait, the oldest first."""
        return self._calls.waiting_of(run)

    def calls_under_way(self, run: RunId) -> list[CallInfo]:
        """Return the calls of a run that were admitted and have not ended."""
        found = self.tree.get(run)
        reservations = found.account.reservations.values() if found is not None else ()
        return [each.call for each in reservations if each.call is not None]

    def teams_of(self, user: str) -> Collection[str]:
        """Return the teams that have a purse which a user spends."""
        return self._ctx.purses.teams(user)

    def _has_elsewhere(self) -> bool:
        """Return whether a feature decides about runs on other machines. What it does that with is
        made if there was no need of it so far."""
        make = self._new_elsewhere
        if make is not None and (made := make(self._components)) is not None:
            self._ctx.elsewhere, self._new_elsewhere = made, None
        return type(self._ctx.elsewhere) is not Elsewhere

    def holds(self, run: Run, now: float, moment: Moment) -> tuple[Hold, ...]:
        """Return why a live run waits at `now`, or calls of it."""
        calls = self._calls.wait_of(run.id) if self._calls.waiting else None
        if calls is None and not run.asks and run.status is Status.RUNNING:
            return ()  # most runs, most of the time
        return holds_of(run, self.slots, calls, now, moment)

    def handle(self, event: e.Event) -> c.Outcome:
        """Return what `event` calls for: commands in their order, and the runs whose snapshots are
        saved before the first one. That of a run which is launched for the first time is saved once
        its process is known, before that executes anything."""
        outcome = self._ctx.begin()
        self._route(event)
        if (
            self._ctx.ended
            or self._ctx.purses.changed
            or self._admission.ready
            or self._ctx.released
            or isinstance(event, _FOLLOWED_UP)
        ):
            self._follow_up(event)
        if self._calls.waiting and not isinstance(event, e.CallAsked):
            self._calls.look(event.at)
            if self._ctx.ended or self._ctx.purses.changed:
                self._follow_up(event)
        if (
            self._ctx.watched or outcome.used or self._ctx.measured or self.watching.watchers
        ):  # not so with most runs, most of the time
            self.watching.look(outcome, event)
        return outcome

    def _follow_up(self, event: e.Event) -> None:
        """Do what the end of a run, or money that was spent, calls for beyond that run."""
        ended = self._tell_ended(event.at)
        if self._ctx.purses.changed or isinstance(event, e.Reconfigured):
            self._ctx.purses.look(event.at)
            self._tell_ended(event.at)
        self._admission.launch_waiting(event.at)
        if (
            self._ctx.draining
            and not len(self.tree)
            and (ended or isinstance(event, e.DrainRequested))
        ):
            self._ctx.do(c.Shutdown())

    def _tell_ended(self, at: float) -> bool:
        """Tell the components of runs that have ended, and of those that end because of that.
        Return whether there were any."""
        any_ended = bool(self._ctx.ended)
        while self._ctx.ended:
            ended = self._ctx.take_ended()
            if self._stop_requests.waiting:
                self._stop_requests.tell_ended(ended, at)
            self._admission.forget(ended)
            if self._calls.counted:
                self._calls.forget(ended)
            if self._ctx.barrier.held:
                self._ctx.barrier.forget(ended, at)
            self._admission.runs_ended(ended, at)
        return any_ended

    def _route(self, event: e.Event) -> None:
        match event:
            case e.OfRun():
                if (run := self.tree.get(event.run)) is not None:
                    self._happened(run, event)
            case e.OfPeerOnRun():
                if (run := self._ctx.permitted_run(event, event.verb, event.run)) is not None:
                    self._requested(run, event)
            case e.SpawnRequested():
                asked = event.asked
                if (asked.placing is None and asked.grant is None) or self._has_elsewhere():
                    self._admission.spawn_requested(event)
                else:
                    self._ctx.fail(event.token, ErrorCode.UNAVAILABLE, _NOWHERE)
            case e.Committed():
                self._admission.committed(event)
            case e.StopRequested():
                self._stop_requests.stop_requested(event)
            case e.SettleRequested():
                self._use_requests.settle_requested(event)
            case e.OfCalls():
                if isinstance(event, e.CallAsked):
                    self.barrier().tell_time(event.at, event.time)
                self._calls.happened(event)
            case e.WindowsSeen():
                self.barrier().seen(event)
            case e.CommitFailed():
                self._admission.commit_failed(event)
            case e.Reminded() if event.feature in self.watching.watchers:
                self.watching.reminded(event)
            case e.Reminded():
                self._ctx.barrier.due(event)
            case e.ClientGone():
                self._ctx.purses.client_gone(event.client)
                self._stop_requests.client_gone(event)
            case e.Told():
                for postponed in self.purses().told(event):
                    self._route(replace(postponed, at=event.at))
            case e.LimitsLearnt():
                self._limits_learnt(event)
            case e.Reconfigured():
                self._reconfigured(event)
            case e.QuotasShared():
                self.slots.share(event.parts, event.trouble)
            case e.EndedElsewhere():
                self._admission.ended_elsewhere(event.ends, event.at)
            case e.DrainRequested():
                self._stop_requests.drain_requested(event)
            case e.RunsAdopted():
                if any(one.run.window_hold is not None for one in event.runs):
                    self.barrier()
                if any(one.run.no_money is not None for one in event.runs):
                    self.purses()
                if any(one.run.remote or one.run.lease for one in event.runs):
                    self._has_elsewhere()
                self._adopting.runs_adopted(event, self._route)
            case _:
                assert_never(event)

    def _happened(self, run: Run, event: e.OfRuns) -> None:
        match event:
            case e.LaunchSucceeded():
                self._attempts.launch_succeeded(run, event)
                if self._ctx.purses.known:
                    self._ctx.purses.look_at(run, event.at)
            case e.MainExited():
                self._attempts.main_exited(run, event)
            case e.TimerFired():
                self._timer_fired(run, event)
            case e.LaunchFailed():
                self._attempts.launch_failed(run, event)
            case e.Emptied():
                self._attempts.emptied(run, event)
            case e.Frozen():
                self._pausing.frozen(run)
            case e.Surveyed():
                self._stop_requests.surveyed(run, event)
            case e.AgentSeen():
                self._unadmitted.agent_seen(run, event)
                self._widening.agent_started(run, event.process.program, event.at)
                self._agent_held(run, event.at)
            case e.ModelReached():
                self._bypasses.model_reached(run, event)
            case e.HandedOff():
                self._hand_offs.seen(run, event)
            case e.Did():
                self._ctx.publish_at_will(run, event.what, event.at)
            case e.PersonAsked():
                self._lifecycle.person_asked(run, event.words, event.at)
            case e.UseSeen():
                self._limit_enforcement.use_seen(run, event)
                self._bypasses.look(run, event.at)
            case e.LevelSeen():
                self._limit_enforcement.level_seen(run, event)
            case e.ToolsCalled():
                self._tool_rules.tools_called(run, event)
            case e.AgentSaid():
                self._attempts.agent_said(run, event)
            case e.AgentSessionSaved():
                self._attempts.agent_session_saved(run, event)
            case e.ClientBack():
                self._stop_requests.client_back(run, event)
            case e.HeardOf():
                self._ctx.elsewhere.heard(run, event.what, event.at)
            case _:
                assert_never(event)

    def _agent_held(self, run: Run, at: float) -> None:
        """Note that a run holds an agent program, so that its tree can spend."""
        if not run.seen.holds_agent:
            run.seen.holds_agent = True
            self._ctx.changed(run)
            if self._ctx.purses.known:
                self._ctx.purses.look_at(run, at)

    def _requested(self, run: Run, event: e.OfPeersOnRuns) -> None:
        match event:
            case e.PauseRequested():
                self._pausing.pause_requested(run, event)
            case e.ResumeRequested():
                self._limit_requests.resume_requested(run, event)
            case e.ApproveRequested():
                self._limit_requests.approve_requested(run, event)
            case e.DenyRequested():
                self._limit_requests.deny_requested(run, event)
            case e.LimitRequested():
                self._limit_requests.limit_requested(run, event)
            case e.ReportRequested():
                self._use_requests.report_requested(run, event)
            case e.ReserveRequested():
                self._use_requests.reserve_requested(run, event)
            case _:
                assert_never(event)

    def _timer_fired(self, run: Run, event: e.TimerFired) -> None:
        timer, at = event.timer, event.at
        match timer:
            case Timer.DEADLINE:
                lines = event.last_lines
                if run.latest.stage_until is None or not self._attempts.stage_due(run, at, lines):
                    self._limit_enforcement.clock_due(run, at)
            case Timer.RESULT:
                self._attempts.result_due(run, at)
            case Timer.RETRY:
                self._attempts.retry_due(run)
            case Timer.POLITE:
                self._stopping.polite_due(run)
            case Timer.GRACE:
                self._stopping.grace_due(run, at)
            case Timer.SURVEY:
                self._stopping.survey_due(run, at)
            case Timer.APPROVAL:
                self._limit_holds.approval_due(run, at)
            case Timer.PAUSE_MAX:
                self._limit_holds.pause_due(run, at)
            case Timer.RECONNECT:
                self._stop_requests.reconnect_due(run, at)
            case Timer.AT:
                self._admission.time_due(run, at, event.unix_time)
            case Timer.LEASE:
                self._ctx.elsewhere.lease_due(run, at)
            case Timer.CALLS:
                pass  # calls that wait are looked at after each event
            case _:
                assert_never(timer)

    def _reconfigured(self, event: e.Reconfigured) -> None:
        self._ctx.reconfigure(event.policy)
        if event.policy.watches_clocks:
            for run in self.tree:
                self._ctx.watch(run)
        self._admission.reconfigure()
        self._ctx.barrier.look(event.at)

    def _limits_learnt(self, event: e.LimitsLearnt) -> None:
        learnt = {**self.policy.learnt, event.feature: event.learnt}
        self._ctx.reconfigure(replace(self.policy, learnt=learnt))
