"""What several nodes have told, as one."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from ....protocol import messages as m
from ....protocol.requests.summary import Group, Summary
from ....protocol.requests.windows import SubscriptionInfo
from ....protocol.types import Event, RunInfo, Status, WindowShare
from .names import Names

# ---- Lists. The cursor of a page has the last run of each node: `n1/a4,n2/b17`

OVER = "-"
"""In a cursor: the node has no more."""
_EARLIEST, _LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def left_of(cursor: str | None, nodes: Iterable[str]) -> dict[str, str]:
    """Return where the next page of each node begins: after a run, from the newest on (empty), or
    nowhere. A node that has not answered for the first page is in no further one."""
    if cursor is None:
        return dict.fromkeys(nodes, "")
    parts = (each.split("/", 1) for each in cursor.split(",") if "/" in each)
    left = dict(parts)
    return {node: left.get(node, OVER) for node in nodes}


def page_of(
    pages: Mapping[str, m.RunList],
    left: Mapping[str, str],
    names: Names,
    *,
    first: bool,
    up: bool = False,
) -> m.RunList:
    """Return the pages of several nodes as one: the runs since the same time, or where pages lead
    `up`, until then. Of a run of which two nodes tell, one knows better (`Names`). `left`: of the
    request."""
    ends = [_end(page, up=up) for page in pages.values() if page.next]
    until = (min(ends, default=_LATEST)) if up else max(ends, default=_EARLIEST)
    after, shown = dict(left), []
    for node, page in pages.items():
        live = [] if up else [run for run in page.runs if not run.status.terminal]
        ended = [
            run
            for run in page.runs
            if (up or run.status.terminal)
            and (run.created_at <= until if up else run.created_at >= until)
        ]
        if len(ended) + len(live) == len(page.runs):
            after[node] = page.next or OVER
        elif ended:
            after[node] = ended[-1 if up else 0].id
        shown.append((node, [*ended, *live] if first else ended))
    for node, runs in shown:
        names.learn(node, runs)
    answered = pages.keys() | {node for node, last in left.items() if last == OVER}
    runs = [
        names.run(node, run)
        for node, runs in shown
        for run in runs
        if not names.is_told_by_another(node, run) and not _ended_for(run, answered)
    ]
    # a node that has not answered is in no further page: it would be asked for ever
    after = {node: last if node in pages else OVER for node, last in after.items()}
    more = any(last != OVER for last in after.values())
    return m.RunList(
        id=0,
        runs=sorted(runs, key=attrgetter("created_at")),
        next=",".join(f"{node}/{last}" for node, last in after.items()) if more else None,
        queued=sum(page.queued for page in pages.values()),
    )


def _end(page: m.RunList, *, up: bool) -> datetime:
    """Return when the oldest ended run of a page was created, or the newest run."""
    if up:
        return max((run.created_at for run in page.runs), default=_LATEST)
    return min((run.created_at for run in page.runs if run.status.terminal), default=_EARLIEST)


def _ended_for(run: RunInfo, nodes: Collection[str]) -> bool:
    """Return whether one of these nodes has granted a run that has ended: it tells that, maybe on
    another page."""
    return run.status.terminal and run.fleet is not None and run.fleet.giver in nodes


def below(top: str, runs: Sequence[RunInfo]) -> list[RunInfo]:
    """Return a run and the runs below it, by their names in the fleet. A filter may have left out
    the run itself."""
    children: dict[str | None, list[str]] = {}
    for run in runs:
        children.setdefault(run.parent_id, []).append(run.id)
    kept, left = set(), [top]
    while left:
        kept.add(run_id := left.pop())
        left += children.get(run_id, ())
    return [run for run in runs if run.id in kept]


# ---- Events. The cursor of a page has the number of the last event of each node: `n1=17,n2=4`


def reached_of(cursor: str) -> dict[str, int]:
    """Return the number of the last event that was told of each node."""
    parts = (each.rpartition("=") for each in cursor.split(",") if "=" in each)
    return {node: int(number) for node, _, number in parts if number.isdecimal()}


def cursor_of(reached: Mapping[str, int]) -> str:
    return ",".join(f"{node}={number}" for node, number in reached.items())


def events_of(
    pages: Mapping[str, m.EventPage], reached: dict[str, int], names: Names, rows: int | None
) -> m.EventPage:
    """Return the pages of several nodes as one, by time, and note in `reached` what it has.
    `rows`: only so many of the newest events; `None`: the oldest, as far as each node has told."""
    told = [(node, event) for node, page in pages.items() for event in page.events]
    told.sort(key=lambda each: _time(each[1]))
    more = False
    if rows is None:
        ends = [_time(page.events[-1]) for page in pages.values() if page.more and page.events]
        kept = [each for each in told if not ends or _time(each[1]) <= min(ends)]
        more = len(kept) < len(told) or any(page.more for page in pages.values())
    else:
        kept = told[-rows:]
    kept_of: dict[str, list[Event]] = {}
    for node, event in kept:
        kept_of.setdefault(node, []).append(event)
    for node, page in pages.items():
        events = kept_of.get(node, [])
        if rows is not None or len(events) == len(page.events):
            reached[node] = page.reached
        elif events:
            reached[node] = events[-1].number
    return m.EventPage(
        id=0,
        events=[names.event(node, event) for node, event in kept],
        reached=0,
        more=more,
        cursor=cursor_of(reached),
    )


def _time(event: Event) -> float:
    return event.time.timestamp() if event.time else 0.0


# ---- Summaries


GROUPS, COSTLY = 100, 5
"""As many as one node tells."""


def with_names(found: Summary, node: str, names: Names) -> Summary:
    """Return a node's summary with the names that its runs have in the fleet."""
    return replace(
        found,
        breaches=[replace(one, run_id=names.of(node, one.run_id)) for one in found.breaches],
        failed=[replace(one, run_id=names.of(node, one.run_id)) for one in found.failed],
        costly=[replace(one, run_id=names.of(node, one.run_id)) for one in found.costly],
        lines=[replace(one, runs=[names.of(node, run) for run in one.runs]) for one in found.lines],
    )


