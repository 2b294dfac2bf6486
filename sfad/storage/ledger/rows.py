"""Runs, calls and events as rows, and back, and the SQL that writes them.

Environment variables have no column: they may contain secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from itertools import chain
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from ...core.state.run import number_or_zero, run_id, run_number
from ...host.files import UNDECODABLE
from ...protocol.encoding import lean
from ...protocol.event_types import EventType
from ...protocol.types import CallInfo, Event, Reason, RunId, RunInfo, Source, Status, Usage
from .schema import (
    FIXED_EXTRA,
    FIXED_INFO,
    FIXED_JSON,
    READ_COLUMNS,
    RUN_COLUMNS,
    STATE_COLUMNS,
    STATE_INFO,
    STATE_JSON,
    STATE_OPTIONAL,
    STATE_TIMES,
)

# ---- What runs have used together with their descendants, each counted once


class Used(NamedTuple):
    """What a run, or several, have used; `None` where it is not known."""

    parent: RunId | None
    cost_usd: float | None
    tokens: int | None
    partial: bool
    at_most: bool

    def plus(self, more: Used) -> Used:
        costs = [cost for cost in (self.cost_usd, more.cost_usd) if cost is not None]
        tokens = [count for count in (self.tokens, more.tokens) if count is not None]
        marks = self.partial or more.partial, self.at_most or more.at_most
        return Used(
            self.parent,
            round(sum(costs), 9) if costs else None,
            sum(tokens) if tokens else None,
            *marks,
        )


NOTHING = Used(None, None, None, partial=False, at_most=False)


def used_by(parent: RunId | None, usage: Usage) -> Used:
    return Used(parent, usage.cost_usd, usage.tokens, at_least(usage), usage.at_most)


def at_least(usage: Usage) -> bool:
    """Return whether tokens and cost are lower bounds: they may still grow, or some tokens have no
    price."""
    return usage.partial or bool(usage.unpriced_tokens)


def with_totals(runs: Iterable[RunInfo], used: Mapping[RunId, Used]) -> list[RunInfo]:
    """Add the totals to each run. `used` has the descendants of each run with any."""
    runs = list(runs)
    totals = {**used, **{info.id: used_by(info.parent_id, info.usage) for info in runs}}
    for run in sorted(totals, reverse=True):  # a child has a higher id than its parent
        parent = totals[run].parent
        if parent in totals:
            totals[parent] = totals[parent].plus(totals[run])
    return [_with_total(info, totals[info.id]) for info in runs]


def with_own_total(info: RunInfo) -> RunInfo:
    """Do the same for a run without descendants."""
    usage = info.usage
    if usage.source == "none" and usage.cost_usd is None and usage.tokens is None:
        return info  # nothing is known of most runs
    return _with_total(info, used_by(None, usage))


def _with_total(info: RunInfo, total: Used) -> RunInfo:
    told = info.total_cost_usd, info.total_tokens, info.total_partial, info.total_at_most
    if told == total[1:]:
        return info
    return msgspec.structs.replace(
        info,
        total_cost_usd=total.cost_usd,
        total_tokens=total.tokens,
        total_partial=total.partial,
        total_at_most=total.at_most,
    )


# ---- Rows of runs, calls and events


RESULT_HEAD = 1024

SESSION = "session"
"""`RunExtra.mode` of a session."""


class RunExtra(Struct, frozen=True, kw_only=True, gc=False):
    """What a run's row has beside `RunInfo`."""

    uid: int | None = None
    mode: str | None = None
    """`foreground`, `background` or `detached`, as the client asked for it, or `SESSION`."""
    pid_started: int | None = None
    """Start time of the main process in clock ticks since boot: field 22 of /proc/PID/stat, see
    proc(5)."""
    boot_id: str | None = None
    """The boot that `pid` and `pid_started` belong to; the ledger fills in the current one."""
    result_head: bytes | None = None
    request: bytes | None = None
    """What it was started with, as `start.recalling.to_recall` makes it."""


Kind = Literal["admit", "refuse", "upsert", "state", "event", "call", "count", "charge", "plan"]


class Op(Struct, frozen=True, eq=False, gc=False):
    """One queued write. Nothing in it changes when the run does."""

    kind: Kind
    run_id: RunId | None
    row: tuple[Any, ...]
    """Of a state: what its row is made of. Most states of short runs are out of date before they
    are written."""
    labels: tuple[tuple[str, str, int], ...] = ()
    urgent: bool = False
    """To be written at once: an admission, because a client waits for it, or an end, because
    clients hear of it before it is in the file, and a SIGKILL must not find it in memory."""


