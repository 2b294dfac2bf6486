"""A run and an event as rows, and back. Environment variables have no column, on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ..core.ids import run_number
from ..protocol.types import Event, LimitState, Reason, RunId, RunInfo, Source, Status, Usage
from .totals import at_least

RESULT_HEAD = 1024
"""Bytes of a run's result that are kept in its row (SPEC section 10)."""


class RunExtra(Struct, frozen=True, kw_only=True):
    """What a run's row holds beside `RunInfo`."""

    uid: int | None = None
    mode: str | None = None
    """How it was asked for: `foreground`, `background`, `detached`."""
    allowed_tools: Sequence[str] = ()
    blocked_tools: Sequence[str] = ()
    pid_started: int | None = None
    """Start time of the main process in clock ticks since boot, field 22 of /proc/PID/stat."""
    boot_id: str | None = None
    """The boot that `pid` and `pid_started` belong to; the ledger fills in the current one."""
    model: str | None = None
    provider: str | None = None
    result_head: bytes | None = None
    """Beginning of the result; cut to `RESULT_HEAD` bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One queued write, already encoded, so that a later change of the run cannot reach it."""

    kind: Literal["admit", "refuse", "mend", "save", "event", "count", "charge"]
    run_id: RunId | None
    row: tuple[Any, ...]
    labels: tuple[tuple[str, str, int], ...] = ()
    urgent: bool = False
    """Written at once: an admission, which somebody waits for, or an end, which people are told of before it is in the file,
    so that a SIGKILL of the daemon must not find it still in memory."""


# fixed at admission, in the order of `_born`
_BORN = [
    "number",
    "id",
    "user",
    "uid",
    "channel",
    "parent_id",
    "root_id",
    "depth",
    "chain",
    "kind",
    "name",
    "type",
    "argv",
    "cwd",
    "labels",
    "mode",
    "allowed_tools",
    "blocked_tools",
    "meter",
    "created_at",
]
# changed by every save, in the order of `_state`
_STATE = [
    "status",
    "ended",
    "reason",
    "exit_code",
    "signal",
    "attempts",
    "limits",
    "usage",
    "cost_usd",
    "tokens",
    "partial",
    "descendants",
    "milestone",
    "pid",
    "pid_started",
    "boot_id",
    "model",
    "provider",
    "result_head",
    "deadline",
    "started_at",
    "ended_at",
]

RUN_COLUMNS = (*_BORN, *_STATE)
SAVE_COLUMNS = ("number", *_STATE)
EVENT_COLUMNS = ("seq", "time", "type", "severity", "run_id", "root_id", "body")

_IN_EVENT_BODY = tuple(name for name in Event.__struct_fields__ if name not in EVENT_COLUMNS)

_encode = msgspec.json.Encoder().encode
_strings = msgspec.json.Decoder(list[str])
_labels = msgspec.json.Decoder(dict[str, str])
_reason = msgspec.json.Decoder(Reason)
_limits = msgspec.json.Decoder(list[LimitState])
_usage = msgspec.json.Decoder(dict[Source, Usage])


def insert_op(kind: Literal["admit", "refuse", "mend"], info: RunInfo, extra: RunExtra, boot_id: str | None) -> Op:
    """The write that creates a run's row."""
    number = run_number(info.id)
    urgent = kind == "admit" or (kind == "mend" and info.status.terminal)
    labels = tuple((key, value, number) for key, value in info.labels.items())
    return Op(kind, info.id, (*_born(number, info, extra), *_state(info, extra, boot_id)), labels, urgent=urgent)


def save_op(info: RunInfo, extra: RunExtra, boot_id: str | None) -> Op:
    """The write that brings a run's row up to date. It creates nothing: a run whose admission failed stays unwritten."""
    return Op("save", info.id, (run_number(info.id), *_state(info, extra, boot_id)), urgent=info.status.terminal)


def event_op(event: Event) -> Op:
    """The write of an event. Raises `ValueError` for one without time or number."""
    if not isinstance(event.time, datetime) or not isinstance(event.seq, int):
        raise ValueError(f"event {event.type!r} has no time or no number")
    body = {name: value for name in _IN_EVENT_BODY if (value := getattr(event, name)) not in (None, "")}
    row = (event.seq, event.time.timestamp(), event.type, event.severity, event.run_id, event.root_id, _json(body))
    return Op("event", event.run_id, row)


