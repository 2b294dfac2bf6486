"""Keeps runs within their limits: takes in what they use, says what is near or exceeded, and does what the limit's action is.

A part of the machine in a file of its own. Use goes into a run's account and from there to every ancestor's, its user's and
its teams'; then limits are looked at from the root down, since the outermost breach is the one that is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from signal import SIGTERM
from typing import TYPE_CHECKING, Any

from ..protocol.errors import ErrorCode
from ..protocol.kinds import KINDS, TREE_USE
from ..protocol.types import Action, Limit, LimitKind, LimitRefusal, Reason, Status
from ..protocol.units import format_usd
from . import commands as c
from . import events as e
from .account import NO_TREE_USE, NOTHING, Hold, Periods, Use, add_below, add_ended
from .budgets import Budget, Budgets
from .limits import ActiveLimit, Crossing, amount, bare, check, cross, crossed, replaced
from .money import to_usd, to_wire
from .policy import Invalid

if TYPE_CHECKING:
    from .access import Peer
    from .machine import Machine
    from .run import Run

_COST = TREE_USE.index(LimitKind.COST)

_STRENGTH = (Action.TERMINATE, Action.REFUSE, Action.REQUEST_INCREASE, Action.PAUSE, Action.WARN)
"""Of several breaches at the same moment the strongest action is taken."""

MORE = "it goes on when the budget is renewed, or raised in [budgets] of the config (then: sfactl reload)"
"""What a person can do about a tree that a budget has paused."""

_WAITING = (Action.PAUSE, Action.REQUEST_INCREASE)

_ENDING = (Action.TERMINATE, Action.REFUSE)
"""What has been used cannot be refused any more."""

MAX_RESERVATIONS = 1000
"""Reservations one run may hold unsettled. An agent has as many calls under way at a time; a thousand are a leak."""

MAX_TOOLS_SAID = 16
"""Tools of one run that a warning is said about."""


class Limiter:
    """Use, limits, reservations, approvals."""

    def __init__(self, machine: Machine, reserved: int = 0) -> None:
        self._machine = machine
        self.budgets = Budgets()
        self._reservations: dict[str, Run] = {}
        self._reserved = reserved
        self.handlers: dict[type, Callable[[Any], None]] = {
            e.UseSeen: self._use_seen,
            e.LevelSeen: self._level_seen,
            e.ToolsCalled: self._tools_called,
            e.ReportRequested: self._report_requested,
            e.ReserveRequested: self._reserve_requested,
            e.SettleRequested: self._settle_requested,
            e.ApproveRequested: self._approve_requested,
            e.DenyRequested: self._deny_requested,
            e.BudgetsKnown: self._budgets_known,
            e.LimitRequested: self._limit_requested,
        }
        self.timers: dict[str, Callable[[Run, float], None]] = {
            "deadline": self._clock_due,
            "approval": self._approval_due,
            "pause_max": self._pause_max_due,
        }

    def restore(self, runs: Iterable[Run]) -> None:
        """Goes on with what an earlier daemon has counted and reserved for all its runs. Each was remembered at another moment:
        what they add up to is counted anew, so that whatever is given back later was part of it."""
        for run in runs:
            run.account.below = dict(run.account.ended)
            for name in run.account.holds:
                self._reservations[name] = run
                self._reserved = max(self._reserved, int(name.rpartition("-")[2]))
        for run in (each for each in runs if each.parent is not None):
            add_below((above.account for above in run.lineage[:-1]), NO_TREE_USE, run.account.own_tree_use())

    # ---- the clock

    def start_clock(self, run: Run, at: float) -> None:
        """The run's clock counts from now on, up to the next thing there is to say or do about it."""
        run.clock.start(at)
        due = run.clock.reaches(self._next_mark(run))
        assert due is not None
        self._machine.do(c.Arm(run.id, "deadline", due))

    def _next_mark(self, run: Run) -> float:
        time = run.limits.get(LimitKind.TIME)
        if time is None or time.over:
            return run.max_time
        share = 1.0 if time.near else self._machine.policy.nearing
        return min(time.limit.threshold * share, run.max_time)

    def _not_executed(self, run: Run) -> Reason:
        after = run.allowed_time - run.clock.spent
        return Reason(
            kind="limit",
            message=f"its command was not executed within {after:g} s: its working directory, a directory of its PATH "
            "or the command is on a file system that does not answer",
            limit_kind=LimitKind.TIME,
        )

    def _clock_due(self, run: Run, at: float) -> None:
        if run.status is Status.STARTING and not run.standing_still:
            self._end(run, self._not_executed(run), at)
            return
        mark = self._next_mark(run)
        due = run.clock.reaches(mark)
        if due is None or run.status is not Status.RUNNING:
            return
        if due <= at:
            self._clock_reached(run, mark, at)
        if run.status is Status.RUNNING:
            self.start_clock(run, at)

    def _clock_reached(self, run: Run, mark: float, at: float) -> None:
        time = run.limits.get(LimitKind.TIME)
        # the sum of two times may miss the mark by a rounding; the timer has said that it is reached
        used = max(mark, run.clock.elapsed(at))
        found = list(cross(time, used, self._machine.policy.nearing)) if time is not None else []
        self._answer(run, found, at)
        if used >= run.max_time and run.status not in {Status.STOPPING} and not run.status.terminal:
            limit = Limit(kind=LimitKind.TIME, threshold=run.max_time, action=Action.TERMINATE, source="limits.max_time")
            last = ActiveLimit(limit, near=True)
            self._answer(run, list(cross(last, used, 1.0)), at)

    # ---- use

    def _use_seen(self, ev: e.UseSeen) -> None:
        run = self._machine.tree.get(ev.run)
        if run is not None and run.account.sources.get(ev.source) != ev.use:
            before = run.account.own_tree_use()
            run.account.sources[ev.source] = ev.use
            self._changed(run, before, ev.at)

    def _level_seen(self, ev: e.LevelSeen) -> None:
        run = self._machine.tree.get(ev.run)
        held = run.limits.get(ev.kind) if run is not None else None
        if run is None or held is None:
            return
        # at the threshold the kernel lets nothing through: what it refused was the next byte or process
        level = max(ev.level, held.threshold + 1) if ev.refused else ev.level
        run.account.levels[ev.kind] = level
        self._enforce(run, ev.at)

    def _report_requested(self, ev: e.ReportRequested) -> None:
        run = self._machine.steered(ev.token, ev.peer, "report", ev.run)
        if run is not None:
            self._add_report(run, ev.more, ev.at)
            self._machine.reply(ev.token, c.Changed(run))

    def _add_report(self, run: Run, more: Use, at: float, *, settled: str | None = None) -> None:
        before = run.account.own_tree_use()
        periods = None
        if settled is not None:
            periods = run.account.holds[settled].periods
            run.account.release(settled)
            del self._reservations[settled]
        run.account.sources["report"] = run.account.sources.get("report", NOTHING).plus(more)
        self._machine.changed(run)  # before it may end of it
        self._changed(run, before, at, periods)

    def _changed(self, run: Run, before: tuple[int, ...], at: float, periods: Periods | None = None) -> None:
        after = run.account.own_tree_use()
        if after != before:
            add_below((above.account for above in run.lineage[:-1]), before, after)
            self._charge(run, after[_COST] - before[_COST], periods)
        self._machine.used_more(run)
        self._enforce(run, at)
        if any(budget.over or budget.exhausted for budget in self.budgets.of(run.user)):
            self.look_at_budgets(at)

    def _charge(self, run: Run, nanos: int, periods: Periods | None) -> None:
        """`periods`: when what is given back was charged."""
        for budget in self.budgets.of(run.user):
            change = max(nanos, -budget.charged)
            if change < 0 and periods is not None and (budget.scope, budget.name, budget.begins) not in periods:
                continue  # what an earlier period was charged is not this one's to have back
            if not change:
                continue
            budget.charged += change
            self._machine.do(c.Charge(budget.scope, budget.name, change))
            if not budget.near and budget.charged >= self._machine.policy.nearing * budget.allowed:
                budget.near = True
                self._say_budget("limit_nearing", run, budget)
            if not budget.over and budget.exhausted:
                budget.over = True
                self._say_budget("limit_exceeded", run, budget)

    # ---- budgets, and what runs already

    def _budgets_known(self, ev: e.BudgetsKnown) -> None:
        self.budgets.know(ev.budgets)
        self.look_at_budgets(ev.at)

    def look_at_budgets(self, at: float) -> None:
        """Pause or end each live tree whose budgets have run out, and resume those that were paused only for that."""
        for root in list(self._machine.tree.roots()):
            self.look_at_budgets_of(root, at)

    def look_at_budgets_of(self, root: Run, at: float) -> None:
        """The same for one tree. One that has not been launched yet is looked at when it has been."""
        budget = next((budget for budget in self.budgets.of(root.user) if self._spent(budget)), None)
        action = self._machine.policy.budget_action
        if budget is None or action is Action.WARN:
            self._go_on_with_money(root, at)
        elif root.status not in {Status.RUNNING, Status.PAUSED}:
            return
        elif action is Action.TERMINATE:
            self._end(root, _out_of_money("limit", budget), at)
        else:
            self._stand_without_money(root, _out_of_money("budget", budget), at)

    def _spent(self, budget: Budget) -> bool:
        """Whether it has run out by what was used. What is only reserved may yet be given back, by a run that is not paused."""
        key = (budget.scope, budget.name, budget.begins)
        holds = (hold for run in set(self._reservations.values()) for hold in run.account.holds.values())
        reserved = sum(hold.cost or 0 for hold in holds if key in hold.periods) if budget.exhausted else 0
        return budget.charged - reserved >= budget.allowed

    def _stand_without_money(self, root: Run, reason: Reason, at: float) -> None:
        if root.out_of_money == reason:
            return
        if root.out_of_money is None:
            root.by_hand = root.frozen and root.held_by is None
        root.out_of_money = reason
        self._machine.changed(root)
        if not root.frozen:
            self._machine.pause(root, at, reason.message)

    def _go_on_with_money(self, root: Run, at: float) -> None:
        if root.out_of_money is None:
            return
        stays = root.by_hand or root.held_by is not None
        root.out_of_money, root.by_hand = None, False
        self._machine.changed(root)
        if not stays:
            self._machine.resume(root, at)
            self.recheck(root, at)

    def _say_budget(self, what: str, run: Run, budget: Budget, refused: int | None = None) -> None:
        used = budget.charged + (refused or 0)
        words = f"was refused {format_usd(to_usd(refused))} USD more: {budget.told}" if refused is not None else budget.told
        self._machine.publish(
            what, run, words, severity="medium", scope=budget.scope, limit_kind="cost", threshold=to_usd(budget.allowed),
            used=round(to_usd(used), 6),
            exceeded_by=round(to_usd(max(0, used - budget.allowed)), 6) if what == "limit_exceeded" else None,
        )  # fmt: skip

    def _tools_called(self, ev: e.ToolsCalled) -> None:
        run = self._machine.tree.get(ev.run)
        for tool in ev.tools if run is not None else ():
            if run is None or run.status is Status.STOPPING:
                return
            forbidden = _forbidden(run, tool)
            if forbidden is not None and tool not in run.tools_said and len(run.tools_said) < MAX_TOOLS_SAID:
                run.tools_said.add(tool)
                self._machine.changed(run)
                self._forbid(run, f"its agent called the tool '{tool}', {forbidden}", ev.at)

    def _forbid(self, run: Run, message: str, at: float) -> None:
        self._machine.publish(
            "limit_exceeded", run, message, severity="medium", scope="run", limit_kind="tool", threshold=0, used=1, exceeded_by=1
        )
        if run.asked.on_limit is not Action.WARN:
            self._end(run, Reason(kind="limit", message=message, limit_kind="tool"), at)

    # ---- reservations

    def _reserve_requested(self, ev: e.ReserveRequested) -> None:
        machine = self._machine
        run = machine.steered(ev.token, ev.peer, "reserve", ev.run)
        if run is None:
            return
        if run.status is Status.STOPPING or len(run.account.holds) >= MAX_RESERVATIONS:
            why = "is being stopped" if run.status is Status.STOPPING else f"holds {MAX_RESERVATIONS} reservations; settle some"
            machine.reply(ev.token, c.Failed(ErrorCode.WRONG_STATE, f"nothing is reserved: run {run.id} {why}"))
            return
        if self._refused(run, ev):
            return
        self._reserved += 1
        name = f"{run.id}-{self._reserved}"
        before = run.account.own_tree_use()
        periods = tuple((budget.scope, budget.name, budget.begins) for budget in self.budgets.of(run.user))
        run.account.hold(name, replace(ev.hold, periods=periods))
        self._reservations[name] = run
        machine.changed(run)
        machine.reply(ev.token, c.Reserved(run, name))
        self._changed(run, before, ev.at)

    def _refused(self, run: Run, ev: e.ReserveRequested) -> bool:
        for owner in run.lineage:
            for kind, more in ev.hold.amounts.items():
                held = owner.limits.get(kind)
                used = owner.account.used(kind) or 0
                if held is not None and held.binds and held.above(used + more):
                    self._machine.reply(ev.token, c.Reserved(run, None, _refusal(owner, held, used, more)))
                    self._answer_refused(owner, held, used, more, ev.at)
                    return True
        cost = ev.hold.cost or 0
        budget = next((b for b in self.budgets.of(run.user) if not b.admits(cost)), None)
        if budget is None:
            return False
        self._machine.reply(ev.token, c.Reserved(run, None, _over_budget(budget, cost)))
        if not (budget.refused or budget.over):
            budget.refused = True
            self._say_budget("limit_exceeded", run, budget, cost)
        return True

    def _answer_refused(self, owner: Run, held: ActiveLimit, used: float, more: float, at: float) -> None:
        if held.action is not Action.REFUSE:
            # that it comes near is said of what is used, not of what is not
            found = [crossing for crossing in cross(held, used + more, 1.0) if crossing.exceeded]
            self._answer(owner, found, at, refused=more)
        elif not held.refused:
            held.refused = True
            self._say(owner, Crossing(held, used + more, exceeded=True), more)
            self._machine.changed(owner)

    def reservation(self, name: str) -> tuple[Run, Hold] | None:
        """The live run that holds it, and what is held."""
        run = self._reservations.get(name)
        return (run, run.account.holds[name]) if run is not None else None

    def _settle_requested(self, ev: e.SettleRequested) -> None:
        run = self._reservations.get(ev.reservation)
        if run is None:
            message = f"no reservation '{ev.reservation}' is open: it was settled, or its run has ended and it was charged in full"
            self._machine.reply(ev.token, c.Failed(ErrorCode.WRONG_STATE, message))
        elif self._machine.steered(ev.token, ev.peer, "settle", run.id) is not None:
            self._add_report(run, ev.used, ev.at, settled=ev.reservation)
            self._machine.reply(ev.token, c.Changed(run))

    def close(self, run: Run) -> bool:
        """The run ends: what it holds is charged in full. That changes no sum, since it was counted when it was held. Returns
        whether there was any, which is used from now on."""
        held = list(run.account.holds.items())
        for name, hold in held:
            run.account.release(name)
            run.account.sources["report"] = run.account.sources.get("report", NOTHING).plus(hold.use)
            del self._reservations[name]
        if run.outcome is Status.LOST:  # it may have used more than was ever read
            sources = run.account.sources
            sources.update({source: replace(use, partial=True) for source, use in sources.items()})
        if run.account.grows:
            for budget in self.budgets.of(run.user):
                if not budget.partial:
                    budget.partial = True
                    self._machine.do(c.Charge(budget.scope, budget.name, 0))  # has it remembered
        used, above = run.account.own_tree_use(), run.lineage[:-1]
        if any(used):
            add_ended((each.account for each in above), used)
            for each in above:
                self._machine.changed(each)
        return bool(held)

    # ---- enforcement

    def _enforce(self, run: Run, at: float) -> None:
        nearing = self._machine.policy.nearing
        for owner in run.lineage:
            if owner.status is Status.STOPPING:
                return  # and everything below it ends with it
            self._answer(owner, list(crossed(owner.limits, owner.account, nearing)), at)
            if owner.held_by is not None:
                return  # it stands still with everything below it; `recheck` looks further when it goes on

    def recheck(self, run: Run, at: float) -> None:
        """The run goes on: what it and its descendants have used is held against all their limits again."""
        for each in run.subtree():
            if each.account.metered:
                self._enforce(each, at)

    def _answer(self, run: Run, found: list[Crossing], at: float, *, refused: float | None = None) -> None:
        for crossing in found:
            self._say(run, crossing, refused)
        if found:
            self._machine.changed(run)  # that it has been said
        breaches = [crossing for crossing in found if crossing.exceeded]
        if not breaches:
            return
        worst = min(breaches, key=lambda crossing: _STRENGTH.index(crossing.held.action))
        words = _words(run, worst, refused)
        if worst.held.action in _ENDING:
            self._end(run, _reason(run, worst, at, words, refused=refused is not None), at)
            return
        for crossing in breaches:
            if crossing.held.action is Action.REQUEST_INCREASE:
                self._publish_increase("increase_requested", run, crossing.held, _words(run, crossing, refused))
        if worst.held.action in _WAITING:
            self._hold(run, worst.held, _reason(run, worst, at, words, refused=refused is not None), at)

    def _say(self, run: Run, crossing: Crossing, refused: float | None) -> None:
        held, limit = crossing.held, crossing.held.limit
        self._machine.publish(
            "limit_exceeded" if crossing.exceeded else "limit_nearing",
            run,
            _words(run, crossing, refused),
            severity="medium" if crossing.exceeded else "low",
            scope=KINDS[limit.kind].scope,
            action=held.action,
            limit_kind=limit.kind.value,
            threshold=limit.threshold,
            used=_shown(limit.kind, crossing.used),
            exceeded_by=_over(held, crossing.used) if crossing.exceeded else None,
            refused=refused is not None and crossing.exceeded,
        )

    def _end(self, run: Run, reason: Reason, at: float) -> None:
        status = Status.TIMEOUT if reason.limit_kind in ("time", "pause_max") else Status.FAILED
        self._machine.begin_stop(run, at, status=status, reason=reason, signal=SIGTERM, grace=self._machine.grace(run))

    # ---- standing still until somebody decides

    def _hold(self, run: Run, held: ActiveLimit, reason: Reason, at: float) -> None:
        policy = self._machine.policy
        asks = held.action is Action.REQUEST_INCREASE
        if run.held_by is None or asks:
            run.held_by = held
            run.held_reason = reason
            run.held_until = at + (policy.approval_timeout if asks else policy.pause_max)
        if asks:
            self._machine.do(c.Arm(run.id, "approval", at + policy.approval_timeout))
        if run.status in {Status.RUNNING, Status.PAUSED} and not run.frozen:
            self._machine.pause(run, at)
        # one that is between attempts is frozen as soon as it has been launched

    def _publish_increase(self, what: str, run: Run, held: ActiveLimit, message: str) -> None:
        limit = held.limit
        self._machine.publish(
            what,
            run,
            message,
            scope=KINDS[limit.kind].scope,
            action=held.action,
            limit_kind=limit.kind.value,
            threshold=limit.threshold,
        )

    def release(self, run: Run) -> None:
        """Nobody has to decide about the run any more: it goes on, or it ends."""
        if run.held_by is not None:
            if run.held_by.action is Action.REQUEST_INCREASE:
                self._machine.do(c.Disarm(run.id, "approval"))
            run.held_by = run.held_reason = run.held_until = None

    def make_room(self, token: int, peer: Peer, run: Run, limits: Iterable[Limit]) -> bool:
        """Gives limits new thresholds: all that hold the run, or any if none does. If none is named, what holds it only warns
        from now on. False, with a reply, if that cannot be."""
        limits = tuple(limits)
        if (limits or run.held_by is not None) and peer.run is not None:
            message = f"run {peer.run} may not give run {run.id} more room: only from outside any run"
            self._machine.reply(token, c.Failed(ErrorCode.NOT_PERMITTED, message))
            return False
        try:
            holding = _holding(run)
            for limit in limits:
                check(limit, self._machine.policy)
                self._check_room(run, limit)
            _check_named(run, holding, limits)
        except Invalid as invalid:
            self._machine.reply(token, c.Failed(ErrorCode.BAD_REQUEST, str(invalid)))
            return False
        approved = run.held_by if run.held_by is not None and run.held_by.action is Action.REQUEST_INCREASE else None
        self.release(run)  # first: below, what holds it may turn into a warning, which has no timer to disarm
        for limit in limits:
            self._replace(run, limit, peer)
        self._machine.changed(run)
        if limits:
            self._machine.do(c.Rebound(run))
        for held in holding if not limits else ():
            held.limit = replaced(held.limit, action=Action.WARN)
        if approved is not None:
            self._publish_increase("increase_approved", run, run.limits[approved.limit.kind], f"approved by user {peer.user}")
        return True

    def _check_room(self, run: Run, limit: Limit) -> None:
        used = run.clock.spent if limit.kind is LimitKind.TIME else run.account.used(limit.kind)
        stands = run.held_by is not None and run.held_by.limit.kind == limit.kind
        # memory and processes may have become fewer, but not of what stands still for them
        if used is not None and (stands or limit.kind not in run.account.levels) and ActiveLimit(limit).above(used):
            raise Invalid(f"run {run.id} has used {amount(limit.kind, used)} already: the new limit must be above that")
        _check_above(run, limit)

    def _replace(self, run: Run, limit: Limit, peer: Peer) -> None:
        before = run.limits.get(limit.kind)
        action = limit.action or (before.action if before is not None else Action.TERMINATE)
        action = action if KINDS[limit.kind].acts else Action.WARN
        run.limits[limit.kind] = ActiveLimit(replaced(limit, action=action, source=f"{limit.source} by {peer.who}"))
        if limit.kind is LimitKind.TIME and peer.run is None:
            # the new limit was held against the range that is configured now; the one of the admission must not end the run sooner
            run.max_time = self._machine.policy.max_time

    # ---- changing limits of what lives

    def _limit_requested(self, ev: e.LimitRequested) -> None:
        run = self._machine.steered(ev.token, ev.peer, "limit", ev.run)
        if run is None or not self._may_change(ev, run):
            return
        kinds = {limit.kind for limit in ev.limits}
        freed = run.held_by is not None and run.held_by.limit.kind in kinds
        if freed:
            self.release(run)  # a limit that still holds the run breaches again below
        for limit in ev.limits:
            before = run.limits.get(limit.kind)
            self._replace(run, limit, ev.peer)
            self._say_changed(run, before, run.limits[limit.kind], ev.peer)
        self._machine.changed(run)
        self._machine.used_more(run)
        self._machine.do(c.Rebound(run))
        self._look_again(run, kinds, ev.at)
        if freed and run.held_by is None and run.outcome is None:
            self._go_on(run, ev.at)
        self._machine.reply(ev.token, c.Changed(run))

    def _may_change(self, ev: e.LimitRequested, run: Run) -> bool:
        if run.status is Status.STOPPING:
            message = f"run {run.id} is being stopped; its limits do not change any more"
            self._machine.reply(ev.token, c.Failed(ErrorCode.WRONG_STATE, message))
            return False
        looser = next((limit for limit in ev.limits if _looser(run.limits.get(limit.kind), limit)), None)
        if looser is not None and ev.peer.run is not None:
            message = (
                f"{ev.peer.who} may only lower limits; {_step(run.limits.get(looser.kind), looser)} takes a person outside any run"
            )
            self._machine.reply(ev.token, c.Failed(ErrorCode.NOT_PERMITTED, message))
            return False
        try:
            for limit in ev.limits:
                check(limit, self._machine.policy)
                _check_above(run, limit)
        except Invalid as invalid:
            self._machine.reply(ev.token, c.Failed(ErrorCode.BAD_REQUEST, str(invalid)))
            return False
        return True

    def _say_changed(self, run: Run, before: ActiveLimit | None, after: ActiveLimit, peer: Peer) -> None:
        limit = after.limit
        self._machine.publish(
            "limit_changed", run, f"{_step(before, limit)}, by {peer.who}", scope=KINDS[limit.kind].scope, action=after.action,
            limit_kind=limit.kind.value, threshold=limit.threshold, by=peer.who,
        )  # fmt: skip

    def _go_on(self, run: Run, at: float) -> None:
        """Resume a run that has been given more room, unless another limit holds it as well."""
        others = _holding(run)
        if others:
            kind = others[0].limit.kind
            crossing = Crossing(others[0], self._used(run, kind, at), exceeded=True)
            self._hold(run, others[0], _reason(run, crossing, at, _words(run, crossing, None)), at)
        elif run.frozen and run.out_of_money is None:
            self._machine.resume(run, at)

    def _used(self, run: Run, kind: LimitKind, at: float) -> float:
        return run.clock.elapsed(at) if kind is LimitKind.TIME else run.account.used(kind) or 0

    def _look_again(self, run: Run, kinds: set[LimitKind], at: float) -> None:
        """Hold the run's use against its changed limits, and its clock against its changed time."""
        nearing = self._machine.policy.nearing
        found = list(crossed(run.limits, run.account, nearing))
        if LimitKind.TIME in kinds:
            found += cross(run.limits[LimitKind.TIME], run.clock.elapsed(at), nearing)
        self._answer(run, found, at)
        if LimitKind.TIME in kinds and run.status is Status.RUNNING:
            self.start_clock(run, at)
        elif LimitKind.TIME in kinds and run.status is Status.STARTING:
            self._machine.do(c.Arm(run.id, "deadline", at + run.allowed_time - run.clock.spent))

    def _approve_requested(self, ev: e.ApproveRequested) -> None:
        run = self._awaiting(ev.token, ev.peer, "approve", ev.run)
        held = run.held_by if run is not None else None
        if run is None or held is None or not self.make_room(ev.token, ev.peer, run, ev.limits):
            return
        if run.frozen and run.out_of_money is None:
            self._machine.resume(run, ev.at)
        self.recheck(run, ev.at)
        self._machine.reply(ev.token, c.Changed(run))

    def _deny_requested(self, ev: e.DenyRequested) -> None:
        run = self._awaiting(ev.token, ev.peer, "deny", ev.run)
        held = run.held_by if run is not None else None
        if run is not None and held is not None:
            self._publish_increase("increase_denied", run, held, f"denied by user {ev.peer.user}")
            self._end_held(run, held, f"the increase was denied by user {ev.peer.user}", ev.at)
            self._machine.reply(ev.token, c.Changed(run))

    def _awaiting(self, token: int, peer: Peer, verb: str, name: str) -> Run | None:
        run = self._machine.steered(token, peer, verb, name)
        if run is not None and (run.held_by is None or run.held_by.action is not Action.REQUEST_INCREASE):
            held = f"; it is paused by its {run.held_by.limit.kind} limit: resume it" if run.held_by is not None else ""
            message = f"run {run.id} is {run.status} and does not wait for an approval{held}"
            self._machine.reply(token, c.Failed(ErrorCode.WRONG_STATE, message))
            return None
        return run

    def _approval_due(self, run: Run, at: float) -> None:
        if run.held_by is not None and run.held_by.action is Action.REQUEST_INCREASE:
            seconds = self._machine.policy.approval_timeout
            self._end_held(run, run.held_by, f"no increase was approved within {seconds:g} s (limits.approval_timeout)", at)

    def _pause_max_due(self, run: Run, at: float) -> None:
        if not run.frozen:
            return
        if run.out_of_money is not None and run.held_by is None and not run.by_hand:
            run.frozen_until = at + self._machine.policy.pause_max  # it goes on when its budget does, which may be next month
            self._machine.changed(run)
            self._machine.do(c.Arm(run.id, "pause_max", run.frozen_until))
            return
        why = f"it was paused for {self._machine.policy.pause_max:g} s (limits.pause_max)"
        if run.held_by is not None:
            self._end_held(run, run.held_by, why, at)
        else:
            self._end(run, Reason(kind="limit", message=why, limit_kind="pause_max"), at)

    def _end_held(self, run: Run, held: ActiveLimit, why: str, at: float) -> None:
        crossing = Crossing(held, self._used(run, held.limit.kind, at), exceeded=True)
        self._end(run, _reason(run, crossing, at, f"{_words(run, crossing, None)}; {why}"), at)


