"""Requests that give a run more room or less: resume, approve, deny and limit."""

from collections.abc import Iterable
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from ...protocol.event_types import EventType
from ...protocol.kinds import KINDS, ROLES, ROLES_ARE_REPORTED
from ...protocol.types import Action, ErrorCode, Limit, LimitKind, Status
from .. import commands as c
from .. import events as e
from ..context import Context
from ..life.lifecycle import Lifecycle
from ..life.pausing import Pausing
from ..state.access import Peer
from ..state.holds import MORE
from ..state.limits import ActiveLimit, amount, check_range, step, usual_action
from ..state.money import to_wire
from ..state.policy import Invalid, Policy
from ..state.run import Run, Token
from .enforcement import STRENGTH, LimitEnforcement, LimitHolds, holding

AT_RESET = (
    "it goes on by itself then, or when an operator keeps less in [plans] of the config "
    "(then: sfactl reload)"
)
"""The same of a run that a window holds."""


class LimitRequests(Struct, frozen=True):
    _ctx: Context
    _lifecycle: Lifecycle
    _pausing: Pausing
    _limit_holds: LimitHolds
    _limit_enforcement: LimitEnforcement

    def resume_requested(self, run: Run, ev: e.ResumeRequested) -> None:
        if ev.suspended:
            self._pausing.end_suspension(run, ev.at)
            self._ctx.reply(ev.token, c.Changed(run))
        elif run.no_money is not None:
            self._ctx.fail(
                ev.token,
                ErrorCode.WRONG_STATE,
                f"run {run.id} stays paused: {run.no_money.message}; {MORE} (then: sfactl reload)",
            )
        elif run.window_hold is not None:
            self._ctx.fail(
                ev.token,
                ErrorCode.WRONG_STATE,
                f"run {run.id} waits: {run.window_hold.message}; {AT_RESET}",
            )
        elif run.paused is None and run.limit_hold is None:
            self._ctx.fail(ev.token, ErrorCode.WRONG_STATE, _not_resumable(run))
        else:
            self._continue(ev, run)

    def approve_requested(self, run: Run, ev: e.ApproveRequested) -> None:
        if self._awaiting(run, ev) is not None:
            self._continue(ev, run)

    def deny_requested(self, run: Run, ev: e.DenyRequested) -> None:
        if (limit := self._awaiting(run, ev)) is not None:
            self._limit_enforcement.publish_about(
                EventType.INCREASE_DENIED, run, limit, f"denied by user {ev.peer.user}"
            )
            self._limit_holds.end_held(
                run, limit, f"the increase was denied by user {ev.peer.user}", ev.at
            )
            self._ctx.reply(ev.token, c.Changed(run))

    def _continue(self, ev: e.ResumeRequested | e.ApproveRequested, run: Run) -> None:
        if self._make_room(ev.token, ev.peer, run, ev.limits):
            if run.paused is not None and not run.resumes_itself:
                self._pausing.resume(run, ev.at, told=self._ctx.may_cause_event(ev.peer, ev.at))
            self._limit_enforcement.enforce_subtree(run, ev.at)
            self._ctx.reply(ev.token, c.Changed(run))

    def _awaiting(self, run: Run, ev: e.ApproveRequested | e.DenyRequested) -> ActiveLimit | None:
        active = run.held_by
        if active is not None and active.action is Action.REQUEST_INCREASE:
            return active
        by = (
            f"; it is paused by its {active.limit.kind} limit: resume it"
            if active is not None
            else ""
        )
        message = f"run {run.id} is {run.status} and does not wait for an approval{by}"
        self._ctx.fail(ev.token, ErrorCode.WRONG_STATE, message)
        return None

    def _make_room(self, token: Token, peer: Peer, run: Run, limits: Iterable[Limit]) -> bool:
        """Give limits new thresholds: all that hold the run, or any if none does. If none is named,
        what holds it only warns from now on. Return False, with a reply, if that cannot be."""
        limits = tuple(limits)
        if (limits or run.limit_hold is not None) and peer.run is not None:
            message = (
                f"run {peer.run} may not give run {run.id} more room: only from outside any run"
            )
            self._ctx.fail(token, ErrorCode.NOT_PERMITTED, message)
            return False
        found = holding(run)
        try:
            for limit in limits:
                _check_reported(run, limit, self._ctx.policy)
                check_range(limit, self._ctx.policy)
                _check_room(run, limit)
            _check_named(run, found, limits)
        except Invalid as invalid:
            self._ctx.fail(token, ErrorCode.BAD_REQUEST, str(invalid))
            return False
        active = run.held_by
        asked = active is not None and active.action is Action.REQUEST_INCREASE
        # first: below, what holds it may turn into a warning, which has no timer to disarm
        self._go_on(run)
        for limit in limits:
            self._replace(run, limit, peer)
        self._ctx.changed(run)
        if limits:
            self._ctx.do(c.Rebound(run))
        for each in found if not limits else ():
            each.limit = replace(each.limit, action=Action.WARN)
        if active is not None and asked:
            now = run.limits[active.limit.kind]
            self._limit_enforcement.publish_about(
                EventType.INCREASE_APPROVED, run, now, f"approved by user {peer.user}"
            )
        return True

    def _go_on(self, run: Run) -> None:
        """Release a run from what holds it. A reply that was cut before is not its agent's last
        word now."""
        kind = run.limit_hold.kind if run.limit_hold is not None else None
        for each in run.subtree():
            if each.cut is not None and each.cut.limit_kind == kind:
                each.cut, each.after_cut = None, ""
                self._ctx.changed(each)
        run.account.levels.pop(LimitKind.SILENCE, None)
        self._lifecycle.release_limit_hold(run)

    def _replace(self, run: Run, limit: Limit, peer: Peer) -> None:
        action = _action(run, limit, self._ctx.policy)
        run.limits[limit.kind] = ActiveLimit(
            replace(limit, action=action, source=f"{limit.source} by {peer.who}")
        )
        if limit.kind is LimitKind.TIME and peer.run is None:
            # it was checked against the range that is configured now, so the range of its admission
            # must not end the run sooner
            run.max_time = self._ctx.policy.limits.max_time

    def limit_requested(self, run: Run, ev: e.LimitRequested) -> None:
        if not self._may_change(ev, run):
            return
        kinds = {limit.kind for limit in ev.limits}
        freed = run.limit_hold is not None and run.limit_hold.kind in kinds
        if freed:
            self._go_on(run)  # a limit that still holds the run is exceeded again below
        for limit in ev.limits:
            before = run.limits.get(limit.kind)
            if before is not None and _same(before, limit):
                continue
            self._replace(run, limit, ev.peer)
            after, who = run.limits[limit.kind], ev.peer.who
            if not self._ctx.may_cause_event(ev.peer, ev.at):
                continue
            words = f"{step(before, after.limit)}, by {who}"
            self._limit_enforcement.publish_about(
                EventType.LIMIT_CHANGED, run, after, words, by=who
            )
        self._ctx.changed(run)
        self._ctx.used_more(run)  # its row shows its limits
        self._ctx.do(c.Rebound(run))
        self._limit_enforcement.limits_changed(run, kinds, ev.at)
        if freed and run.limit_hold is None and run.ending is None:
            self._limit_holds.resume_unless_held(run, ev.at)
        self._ctx.reply(ev.token, c.Changed(run))

    def _may_change(self, ev: e.LimitRequested, run: Run) -> bool:
        if run.status is Status.STOPPING:
            message = f"run {run.id} is being stopped; its limits do not change any more"
            self._ctx.fail(ev.token, ErrorCode.WRONG_STATE, message)
            return False
        if run.remote is not None:
            message = self._ctx.elsewhere.limits_of(run)
            self._ctx.fail(ev.token, ErrorCode.WRONG_STATE, message)
            return False
        looser = next(
            (limit for limit in ev.limits if _looser(run.limits.get(limit.kind), limit)), None
        )
        if looser is not None and ev.peer.run is not None:
            change = step(run.limits.get(looser.kind), looser)
            message = (
                f"{ev.peer.who} may only lower limits; {change} takes a person outside any run"
            )
            self._ctx.fail(ev.token, ErrorCode.NOT_PERMITTED, message)
            return False
        try:
            for limit in ev.limits:
                _check_reported(run, limit, self._ctx.policy)
                check_range(limit, self._ctx.policy)
                _check_above(run, limit)
        except Invalid as invalid:
            self._ctx.fail(ev.token, ErrorCode.BAD_REQUEST, str(invalid))
            return False
        return True