_CONTINUES = RUN_COLUMNS.index("continues")
EVENT_COLUMNS = ("seq", "time", "type", "severity", "run_id", "root_id", "body")

_CALL_FIELDS = tuple(
    name for name in CallInfo.__struct_fields__ if name not in ("run_id", "time", "number", "modes")
)
CALL_COLUMNS = ("run", "time", "number", *_CALL_FIELDS, "modes")

_call_fields = attrgetter(*_CALL_FIELDS)
_fixed_info, _fixed_json = attrgetter(*FIXED_INFO), attrgetter(*FIXED_JSON)
_fixed_extra = attrgetter(*FIXED_EXTRA)
_state_info, _state_json = attrgetter(*STATE_INFO), attrgetter(*STATE_JSON)
_state_optional = attrgetter(*STATE_OPTIONAL)

_IN_EVENT_BODY = tuple(name for name in Event.__struct_fields__ if name not in EVENT_COLUMNS)
_EventBody, _event_body = lean(Event, _IN_EVENT_BODY)
"""What an event tells beside its columns. Most of it is not told of most events."""

_encode = msgspec.json.Encoder().encode


def insert_op(
    kind: Literal["admit", "refuse", "upsert"], info: RunInfo, extra: RunExtra, boot_id: str | None
) -> Op:
    """Return the write that creates a run's row, or, for `upsert`, brings an old row up to date."""
    number = run_number(info.id)
    urgent = kind == "admit" or (kind == "upsert" and info.status.terminal)
    labels = tuple((key, value, number) for key, value in info.labels.items())
    fixed = (
        number,
        info.created_at.timestamp(),
        info.group,
        *_fixed_info(info),
        *_jsons(_fixed_json(info)),
        *_fixed_extra(extra),
    )
    return Op(
        kind, info.id, (*fixed, *_state(info, extra, boot_id), extra.request), labels, urgent=urgent
    )


def state_op(info: RunInfo, extra: RunExtra, boot_id: str | None) -> Op:
    """Return the write that brings a run's row up to date. It creates no row, so a run whose
    admission failed has none."""
    return Op("state", info.id, (info, extra, boot_id), urgent=info.status.terminal)


def event_op(event: Event) -> Op:
    """Return the write of an event. Raises `ValueError` for one without time or number."""
    if not isinstance(event.time, datetime) or not isinstance(event.seq, int):
        raise ValueError(f"event {event.type!r} has no time or no number")
    body = _encode(_EventBody(*_event_body(event))).decode()
    row = (
        event.seq,
        event.time.timestamp(),
        event.type,
        event.severity,
        event.run_id,
        event.root_id,
        body,
    )
    return Op("event", event.run_id, row)


def call_op(call: CallInfo) -> Op:
    key = run_number(call.run_id), call.time.timestamp(), call.number
    modes = _json(call.modes) if call.modes else None
    return Op("call", call.run_id, (*key, *_call_fields(call), modes))


def charge_op(scope: str, name: str, period_start: datetime, usd: float) -> Op:
    return Op("charge", None, (scope, name, period_start.timestamp(), usd))


def plan_op(provider: str, account: str, heard_at: float, known: str) -> Op:
    return Op("plan", None, (provider, account, heard_at, known))


def _state(info: RunInfo, extra: RunExtra, boot_id: str | None) -> tuple[Any, ...]:
    shown = info.usage
    usages = _usages(info) if info.usage_by_source else {shown.source: shown}
    reason, place, children = _state_optional(info)
    deadline, started_at, ended_at = info.deadline, info.started_at, info.ended_at
    return (
        None if reason is None else _json(reason),
        None if place is None else _json(place),
        None if children is None else _json(children),
        *_jsons((*_state_json(info), usages)),
        str(info.status),
        int(info.status.terminal),
        shown.cost_usd,
        shown.tokens,
        int(shown.partial or bool(shown.unpriced_tokens)),
        int(shown.at_most),
        extra.boot_id or (boot_id if info.pid is not None else None),
        None if extra.result_head is None else extra.result_head[:RESULT_HEAD],
        _json(info.checks) if info.checks else None,
        *_state_info(info),
        None if deadline is None else deadline.timestamp(),
        None if started_at is None else started_at.timestamp(),
        None if ended_at is None else ended_at.timestamp(),
        extra.pid_started,
    )