def _holding(run: Run) -> list[ActiveLimit]:
    """The limits that somebody has to decide about."""
    return [held for held in run.limits.values() if held.over and held.action in _WAITING]


def _check_above(run: Run, limit: Limit) -> None:
    """Raise `Invalid` where an ancestor has less. An ancestor's clock runs beside the run's own, so that time needs no check."""
    unit = KINDS[limit.kind].suffix
    for above in run.lineage[:-1] if limit.kind is not LimitKind.TIME else ():
        held = above.limits.get(limit.kind)
        if held is not None and held.binds and limit.threshold > held.limit.threshold:
            raise Invalid(
                f"{limit.kind} = {limit.threshold:g}{unit} is more than its ancestor {above.id} ('{above.name}') has: "
                f"{held.limit.threshold:g}{unit}; give that one more room first"
            )


def _looser(before: ActiveLimit | None, limit: Limit) -> bool:
    """Whether `limit` allows more than what was in force: a higher threshold, or a weaker action."""
    if before is None:
        return False
    weaker = limit.action is not None and _STRENGTH.index(limit.action) > _STRENGTH.index(before.action)
    return weaker or limit.threshold > before.limit.threshold


def _step(before: ActiveLimit | None, limit: Limit) -> str:
    """The change in words: `turns 25 → 50`."""
    old = f"{bare(limit.kind, before.threshold)} → " if before is not None else ""
    return f"{limit.kind} {old}{bare(limit.kind, ActiveLimit(limit).threshold)}"


