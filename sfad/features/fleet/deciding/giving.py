"""Runs that execute on another node, in the tree of the node that started them.

The share of such a run is counted as used from its admission on, which is saved before its grant is
sent. What it has not used comes back when its node tells its end, and only then: if that is never
told, the whole share stays used."""

from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from ....core import commands as c
from ....core.admission.candidate import limits_for
from ....core.admission.guard import unenforced
from ....core.context import Context, grace_of
from ....core.life.attempts import AttemptTracker
from ....core.life.lifecycle import Lifecycle
from ....core.life.pausing import Pausing
from ....core.life.spending import Spending
from ....core.life.stopping import Stopping, StopRequests
from ....core.state.account import NOTHING, OpenReservation, Use
from ....core.state.grants import Remote
from ....core.state.limits import ActiveLimit
from ....core.state.money import to_core, to_wire
from ....core.state.policy import Invalid
from ....core.state.request import Asked
from ....core.state.run import Attempt, Ending, ProcessExit, Run, Rung
from ....core.state.tree import Remembered, typed_bounds
from ....core.state.vocabulary import ReasonKind, Timer
from ....protocol.kinds import KINDS, ROLES
from ....protocol.limits import format_amount
from ....protocol.types import Action, Bound, Grant, Limit, LimitKind, Reason, Status, Wanted
from ..feature import FleetConfig
from . import heard as h

# ---- The share of a tree that a run takes with it

_SHARED = (LimitKind.COST, LimitKind.TOKENS, LimitKind.TURNS)
FLEET = "fleet"
"""`Reason.kind` of a run that no other node executes."""
PART = 4
"""A run that asks for no share gets one part of so many of what is left."""
HANDED_ON = "SFA_MAX_DESCENDANTS"
"""The variable in which a run has its own bound: a child that says the same asks for no share."""


def share_out(run: Run, lease: float) -> None:
    """Decide what a run that is to be placed takes out of its tree. Raise `Invalid`."""
    for kind in _SHARED:
        _share(run, kind)
    for kind in ROLES:
        if any(
            (active := above.limits.get(kind)) is not None and active.binds
            for above in run.ancestors
        ):
            raise Invalid(
                f"the limit of {kind} of a run above it cannot be shared with another node: "
                "leave out --fleet"
            )
    leased = run.parent is not None or (
        run.asked.placing is not None and run.asked.placing.restart_elsewhere
    )
    run.remote = Remote(
        _descendants(run), lease=lease if leased else None, lease_from=run.birth.created_at
    )
    if run.parent is not None:
        bound = Bound(
            value=run.remote.descendants, source=f"its share of the tree of {run.root.id}"
        )
        run.birth = replace(run.birth, max_descendants=bound)


