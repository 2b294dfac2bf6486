"""The report of a period: SQL over the rows of ended runs, to which runs are added that are live or
not written yet.

For a worker thread: it reads each row of the period, which takes some 0.1 s for 100 000.
"""

import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...core.state.access import Scope
from ...core.state.limits import most_of
from ...core.state.policy import Policy
from ...core.state.run import run_id, run_number
from ...host.files import UNDECODABLE
from ...protocol.kinds import COSTS, KINDS
from ...protocol.messages import List, Summarise
from ...protocol.paths import LEDGER
from ...protocol.requests.advice import (
    Advice,
    Breach,
    By,
    ContinuedLine,
    Costly,
    Failed,
    Group,
    Summary,
)
from ...protocol.types import (
    ENDED,
    Event,
    LimitKind,
    LimitState,
    Reason,
    RunId,
    RunInfo,
    Status,
    WindowShare,
)
from ...protocol.units import counted
from .database import LedgerError, open_reader
from .queries import Page, count_of, filters
from .rows import (
    EVENT_COLUMNS,
    NOTHING,
    READ_COLUMNS,
    Used,
    event_of,
    is_damaged,
    run_info,
    used_by,
)

GROUPS, LISTED, COSTLY = 100, 1000, 5
"""The most groups, breaches (and failed runs), and expensive runs in one summary."""

FAILED = (Status.FAILED, Status.TIMEOUT, Status.LOST)

_KEYS: dict[By, Callable[[RunInfo], Sequence[str | None]]] = {
    "name": lambda info: [info.name],
    "user": lambda info: [info.user],
    "type": lambda info: [info.type],
    "model": lambda info: [info.model],
    "label": lambda info: [f"{key}={value}" for key, value in info.labels.items()],
}

_LABEL = "labels.key || '=' || labels.value"

Shares = dict[tuple[str, str, str], float]
"""Of windows, by provider, account and name."""

Unwritten = Sequence[RunInfo]
"""Matching runs whose present state is not in the file."""


def page_of(request: Summarise, scope: Scope) -> Page:
    """Return the runs that a request is about."""
    query = List(
        id=0,
        since=request.since,
        name=request.name,
        user=request.user,
        labels=request.labels,
        run_type=request.run_type,
        channel=request.channel,
        model=request.model,
    )
    return Page(query, scope)


def summarise(directory: Path, page: Page, request: Summarise, unwritten: Unwritten) -> Summary:
    """Return the summary of the runs of a page, which has a `since`, from the ledger in
    `directory`. Raises `LedgerError`."""
    try:
        with closing(open_reader(directory)) as connection:
            return Summariser(connection, page, request, unwritten).summary()
    except (sqlite3.Error, *UNDECODABLE) as error:
        raise LedgerError(f"the ledger {directory / LEDGER} cannot be read: {error}") from error