def added(found: Sequence[Summary]) -> Summary:
    """Return the summary of all nodes."""
    by_status: Counter[Status] = Counter()
    groups: dict[str | None, Group] = {}
    for one in found:
        by_status.update(one.by_status)
        for group in one.groups:
            before = groups.get(group.key)
            groups[group.key] = group if before is None else _both(before, group)
    return Summary(
        since=min(one.since for one in found),
        until=max(one.until for one in found),
        runs=sum(one.runs for one in found),
        by_status=dict(sorted(by_status.items())),
        cost_usd=_sum(one.cost_usd for one in found),
        tokens=_sum(one.tokens for one in found),
        partial=any(one.partial for one in found),
        at_most=any(one.at_most for one in found),
        groups=sorted(
            groups.values(), key=lambda one: (-(one.cost_usd or 0.0), -one.runs, one.key or "")
        )[:GROUPS],
        breaches=[breach for one in found for breach in one.breaches],
        failed=[failed for one in found for failed in one.failed],
        costly=sorted(
            (costly for one in found for costly in one.costly), key=lambda one: -one.cost_usd
        )[:COSTLY],
        lines=[line for one in found for line in one.lines],
    )


def _both(one: Group, other: Group) -> Group:
    return replace(
        one,
        runs=one.runs + other.runs,
        failed=one.failed + other.failed,
        checked=one.checked + other.checked,
        unchecked=one.unchecked + other.unchecked,
        cost_usd=_sum((one.cost_usd, other.cost_usd)),
        tokens=_sum((one.tokens, other.tokens)),
        partial=one.partial or other.partial,
        at_most=one.at_most or other.at_most,
        plans=_shares((*one.plans, *other.plans)),
    )


def _shares(plans: Iterable[WindowShare]) -> list[WindowShare]:
    found: dict[tuple[str, str, str], WindowShare] = {}
    for each in plans:
        key = each.provider, each.account, each.window
        found[key] = replace(
            each, share=round(each.share + (found[key].share if key in found else 0.0), 4)
        )
    return list(found.values())


def _sum(amounts: Iterable[Any]) -> Any:
    """Return the sum of what is known; `None` if nothing is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


# ---- Subscriptions


def subscriptions_of(
    found: Mapping[str, Sequence[SubscriptionInfo]], names: Names
) -> list[SubscriptionInfo]:
    """Return each subscription once, as it was heard of last, with the runs of all nodes that wait
    for it."""
    newest: dict[tuple[str, str], SubscriptionInfo] = {}
    for account in _named(found, names):
        key = account.provider, account.account
        before = newest.get(key)
        latest = account if before is None or account.heard_at > before.heard_at else before
        newest[key] = replace(
            latest, held=[*(before.held if before is not None else ()), *account.held]
        )
    return list(newest.values())


def _named(
    found: Mapping[str, Sequence[SubscriptionInfo]], names: Names
) -> Iterator[SubscriptionInfo]:
    for node, accounts in found.items():
        for account in accounts:
            yield replace(account, held=[names.of(node, run) for run in account.held])