def _born(number: int, info: RunInfo, extra: RunExtra) -> tuple[Any, ...]:
    return (
        number,
        info.id,
        info.user,
        extra.uid,
        info.channel,
        info.parent_id,
        info.root_id,
        info.depth,
        _json(info.chain),
        info.kind,
        info.name,
        info.type,
        _json(info.argv),
        info.cwd,
        _json(info.labels),
        extra.mode,
        _json(extra.allowed_tools),
        _json(extra.blocked_tools),
        info.meter,
        info.created_at.timestamp(),
    )


def _state(info: RunInfo, extra: RunExtra, boot_id: str | None) -> tuple[Any, ...]:
    return (
        info.status.value,
        int(info.status.terminal),
        None if info.reason is None else _json(info.reason),
        info.exit_code,
        info.signal,
        info.attempts,
        _json(info.limits),
        _json(_usages(info)),
        info.usage.cost_usd,
        info.usage.tokens,
        int(at_least(info.usage)),
        info.descendants,
        info.milestone,
        info.pid,
        extra.pid_started,
        extra.boot_id or (boot_id if info.pid is not None else None),
        extra.model,
        extra.provider,
        None if extra.result_head is None else extra.result_head[:RESULT_HEAD],
        _stamp(info.deadline),
        _stamp(info.started_at),
        _stamp(info.ended_at),
    )


def run_info(row: Iterable[Any]) -> RunInfo:
    """The run of a row that holds `RUN_COLUMNS`."""
    column = dict(zip(RUN_COLUMNS, row, strict=True))
    by_source = _usage.decode(column["usage"])
    return RunInfo(
        id=column["id"],
        name=column["name"],
        kind=column["kind"],
        type=column["type"],
        status=Status(column["status"]),
        parent_id=column["parent_id"],
        root_id=column["root_id"],
        depth=column["depth"],
        chain=_strings.decode(column["chain"]),
        pid=column["pid"],
        argv=_strings.decode(column["argv"]),
        cwd=column["cwd"],
        user=column["user"],
        channel=column["channel"],
        exit_code=column["exit_code"],
        signal=column["signal"],
        reason=_optional_reason(column["reason"]),
        attempts=column["attempts"],
        limits=_limits.decode(column["limits"]),
        usage=next(iter(by_source.values()), Usage()),
        usage_by_source={source: usage for source, usage in by_source.items() if source != "none"},
        processes=None,
        memory_bytes=None,
        descendants=column["descendants"],
        deadline=_moment(column["deadline"]),
        milestone=column["milestone"],
        created_at=datetime.fromtimestamp(column["created_at"], UTC),
        started_at=_moment(column["started_at"]),
        ended_at=_moment(column["ended_at"]),
        labels=_labels.decode(column["labels"]),
        meter=column["meter"],
    )


def run_extra(row: Iterable[Any]) -> RunExtra:
    """The rest of the same row."""
    column = dict(zip(RUN_COLUMNS, row, strict=True))
    return RunExtra(
        uid=column["uid"],
        mode=column["mode"],
        allowed_tools=_strings.decode(column["allowed_tools"]),
        blocked_tools=_strings.decode(column["blocked_tools"]),
        pid_started=column["pid_started"],
        boot_id=column["boot_id"],
        model=column["model"],
        provider=column["provider"],
        result_head=column["result_head"],
    )


def event_of(row: Sequence[Any]) -> Event:
    """The event of a row that holds `EVENT_COLUMNS`."""
    seq, time, kind, severity, run_id, root_id, body = row
    known = {"seq": seq, "type": kind, "severity": severity, "run_id": run_id, "root_id": root_id}
    return msgspec.convert({**msgspec.json.decode(body), **known, "time": datetime.fromtimestamp(time, UTC)}, Event)


def charge_op(scope: str, name: str, period_start: datetime, usd: float) -> Op:
    """The write that adds to what a budget has been charged in a period."""
    return Op("charge", None, (scope, name, period_start.timestamp(), usd))


def _json(value: object) -> str:
    return _encode(value).decode()


def _stamp(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _moment(stamp: float | None) -> datetime | None:
    return None if stamp is None else datetime.fromtimestamp(stamp, UTC)


def _optional_reason(text: str | None) -> Reason | None:
    return None if text is None else _reason.decode(text)


def _usages(info: RunInfo) -> dict[Source, Usage]:
    """What is shown, then what each source says. Under its source if that says the same, else, mixed of several, under `none`."""
    shown = info.usage
    alone = info.usage_by_source.get(shown.source, shown) == shown
    return {shown.source if alone else "none": shown} | info.usage_by_source