class Summariser:
    def __init__(
        self, connection: sqlite3.Connection, page: Page, request: Summarise, unwritten: Unwritten
    ) -> None:
        assert page.query.since is not None
        self._connection = connection
        self._since: float = page.query.since
        self._until = until = request.until
        self._page = page
        self._by = request.by
        self._groups_only = request.groups_only
        self._unwritten = [
            info
            for info in unwritten
            if (until is None or info.created_at.timestamp() < until)
            and not (request.here and _elsewhere(info))
        ]
        numbers = [run_number(info.id) for info in unwritten]
        terms = list(filters(page))
        # a run that is live, or has just ended, may be written before this reads the file
        self._where = " AND ".join(
            [
                "runs.ended = 1",
                "runs.number NOT IN (SELECT value FROM json_each(?))",
                *(t.plain for t in terms),
            ]
        )
        self._values = [
            msgspec.json.encode(numbers).decode(),
            *(value for term in terms for value in term.values),
        ]
        if request.here:
            taken = (
                "json_valid(runs.fleet) AND json_extract(runs.fleet, '$.run') "
                "!= '' AND runs.status != 'lost'"
            )
            self._where += f" AND (runs.fleet IS NULL OR NOT ({taken}))"
        if until is not None:
            self._where += " AND runs.created_at < ?"
            self._values.append(until)

    def summary(self) -> Summary:
        """Raises `sqlite3.Error`, and what `UNDECODABLE` names for a damaged row."""
        since = datetime.fromtimestamp(self._since, UTC)
        until = (
            datetime.now(UTC) if self._until is None else datetime.fromtimestamp(self._until, UTC)
        )
        if self._groups_only:
            return Summary(
                since=since, until=until, runs=0, by_status={}, cost_usd=None, tokens=None,
                partial=False, groups=self._groups(), breaches=[], failed=[],
            )  # fmt: skip
        by_status, use = self._totals()
        return Summary(
            since=since,
            until=until,
            runs=sum(by_status.values()),
            by_status=dict(sorted(by_status.items())),
            cost_usd=use.cost_usd,
            tokens=use.tokens,
            partial=use.partial,
            at_most=use.at_most,
            groups=self._groups(),
            breaches=list(self._breaches()),
            failed=self._failed(),
            costly=self._costly(),
            lines=self._lines(),
        )

    def _rows(self, columns: str, rest: str = "", join: str = "") -> Iterator[Any]:
        sql = (
            f"SELECT {columns} FROM runs INDEXED BY runs_created {join} WHERE {self._where} {rest}"  # noqa: S608
        )
        return self._connection.execute(sql, self._values)

    def _totals(self) -> tuple[Counter[Status], Used]:
        by_status: Counter[Status] = Counter()
        use = NOTHING
        for status, count, *used in self._rows(
            f"runs.status, count(*), {_USED}", "GROUP BY runs.status"
        ):
            by_status[_status(status)] += count
            use = use.plus(_used(used))
        for info in self._unwritten:
            by_status[info.status] += 1
            use = use.plus(used_by(None, info.usage))
        return by_status, use

    def _groups(self) -> list[Group]:
        found: dict[str | None, tuple[int, int, Used]] = {}

        def add(key: str | None, runs: int, failed: int, use: Used) -> None:
            before = found.get(key, (0, 0, NOTHING))
            found[key] = (before[0] + runs, before[1] + failed, before[2].plus(use))

        key, join = (
            (_LABEL, "JOIN labels ON labels.number = runs.number")
            if self._by == "label"
            else (f"CAST(runs.{self._by} AS TEXT)", "")
        )
        failed = f"sum({_FAILED})"
        others = f"AND NOT {_GATED} " if self._by == "model" else ""
        order = (
            f"{others}GROUP BY {key} ORDER BY sum(runs.cost_usd) DESC, count(*) DESC LIMIT {GROUPS}"
        )
        for name, runs, bad, *used in self._rows(
            f"{key}, count(*), {failed}, {_USED}", order, join
        ):
            add(name, runs, bad, _used(used))
        if self._by == "model":
            failing = f"count(DISTINCT iif({_FAILED}, calls.run, NULL))"
            columns = (
                f"CAST(calls.model AS TEXT), count(DISTINCT calls.run), {failing}, {_CALLS_USED}"
            )
            join = "JOIN calls ON calls.run = runs.number AND calls.state = 'ended'"
            for name, runs, bad, *used in self._rows(
                columns, f"AND {_GATED} GROUP BY calls.model LIMIT {GROUPS}", join
            ):
                add(name, runs, bad, _used(used))
        for info in self._unwritten:
            for name, use in self._uses(info):
                add(name, 1, int(info.status in FAILED), use)
        shares = self._shares()
        groups = [
            Group(
                key=key,
                plans=_plans(shares.get(key, {})),
                runs=runs,
                cost_usd=use.cost_usd,
                tokens=use.tokens,
                failed=bad,
                partial=use.partial,
                at_most=use.at_most,
            )
            for key, (runs, bad, use) in found.items()
        ]
        return sorted(
            groups, key=lambda group: (-(group.cost_usd or 0.0), -group.runs, group.key or "")
        )[:GROUPS]

    def _shares(self) -> dict[str | None, Shares]:
        """Return the sums of shares of subscriptions' windows, by group, provider, account and
        window. Few runs have any."""
        found: dict[str | None, Shares] = {}
        model = self._by == "model"
        key, join = (
            (_LABEL, "JOIN labels ON labels.number = runs.number")
            if self._by == "label"
            else (f"CAST(runs.{self._by} AS TEXT)", "")
        )
        rows = self._rows(f"{key}, runs.plans", "AND runs.plans != '[]'", join)
        for name, plans in [*rows] if not model else []:
            with suppress(*UNDECODABLE):
                _add_shares(found.setdefault(name, {}), _shares_of(plans))
        for info in self._unwritten if not model else ():  # a run's share is not told by model
            for name in _KEYS[self._by](info) if info.plans else ():
                _add_shares(found.setdefault(name, {}), info.plans)
        return found

    def _uses(self, info: RunInfo) -> Iterator[tuple[str | None, Used]]:
        """Yield the groups of a run that is not written, and what it has used of each."""
        found = []
        if self._by == "model" and info.usage.source == "gateway":
            sql = (
                f"SELECT calls.model, {_CALLS_USED} FROM calls WHERE run = ? AND state = 'ended' "  # noqa: S608
                "GROUP BY calls.model"
            )
            found = [
                (name, _used(used))
                for name, *used in self._connection.execute(sql, (run_number(info.id),))
            ]
        yield from found or ((key, used_by(None, info.usage)) for key in _KEYS[self._by](info))

    def _failed(self) -> list[Failed]:
        marks = ", ".join(repr(status.value) for status in FAILED)
        rest = f"AND runs.status IN ({marks}) ORDER BY runs.number DESC LIMIT {LISTED}"
        rows = self._rows("runs.number, CAST(runs.name AS TEXT), runs.reason", rest)
        found = [_failed(run_id(run), name, _reason_of(reason)) for run, name, reason in rows]
        found += [
            _failed(info.id, info.name, info.reason)
            for info in self._unwritten
            if info.status in FAILED
        ]
        return sorted(found, key=lambda one: one.run_id)[-LISTED:]

    def _costly(self) -> list[Costly]:
        columns = (
            "runs.number, CAST(runs.name AS TEXT), runs.status, runs.cost_usd, "
            "runs.tokens, runs.partial, runs.at_most"
        )
        rows = self._rows(
            columns, f"AND runs.cost_usd > 0 ORDER BY runs.cost_usd DESC LIMIT {COSTLY}"
        )
        found = [
            Costly(
                run_id=run_id(run),
                name=name,
                status=_status(status),
                cost_usd=cost,
                tokens=count_of(tokens),
                partial=bool(partial),
                at_most=bool(at_most),
            )
            for run, name, status, cost, tokens, partial, at_most in rows
            if isinstance(cost, float)
        ]
        found += _costly(self._unwritten)
        return sorted(found, key=lambda one: -one.cost_usd)[:COSTLY]

    def _lines(self) -> list[ContinuedLine]:
        columns = (
            "runs.id, runs.continues, CAST(runs.name AS TEXT), runs.status, runs.cost_usd, "
            "runs.tokens, runs.partial, runs.at_most"
        )
        rest = (
            "AND (runs.continues IS NOT NULL OR runs.continued_by IS NOT NULL) "
            f"ORDER BY runs.number DESC LIMIT {LISTED}"
        )
        found: dict[RunId, _Continued] = {}
        for run, before, name, status, *used in self._rows(columns, rest):
            found[run] = _Continued(before, name, _status(status), _used(used))
        for info in self._unwritten:
            found[info.id] = _Continued(
                info.continues, info.name, info.status, used_by(None, info.usage)
            )
        later = {one.before for one in found.values()}
        return [
            line
            for last in sorted(found)
            if last not in later and (line := _line(found, last)) is not None
        ]

    def _breaches(self) -> Iterator[Breach]:
        sql = (
            f"SELECT {', '.join(EVENT_COLUMNS)} FROM events INDEXED BY events_breaches "  # noqa: S608
            "WHERE type = 'limit_exceeded' AND time >= ? ORDER BY time DESC"
        )
        fits = self._admitted()
        events = (event_of(row) for row in self._connection.execute(sql, (self._since,)))
        newest = [
            breach
            for _, breach in zip(
                range(LISTED),
                (_breach(event) for event in events if fits(event.run_id)),
                strict=False,
            )
        ]
        yield from reversed(newest)

    def _admitted(self) -> Callable[[RunId | None], bool]:
        """Return a test for the runs of the summary. It looks up each run that breached a limit,
        because these are few."""
        known = {info.id: True for info in self._unwritten}
        sql = f"SELECT 1 FROM runs WHERE runs.number = ? AND {self._where}"  # noqa: S608

        def fits(run: RunId | None) -> bool:
            if run is None:
                return False
            if run not in known:
                known[run] = (
                    self._connection.execute(sql, (run_number(run), *self._values)).fetchone()
                    is not None
                )
            return known[run]

        return fits


