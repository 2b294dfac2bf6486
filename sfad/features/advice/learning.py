"""Suggests limits from past runs: from what successful ones used, and from how many failed on a
limit.

`advise` is pure. `learn` reads the newest runs from the file, on a connection of its own in a
worker thread: no index has the type, so the search for a rare one walks the whole table.
"""

import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import Struct

from ...core.state.access import Scope
from ...core.state.limits import most_of
from ...core.state.policy import Policy
from ...host.files import UNDECODABLE
from ...protocol.kinds import COSTS, KINDS
from ...protocol.paths import LEDGER
from ...protocol.texts.units import counted
from ...protocol.types import ENDED, LimitKind, LimitState, RunInfo, Status
from ...storage.ledger.database import LedgerError, open_reader
from ...storage.ledger.rows import is_damaged, run_info
from ...storage.ledger.schema import READ_COLUMNS
from .messages import Advice

MIN_RUNS = 20
"""Successful runs with a known value that a suggestion needs. Of fewer runs, nearest rank gives the
largest."""

ROWS = 1000
"""Ended runs that are read, the newest: older ones say little about what an agent does now."""

HEAD_ROOM = 1.25

BUILT_IN = Policy()
"""Its ranges bound a suggestion if no other policy is given."""

_PERCENTILE = 95

_FIELDS = {kind: spec.learned_from for kind, spec in KINDS.items() if spec.learned_from}


class EndedRun(Struct, frozen=True):
    status: Status
    broke: str | None
    used: Mapping[LimitKind, float]
    """As far as it is known, counted as the limit counts: `tokens` and `cost` include the
    descendants'."""
    limits: Mapping[LimitKind, float]


def advise(runs: Iterable[EndedRun], *, policy: Policy = BUILT_IN) -> list[Advice]:
    """Return advice of each kind, in the order of `LimitKind`, within the ranges of `policy`.
    `runs` are the newest first."""
    runs = list(runs)
    return [_advice(kind, runs, most_of(kind, policy)) for kind in _FIELDS]


def learn(
    directory: Path,
    scope: Scope,
    *,
    type: str | None = None,  # noqa: A002
    name: str | None = None,
    rows: int = ROWS,
    policy: Policy = BUILT_IN,
) -> list[Advice]:
    """Return advice from the newest `rows` ended runs of the ledger in `directory`: of one type, of
    one name, of both, or of all. The scope is that of a caller outside any run.

    Blocks while it walks the table. Raises `LedgerError` if the file cannot be read."""
    try:
        with closing(open_reader(directory)) as connection:
            found = connection.execute(*_query(scope, type, name, rows)).fetchall()
        return advise(
            (_ended(info) for info in map(run_info, found) if not is_damaged(info)), policy=policy
        )
    except (sqlite3.Error, *UNDECODABLE) as error:
        raise LedgerError(f"the ledger {directory / LEDGER} cannot be read: {error}") from error


def percentile(values: Sequence[float]) -> float:
    """Return the 95th percentile by nearest rank: the smallest value that at least 95 in 100 do not
    exceed."""
    return sorted(values)[math.ceil(len(values) * _PERCENTILE / 100) - 1]


def rounded_up(kind: LimitKind, amount: float) -> float:
    """Round as a person would: to cents; tokens of 1 000 and more to two digits; else to whole
    numbers."""
    if kind in COSTS:
        return _ceil(amount * 100) / 100
    step = (
        10 ** max(0, len(str(_ceil(amount))) - 2)
        if kind is LimitKind.TOKENS and amount >= 1000
        else 1
    )
    return float(_ceil(amount / step) * step)


def _ceil(number: float) -> int:
    # 0.36 * 1.25 * 100 is not 45 but a little more
    return math.ceil(round(number, 6))


def _advice(kind: LimitKind, runs: Sequence[EndedRun], most: float | None) -> Advice:
    known = [run.used[kind] for run in runs if run.status is Status.COMPLETED and kind in run.used]
    p95 = percentile(known) if len(known) >= MIN_RUNS else None
    wanted = None if p95 is None else rounded_up(kind, p95 * HEAD_ROOM)
    suggested = (
        None
        if wanted is None
        else min(max(wanted, KINDS[kind].least), math.inf if most is None else most)
    )
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
        return (
            f"no advice: usage is known for {counted(runs, 'successful run')}; "
            f"{MIN_RUNS} are needed"
        )
    return "" if wanted == suggested else f"{wanted:g} would be outside the range"


def _query(scope: Scope, type_: str | None, name: str | None, rows: int) -> tuple[str, list[Any]]:
    # the + hides the index of statuses: this walks the table, or the index of names, from the
    # newest run back
    ended = ", ".join(f"'{status.value}'" for status in sorted(ENDED))
    terms = {"type = ?": type_, "name = ?": name, "+uid = ?": scope.uid}
    chosen = {term: value for term, value in terms.items() if value is not None}
    where = " AND ".join([*chosen, f"+status IN ({ended})"])
    sql = f"SELECT {', '.join(READ_COLUMNS)} FROM runs WHERE {where} ORDER BY number DESC LIMIT ?"  # noqa: S608
    return sql, [*chosen.values(), max(0, rows)]


def _ended(info: RunInfo) -> EndedRun:
    limits = {limit.kind: limit for limit in info.limits if limit.kind in _FIELDS}
    return EndedRun(
        status=info.status,
        broke=info.reason.limit_kind
        if info.reason is not None and info.reason.kind == "limit"
        else None,
        used=_used_of_limits(info, limits),
        limits={kind: limit.threshold for kind, limit in limits.items()},
    )


def _used_of_limits(
    info: RunInfo, limits: Mapping[LimitKind, LimitState]
) -> dict[LimitKind, float]:
    """Return what the limits counted. For a kind without a limit it is the largest amount that a
    source reports.

    A kind that counts descendants has no such amount, because `Usage` does not include theirs."""
    used = {kind: limit.used for kind, limit in limits.items() if limit.used is not None}
    for kind, field in _FIELDS.items():
        amounts = (getattr(usage, field) for usage in (info.usage, *info.usage_by_source.values()))
        known = [amount for amount in amounts if amount is not None]
        if kind not in used and known and (not info.descendants or KINDS[kind].scope == "run"):
            used[kind] = float(max(known))
    return used