def _check_named(run: Run, holding: list[ActiveLimit], limits: tuple[Limit, ...]) -> None:
    """More room for one limit says nothing of another that holds the run as well."""
    named = {limit.kind for limit in limits}
    forgotten = ", ".join(held.limit.kind for held in holding if held.limit.kind not in named)
    if named and forgotten:
        raise Invalid(
            f"run {run.id} is held by its limit of {forgotten}: name that as well, with more room, or name none, and what holds it "
            "only warns from now on"
        )


def _words(run: Run, crossing: Crossing, refused: float | None) -> str:
    limit, used = crossing.held.limit, crossing.used
    kind = limit.kind
    if kind is LimitKind.TIME:
        return f"ran {used:.1f} s; its time limit is {limit.threshold:g} s, set by {limit.source}"
    bound = f"its {kind} limit is {bare(kind, crossing.held.threshold)}, set by {limit.source}"
    if refused is not None and crossing.exceeded:
        return f"was refused {amount(kind, refused)} on top of {bare(kind, used - refused)}; {bound}"
    whose = " with its descendants" if KINDS[kind].scope == "tree" and run.account.below.get(kind) else ""
    return f"used {amount(kind, used)}{whose}; {bound}"


def _reason(run: Run, crossing: Crossing, at: float, message: str, *, refused: bool = False) -> Reason:
    limit, account = crossing.held.limit, run.account
    turns, tokens, cost = (account.used(kind) for kind in (LimitKind.TURNS, LimitKind.TOKENS, LimitKind.COST))
    return Reason(
        kind="limit",
        message=message,
        limit_kind=limit.kind.value,
        threshold=limit.threshold,
        used=_shown(limit.kind, crossing.used),
        exceeded_by=_over(crossing.held, crossing.used),
        refused=refused,
        turns=None if turns is None else int(turns),
        tokens=None if tokens is None else int(tokens),
        cost_usd=None if cost is None else to_wire(LimitKind.COST, cost),
        elapsed_s=round(run.clock.elapsed(at), 3),
    )