def _elsewhere(info: RunInfo) -> bool:
    return info.fleet is not None and info.fleet.run != "" and info.status is not Status.LOST


_USED = (
    "sum(iif(typeof(runs.cost_usd) = 'real', runs.cost_usd, NULL)), sum(iif(typeof(runs.tokens) "
    "= 'integer', runs.tokens, NULL)), max(runs.partial), max(runs.at_most)"
)
"""Without what a damaged row has in the place of a number."""
_CALLS_USED = (
    "sum(calls.cost_usd), sum(ifnull(calls.input_tokens, 0) + ifnull(calls.output_tokens, 0)), "
    "max(calls.partial OR (calls.cost_usd IS NULL AND calls.output_tokens > 0)), max(calls.at_most)"
)
_GATED = (
    """(runs.usage GLOB '{"gateway"*' AND EXISTS """
    "(SELECT 1 FROM calls WHERE calls.run = runs.number AND calls.state = 'ended'))"
)
"""The figures of the run are those of its calls."""
_FAILED = f"runs.status IN ({', '.join(repr(status.value) for status in FAILED)})"

_shares_of = msgspec.json.Decoder(list[WindowShare]).decode


def _add_shares(sums: Shares, shares: Iterable[WindowShare]) -> None:
    for each in shares:
        key = each.provider, each.account, each.window
        sums[key] = sums.get(key, 0.0) + each.share


