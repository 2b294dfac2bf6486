"""What runs spend: their accounts, their ancestors' accounts, and what else is charged
(`core.purses`)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from ...protocol.kinds import TREE_USE
from ...protocol.types import LimitKind, Source, Status
from .. import commands as c
from ..context import Context
from ..state.account import (
    NO_TREE_USE,
    NOTHING,
    OF_AGENT,
    ChargedTo,
    OpenReservation,
    TreeUse,
    Use,
    add_below,
    add_ended,
)
from ..state.money import to_usd
from ..state.run import Run

# ---- What the calls under way of each user take, summed when one begins or ends: no decision asks
# every live run for it


class CallsUnderWay:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._doubts: Counter[str] = Counter()

    def begin(self, user: str, reservation: OpenReservation) -> None:
        self._counts[user] += reservation.messages
        self._doubts[user] += reservation.more_cost

    def end(self, user: str, reservation: OpenReservation) -> None:
        self._counts[user] -= reservation.messages
        self._doubts[user] -= reservation.more_cost

    def count(self, user: str) -> int:
        return self._counts.get(user, 0)

    def doubts(self, user: str) -> int:
        """Return nano-dollars that they may cost beyond what they have charged."""
        return self._doubts.get(user, 0)


# ---- Accounts


_COST = TREE_USE.index(LimitKind.COST)


def _marked(run: Run, source: Source, use: Use) -> Use:
    """Return what a source tells, as partial if it is known not to know of all calls."""
    misses = run.goes_around if source == "gateway" else run.misses_calls and source in OF_AGENT
    return replace(use, partial=True) if misses else use


def _print_in(run: Run) -> Iterator[Run]:
    """Yield the runs above whose output holds what this one prints, the nearest first."""
    name = run.asked.prints_in
    for above in reversed(run.ancestors):
        if above.id == name:
            yield above
            name = above.asked.prints_in


def _of_share(reservation: OpenReservation) -> Use:
    """Return what a run on another node has used at most of its share, which may have no tokens."""
    use = reservation.use
    if use.tokens:
        return use
    return replace(use, input_tokens=None, output_tokens=None, unsure_tokens=None)


def _is_bounded(run: Run) -> bool:
    """Return whether what is told of a run that is lost on another node is an upper bound: that of
    its share."""
    use = run.account.sources.get("report", NOTHING)
    bounded = use.unsure_cost is not None and (use.tokens is None or bool(use.unsure_tokens))
    return run.remote is not None and bounded


def _agent_cost_counts(run: Run) -> bool:
    return run.goes_around or run.asked.sources.tells_each_call


class Spending:
    def __init__(self, context: Context, reserved: int = 0) -> None:
        """`reserved`: so many reservations may have been made before; their names are not used
        again."""
        self._ctx = context
        self.under_way = CallsUnderWay()
        self._last_reservation = reserved

    def restore(self, runs: Sequence[Run]) -> None:
        """Continue with what an earlier daemon has counted for all its runs. Each was saved at
        another moment, so their sums are counted again: whatever is given back later was part of
        them."""
        for run in runs:
            run.account.agent_cost_counts = _agent_cost_counts(run)
            for reservation in run.account.reservations.values():
                self.under_way.begin(run.user, reservation)
            run.account.below = dict(run.account.ended)
            run.account.reserved_below = {}
            run.account.printed = run.account.printed_ended.get(LimitKind.TOKENS, 0)
            self._last_reservation = max(
                [
                    self._last_reservation,
                    *(int(name.rpartition("-")[2]) for name in run.account.reservations),
                ]
            )
        # children first: what they print is a part of what the runs above tell
        for run in sorted(runs, key=lambda run: len(run.lineage), reverse=True):
            own = run.account.own_tree_use()
            add_below((above.account for above in run.ancestors), NO_TREE_USE, own)
            for prints in _print_in(run):
                prints.account.printed += own.tokens

    def set_use(self, run: Run, source: Source, use: Use) -> None:
        """Take what a source tells of the run's use in all."""
        before = run.account.own_tree_use()
        run.account.sources[source] = _marked(run, source, use)
        self._count(run, before)

    def note_around(self, run: Run) -> None:
        """Note that the run has called its model around the gateway: what that saw is not all."""
        before = run.account.own_tree_use()
        if (seen := run.account.sources.get("gateway")) is not None:
            run.account.sources["gateway"] = _marked(run, "gateway", seen)
        self._count(run, before)

    def draw(self, run: Run, name: str, used: Use) -> None:
        """Count what a run has used in all as used, and no longer as reserved under this name. What
        the reservation holds and the run has not used stays reserved."""
        before = run.account.own_tree_use()
        known = run.account.sources.get("report", NOTHING)
        reservation = run.account.release(name)
        tokens = (used.tokens or 0) - (known.tokens or 0)
        cost = (used.cost or 0) - (known.cost or 0)
        rest = replace(
            reservation,
            input_tokens=max(0, reservation.input_tokens - tokens),
            cost=None if reservation.cost is None else max(0, reservation.cost - cost),
        )
        run.account.sources["report"] = _marked(run, "report", used)
        run.account.reserve(name, rest)
        self._ctx.changed(run)
        self._count(run, before)

    def end_call(self, run: Run, name: str, used: Use, **how: Any) -> None:
        """Replace a call's reservation by what it has used, and have the call recorded. `how`:
        other fields of its `CallInfo`."""
        reservation = run.account.reservations[name]
        self.add_use(run, used, settled=name)
        self._record(run, reservation, used, **how)

    def _record(self, run: Run, reservation: OpenReservation, used: Use, **how: Any) -> None:
        if reservation.call is None:
            return
        ended = replace(
            reservation.call,
            input_tokens=used.input_tokens,
            cached_tokens=used.cached_tokens,
            output_tokens=used.output_tokens,
            cost_usd=to_usd(used.cost),
            partial=used.partial,
            at_most=used.at_most,
            **({"state": "ended"} | how),
        )
        self._ctx.do(c.RecordCall(ended, run.lineage_ids))

    def add_use(self, run: Run, more: Use, *, settled: str | None = None) -> None:
        """Add to what was reported of the run, or to what the gateway saw. `settled`: the
        reservation that it replaces."""
        before = run.account.own_tree_use()
        source: Source = "report"
        charged_to = None
        if settled is not None:
            reservation = self._release(run, settled)
            source, charged_to = reservation.source, reservation.periods
        known = run.account.sources.get(source, NOTHING)
        run.account.sources[source] = _marked(run, source, known.plus(more))
        self._ctx.changed(run)
        self._count(run, before, charged_to)

    def _count(self, run: Run, before: TreeUse, charged_to: ChargedTo | None = None) -> None:
        run.account.agent_cost_counts = _agent_cost_counts(run)
        after, change = run.account.own_tree_use(), None
        if after != before:
            add_below((above.account for above in run.ancestors), before, after)
            change = after.counted[_COST] - before.counted[_COST]
            if run.asked.prints_in is not None:
                # charged in one sum: it may be counted for another run now, and cost no more
                change += self._count_once(run, after.tokens - before.tokens)
        if self._ctx.purses.known:
            self._ctx.purses.charge(run, change, charged_to)
        self._ctx.used_more(run)

    def _count_once(self, run: Run, tokens: int) -> int:
        """Leave so many more tokens of the run out of what the runs tell that print what it prints.
        Return by how many nano-dollars that changes their costs."""
        change = 0
        for prints in _print_in(run):
            before = prints.account.own_tree_use()
            prints.account.printed += tokens
            after = prints.account.own_tree_use()
            add_below((above.account for above in prints.ancestors), before, after)
            self._ctx.used_more(prints)
            change += after.counted[_COST] - before.counted[_COST]
            change += self._count_once(prints, after.tokens - before.tokens)
        return change

    def close(self, run: Run) -> None:
        """Charge an ending run in full for what it has reserved."""
        account = run.account
        before = account.own_tree_use()
        for name in list(account.reservations):
            reservation = self._release(run, name)
            source = reservation.source
            use = reservation.use if run.remote is None else _of_share(reservation)
            account.sources[source] = account.sources.get(source, NOTHING).plus(use)
            self._ctx.purses.changed = True  # what was only reserved is used now
            self._record(
                run,
                reservation,
                reservation.use,
                error="its run ended before it did; it was charged as reserved",
            )
        if not account.sources:
            return
        assert run.ending is not None
        if run.ending.outcome is Status.LOST and not _is_bounded(run):
            # it may have used more than was read
            account.lose()
        self._count(run, before)
        if self._ctx.purses.known:
            self._ctx.purses.close(run)
        used = account.own_tree_use().counted
        if any(used):
            add_ended((above.account for above in run.ancestors), used)
            for prints in _print_in(run):
                prints.account.print_ended(account.own_tree_use().tokens)
            for above in run.ancestors:
                above.account.end_below(account)
                above.partial_below |= account.partial
                self._ctx.changed(above)

    def next_number(self) -> int:
        """Return a number that no reservation and no call has had."""
        self._last_reservation += 1
        return self._last_reservation

    def reserve(self, run: Run, reservation: OpenReservation) -> str:
        call = reservation.call
        name = f"{run.id}-{call.number if call is not None else self.next_number()}"
        before = run.account.own_tree_use()
        charged_to = self._ctx.purses.charged_to(run)
        run.account.reserve(name, replace(reservation, periods=charged_to))
        self.under_way.begin(run.user, reservation)
        self._ctx.changed(run)
        self._count(run, before)
        return name

    def _release(self, run: Run, name: str) -> OpenReservation:
        reservation = run.account.release(name)
        self.under_way.end(run.user, reservation)
        return reservation

    def reservation(self, name: str) -> tuple[Run, OpenReservation] | None:
        run = self._ctx.tree.get(name.rpartition("-")[0])
        return (
            (run, run.account.reservations[name])
            if run is not None and name in run.account.reservations
            else None
        )
