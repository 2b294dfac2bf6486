"""What is told of a breach: in words, and as the reason of a pause or an end."""

from ..protocol.kinds import KINDS
from ..protocol.types import LimitKind, Reason
from .limits import ActiveLimit, Crossing, amount, bare
from .money import to_wire
from .run import Run
from .vocabulary import ReasonKind


def words_of(run: Run, crossing: Crossing, refused: float | None) -> str:
    limit, used = crossing.active.limit, crossing.used
    kind = limit.kind
    if kind is LimitKind.TIME:
        return f"ran {used:.1f} s; its time limit is {limit.threshold:g} s, set by {limit.source}"
    bound = f"its {kind} limit is {bare(kind, crossing.active.threshold)}, set by {limit.source}"
    if refused is not None and crossing.exceeded:
        return f"was refused {amount(kind, refused)} on top of {bare(kind, used - refused)}; {bound}"
    whose = " with its descendants" if KINDS[kind].scope == "tree" and run.account.below.get(kind) else ""
    return f"used {amount(kind, used)}{whose}; {bound}"


def cut_at(tokens: int) -> str:
    return f"its last reply was cut at {tokens:,} tokens".replace(",", " ")


def reason_of(run: Run, crossing: Crossing, at: float, message: str, *, refused: bool = False) -> Reason:
    limit, account = crossing.active.limit, run.account
    turns, tokens, cost = (account.used(kind) for kind in (LimitKind.TURNS, LimitKind.TOKENS, LimitKind.COST))
    return Reason(
        kind=ReasonKind.LIMIT,
        message=message,
        limit_kind=limit.kind,
        threshold=limit.threshold,
        used=shown(limit.kind, crossing.used),
        exceeded_by=excess(crossing.active, crossing.used),
        refused=refused,
        turns=None if turns is None else int(turns),
        tokens=None if tokens is None else int(tokens),
        cost_usd=None if cost is None else to_wire(LimitKind.COST, cost),
        elapsed_s=round(run.clock.elapsed(at), 3),
    )


def shown(kind: LimitKind, used: float) -> float:
    return round(to_wire(kind, used), 6)


def excess(active: ActiveLimit, used: float) -> float:
    return shown(active.limit.kind, max(0, used - active.threshold))
