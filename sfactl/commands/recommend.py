from collections.abc import Iterable
from typing import Annotated

from sfad.features.advice.messages import Advice, Recommend, Recommended
from sfad.protocol.limits import format_amount, format_limit
from sfad.protocol.texts.units import counted
from sfad.protocol.types import LimitKind

from .. import output
from ..app import app
from ..connecting.connection import call
from ..exits import UsageError
from ..options.shared import NAME, TYPE, Json, Socket
from ..showing import table

HEADER = ("KIND", "IN FORCE", "FROM", "P95", "SUGGESTED", "FAILED ON IT", "RUNS")


@app.command()
def recommend(
    socket: Socket = None,
    json: Json = False,
    type_: Annotated[
        str | None, TYPE.option("Only runs of this type, under its profile", "--type")
    ] = None,
    name: Annotated[str | None, NAME.option("Only runs of this name")] = None,
) -> None:
    """Suggest limits from past successful runs.

    Each row is a kind of limit. P95 is what 95 in 100 successful runs used at most, SUGGESTED
    is P95 with head-room, IN FORCE is the limit of a run of this type that sets none itself,
    FAILED ON IT is the share of all ended runs that a breach of the limit ended, and RUNS is
    the number of successful runs counted. Nothing is changed; with `limits.adaptive = true` in
    the config the daemon applies the suggestions.

    Exit codes: 0, also if there are too few runs for a suggestion.
    """
    if type_ is not None and name is not None:
        raise UsageError("--type and --name exclude each other: give one of them")
    found = call(socket, Recommend(id=0, run_type=type_, name=name), Recommended)
    words = f"{table.drawn(HEADER, rows(found))}\n{verdict(found)}"
    output.answer(json, output.content(found), words)


def rows(found: Recommended) -> Iterable[tuple[str, ...]]:
    """Yield a row for each kind that has advice or a limit, in the order of the kinds."""
    advice = {item.kind: item for item in found.advice}
    in_force = {limit.kind: limit for limit in found.in_force}
    for kind in LimitKind:
        if kind in advice or kind in in_force:
            limit = in_force.get(kind)
            force = (
                ("none", "-")
                if limit is None
                else (format_limit(limit).partition(" ")[2], limit.source)
            )
            yield (kind.value, *force, *_learnt(advice.get(kind)))


def _learnt(advice: Advice | None) -> tuple[str, ...]:
    if advice is None:
        return ("-", "-", "-", "-")
    failed = "-" if advice.failed_share is None else f"{100 * advice.failed_share:.0f} %"
    return (
        _amount(advice.kind, advice.p95),
        _amount(advice.kind, advice.suggested),
        failed,
        str(advice.runs),
    )


def _amount(kind: LimitKind, amount: float | None) -> str:
    return "-" if amount is None else format_amount(kind, amount)


def verdict(found: Recommended) -> str:
    """Return how many runs the table rests on, and the notes on single rows."""
    runs = counted(found.runs, "successful run")
    told = any(item.suggested is not None for item in found.advice)
    first = (
        f"learnt from {runs}"
        if told
        else f"{runs} in the ledger: too few to recommend anything; keep the limits in force"
    )
    return "\n".join(
        [first, *(f"{item.kind}: {output.plain(item.note)}" for item in found.advice if item.note)]
    )
