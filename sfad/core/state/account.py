"""What runs use: what each source tells of a run, what it has reserved, and what its descendants
add.

Money is in nano-dollars (see `money.to_nanos`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ...protocol.kinds import COSTS, COUNTS, TREE_USE
from ...protocol.types import CallInfo, LimitKind, Role, RunId, Source
from .money import NANOS

SOURCES: tuple[Source, ...] = ("gateway", "report", "stream", "session")
"""Those that may know of every call, the best first. The largest figure counts, but the agent's
price of what the gateway has measured does not (docs/metering.md)."""

OF_AGENT: frozenset[Source] = frozenset({"stream", "session"})
"""Sources that tell what the agent itself knows."""

CostFrom = Literal["agent", "prices"]


class Use(Struct, frozen=True):
    """Amounts that one source tells. `None` is unknown, never 0."""

    turns: int | None = None
    messages: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost: int | None = None
    cost_from: CostFrom | None = None
    planning_cost: int | None = None
    execution_cost: int | None = None
    unpriced_tokens: int | None = None
    """Tokens that are not in `cost`, since their model has no price."""
    unsure_tokens: int | None = None
    unsure_cost: int | None = None
    """The part that may not have been used: of calls of which too little is known, whose figure is
    an upper bound."""
    guessed_tokens: int | None = None
    guessed_cost: int | None = None
    """The part that was estimated from the size of what the agent printed."""
    partial: bool = False
    estimated: bool = False
    """A part of `cost` is of a model without a price, at the price of another one."""

    @property
    def tokens(self) -> int | None:
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 0) + (self.output_tokens or 0)

    @property
    def at_most(self) -> bool:
        return bool(self.unsure_tokens or self.unsure_cost)

    @property
    def priced(self) -> bool:
        """Whether `cost` is of all the tokens, at the prices of their own models."""
        return self.cost is not None and not self.unpriced_tokens and not self.estimated

    def of(self, kind: LimitKind) -> int | None:
        """Return the amount that a limit of this kind counts; `None` also for a kind that no source
        tells, such as `pids`."""
        figure: int | None = getattr(self, kind.value, None)
        return figure

    def sure_of(self, kind: LimitKind) -> int | None:
        """Return the same without the part that may not have been used."""
        figure, unsure = (
            self.of(kind),
            {LimitKind.TOKENS: self.unsure_tokens, LimitKind.COST: self.unsure_cost}.get(kind),
        )
        return figure if figure is None else figure - (unsure or 0)

    @property
    def told(self) -> Use:
        """Return the same without what was estimated from the size of what the agent printed."""
        if not self.guessed_tokens:
            return self
        output = (self.output_tokens or 0) - self.guessed_tokens
        cost = (self.cost or 0) - (self.guessed_cost or 0)
        unsure = (self.unsure_cost or 0) * cost // self.cost if self.cost else None
        return replace(
            self,
            output_tokens=output or None,
            # 0 is known of a free model, and unknown where all of it was estimated
            cost=cost or (None if self.guessed_cost else self.cost),
            unsure_cost=unsure or None,
            guessed_tokens=None,
            guessed_cost=None,
        )

    def beyond(self, tokens: int) -> Use:
        """Return what is left if so many tokens are not counted, at the price of all."""
        total = self.tokens
        if not total:
            return self
        left = max(0, total - tokens)
        output = min(self.output_tokens or 0, left)
        parts: dict[str, Any] = {
            name: None if (amount := getattr(self, name)) is None else amount * left // total
            for name in _OF_TOKENS
        }
        return replace(self, input_tokens=left - output, output_tokens=output, **parts)

    @property
    def without_cost(self) -> Use:
        return replace(
            self,
            cost=None,
            cost_from=None,
            unpriced_tokens=None,
            unsure_cost=None,
            guessed_cost=None,
            estimated=False,
        )

    def plus(self, more: Use) -> Use:
        """Return the sum of both. Its cost is the agent's only if no part of it was computed from
        prices."""
        sums: dict[str, Any] = {
            name: _sum(name, getattr(self, name), getattr(more, name)) for name in _SUMMED
        }
        cost_from = (
            "prices"
            if "prices" in (self.cost_from, more.cost_from)
            else self.cost_from or more.cost_from
        )
        return Use(
            **sums,
            cost_from=cost_from,
            partial=self.partial or more.partial,
            estimated=self.estimated or more.estimated,
        )


_SUMMED = tuple(
    name for name in Use.__struct_fields__ if name not in ("cost_from", "partial", "estimated")
)

_OF_TOKENS = (
    "cached_tokens",
    "cost",
    "unpriced_tokens",
    "unsure_tokens",
    "unsure_cost",
    "guessed_tokens",
    "guessed_cost",
)
"""The figures of `Use` that are a part of its tokens, or their cost."""

NOTHING = Use()

MAX_USE = 10**15
"""The largest sum of tokens, or of dollars: whatever an agent reports, its descendants' sum can be
encoded in 64 bits."""


_MONEY = COSTS | {"unsure_cost", "guessed_cost"}


def _sum(name: str, one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one + other, MAX_USE * NANOS if name in _MONEY else MAX_USE)


def _largest(
    uses: Mapping[Source, Use], figure: Callable[[Use], int | None]
) -> tuple[Source | None, Use]:
    """Return the use with the largest figure, and its source. Of equals the first that is
    final."""
    known = [(source, use) for source, use in uses.items() if figure(use) is not None]
    return max(known, key=lambda of: (figure(of[1]), not of[1].partial), default=(None, NOTHING))


def amounts_of(tokens: int, cost: int | None, role: Role | None) -> dict[LimitKind, int]:
    amounts: dict[LimitKind, int] = {LimitKind.TOKENS: tokens}
    if cost is not None:
        amounts[LimitKind.COST] = cost
        if role is not None:
            amounts[ROLE_COST[role]] = cost
    return amounts


ROLE_COST: dict[Role, LimitKind] = {
    "planning": LimitKind.PLANNING_COST,
    "execution": LimitKind.EXECUTION_COST,
}


class Silence(Struct, frozen=True):
    """A call whose reply has not begun."""

    host: str
    since: float
    """When the call went out, on the core's clock."""