def _action(run: Run, limit: Limit, policy: Policy) -> Action:
    before = run.limits.get(limit.kind)
    usual = before.action if before is not None else usual_action(limit.kind, policy.limits)
    return limit.action or usual


def _check_reported(run: Run, limit: Limit, policy: Policy) -> None:
    """Raise `Invalid` if this would limit the cost of a role of which nothing tells, as the guard
    refuses at the start."""
    acts = _action(run, limit, policy) is not Action.WARN
    if limit.kind in ROLES and not run.asked.sources.reports and acts:
        raise Invalid(
            f"nothing would enforce the {limit.kind} limit of run {run.id}: {ROLES_ARE_REPORTED}, "
            "and it was not started with --meter report; let the limit only warn: "
            f"{limit.kind}={limit.threshold:g}:warn"
        )


def _check_room(run: Run, limit: Limit) -> None:
    used = run.clock.counted if limit.kind is LimitKind.TIME else run.account.used(limit.kind)
    stands = run.limit_hold is not None and run.limit_hold.kind == limit.kind
    # memory and processes may have become fewer, but not of a run that is held for them
    if (
        used is not None
        and (stands or limit.kind not in run.account.levels)
        and ActiveLimit(limit).above(used)
    ):
        raise Invalid(
            f"run {run.id} has used {amount(limit.kind, used)} already: "
            "the new limit must be above that"
        )
    more = run.limit_hold.refused if run.limit_hold is not None and stands else None
    if more is not None and ActiveLimit(limit).above((used or 0) + more):
        needs = f"what it is held for takes {amount(limit.kind, more)} more"
        enough = ceil(to_wire(limit.kind, (used or 0) + more) * 10_000) / 10_000
        least = f"the new limit must be {enough:.15g}{KINDS[limit.kind].suffix} at least"
        raise Invalid(
            f"run {run.id} has used {amount(limit.kind, used or 0)}, and {needs}: {least}"
        )
    _check_above(run, limit)