def _shown(kind: LimitKind, used: float) -> float:
    return round(to_wire(kind, used), 6)


def _over(held: ActiveLimit, used: float) -> float:
    return _shown(held.limit.kind, max(0, used - held.threshold))


def _refusal(owner: Run, held: ActiveLimit, used: float, asked: float) -> LimitRefusal:
    limit = held.limit
    whose = f"run {owner.id} ('{owner.name}') above its {limit.kind} limit"
    spent = bare(limit.kind, used, unit=False)
    numbers = f"{spent} of {bare(limit.kind, held.threshold)} are used or held, set by {limit.source}"
    return LimitRefusal(
        scope=KINDS[limit.kind].scope,
        whose=owner.id,
        limit_kind=limit.kind,
        threshold=limit.threshold,
        used=to_wire(limit.kind, used),
        asked=to_wire(limit.kind, asked),
        message=f"not reserved: {amount(limit.kind, asked)} more would take {whose}: {numbers}. Finish with what you have.",
    )


def _over_budget(budget: Budget, asked: int) -> LimitRefusal:
    return LimitRefusal(
        scope=budget.scope,
        whose=budget.name,
        limit_kind=LimitKind.COST,
        threshold=to_usd(budget.allowed),
        used=to_usd(budget.charged),
        asked=to_usd(asked),
        message=f"not reserved: {format_usd(to_usd(asked))} USD more is not left in the budget: {budget.told}. "
        "Finish with what you have.",
    )


def _out_of_money(kind: str, budget: Budget) -> Reason:
    return Reason(
        kind=kind,
        message=f"there is no money left in a budget: {budget.told}",
        limit_kind="cost" if kind == "limit" else None,  # no limit of the run's is to be raised
        threshold=to_usd(budget.allowed),
        used=round(to_usd(budget.charged), 6),
        exceeded_by=round(to_usd(max(0, budget.charged - budget.allowed)), 6),
    )


def _forbidden(run: Run, tool: str) -> str | None:
    """Why the run may not use a tool. A pattern such as `Bash(git:*)` is the agent's to keep; here its name counts."""
    blocked = {name for name in run.asked.blocked_tools if "(" not in name}
    allowed = {name.partition("(")[0] for name in run.asked.allowed_tools}
    if tool in blocked:
        return "which --block-tool forbids"
    return "which --allow-tool does not name" if allowed and tool not in allowed else None