ChargedTo = tuple[tuple[str, str, str], ...]
"""What keeps apart whatever a reservation was charged to beside accounts (`core.purses`): scope,
name, and the start of the period."""

NOWHERE: ChargedTo = ()


class OpenReservation(Struct, frozen=True):
    """An amount that was reserved in advance, until it is settled or its run ends."""

    model: str
    input_tokens: int
    output_tokens: int
    cost: int | None
    role: Role | None
    periods: ChargedTo = ()
    source: Literal["report", "gateway"] = "report"
    """Whose figures it will become part of."""
    messages: int = 0
    more_input: int = 0
    """Tokens that the input may have beyond `input_tokens`, which is an estimate."""
    more_cost: int = 0
    """What these cost."""
    call: CallInfo | None = None
    """What is known of the call that it is for; `None` if an agent reserved it."""
    silence: Silence | None = None
    lowered_by: tuple[RunId, LimitKind] | None = None
    """The limit that has lowered the call's maximum, and the run that has it; `None` where none
    has, or a purse."""
    estimated: bool = False
    """`cost` is at the price of another model."""
    gateway_uid: int | None = None
    """The user whose gateway has asked for it; `None`: the service's own, or no gateway."""
    last: bool = False
    """It is for the last call of its run."""

    @property
    def amounts(self) -> dict[LimitKind, int]:
        counts = {LimitKind.MESSAGES: self.messages} if self.source == "gateway" else {}
        return amounts_of(self.input_tokens + self.output_tokens, self.cost, self.role) | counts

    @property
    def doubts(self) -> dict[LimitKind, int]:
        return (
            {LimitKind.TOKENS: self.more_input, LimitKind.COST: self.more_cost}
            if self.more_cost or self.more_input
            else {}
        )

    @property
    def use(self) -> Use:
        """What it counts as when nothing tells what was used: all of it, which is an upper
        bound."""
        return Use(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cost=self.cost,
            cost_from=None if self.cost is None else "prices",
            planning_cost=self.cost if self.role == "planning" else None,
            execution_cost=self.cost if self.role == "execution" else None,
            messages=self.messages or None,
            unsure_tokens=self.input_tokens + self.output_tokens,
            unsure_cost=self.cost,
            estimated=self.estimated or (self.call is not None and self.call.estimated),
        )


_BY_THEMSELVES = (*COUNTS, "planning_cost", "execution_cost")
"""The figures of `Use` that do not belong together with another one."""


