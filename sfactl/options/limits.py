"""Limits on the command line, and limits and usage as texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from math import ceil

from sfad.protocol import limits as written
from sfad.protocol.kinds import COUNTS, KINDS, METERED_KINDS, TIMED
from sfad.protocol.limits import format_amount
from sfad.protocol.limits_object import WrittenLimits, parse_limits
from sfad.protocol.requests.windows import SubscriptionInfo, WindowInfo
from sfad.protocol.texts.units import counted, format_usd
from sfad.protocol.types import (
    Action,
    Event,
    Limit,
    LimitKind,
    LimitState,
    RunInfo,
    Usage,
    WindowShare,
)

from .. import output
from ..exits import UsageError, understood
from ..output import percent, plain, seconds


def of_flag(text: str, source: str = "--limit") -> Limit:
    """Return a limit of the command line. Raise `UsageError`."""
    return understood("", written.parse_limit, text, source)


def of_flags(texts: Iterable[str], source: str = "--limit") -> list[Limit]:
    """Return limits, each kind at most once. Raise `UsageError`."""
    return once(of_flag(text, source) for text in texts)


def of_object(text: str) -> WrittenLimits:
    """Return what `--limits` says: JSON, or the name of a file behind `@`. Raise
    `UsageError`."""
    content: str | bytes = text
    if text.startswith("@"):
        try:
            with open(text[1:], "rb") as file:
                content = file.read()
        except OSError as error:
            raise UsageError(f"--limits {text}: {error.strerror}") from None
    return understood("", parse_limits, content, "--limits")


def once(found: Iterable[Limit]) -> list[Limit]:
    """Return the limits. Raise `UsageError` for two of one kind."""
    by_kind: dict[LimitKind, Limit] = {}
    for limit in found:
        other = by_kind.setdefault(limit.kind, limit)
        if other is not limit:
            by = (
                other.source
                if other.source == limit.source
                else f"{other.source} and by {limit.source}"
            )
            raise UsageError(f"the limit '{limit.kind}' is given twice, by {by}: leave one out")
    return list(by_kind.values())


def in_force(run: RunInfo) -> str:
    """Return the limits that a run starts with, each with its source, on one line."""
    kept = [
        state for state in run.limits if _worth_telling(state) and state.enforced_by != "nothing"
    ]
    groups = [
        f"{', '.join(map(_short, group))} ({plain(source)})"
        for source, group in groupby(kept, lambda state: state.source)
    ]
    if groups and any(not state.source.startswith("--") for state in kept):
        groups[-1] = f"{groups[-1][:-1]}; change with --timeout, --limit)"
    unknown = [
        state.kind.value
        for state in run.limits
        if _worth_telling(state) and state.enforced_by == "nothing"
    ]
    around = [f"without the gateway: {plain(run.direct)}"] if run.direct is not None else []
    return "; ".join(
        [
            ", ".join(groups),
            *([f"not enforceable: {', '.join(unknown)}"] if unknown else []),
            *around,
        ]
    )


def _worth_telling(state: LimitState) -> bool:
    """Whether to show a limit: not the defaults of output and processes, which every run has."""
    return state.kind not in (LimitKind.OUTPUT, LimitKind.PIDS) or state.source.startswith(
        ("--", "agent ")
    )


def _short(state: LimitState) -> str:
    """Return a limit as `30m`, `100 turns`, `5 USD` or `memory 2.0 GiB`."""
    amount = format_amount(state.kind, state.threshold)
    if state.kind is LimitKind.COST:
        return amount.replace(".00 ", " ")
    if state.kind in METERED_KINDS and not KINDS[state.kind].unit:
        return f"{amount} {state.kind}"
    return amount if state.kind is LimitKind.TIME else f"{state.kind} {amount}"


def unenforceable(run: RunInfo, asked: Sequence[Limit]) -> str | None:
    """Return a warning about requested limits that cannot be enforced, because no source reports
    what the run uses."""
    wanted = {limit.kind for limit in asked} & METERED_KINDS
    kept = [
        state for state in run.limits if state.kind in wanted and state.enforced_by == "nothing"
    ]
    if not kept:
        return None
    named = ", ".join(
        f"{state.kind} {format_amount(state.kind, state.threshold)}" for state in kept
    )
    return (
        f"sfactl: {run.id}: NOT ENFORCEABLE: {named}. No source reports what this run uses. "
        "Let the agent print JSON events and name their --meter, "
        "let it report its use (sfactl report) with --meter report, or start it with --gateway"
    )


def describe(state: LimitState) -> str:
    """Return a limit on one line: what is used of it, its action, its source, whose use counts, and
    what enforces it."""
    parts = [_of(state), f"from {plain(state.source)}", _SCOPES[state.scope], _kept(state)]
    if state.bound_by is not None and state.bound is not None:
        parts.append(
            f"run {state.bound_by} above it has {format_amount(state.kind, state.bound)} for all"
        )
    return f"{state.kind} " + "; ".join(parts)


def _kept(state: LimitState) -> str:
    if state.kind is LimitKind.CPU and state.enforced_by == "watching":
        return f"bound to {counted(ceil(state.threshold), 'CPU')}, for want of a cpu controller"
    return _WATCHERS[state.enforced_by]


_SCOPES = {"run": "the run's own", "tree": "with its descendants'"}

_WATCHERS = {
    "clock": "kept by the clock",
    "gateway": "kept by the gateway, before each call",
    "ready": "kept by the gateway, through which no call has come yet",
    "meter": "kept by meters and reports",
    "kernel": "kept by the kernel",
    "watching": "kept by watching",
    "nothing": "NOT ENFORCEABLE: nothing tells what is used",
}


def _of(state: LimitState) -> str:
    follows = KINDS[state.kind].instead or state.action.value
    whole = format_amount(state.kind, state.threshold)
    if state.used is None:
        return f"{whole} → {follows}"
    part = f" ({percent(state.used / state.threshold)})" if state.threshold else ""
    held = f", {_used(state.kind, state.reserved)} more reserved" if state.reserved else ""
    return f"{_used(state.kind, state.used)} of {whole}{part}{held} → {follows}"


def _amounts(usage: Usage) -> Iterator[str]:
    for name in COUNTS:
        if (number := getattr(usage, name)) is not None:
            yield counted(number, name.removesuffix("s"))
    bound = output.bound(usage)
    if usage.input_tokens is not None:
        cached = "" if usage.cached_tokens is None else f" ({usage.cached_tokens} from a cache)"
        yield f"{bound}{usage.input_tokens} tokens in{cached}"
    if usage.output_tokens is not None:
        yield f"{bound}{usage.output_tokens} tokens out"
    if usage.cost_usd is not None:
        yield (
            f"cost {bound}{format_usd(usage.cost_usd)} "
            f"USD{_COST_FROM[usage.cost_from]}{_ESTIMATED if usage.estimated else ''}"
        )
    if usage.unpriced_tokens:
        yield f"and what {usage.unpriced_tokens} tokens of models without a price cost"
    for role, cost in (
        ("planning", usage.planning_cost_usd),
        ("execution", usage.execution_cost_usd),
    ):
        if cost is not None:
            yield f"{role} {format_usd(cost)} USD"


_COST_FROM = {None: "", "agent": " (from the agent)", "prices": " (from prices)"}
_ESTIMATED = " (estimated: a model has no price, and counts at that of another one)"


def by_source(run: RunInfo) -> Iterator[str]:
    """Yield the run's use by each source, and what other views show where no source tells just
    that."""
    shown = run.usage
    told: list[tuple[str, Usage]] = [*run.usage_by_source.items()]
    best = next((usage for source, usage in told if source == shown.source), None)
    if best is None or (best.tokens, best.cost_usd) != (shown.tokens, shown.cost_usd):
        best = shown
        told.insert(0, ("together" if told else shown.source, shown))
    for source, usage in told:
        if said := ", ".join(_amounts(usage)):
            mark = ", shown elsewhere" if len(told) > 1 and usage is best else ""
            yield f"{said} [{source}{mark}]"


def totals(run: RunInfo) -> str:
    """Return what the run and its descendants have used; empty if nothing is known."""
    bound = output.bound(run.in_all)
    parts = []
    if run.total_tokens is not None:
        parts.append(f"{bound}{run.total_tokens} tokens")
    if run.total_cost_usd is not None:
        parts.append(f"{bound}{format_usd(run.total_cost_usd)} USD")
    return f"{', '.join(parts)} with its descendants" if parts else ""


class Notices:
    """Notices about limits for the user of a foreground run, each given once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def of(self, event: Event, run: RunInfo) -> str | None:
        """Return the words for an event of `run`; `None` if it is not about a limit, or is a
        repetition."""
        if event.type not in ("limit_nearing", "limit_exceeded") or event.limit_kind is None:
            return None
        if event.type == "limit_nearing" and _counted(event) > (event.threshold or 0):
            return None  # the event of the breach says more
        subject = "budget" if event.scope in ("user", "team") else f"limit {event.limit_kind}"
        words = f"{subject}: {_what(event)}{_follows(event, run)}"
        if words in self._told:
            return None
        self._told.add(words)
        return words


