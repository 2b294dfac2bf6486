"""What ended runs teach about limits (SPEC section 3): what the successful ones used, and how many failed on a limit.

`advise` is pure; `learn` reads the newest runs from the file, on a connection of its own, and is called in a worker thread:
nothing is indexed by type, so the search for a rare one walks the whole table.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..core.limits import most_of
from ..core.policy import Policy
from ..protocol.advice import Advice
from ..protocol.kinds import COSTS, KINDS
from ..protocol.types import ENDED, LimitKind, Reason, Status, Usage
from .errors import LedgerError
from .opening import FILE, open_reader

MIN_RUNS = 20
"""Successful runs with a known value below which nothing is suggested: with fewer, nearest rank gives the largest of them."""

ROWS = 1000
"""Ended runs that are looked at, the newest: old ones say little of what an agent does now."""

HEAD_ROOM = 1.25
"""What is suggested, of what was used."""

BUILT_IN = Policy()
"""Its ranges bound what is suggested where no other policy is given."""

_PERCENTILE = 95

_FIELDS = {kind: spec.learned_from for kind, spec in KINDS.items() if spec.learned_from}
"""The kinds that there is advice about, and the field of `Usage` that has a run's use."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """What one run teaches."""

    status: Status
    broke: str | None
    """The kind of the limit whose breach ended it."""
    used: Mapping[LimitKind, float]
    """As far as it is known, in what the limit counts: of `tokens` and `cost`, what its descendants used too."""
    limits: Mapping[LimitKind, float]
    """Thresholds."""


def advise(runs: Iterable[EndedRun], *, policy: Policy = BUILT_IN) -> list[Advice]:
    """Return advice of each kind, in the order of `LimitKind`, within the ranges of `policy`. `runs` are the newest first."""
    runs = list(runs)
    return [_advice(kind, runs, most_of(kind, policy)) for kind in _FIELDS]


def learn(
    directory: Path, *, type: str | None = None, name: str | None = None, rows: int = ROWS, policy: Policy = BUILT_IN  # noqa: A002
) -> list[Advice]:  # fmt: skip
    """Advice from the newest `rows` ended runs of the ledger in `directory`: of one type, of one name, of both, or of all.

    Blocks, on a walk of the table for as long as that takes. Raises `LedgerError` if the file cannot be read.
    """
    try:
        with closing(open_reader(directory)) as connection:
            found = connection.execute(*_query(type, name, rows)).fetchall()
        return advise((_run(row) for row in found), policy=policy)
    except (sqlite3.Error, msgspec.DecodeError) as error:
        raise LedgerError(f"the ledger {directory / FILE} cannot be read: {error}") from error


def percentile(values: Sequence[float]) -> float:
    """The 95th percentile by nearest rank: the smallest of the values that at least 95 in 100 of them do not exceed. It is
    always a value that was seen. Raises `IndexError` for no values."""
    return sorted(values)[math.ceil(len(values) * _PERCENTILE / 100) - 1]


def rounded_up(kind: LimitKind, amount: float) -> float:
    """What a person would write: cents; tokens of 1 000 and more with two digits; else whole numbers."""
    if kind in COSTS:
        return _ceil(amount * 100) / 100
    step = 10 ** max(0, len(str(_ceil(amount))) - 2) if kind is LimitKind.TOKENS and amount >= 1000 else 1
    return float(_ceil(amount / step) * step)


def _ceil(number: float) -> int:
    # 0.36 * 1.25 * 100 is not 45 but a little more
    return math.ceil(round(number, 6))


def _advice(kind: LimitKind, runs: Sequence[EndedRun], most: float | None) -> Advice:
    known = [run.used[kind] for run in runs if run.status is Status.COMPLETED and kind in run.used]
    p95 = percentile(known) if len(known) >= MIN_RUNS else None
    wanted = None if p95 is None else rounded_up(kind, p95 * HEAD_ROOM)
    suggested = None if wanted is None else min(max(wanted, KINDS[kind].least), math.inf if most is None else most)
    return Advice(
        kind=kind,
        p95=p95,
        suggested=suggested,
        limit=next((run.limits[kind] for run in runs if kind in run.limits), None),
        runs=len(known),
        ended=len(runs),
        failed_share=sum(run.broke == kind.value for run in runs) / len(runs) if runs else None,
        least=KINDS[kind].least,
        most=most,
        note=_note(len(known), wanted, suggested),
    )


def _note(runs: int, wanted: float | None, suggested: float | None) -> str:
    if wanted is None or suggested is None:
        return f"no advice: of {runs} successful runs is known what they used, and {MIN_RUNS} are needed"
    return "" if wanted == suggested else f"{wanted:g} would be outside the range"


# ---- rows


class _LimitRow(Struct):
    """Of a limit as the ledger holds it what matters here."""

    kind: str
    threshold: float
    used: float | None = None


_reason = msgspec.json.Decoder(Reason)
_limits = msgspec.json.Decoder(list[_LimitRow])
_usage = msgspec.json.Decoder(dict[str, Usage])


def _query(type_: str | None, name: str | None, rows: int) -> tuple[str, list[Any]]:
    # the + keeps the index of statuses out: this walks the table, or that of names, from the newest run back
    ended = ", ".join(f"'{status.value}'" for status in sorted(ENDED))
    terms = {"type = ?": type_, "name = ?": name}
    chosen = {term: value for term, value in terms.items() if value is not None}
    where = " AND ".join([*chosen, f"+status IN ({ended})"])
    sql = f"SELECT status, reason, usage, limits, descendants FROM runs WHERE {where} ORDER BY number DESC LIMIT ?"  # noqa: S608
    return sql, [*chosen.values(), max(0, rows)]


def _run(row: tuple[str, str | None, str, str, int]) -> EndedRun:
    status, reason, usage, limits, descendants = row
    held = {LimitKind(limit.kind): limit for limit in _limits.decode(limits) if limit.kind in _FIELDS}
    told = None if reason is None else _reason.decode(reason)
    return EndedRun(
        status=Status(status),
        broke=told.limit_kind if told is not None and told.kind == "limit" else None,
        used=_used(_usage.decode(usage).values(), held, alone=not descendants),
        limits={kind: limit.threshold for kind, limit in held.items()},
    )


def _used(sources: Collection[Usage], held: Mapping[LimitKind, _LimitRow], *, alone: bool) -> dict[LimitKind, float]:
    """A limit knows what was held against it. Without one it is the largest that any source tells (SPEC section 8), unless
    what descendants used counts too, which `Usage` does not."""
    used = {kind: limit.used for kind, limit in held.items() if limit.used is not None}
    for kind, field in _FIELDS.items():
        known = [value for usage in sources if (value := getattr(usage, field)) is not None]
        if kind not in used and known and (alone or KINDS[kind].scope == "run"):
            used[kind] = float(max(known))
    return used