class Account:
    """What is known of one run's use.

    No struct: msgspec would save that as it is, and money is saved in USD
    (`durable.snapshots`)."""

    __slots__ = (
        "agent_cost_counts",
        "below",
        "doubts",
        "ended",
        "ended_unsure",
        "levels",
        "printed",
        "printed_ended",
        "reservations",
        "reserved_below",
        "reserved_by_agent",
        "reserved_by_gateway",
        "sources",
    )

    def __init__(
        self,
        sources: Mapping[Source, Use] = {},
        reservations: Mapping[str, OpenReservation] = {},
        reserved_by_agent: Mapping[LimitKind, int] = {},
        below: Mapping[LimitKind, int] = {},
        ended: Mapping[LimitKind, int] = {},
        levels: Mapping[LimitKind, float] = {},
        ended_unsure: Mapping[LimitKind, int] = {},
        printed_ended: Mapping[LimitKind, int] = {},
    ) -> None:
        self.sources = dict(sources)
        self.agent_cost_counts = False
        """What the agent tells of its cost counts even if the gateway has measured as many tokens:
        some of its calls go around the gateway, or it meters itself. Not saved: the run tells."""
        self.reservations = dict(reservations)
        self.reserved_by_agent = dict(reserved_by_agent)
        """The sum of the reservations that the agent asked for."""
        self.reserved_by_gateway: dict[LimitKind, int] = {}
        """The sum of the gateway's reservations, for calls under way."""
        self.doubts: dict[LimitKind, int] = {}
        """What these calls may use beyond that."""
        for reservation in self.reservations.values():
            if reservation.source == "gateway":
                _add(self.reserved_by_gateway, reservation.amounts)
                _add(self.doubts, reservation.doubts)
        self.below = dict(below)
        """What its descendants have used and reserved, ended ones included."""
        self.reserved_below: dict[LimitKind, int] = {}
        """The part of `below` that is only reserved. Not saved: it is counted again from the
        reservations of the descendants."""
        self.ended = dict(ended)
        """The part of `below` that ended descendants have used."""
        self.ended_unsure = dict(ended_unsure)
        """The part of `ended` that may not have been used."""
        self.printed_ended = dict(printed_ended)
        """The tokens that ended descendants have used whose output is a part of this run's."""
        self.printed = self.printed_ended.get(LimitKind.TOKENS, 0)
        """The same with those of live ones: they are in `below`, and what the run's own stream
        tells holds them too."""
        self.levels = dict(levels)
        """What the kernel told last of the whole subtree: memory, pids. It is asked only where a
        limit may be near."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Account) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    @property
    def best(self) -> tuple[Source, Use] | None:
        """The use to show, and the best source, or the one that tells a larger cost. Its figures
        are those that limits and purses count, without reservations. Figures that belong together
        (input and output; a cost and its origin) are from one source."""
        if not self.sources:
            return None
        uses = self._uses
        first = next(iter(uses))
        if len(uses) < 2:
            return first, uses[first]
        _, tokens = _largest(uses, lambda use: use.tokens)
        of_cost, cost = _largest(uses, lambda use: use.cost)
        each: dict[str, Any] = {
            name: max(
                (figure for use in uses.values() if (figure := getattr(use, name)) is not None),
                default=None,
            )
            for name in _BY_THEMSELVES
        }
        return of_cost if of_cost and uses[first].cost is not None else first, Use(
            **each,
            input_tokens=tokens.input_tokens,
            output_tokens=tokens.output_tokens,
            cached_tokens=tokens.cached_tokens,
            cost=cost.cost,
            cost_from=cost.cost_from,
            unpriced_tokens=cost.unpriced_tokens,
            unsure_tokens=tokens.unsure_tokens,
            unsure_cost=cost.unsure_cost,
            partial=tokens.partial or cost.partial,
            estimated=cost.estimated,
        )

    @property
    def _uses(self) -> dict[Source, Use]:
        """What counts of each source: whatever is shown or limited comes from here."""
        uses = {source: self._without_guesses(use) for source, use in self._whole.items()}
        if self.agent_cost_counts or not uses.get("gateway", NOTHING).priced:
            return uses
        # the price lists that agents bring along know neither routers nor the config's prices
        for source in OF_AGENT & uses.keys():
            if uses[source].tokens and self._gateway_has_seen(uses[source]):
                uses[source] = uses[source].without_cost
        return uses

    def _without_guesses(self, use: Use) -> Use:
        """Leave out what is estimated of calls that the gateway has measured, or holds a
        reservation for."""
        if (
            not use.guessed_tokens
            or self._whole.get("gateway", NOTHING).partial
            or not self._gateway_has_seen(use.told)
        ):
            return use
        return use.told

    def _gateway_has_seen(self, told: Use) -> bool:
        """Return whether the gateway may have seen all calls that another source tells of. One that
        tells of more has made calls around the gateway."""
        seen = self._whole.get("gateway", NOTHING)
        if seen is NOTHING and not self.reserved_by_gateway:
            return False
        under_way = [each for each in self.reservations.values() if each.source == "gateway"]
        inputs = sum(each.input_tokens + each.more_input for each in under_way)
        outputs = sum(each.output_tokens for each in under_way)
        messages = sum(each.messages for each in under_way)
        return (
            (told.input_tokens or 0) <= (seen.input_tokens or 0) + inputs
            and (told.output_tokens or 0) <= (seen.output_tokens or 0) + outputs
            and (told.messages or 0) <= (seen.messages or 0) + messages
        )

    @property
    def _whole(self) -> dict[Source, Use]:
        """What each source tells of the whole run, the best source first. What went around the
        gateway adds to what came through it, and nothing tells the last call of that."""
        uses = {source: self.sources[source] for source in SOURCES if source in self.sources}
        if self.printed:
            for source in OF_AGENT & uses.keys():
                uses[source] = uses[source].beyond(self.printed)
        around = self.sources.get("around")
        if around is None:
            return uses
        if "gateway" in uses or not uses:
            uses["gateway"] = uses.get("gateway", NOTHING).plus(around)
        return {source: replace(use, partial=True) for source, use in uses.items()}

    def lose(self) -> None:
        """Note that the run may have used more than any source tells."""
        self.sources = {
            source: replace(self._without_guesses(use), partial=True)
            for source, use in self.sources.items()
        }

    @property
    def partial(self) -> bool:
        """Whether what is shown is a lower bound."""
        best = self.best
        return best is not None and (best[1].partial or bool(best[1].unpriced_tokens))

    @property
    def cost_may_grow(self) -> bool:
        """Whether the cost that is shown is known in part only."""
        best = self.best
        return best is not None and best[1].partial and best[1].cost is not None

    @property
    def cost_at_most(self) -> bool:
        """Whether the cost that is shown is an upper bound."""
        best = self.best
        return best is not None and bool(best[1].unsure_cost)

    @property
    def seen_by_gateway(self) -> int | None:
        """Return the tokens of all calls that the gateway saw, with what those under way have
        reserved; `None` if it saw none."""
        under_way = self.reserved_by_gateway.get(LimitKind.TOKENS)
        seen = self.sources.get("gateway")
        return (
            None
            if seen is None and under_way is None
            else ((seen.tokens if seen is not None else None) or 0) + (under_way or 0)
        )

    @property
    def metered(self) -> bool:
        return bool(self.sources or self.reservations)

    @property
    def known(self) -> bool:
        """Whether anything is known of what the run and its descendants use. Of most runs nothing
        is, from beginning to end."""
        return bool(self.sources or self.reservations or self.below or self.levels)

    def reserve(self, name: str, reservation: OpenReservation) -> None:
        self.reservations[name] = reservation
        _add(self._sums_of(reservation), reservation.amounts)
        _add(self.doubts, reservation.doubts)

    def release(self, name: str) -> OpenReservation:
        reservation = self.reservations.pop(name)
        sums = self._sums_of(reservation)
        _add(sums, {kind: -amount for kind, amount in reservation.amounts.items()})
        _add(self.doubts, {kind: -amount for kind, amount in reservation.doubts.items()})
        if not any(sums.values()):
            sums.clear()
        return reservation

    def set_silence(self, name: str, silence: Silence | None) -> None:
        self.reservations[name] = replace(self.reservations[name], silence=silence)

    @property
    def silences(self) -> list[Silence]:
        """The calls under way whose replies have not begun though they should have."""
        return [each.silence for each in self.reservations.values() if each.silence is not None]

    def _sums_of(self, reservation: OpenReservation) -> dict[LimitKind, int]:
        return (
            self.reserved_by_gateway if reservation.source == "gateway" else self.reserved_by_agent
        )

    def own(self, kind: LimitKind, *, sure: bool = False, reserved: bool = True) -> int | None:
        """Return what the run itself has used and reserved: the largest figure of any source.
        Reservations add to the reports and to what the gateway saw. `sure`: without the parts that
        may not have been used; `reserved`: with reservations."""
        if not self.sources and not self.reservations:
            return None
        of, uses = Use.sure_of if sure else Use.of, self._uses
        figures = [figure for use in uses.values() if (figure := of(use, kind)) is not None]
        if reserved and (by_agent := self.reserved_by_agent.get(kind, 0)):
            figures.append(by_agent + (of(uses.get("report", NOTHING), kind) or 0))
        if reserved and (by_gateway := self.reserved_by_gateway.get(kind, 0)):
            around = self.sources.get("around", NOTHING)
            figures.append(by_gateway + (of(uses.get("gateway", around), kind) or 0))
        return max(figures, default=None)

    def used(self, kind: LimitKind) -> float | None:
        """Return what a limit counts: what the run and its descendants have used and reserved."""
        if kind in self.levels:
            return self.levels[kind]
        own = self.own(kind)
        if kind not in self.below:
            return own
        return (own or 0) + self.below[kind]

    def reserved(self, kind: LimitKind) -> int:
        """Return the part of `used(kind)` that is only reserved. The rest is what is shown."""
        return self.own_reserved(kind) + self.reserved_below.get(kind, 0)

    def spent(self, kind: LimitKind) -> float | None:
        """Return what the run and its descendants have used, without what is only reserved."""
        used, reserved = self.used(kind), self.reserved(kind)
        return used if used is None or not reserved else used - reserved or None

    def own_reserved(self, kind: LimitKind) -> int:
        """Return the part of `own(kind)` that is only reserved."""
        if not self.reservations:
            return 0
        return (self.own(kind) or 0) - (self.own(kind, reserved=False) or 0)

    def unsure(self, kind: LimitKind) -> int:
        """Return the part of `own(kind)` that may not have been used."""
        return (self.own(kind) or 0) - (self.own(kind, sure=True) or 0)

    def end_below(self, ended: Account) -> None:
        """Take over what is known of a descendant that ends: the part of its use that may not have
        been used."""
        for kind in (LimitKind.TOKENS, LimitKind.COST):
            if unsure := ended.unsure(kind):
                _add(self.ended_unsure, {kind: unsure})

    def print_ended(self, tokens: int) -> None:
        """Take over what a descendant has used that ends, and whose output is a part of this
        run's."""
        _add(self.printed_ended, {LimitKind.TOKENS: tokens})

    def own_tree_use(self) -> TreeUse:
        if not self.metered:
            return NO_TREE_USE
        return TreeUse(
            tuple(self.own(kind) or 0 for kind in TREE_USE),
            tuple(self.own_reserved(kind) for kind in TREE_USE),
        )