def _what(event: Event) -> str:
    numbers = share(event.limit_kind, event.used, event.threshold, event.reserved)
    said = event.refused or event.action is None or event.scope in ("user", "team", "daemon")
    if numbers is None or said:
        return plain(event.message)
    return f"used {numbers}"


def _counted(event: Event) -> float:
    return (event.used or 0) + (event.reserved or 0)


def share(
    kind: str | None, used: float | None, threshold: float | None, reserved: float | None = None
) -> str | None:
    """Return `0.45 of 0.30 USD`, or `0.25 of 0.30 USD (0.20 more reserved)`; `None` if there are no
    numbers, for example for a forbidden tool."""
    if used is None or threshold is None or kind not in set(LimitKind):
        return None
    known = LimitKind(kind)
    held = f" ({_used(known, reserved)} more reserved)" if reserved else ""
    return f"{_used(known, used)} of {format_amount(known, threshold)}{held}"


def _used(kind: LimitKind, amount: float) -> str:
    return seconds(amount) if kind in TIMED else format_amount(kind, amount, unit=False)


def _follows(event: Event, run: RunInfo) -> str:
    if event.scope in ("user", "team", "daemon"):
        return ""
    if event.type == "limit_nearing":
        return f", {percent((event.used or 0) / event.threshold)}" if event.threshold else ""
    more = f"--limit {event.limit_kind}=N"
    return {
        None: "",
        Action.TERMINATE: ", terminating",
        Action.WARN: ", continuing",
        Action.REFUSE: ", continuing without it" if event.refused else ", terminating",
        Action.CONCLUDE: ", its last call follows" if event.refused else ", terminating",
        Action.CONTINUE: ", continuing its session",
        Action.PAUSE: f", paused; more room: sfactl resume {run.id} {more}",
        Action.REQUEST_INCREASE: (
            f", waiting for approval: sfactl approve {run.id} [{more}], or sfactl deny {run.id}"
        ),
    }[event.action]


# ---- The windows of subscriptions


def window_share(share: WindowShare) -> str:
    """Return how much of a subscription's window a run has used: `about 12 % of the 5h window of
    anthropic 1a2b3c`."""
    return (
        f"about {100 * share.share:.0f} % of the {plain(share.window)} window "
        f"of {share.provider} {plain(share.account)}"
    )


def moment(when: datetime, now: datetime) -> str:
    """Return a time in the user's zone: `14:00`, with the date if it is over a day away."""
    local = when.astimezone()
    return (
        f"{local:%H:%M}"
        if abs((when - now).total_seconds()) <= 86400
        else f"{local:%Y-%m-%d %H:%M}"
    )


def fullest(accounts: Sequence[SubscriptionInfo]) -> tuple[SubscriptionInfo, WindowInfo] | None:
    """Return the window of which most is used."""
    known = [
        (account, window)
        for account in accounts
        for window in account.windows
        if window.used_ratio is not None
    ]
    return max(known, key=lambda each: each[1].used_ratio or 0.0, default=None)