def _usages(info: RunInfo) -> dict[Source, Usage]:
    """Return the usage that is shown, then each source's.

    The one that is shown is under its source, or, if it is mixed of several sources, under
    `none`."""
    shown = info.usage
    alone = info.usage_by_source.get(shown.source, shown) == shown
    return {shown.source if alone else "none": shown} | info.usage_by_source


def _json(value: object) -> str:
    return _encode(value).decode()


def _jsons(values: Iterable[object]) -> Iterator[str]:
    return map(bytes.decode, map(_encode, values))  # all of it in C: each row has ten


def _moment(stamp: float) -> datetime:
    try:
        return datetime.fromtimestamp(stamp, UTC)
    except OSError as error:  # EOVERFLOW, where others are `ValueError` or `OverflowError`
        raise ValueError(f"{stamp} is no time") from error


_AS_JSON = (*FIXED_JSON, *STATE_JSON, *STATE_OPTIONAL, "checks")
_DECODE: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("created_at", *STATE_TIMES), _moment),
    **{
        each.name: msgspec.json.Decoder(each.type).decode
        for each in msgspec.structs.fields(RunInfo)
        if each.name in _AS_JSON
    },
    "status": Status,
    "usage": msgspec.json.Decoder(dict[Source, Usage]).decode,
}
"""Of columns whose value is not the field as it is; NULL is `None` in each."""

_Places = list[tuple[str, int, Callable[[Any], Any] | None]]
"""Fields, where each is in a row of `READ_COLUMNS`, and how it is decoded."""


def _places(names: Iterable[str]) -> _Places:
    return [(name, READ_COLUMNS.index(name), _DECODE.get(name)) for name in names]


_INFO = _places(
    [*(name for name in RunInfo.__struct_fields__ if name in READ_COLUMNS), "mode", "queue_group"]
)
_EXTRA = _places(name for name in RunExtra.__struct_fields__ if name in READ_COLUMNS)


def _fields(row: Sequence[Any], places: _Places) -> dict[str, Any]:
    return {
        name: row[at] if decode is None or row[at] is None else decode(row[at])
        for name, at, decode in places
    }


def run_info(row: Sequence[Any]) -> RunInfo:
    """Return the run of a row. Of a damaged row it has the number, and says so: one row must not
    hide all others."""
    try:
        return _run_info(row)
    except UNDECODABLE as error:
        return _damaged_run(run_id(row[0]), error)


def is_damaged(info: RunInfo) -> bool:
    """Whether a run was read from a damaged row."""
    return info.reason is not None and info.reason.kind == _DAMAGED


def _damaged_run(run: RunId, error: Exception) -> RunInfo:
    return RunInfo(
        id=run,
        name="?",
        kind="agent",
        status=Status.LOST,
        root_id=run,
        depth=0,
        chain=["?"],
        argv=[],
        cwd="",
        user="",
        channel="",
        reason=Reason(kind=_DAMAGED, message=f"its row in the ledger is damaged: {error}"),
        attempts=0,
        usage=Usage(),
        descendants=0,
        created_at=_moment(0),
    )


def _run_info(row: Sequence[Any]) -> RunInfo:
    fields = _fields(row, _INFO)
    session = fields.pop("mode") == SESSION
    by_source: dict[Source, Usage] = fields["usage"]
    fields["usage"] = next(iter(by_source.values()), Usage())
    fields["usage_by_source"] = {
        source: usage for source, usage in by_source.items() if source != "none"
    }
    # `convert` checks the types, and is as fast as to construct it. A damaged id must not name
    # another run
    fields["checks"] = fields["checks"] or ()
    return msgspec.convert(
        {"session": session, "group": fields.pop("queue_group"), **fields, "id": run_id(row[0])},
        RunInfo,
    )


def run_extra(row: Sequence[Any]) -> RunExtra:
    try:
        return msgspec.convert(_fields(row, _EXTRA), RunExtra)
    except UNDECODABLE:  # `run_info` of the same row tells of the damage
        return RunExtra()


def event_of(row: Sequence[Any]) -> Event:
    """Return the event of a row. Of a damaged row it has the number, and says so."""
    *known, body = row
    fields = dict(zip(EVENT_COLUMNS, known, strict=False))
    try:
        return msgspec.convert(
            {**msgspec.json.decode(body), **fields, "time": _moment(fields["time"])}, Event
        )
    except UNDECODABLE as error:
        message = f"the row of event {row[0]} in the ledger is damaged: {error}"
        return Event(
            type=EventType.DAEMON_STATE_DAMAGED,
            severity="high",
            time=_moment(0),
            seq=row[0],
            message=message,
        )


