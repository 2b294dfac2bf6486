import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from sfad.protocol.requests.listing import List, RunList
from sfad.protocol.requests.summary import (
    GROUPED_BY,
    By,
    ContinuedLine,
    Costly,
    Failed,
    Group,
    Summarise,
    Summarised,
    Summary,
)
from sfad.protocol.texts.units import counted
from sfad.protocol.types import ErrorCode, Status

from .. import output
from ..app import OverFleet, app
from ..connecting.connection import Client, DaemonError
from ..connecting.history import connect
from ..options.limits import share
from ..options.selection import labels
from ..options.shared import MOMENT, Json, Labels, Names, Socket, User, Value, one_of
from ..options.spreading import spread
from ..showing import table
from ..showing.waiting import Waiting, of_live, of_queue, of_refused, of_unlanded

SINCE = 12 * 3600.0
"""Seconds that are summarised without `--since`."""
SHOWN = 10
"""Maximum runs in a line, groups and breaches that people are shown."""


class SummaryOptions(Struct, frozen=True):
    socket: Socket = None
    json: Json = False
    since: Annotated[
        float | None,
        MOMENT.option(
            "Only runs created since then: 12h (ago; "
            "the default), 22:00, yesterday, 2026-01-31T22:00"
        ),
    ] = None
    by: Annotated[
        By,
        Value("KEY", one_of(GROUPED_BY, "key")).option(
            "Group by name (default), label, user, model or type"
        ),
    ] = "name"
    name: Names = []
    user: User = None
    label: Labels = []

    def request(self) -> Summarise:
        return Summarise(
            id=0,
            since=time.time() - SINCE if self.since is None else self.since,
            by=self.by,
            name=list(self.name) or None,
            user=self.user,
            labels=labels(self.label),
        )


@app.command(cls=OverFleet)
@spread(SummaryOptions)
def summary(options: SummaryOptions) -> None:
    """Summarise what waits for you, how runs ended, what they cost and why some failed.

    It begins with the live runs that do not go on by themselves, whenever they were created,
    and with your ended runs that have work to land, each with the command that helps. Live
    runs count with their current state, children count as runs of their own, and each run's
    own use counts once.
    """
    wanted = options.request()
    with connect(options.socket) as client:
        told = client.call(wanted, Summarised)
        found, nodes = told.summary, client.fleet.nodes if client.fleet is not None else None
        waits = list(waiting(client, wanted, found))
    if options.json:
        of_fleet = {"nodes": nodes, "unanswered": sorted(told.unanswered)}
        print_json(found, waits, **(of_fleet if nodes is not None else {}))
    else:
        show(found, waits, options.by)


def print_json(found: Summary, waits: Sequence[Waiting], **more: object) -> None:
    fields = {
        field: getattr(found, field) for field in found.__struct_fields__ if field != "costly"
    }
    output.print_json(fields | {"waiting": waits} | more)


def show(found: Summary, waits: Sequence[Waiting], by: str) -> None:
    print(
        "\n\n".join("\n".join(part) for part in (waiting_lines(waits), *parts(found, by)) if part)
    )


def waiting(
    client: Client, wanted: Summarise, found: Summary, *, here: bool = True
) -> Iterator[Waiting]:
    """Yield what waits for a person. `here`: the worktrees of the runs are on this machine."""
    live = List(
        id=0,
        status=[status for status in Status if not status.terminal and not status.rejected],
        rows=0,
    )
    live = replace(live, name=wanted.name, user=wanted.user, labels=wanted.labels)
    now, runs = datetime.now(UTC), []
    try:
        # without a daemon, what the ledger calls live may have ended
        runs = [
            run
            for run in client.call(live, RunList).runs
            if run.reason is None or run.reason.kind != "no_daemon"
        ]
    except DaemonError as error:
        # a run may be allowed `summary` and not `list`
        if error.error is not ErrorCode.NOT_PERMITTED:
            raise
        here = False
    yield from of_live(runs, now)
    yield from of_queue(client, runs, now)
    yield from of_refused(found.by_status)
    if here:
        ended = [status for status in Status if status.terminal and not status.rejected]
        yield from of_unlanded(client, replace(live, status=ended, since=wanted.since))


def waiting_lines(waits: Sequence[Waiting]) -> list[str]:
    work = [f"  {one.message}: {one.command}" for one in waits if one.what == "unlanded"]
    others = [one for one in waits if one.what != "unlanded"]
    lines = [
        line for one in others[:SHOWN] for line in (f"  {one.message}", f"    → {one.command}")
    ]
    more = [f"  and {len(others) - SHOWN} more: see --json"] if len(others) > SHOWN else []
    return ["waiting for you", *lines, *more, *work] if waits else []