class TreeUse(NamedTuple):
    """Amounts of the kinds in `TREE_USE`."""

    counted: tuple[int, ...]
    reserved: tuple[int, ...]
    """The part of that which is only reserved."""

    @property
    def tokens(self) -> int:
        """Tokens that are used, not only reserved."""
        return self.counted[_TOKENS] - self.reserved[_TOKENS]


_TOKENS = TREE_USE.index(LimitKind.TOKENS)


def _add(sums: dict[LimitKind, int], amounts: Mapping[LimitKind, int]) -> None:
    for kind, amount in amounts.items():
        sums[kind] = sums.get(kind, 0) + amount


NO_TREE_USE = TreeUse((0,) * len(TREE_USE), (0,) * len(TREE_USE))


def add_ended(accounts: Iterable[Account], used: tuple[int, ...]) -> None:
    """Add what a run has used that has ended to its ancestors' accounts."""
    for account in accounts:
        for kind, amount in zip(TREE_USE, used, strict=True):
            if amount:
                account.ended[kind] = account.ended.get(kind, 0) + amount


def add_below(accounts: Iterable[Account], before: TreeUse, after: TreeUse) -> None:
    """Add the change of a run's use to its ancestors' accounts."""
    counted, reserved = (
        {kind: new - old for kind, old, new in zip(TREE_USE, *both, strict=True) if new != old}
        for both in zip(before, after, strict=True)
    )
    for account in accounts:
        _add(account.below, counted)
        _add(account.reserved_below, reserved)
        if reserved and not any(account.reserved_below.values()):
            account.reserved_below.clear()