def call_of(row: Sequence[Any]) -> CallInfo:
    """Return the call of a row. Of a damaged row it has the number, and says so."""
    fields = dict(zip(CALL_COLUMNS, row, strict=True))
    flags = {name: bool(fields[name]) for name in ("partial", "streamed", "estimated", "at_most")}
    run, number = run_id(fields.pop("run")), fields["number"]
    try:
        modes = msgspec.json.decode(fields["modes"] or "{}")
        told = {**fields, **flags, "time": _moment(fields["time"]), "modes": modes}
        return msgspec.convert({"run_id": run, **told}, CallInfo)
    except UNDECODABLE as error:
        message, number = (
            f"its row in the ledger is damaged: {error}",
            number if isinstance(number, int) else 0,
        )
        return CallInfo(
            time=_moment(0),
            run_id=run,
            number=number,
            state="ended",
            upstream="?",
            model=None,
            error=message,
        )


_DAMAGED = "damaged"

_HIGHEST = 2**63 - 1

_MOST_DIGITS = 13


def number_of(text: str) -> int:
    """Return the number of an id; for text that is no id return 0, which no row has."""
    number = number_or_zero(text)
    return number if number <= _HIGHEST else 0


def _horner(length: int) -> str:
    """Return the number of an id with this many digits in SQL. `{0}`: the id."""
    found = ""
    for place in range(2, length + 2):
        digit = f"instr('{_DIGITS}', substr({{0}}, {place}, 1)) - 1"
        found = f"({found}) * 32 + {digit}" if found else digit
    return found


_DIGITS = "".join(run_id(32 + digit)[-1] for digit in range(32))
NUMBER_OF = (
    "CASE length({0}) "
    + " ".join(f"WHEN {length + 1} THEN {_horner(length)}" for length in range(1, 8))
    + " END"
)
"""The number of an id in SQL, to be formatted with its column; NULL for more than 34 thousand
million runs. A function in Python would take the interpreter's lock for each row."""


def numbers_of(prefix: str) -> tuple[int, int] | None:
    """Return the lowest and the highest number whose id begins with `prefix`, or `None` if no id
    does.

    The numbers in between fit as well, because the first letter of an id says how many digits
    follow."""
    if not prefix:
        return 1, _HIGHEST
    missing = ord(prefix[0]) - ord("a") + 2 - len(prefix)
    if not 0 <= missing <= _MOST_DIGITS:
        return None
    # the first digit of an id is not zero
    lowest = "0" * missing if len(prefix) > 1 else "1".ljust(missing, "0")
    try:
        low, high = run_number(prefix + lowest), run_number(prefix + "v" * missing)
    except ValueError:
        return None
    return (low, min(high, _HIGHEST)) if low <= _HIGHEST else None


# Many rows share one statement, because each statement releases the interpreter lock and takes it
# again, which costs up to a switch interval (5 ms) while the trio thread is busy.
Statement = tuple[str, Sequence[Any]]
"""SQL and its parameters."""

_SIZES = (64, 32, 16, 8, 4, 3, 2, 1)
"""Rows in one statement. There are few sizes, so that SQLite's prepared statements are reused; the
largest takes 3 008 parameters, of 32 766 allowed. The three events of a short run go in one
statement."""


def statements(batch: Sequence[Op]) -> list[Statement]:
    found, by_kind = list[Statement](), dict[Kind, list[Op]]()
    for op in batch:
        by_kind.setdefault(op.kind, []).append(op)
    states = {op.run_id: op.row for op in by_kind.get("state", ())}
    if inserts := [*by_kind.get("admit", ()), *by_kind.get("refuse", ())]:
        found += _many(partial(_insert, "runs"), [_newest(op, states) for op in inserts])
        if labels := [label for op in inserts for label in op.labels]:
            found += _many(partial(_insert, "labels"), labels)
        found += _continuations(by_kind.get("admit", ()))
    if updated := by_kind.get("upsert"):
        found += upserts(updated)
    if states:
        found += _updates([(run_number(row[0].id), *_state(*row)) for row in states.values()])
    if events := by_kind.get("event"):
        found += _many(partial(_insert, "events"), [op.row for op in events])
    if calls := by_kind.get("call"):
        found += _many(_insert_calls, [op.row for op in calls])
    for op in by_kind.get("count", ()):
        found.append(
            ("UPDATE runs SET refusals_counted = refusals_counted + 1 WHERE number = ?", op.row)
        )
    for op in by_kind.get("charge", ()):
        found.append((f"{_CHARGE} charged_usd + excluded.charged_usd", op.row))
    for row in {op.row[:2]: op.row for op in by_kind.get("plan", ())}.values():
        found.append(
            (
                "INSERT OR REPLACE INTO plans (provider, account, heard_at, known) "
                "VALUES (?, ?, ?, ?)",
                row,
            )
        )
    return found