def _check_above(run: Run, limit: Limit) -> None:
    """Raise `Invalid` where an ancestor has less. An ancestor's clock runs beside the run's own, so
    that time needs no check."""
    unit = KINDS[limit.kind].suffix
    granted = run.root.asked.terms.limits if run.granted else ()
    if (
        most := next((each.threshold for each in granted if each.kind is limit.kind), None)
    ) is not None and limit.threshold > most:
        raise Invalid(
            f"{limit.kind} = {limit.threshold:g}{unit} is more than its tree "
            f"was granted: {most:g}{unit}"
        )
    for above in run.ancestors if limit.kind is not LimitKind.TIME else ():
        active = above.limits.get(limit.kind)
        if active is not None and active.binds and limit.threshold > active.limit.threshold:
            raise Invalid(
                f"{limit.kind} = {limit.threshold:g}{unit} is more than its ancestor "
                f"{above.id} ('{above.name}') has: {active.limit.threshold:g}{unit}; "
                "give that one more room first"
            )


def _check_named(run: Run, found: list[ActiveLimit], limits: tuple[Limit, ...]) -> None:
    """Raise `Invalid` where only some of the limits that hold the run are given more room."""
    named = {limit.kind for limit in limits}
    forgotten = ", ".join(active.limit.kind for active in found if active.limit.kind not in named)
    if named and forgotten:
        raise Invalid(
            f"run {run.id} is held by its limit of {forgotten}: name that as well, with more room, "
            "or name none, and what holds it only warns from now on"
        )


def _same(before: ActiveLimit, limit: Limit) -> bool:
    return limit.threshold == before.limit.threshold and limit.action in (None, before.limit.action)


def _looser(before: ActiveLimit | None, limit: Limit) -> bool:
    """Return whether `limit` allows more than the one in force: a higher threshold, or a weaker
    action."""
    if before is None:
        return False
    weaker = limit.action is not None and STRENGTH.index(limit.action) > STRENGTH.index(
        before.action
    )
    return weaker or limit.threshold > before.limit.threshold


def _not_resumable(run: Run) -> str:
    for ancestor in reversed(run.ancestors):
        if ancestor.paused is not None:
            return (
                f"run {run.id} stands still because its ancestor {ancestor.id} is paused; "
                "resume that one"
            )
    if run.status is Status.PAUSED and run.remote is not None:
        there = f"{run.remote.node}/{run.remote.id}"
        return (
            f"run {run.id} is paused by a limit on node {run.remote.node}: "
            f"resume it there, sfactl resume {there}"
        )
    return f"run {run.id} is {run.status}, not paused"