def _plans(sums: Shares) -> list[WindowShare]:
    return [
        WindowShare(provider=provider, account=account, window=window, share=round(share, 4))
        for (provider, account, window), share in sums.items()
    ]


_reason = msgspec.json.Decoder(Reason)


def _status(text: Any) -> Status:
    try:
        return Status(text)
    except ValueError:
        return Status.LOST  # as a run is shown whose row is damaged


def _reason_of(text: Any) -> Reason | None:
    try:
        return None if text is None else _reason.decode(text)
    except UNDECODABLE as error:
        return Reason(kind="damaged", message=f"its row in the ledger is damaged: {error}")


def _used(columns: Sequence[Any]) -> Used:
    cost, tokens, partial, at_most = columns
    return Used(None, cost, count_of(tokens), bool(partial), bool(at_most))


def _failed(run: RunId, name: str, reason: Reason | None) -> Failed:
    if reason is None:
        return Failed(run_id=run, name=name, reason="no reason was recorded")
    return Failed(run_id=run, name=name, reason=reason.message, below=reason.below)


def _costly(runs: Iterable[RunInfo]) -> Iterator[Costly]:
    for info in runs:
        use = used_by(None, info.usage)
        if use.cost_usd:
            yield Costly(
                run_id=info.id,
                name=info.name,
                status=info.status,
                cost_usd=use.cost_usd,
                tokens=use.tokens,
                partial=use.partial,
                at_most=use.at_most,
            )


class _Continued(NamedTuple):
    before: RunId | None
    name: str
    status: Status
    used: Used


def _line(found: Mapping[RunId, _Continued], last: RunId) -> ContinuedLine | None:
    """Return the line that ends with this run; `None` if that continues no run of the period."""
    runs = [last]
    while (before := found[runs[0]].before) is not None and before in found and before not in runs:
        runs.insert(0, before)
    if len(runs) == 1:
        return None
    use = NOTHING
    for run in runs:
        use = use.plus(found[run].used)
    end = found[last]
    return ContinuedLine(
        runs=runs,
        name=end.name,
        status=end.status,
        cost_usd=use.cost_usd,
        tokens=use.tokens,
        partial=use.partial,
        at_most=use.at_most,
    )


def _breach(event: Event) -> Breach:
    return Breach(
        run_id=event.run_id or "",
        limit_kind=event.limit_kind or "",
        used=event.used,
        reserved=event.reserved,
        threshold=event.threshold,
        scope=event.scope or "run",
        refused=event.refused or False,
    )


# ---- Suggests limits from past runs: from what successful ones used, and from how many failed on a
# limit
#
# `advise` is pure. `learn` reads the newest runs from the file, on a connection of its own in a
# worker thread: no index has the type, so the search for a rare one walks the whole table.

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


@dataclass(frozen=True, slots=True)
class EndedRun:
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