def _newest(op: Op, states: dict[RunId | None, tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the row of a new run as its state in the same batch leaves it, and take that out."""
    state = states.pop(op.run_id, None)
    if state is None:
        return op.row
    fixed = len(op.row) - len(STATE_COLUMNS)
    return (*op.row[:fixed], *_state(*state), op.row[-1])


def upserts(ops: Sequence[Op], calls: Iterable[CallInfo] = ()) -> list[Statement]:
    found = _many(_insert_calls, [call_op(call).row for call in calls])
    for op in ops:
        found.append((_UPSERT_RUN, op.row))
        for label in op.labels:
            found.append(
                ("INSERT OR IGNORE INTO labels (key, value, number) VALUES (?, ?, ?)", label)
            )
    return found + _continuations(ops)


def _continuations(ops: Iterable[Op]) -> list[Statement]:
    """Return the writes that name these runs in the rows of the runs that they continue."""
    return [
        ("UPDATE runs SET continued_by = ? WHERE number = ?", (op.run_id, number_of(continued)))
        for op in ops
        if (continued := op.row[_CONTINUES]) is not None
    ]


def set_charge(op: Op) -> Statement:
    """Return the statement that sets what a budget was charged, where `statements` adds to it."""
    return f"{_CHARGE} excluded.charged_usd", op.row


_CHARGE = (
    "INSERT INTO budgets (scope, name, period_start, charged_usd) VALUES (?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET charged_usd ="
)


def _many(sql: Callable[[int], str], rows: Sequence[tuple[Any, ...]]) -> list[Statement]:
    start, found = 0, list[Statement]()
    for size in _SIZES:
        while len(rows) - start >= size:
            values = list(chain.from_iterable(rows[start : start + size]))
            found.append((sql(size), values))
            start += size
    return found


_COLUMNS = {
    "runs": RUN_COLUMNS,
    "labels": ("key", "value", "number"),
    "events": EVENT_COLUMNS,
    "calls": CALL_COLUMNS,
}


@cache
def _insert_calls(rows: int) -> str:
    # written again: a call that was saved in the spool too, of which only `more` may have changed
    return f"{_insert('calls', rows)} ON CONFLICT DO UPDATE SET more = max(more, excluded.more)"


@cache
def _insert(table: str, rows: int) -> str:
    columns = _COLUMNS[table]
    return f"INSERT INTO {table} ({', '.join(columns)}) {_values(rows, len(columns))}"


def _values(rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"VALUES {', '.join([row] * rows)}"


def _assignments(value: str) -> str:
    # a daemon that adopts a run knows its model only once the agent names it again
    once = ("model", "provider")
    names = ((name, value.format(name)) for name in STATE_COLUMNS[1:])
    return ", ".join(
        f"{name} = ifnull({new}, runs.{name})" if name in once else f"{name} = {new}"
        for name, new in names
    )


_UPDATE_ONE = f"UPDATE runs SET {_assignments('?')} WHERE number = ?"  # noqa: S608

_UPSERT_RUN = f"{_insert('runs', 1)} ON CONFLICT DO UPDATE SET {_assignments('excluded.{}')}"


def _updates(rows: Sequence[tuple[Any, ...]]) -> list[Statement]:
    # by far the most frequent, and a tenth of a transaction cheaper without the table of new values
    if len(rows) == 1:
        ((number, *values),) = rows
        return [(_UPDATE_ONE, (*values, number))]
    return _many(_update_runs, rows)


@cache
def _update_runs(rows: int) -> str:
    names = ", ".join(STATE_COLUMNS)
    return (
        f"WITH new ({names}) AS ({_values(rows, len(STATE_COLUMNS))}) "  # noqa: S608
        f"UPDATE runs SET {_assignments('new.{}')} FROM new WHERE runs.number = new.number"
    )
