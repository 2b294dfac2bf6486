"""The report of a period: SQL over the rows of ended runs, to which runs are added that are live or
not written yet.

For a worker thread: it reads each row of the period once, which takes some 0.2 s for 100 000. What
it needs of them is in a temporary table meanwhile, on the disk if that is large.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...core.state.access import Scope
from ...core.state.run import run_id, run_number
from ...host.files import UNDECODABLE
from ...protocol.messages import List, Summarise
from ...protocol.paths import LEDGER
from ...protocol.requests.summary import (
    Breach,
    By,
    ContinuedLine,
    Costly,
    Failed,
    Group,
    Summary,
)
from ...protocol.types import (
    Event,
    Reason,
    RunId,
    RunInfo,
    Status,
    WindowShare,
)
from .database import LedgerError, open_reader
from .queries import Page, count_of, filters
from .rows import (
    EVENT_COLUMNS,
    NOTHING,
    Used,
    event_of,
    used_by,
)
from .schema import TAKEN

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
            and not (request.here and _elsewhere(info, request.missing))
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
            self._where += f" AND NOT coalesce({TAKEN}, 0)"
            self._values.append(msgspec.json.encode(request.missing).decode())
        if until is not None:
            self._where += " AND runs.created_at < ?"
            self._values.append(until)

    def summary(self) -> Summary:
        """Raises `sqlite3.Error`, and what `UNDECODABLE` names for a damaged row."""
        since = datetime.fromtimestamp(self._since, UTC)
        until = (
            datetime.now(UTC) if self._until is None else datetime.fromtimestamp(self._until, UTC)
        )
        self._choose()
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

    def _choose(self) -> None:
        """Read each row of the period once, for all that follows: rows are wide, and each pass over
        them would take as long as all passes over what is needed of them."""
        self._connection.execute(
            f"CREATE TEMP TABLE chosen AS SELECT {_CHOSEN} FROM runs INDEXED BY runs_created "  # noqa: S608
            f"WHERE {self._where}",
            self._values,
        )

    def _rows(self, columns: str, rest: str = "", join: str = "") -> Iterator[Any]:
        sql = f"SELECT {columns} FROM temp.chosen AS runs {join} WHERE 1 {rest}"  # noqa: S608
        return self._connection.execute(sql)

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
        found: dict[str | None, tuple[_Counts, Used]] = {}

        def add(key: str | None, counts: _Counts, use: Used) -> None:
            before = found.get(key, (_Counts(0, 0, 0, 0), NOTHING))
            found[key] = before[0].plus(counts), before[1].plus(use)

        key, join = self._key()
        counted = f"count(*), sum({_FAILED}), sum({_CHECKED}), sum({_UNCHECKED})"
        others = f"AND NOT {_GATED} " if self._by == "model" else ""
        order = (
            f"{others}GROUP BY {key} ORDER BY sum(runs.cost_usd) DESC, count(*) DESC LIMIT {GROUPS}"
        )
        for name, runs, bad, good, unknown, *used in self._rows(
            f"{key}, {counted}, {_USED}", order, join
        ):
            add(name, _Counts(runs, bad, good, unknown), _used(used))
        if self._by == "model":
            of_runs = (
                f"count(DISTINCT iif({which}, calls.run, NULL))"
                for which in ("1", _FAILED, _CHECKED, _UNCHECKED)
            )
            columns = f"CAST(calls.model AS TEXT), {', '.join(of_runs)}, {_CALLS_USED}"
            join = "JOIN calls ON calls.run = runs.number AND calls.state = 'ended'"
            for name, runs, bad, good, unknown, *used in self._rows(
                columns, f"AND {_GATED} GROUP BY calls.model LIMIT {GROUPS}", join
            ):
                add(name, _Counts(runs, bad, good, unknown), _used(used))
        for info in self._unwritten:
            done = info.status is Status.COMPLETED
            counts = _Counts(
                1,
                int(info.status in FAILED),
                int(done and bool(info.checks)),
                int(done and not info.checks),
            )
            for name, use in self._uses(info):
                add(name, counts, use)
        shares = self._shares()
        groups = [
            Group(
                key=key,
                plans=_plans(shares.get(key, {})),
                **counts._asdict(),
                cost_usd=use.cost_usd,
                tokens=use.tokens,
                partial=use.partial,
                at_most=use.at_most,
            )
            for key, (counts, use) in found.items()
        ]
        return sorted(
            groups, key=lambda group: (-(group.cost_usd or 0.0), -group.runs, group.key or "")
        )[:GROUPS]

    def _key(self) -> tuple[str, str]:
        """Return what rows are grouped by, and what is joined for that."""
        if self._by == "label":
            return _LABEL, "JOIN labels ON labels.number = runs.number"
        return f"CAST(runs.{self._by} AS TEXT)", ""

    def _shares(self) -> dict[str | None, Shares]:
        """Return the sums of shares of windows, by group, provider, account and
        window. Few runs have any."""
        found: dict[str | None, Shares] = {}
        model = self._by == "model"
        key, join = self._key()
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


def _elsewhere(info: RunInfo, missing: Collection[str]) -> bool:
    """Return whether another node tells of a run that it has taken."""
    there = info.executes_on
    return there is not None and there[1] != "" and there[0] not in missing


_GATED_USAGE = '{"gateway"'
_CHOSEN = (
    "number, id, status, name, user, type, model, cost_usd, tokens, partial, at_most, plans, "
    "iif(checks IS NULL, NULL, 1) AS checks, "
    f"continues, continued_by, substr(usage, 1, {len(_GATED_USAGE)}) AS usage, "
    f"iif(status IN ({', '.join(repr(status.value) for status in FAILED)}), reason, NULL) AS reason"
)
"""The columns that a summary shows. No other is copied."""
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
    f"(runs.usage = '{_GATED_USAGE}' AND EXISTS "  # noqa: S608
    "(SELECT 1 FROM calls WHERE calls.run = runs.number AND calls.state = 'ended'))"
)
"""The figures of the run are those of its calls."""
_FAILED = f"runs.status IN ({', '.join(repr(status.value) for status in FAILED)})"

_CHECKED = "runs.status = 'completed' AND runs.checks IS NOT NULL"
_UNCHECKED = "runs.status = 'completed' AND runs.checks IS NULL"


class _Counts(NamedTuple):
    """Of runs, as `Group` has them."""

    runs: int
    failed: int
    checked: int
    unchecked: int

    def plus(self, more: "_Counts") -> "_Counts":
        return _Counts(*(mine + its for mine, its in zip(self, more, strict=True)))


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