def parts(found: Summary, by: str) -> Iterator[list[str]]:
    yield list(_head(found))
    if not found.runs:
        return
    plan = any(one.plans for one in found.groups)
    checked = any(one.checked for one in found.groups)
    if len(found.groups) > 1 or plan or checked:
        rows = [
            [
                one.key or "-",
                str(one.runs),
                str(one.failed),
                *([str(one.checked), str(one.unchecked)] if checked else []),
                *_used(one),
                *([_each(one)] if checked else []),
                *([_plans(one)] if plan else []),
            ]
            for one in found.groups[:SHOWN]
        ]
        header = [by.upper(), "RUNS", "FAILED", *(["CHECKED", "UNCHECKED"] if checked else []),
                  "TOKENS", "USD", *(["USD/CHECKED"] if checked else []),
                  *(["PLAN"] if plan else [])]  # fmt: skip
        yield _table(header, rows, len(found.groups))
    if found.costly:
        dear = [[one.run_id, one.name, one.status, *_used(one)] for one in found.costly]
        yield ["most expensive runs", *_table(["ID", "NAME", "STATUS", "TOKENS", "USD"], dear)]
    if found.lines:
        yield ["continued", *_lines(found.lines)]
    if found.breaches:
        yield ["limits exceeded", *_breaches(found)]
    if found.failed:
        yield ["failed", *(f"  {line}" for line in failures(found.failed))]


def _head(found: Summary) -> Iterator[str]:
    yield f"{output.local(found.since)} to {output.local(found.until)}"
    ended = [
        f"{count} {status}" for status, count in found.by_status.items() if not status.rejected
    ]
    refused = {status: count for status, count in found.by_status.items() if status.rejected}
    if refused:
        rules = ", ".join(
            f"{status.removeprefix('rejected_')} {count}" for status, count in refused.items()
        )
        ended.append(f"{sum(refused.values())} refused ({rules})")
    yield f"{counted(found.runs, 'run')}{': ' if ended else ''}{', '.join(ended)}"
    if found.cost_usd is not None or found.tokens is not None:
        tokens = "" if found.tokens is None else f"{output.short(found.tokens)} tokens"
        cost = "" if found.cost_usd is None else f"{output.usd(found.cost_usd)} USD"
        bound = output.bound(found)
        yield f"{bound}{', '.join(filter(None, (cost, tokens)))}"
    elif found.runs:
        yield "cost and tokens are not known"


def _used(one: Group | Costly | ContinuedLine) -> list[str]:
    return [output.tokens(one), output.cost(one)]


def _each(one: Group) -> str:
    """Return what each checked run of a group has cost, failed and unchecked ones included."""
    if one.cost_usd is None or not one.checked:
        return "-"
    return f"{output.bound(one)}{output.usd(one.cost_usd / one.checked)}"


def _plans(one: Group) -> str:
    """Return about how much of subscriptions' windows the runs of a group have used together."""
    return (
        ", ".join(f"{100 * each.share:.0f}% {output.plain(each.window)}" for each in one.plans)
        or "-"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], total: int = 0) -> list[str]:
    lines = table.drawn(header, rows).splitlines()
    return [*lines, f"and {total - len(rows)} more: see --json"] if total > len(rows) else lines


def _lines(lines: Sequence[ContinuedLine]) -> Iterator[str]:
    for one in lines[-SHOWN:]:
        cost = f", {_used(one)[1]} USD in all" if one.cost_usd is not None else ""
        yield f"  {' → '.join(one.runs)}  {output.plain(one.name)}  {one.status}{cost}"
    if len(lines) > SHOWN:
        yield f"  and {len(lines) - SHOWN} before these: see --json"


def _breaches(found: Summary) -> Iterator[str]:
    for one in found.breaches[-SHOWN:]:
        numbers = share(one.limit_kind, one.used, one.threshold, one.reserved)
        what = f"budget of its {one.scope}," if one.scope in ("user", "team") else ""
        refused = ", and more was refused" if one.refused else ""
        yield "  ".join(
            [
                "",
                one.run_id,
                " ".join(filter(None, (what, output.plain(one.limit_kind), numbers))) + refused,
            ]
        )
    if len(found.breaches) > SHOWN:
        yield f"  and {len(found.breaches) - SHOWN} before these: see --json"


def failures(failed: Sequence[Failed]) -> Iterator[str]:
    """Yield a line for each reason, the most frequent first, with the runs that failed for it, or
    because a run below did."""
    by_reason: defaultdict[str, list[Failed]] = defaultdict(list)
    for one in failed:
        reason = one.reason.partition(f"{one.below[-1]}: ")[2] if one.below else one.reason
        by_reason[reason].append(one)
    for reason, runs in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        named = ", ".join(f"{one.run_id} ({output.plain(one.name)})" for one in runs[:SHOWN])
        more = f" and {len(runs) - SHOWN} more" if len(runs) > SHOWN else ""
        yield f"{output.plain(reason)}: {named}{more}"