def _share(run: Run, kind: LimitKind) -> None:
    bounds = [
        (above, active)
        for above in run.ancestors
        if (active := above.limits.get(kind)) is not None and active.binds
    ]
    if not bounds:
        return
    left, whose = min(
        (active.threshold - (above.account.used(kind) or 0), above.id) for above, active in bounds
    )
    own, least = run.limits.get(kind), to_core(kind, KINDS[kind].least)
    if left < least:
        raise Invalid(
            f"run {whose} has {format_amount(kind, to_wire(kind, max(0, left)))} of its {kind} "
            "limit left: no share fits"
        )
    if (
        own is not None
        and own.binds
        and any(limit.kind is kind for limit in run.asked.terms.limits)
    ):
        if own.threshold > left:
            asked, there = (
                format_amount(kind, to_wire(kind, amount)) for amount in (own.threshold, left)
            )
            raise Invalid(
                f"its share of the {kind} limit would be {asked}, "
                f"and run {whose} has {there} left; ask for less"
            )
        return
    most = max(left // PART, least)
    if own is None or not own.binds or own.threshold > most:
        action = own.action if own is not None and own.binds else Action.TERMINATE
        source = f"a quarter of what run {whose} has left"
        run.limits[kind] = ActiveLimit(
            Limit(kind=kind, threshold=to_wire(kind, most), action=action, source=source)
        )


def _descendants(run: Run) -> int:
    own = run.birth.max_descendants.value
    if not run.ancestors:
        return own
    left = min(above.birth.max_descendants.value - above.admitted for above in run.ancestors)
    asked = run.asked.terms.max_descendants
    handed_on = Bound(value=run.ancestors[-1].birth.max_descendants.value, source=HANDED_ON)
    if asked is not None and asked.value > 0 and asked != handed_on:
        return max(0, min(own, left - 1))
    return max(0, left // PART - 1)


# ---- What is sent


_NAME = attrgetter("name")


def grant_of(run: Run, node: str, stamp: str) -> Grant:
    """Return the grant of a run as it is sent to its node. `node`: this one. `stamp`: what that
    node's clock said."""
    assert run.remote is not None
    birth, root, granted = run.birth, run.root, run.root.asked.grant
    if granted is not None:
        above, first = f"{granted.giver}/{granted.run}", granted.root
    else:
        above, first = f"{node}/{root.id}", f"{node}/{root.id}"
    parent = run.parent
    return Grant(
        giver=node,
        run=run.id,
        root=first,
        parent=None
        if parent is None
        else above
        if parent is root and granted is not None
        else f"{node}/{parent.id}",
        chain=[*root.birth.origin, *(each.identity for each in run.ancestors)],
        names=[*(granted.names if granted is not None else ()), *map(_NAME, run.ancestors)],
        depth=len(run.ancestors) + root.birth.claimed_depth,
        max_depth=birth.max_depth.value,
        descendants=run.remote.descendants,
        models=[list(allowed.patterns) for allowed in birth.models],
        sessions=birth.permissions.sessions,
        lease=run.remote.lease,
        stamp=stamp,
        typed=sorted({active.limit.kind for _, active in typed_bounds(run)}),
    )


def limits_to_send(run: Run, at: float) -> list[Limit]:
    """Return the limits that go with a grant. Its time is what it and the runs above it have
    left."""
    assert run.remote is not None
    found = [_left(active, run.remote.used_before) for active in run.limits.values()]
    limits = [limit if KINDS[limit.kind].acts else replace(limit, action=None) for limit in found]
    left = [each.allowed_time - each.clock.elapsed(at) for each in run.lineage]
    time = run.limits.get(LimitKind.TIME)
    if time is None or time.threshold > min(left):
        limits = [limit for limit in limits if limit.kind is not LimitKind.TIME]
        least = max(min(left), KINDS[LimitKind.TIME].least)
        limits.append(
            Limit(
                kind=LimitKind.TIME,
                threshold=least,
                action=Action.TERMINATE,
                source="what its tree has left",
            )
        )
    return limits


def _left(active: ActiveLimit, used_before: Use) -> Limit:
    """Return a limit without what earlier attempts on other nodes are known to have used."""
    limit, used = active.limit, used_before.of(active.limit.kind)
    if not used or limit.kind not in _SHARED:
        return limit
    left = max(active.threshold - used, to_core(limit.kind, KINDS[limit.kind].least))
    return replace(limit, threshold=to_wire(limit.kind, left))


def wanted_of(run: Run, number: int, at: float) -> Wanted:
    """Return what is wanted of a run on another node. The decision may be of a run above it."""
    if run.status is not Status.STOPPING:
        return Wanted(number=number, paused=run.paused_in_lineage)
    ladder = next((each.ladder for each in reversed(run.lineage) if each.ladder is not None), None)
    if ladder is None:
        return Wanted(number=number, stop=15)
    grace = 0.0 if ladder.rung is Rung.KILLED else max(0.0, ladder.grace_ends_at - at)
    return Wanted(number=number, stop=ladder.signal, grace=grace)


# ---- What comes back


class Giving(Struct, frozen=True):
    _ctx: Context
    _lifecycle: Lifecycle
    _spending: Spending
    _stopping: Stopping
    _stop_requests: StopRequests
    _pausing: Pausing
    _attempts: AttemptTracker

    def grant(self, run: Run) -> None:
        """Count the share of a run that is to execute on another node as used."""
        assert run.remote is not None
        cost, tokens = (run.limits.get(kind) for kind in (LimitKind.COST, LimitKind.TOKENS))
        share = OpenReservation(
            model="",
            input_tokens=int(tokens.threshold) if tokens is not None else 0,
            output_tokens=0,
            cost=int(cost.threshold) if cost is not None else None,
            role=None,
        )
        run.remote.reservation = self._spending.reserve(run, share)

    def _settle(self, run: Run, used: Use, admitted: int) -> None:
        """Give back what a run has not used that has ended on another node, or was never sent
        there."""
        remote = run.remote
        assert remote is not None
        if remote.refunded or remote.reservation is None:
            return
        remote.refunded = True
        self._spending.draw(run, remote.reservation, remote.used_before.plus(used))
        self._spending.add_use(run, NOTHING, settled=remote.reservation)
        self._ctx.purses.changed = True
        run.admitted = admitted
        for above in run.ancestors:
            above.admitted -= remote.descendants - admitted
            self._ctx.changed(above)
        remote.descendants = admitted

    def never_sent(self, run: Run) -> None:
        """End a run of whose share nothing was used."""
        self._settle(run, NOTHING, 0)

    def share_out(self, run: Run) -> None:
        """See `Elsewhere.share_out`."""
        section = self._ctx.policy.sections.get("fleet", FleetConfig())
        assert isinstance(section, FleetConfig)
        share_out(run, section.lease)

    def placement_waits(self, run: Run, heard: h.PlacementWaits) -> None:
        remote = run.remote
        if remote is None or remote.node is not None or run.status is Status.STOPPING:
            return
        if (remote.waits, remote.infeasible) != (heard.why, heard.infeasible):
            remote.waits, remote.infeasible = heard.why, heard.infeasible
            self._ctx.changed(run)
        self._lifecycle.answer_spawn(run)

    def placed(self, run: Run, heard: h.Placed, at: float) -> None:
        """Offer the run to its node."""
        if heard.asked is not None:
            self._placed_here(run, heard.asked, at)
            return
        remote = run.remote
        if (
            remote is None
            or remote.node is not None
            or run.status not in {Status.QUEUED, Status.STARTING}
        ):
            return
        if run.status is Status.QUEUED:
            run.move(Status.STARTING)
        remote.node, remote.id, remote.waits, remote.heard_at = heard.node, "", None, at
        run.latest = Attempt(run.attempt + 1)
        self._ctx.changed(run)
        self._ctx.do(c.Place(run))

    def _placed_here(self, run: Run, asked: Asked, at: float) -> None:
        """Launch a run that was to be placed as one of this node, with the limits that such a run
        has, or end it if nothing would enforce them."""
        if run.remote is None or run.status is not Status.QUEUED:
            return
        # in its own tree, what it uses counts as it uses it
        self._settle(run, NOTHING, 0)
        run.remote = None
        run.replace_request(
            replace(
                asked,
                placing=run.asked.placing,
                identity=replace(asked.identity, labels=run.asked.identity.labels),
            )
        )
        try:
            run.limits = limits_for(run.asked, run.parent, self._ctx.policy, run.birth.uid)
            found = unenforced(run)
            why = found[0] if found is not None else None
        except Invalid as invalid:
            why = str(invalid)
        if why is not None:
            self._lifecycle.decide_end(
                run, at, Ending(Status.FAILED, Reason(kind=FLEET, message=why))
            )
            self._lifecycle.finish(run, at)
            return
        self._ctx.changed(run)
        self._lifecycle.launch(run)

    def refused(self, run: Run, heard: h.GrantRefused, at: float) -> None:
        """End a run that its node has not taken. Nothing of its share was used."""
        if run.remote is not None and not run.remote.id:
            self._settle(run, NOTHING, 0)
            self._end(run, at, Ending(Status.FAILED, heard.reason))

    def seen(self, run: Run, heard: h.GrantSeen, at: float) -> None:
        remote, state = run.remote, heard.state
        if remote is None or remote.node != heard.node:
            return
        remote.heard_at, remote.unreached = at, ""
        if not remote.id:
            remote.id = state.id
            self._ctx.changed(run)
        elif state.id != remote.id:
            return
        if state.checks != remote.checks:
            remote.checks = state.checks
            self._ctx.changed(run)
        if state.status.terminal:
            self._settle(run, state.used, state.admitted)
            if (state.code, state.signal) != (None, None):
                run.latest.exit = ProcessExit(state.code, state.signal)
            self._end(run, at, Ending(state.status, state.reason))
            return
        if run.status is Status.STARTING and state.status in {
            Status.RUNNING,
            Status.PAUSED,
            Status.RETRYING,
            Status.STOPPING,
        }:
            self._attempts.launched(run, at)
        if run.status is Status.RUNNING and state.status is Status.PAUSED:
            run.move(Status.PAUSED)  # by a limit of its own
            self._lifecycle.halt_clock(run, at)
            self._ctx.save_and_record(run)
        elif (
            run.status is Status.PAUSED
            and state.status is Status.RUNNING
            and not run.paused_in_lineage
        ):
            run.move(Status.RUNNING)
            self._lifecycle.start_clock(run, at)
            self._ctx.save_and_record(run)
        if run.paused is not None and state.status is Status.PAUSED:
            self._pausing.frozen(run)

    def used(self, run: Run, heard: h.GrantUsed) -> None:
        """Show, and count, what the run has used: the rest of its share is only reserved."""
        remote = run.remote
        if (
            remote is not None
            and (remote.node, remote.id) == (heard.node, heard.id)
            and remote.reservation is not None
            and not remote.refunded
        ):
            self._spending.draw(run, remote.reservation, remote.used_before.plus(heard.used))

    def late(self, run: Run, heard: h.GrantLate, at: float) -> None:
        """Let no client wait for a node that does not answer: a run that was admitted is there, and
        whether one that is stopped is gone cannot be known now."""
        remote = run.remote
        if remote is None or remote.node != heard.node:
            return
        if remote.unreached != heard.why:
            remote.unreached = heard.why
            self._ctx.changed(run)
        self._lifecycle.answer_spawn(run)
        if heard.why and run.status is Status.STOPPING:
            self._stop_requests.unreached(run, at)

    def lost(self, run: Run, heard: h.GrantLost, at: float) -> None:
        if run.remote is not None and run.remote.node is not None:
            self._end(run, at, Ending(Status.LOST, Reason(kind=FLEET, message=heard.why)))

    def renewed(self, run: Run, at: float) -> None:
        if run.remote is not None:
            run.remote.lease_from = max(run.remote.lease_from, at)
            self._expect(run)

    def _expect(self, run: Run) -> None:
        """Have the run looked at when its node has surely stopped it."""
        assert run.remote is not None
        over_at = run.remote.over_at(grace_of(run, self._ctx.policy))
        if over_at is not None and run.remote.node is not None:
            self._ctx.arm(run, Timer.LEASE, over_at)

    def lease_due(self, run: Run, at: float) -> None:
        """Give up a run whose node has surely stopped it, or start it elsewhere. Its share stays
        used: what it used is unknown."""
        remote, placing = run.remote, run.asked.placing
        assert remote is not None
        over_at = remote.over_at(grace_of(run, self._ctx.policy))
        if over_at is None or remote.node is None:
            return
        if at < over_at:
            self._expect(run)
            return
        elsewhere = (
            placing is not None
            and placing.restart_elsewhere
            and run.attempt < run.asked.retries.attempts
        )
        if (
            elsewhere
            and run.status in {Status.RUNNING, Status.PAUSED}
            and not run.paused_in_lineage
        ):
            if run.status is Status.PAUSED:
                run.move(Status.RUNNING)
            run.move(Status.RETRYING)
            self._lifecycle.halt_clock(run, at)
            remote.away, remote.node, remote.id, remote.unreached = remote.node, None, "", ""
            known = run.account.sources.get("report", NOTHING)
            # it is saved as 64 bits, and an agent may report any sum
            remote.used_before = replace(known, cost=min(known.cost or 0, 1 << 62))
            self._ctx.save_and_record(run)
            self._lifecycle.launch(run)
            return
        message = (
            f"node {remote.node} was not heard of for {at - remote.heard_at:.0f} s; "
            "it stops the run when its lease ends"
        )
        self._end(run, at, Ending(Status.LOST, Reason(kind=ReasonKind.LEASE, message=message)))

    def _end(self, run: Run, at: float, ending: Ending) -> None:
        if run.status is not Status.STOPPING:
            self._lifecycle.decide_end(run, at, ending)
        self._lifecycle.finish(run, at)
        for above in reversed(run.ancestors):
            live = self._ctx.tree.get(above.id) is not None
            if (
                live
                and above.ladder is not None
                and above.ladder.emptied
                and not above.remote_below
            ):
                self._attempts.containment_empty(above, at)

    def adopt(self, one: Remembered, at: float) -> bool:
        """Continue with a run that an earlier daemon has sent, or was about to. Return whether
        there is anything to go on with."""
        run, remote = one.run, one.run.remote
        assert remote is not None
        # the earlier daemon may have renewed the lease in its last moment
        remote.lease_from = remote.heard_at = at
        if run.status in {Status.ACCEPTED, Status.QUEUED}:
            if not (run.committed and one.startable):
                return False
            if run.status is Status.ACCEPTED:
                self._lifecycle.launch(run)
            return True
        if remote.node is None and run.status is not Status.STOPPING:
            self._ctx.do(c.Place(run))
            return True
        if not remote.id and not one.startable and run.status is not Status.STOPPING:
            message = (
                "what it was to be started with is gone from the spool; "
                "whether its node has started it cannot be known"
            )
            self._end(run, at, Ending(Status.LOST, Reason(kind=ReasonKind.DAEMON, message=message)))
            return True
        self._expect(run)
        self._ctx.do(c.Place(run))
        if run.status is Status.RUNNING:
            self._lifecycle.start_clock(run, at)
        elif run.status is Status.STOPPING and run.ladder is not None:
            if at < run.ladder.grace_ends_at:
                self._stopping.terminate(run)
            else:
                self._stopping.kill(run, at)
        return True
