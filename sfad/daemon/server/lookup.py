"""Which run an id, a name or a prefix means; how a request fails, and checks of fields that several
kinds have."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import isfinite
from signal import Signals
from typing import Protocol

from msgspec.structs import replace as replace_struct

from ...core.state.access import Scope, unknown_run, values_of
from ...core.state.naming import is_name, one_form
from ...core.state.policy import MAX_LABELS
from ...core.state.run import run_id
from ...protocol.messages import List, Select, Stop, Summarise, WatchRuns
from ...protocol.types import ENDED, ErrorCode, Limit, RunId
from ...storage.ledger.queries import Page, Selection

# ---- How a request fails, and checks of fields that several kinds of request have


MAX_SECONDS = 36_525 * 86_400.0
"""A hundred years: further back than that nothing was recorded, and beyond some 8 000 years there
is no `datetime`."""

MAX_CHOSEN = 1024
"""Runs named in one request; each is looked up."""

MAX_SOURCE = 128
"""Characters that say where a limit was set."""


class RequestError(Exception):
    """The reply to the request is an `Error`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


bad_request = partial(RequestError, ErrorCode.BAD_REQUEST)
wrong_state = partial(RequestError, ErrorCode.WRONG_STATE)
unavailable = partial(RequestError, ErrorCode.UNAVAILABLE)


def check_most(what: str, value: int, most: int) -> None:
    if value > most:
        raise too_many(what, value, most)


def too_many(what: str, value: int, most: int) -> RequestError:
    return bad_request(f"{value} {what}; at most {most}")


def check_limits(limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """Return the limits, which must differ in their kinds."""
    kinds = [limit.kind for limit in limits]
    twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
    if twice is not None:
        raise bad_request(f"the limit '{twice}' is given more than once")
    odd = next((limit for limit in limits if not isfinite(limit.threshold)), None)
    if odd is not None:
        raise bad_request(f"{odd.kind} = {odd.threshold} is not a finite number")
    if any(len(limit.source) > MAX_SOURCE for limit in limits):
        raise bad_request(f"the source of a limit has more than {MAX_SOURCE} characters")
    return tuple(limits)


def check_signal(number: int, allowed: Iterable[int]) -> None:
    if number not in allowed:
        names = (
            ", ".join(sorted(Signals(n).name for n in allowed))
            if len(list(allowed)) < 16
            else "1 to 64"
        )
        raise bad_request(f"signal {number} cannot be sent here; allowed: {names}")


def check_filters(request: Stop | Select | List | Summarise | WatchRuns) -> None:
    check_most("names", len(values_of(request.name or ())), MAX_CHOSEN)
    if isinstance(request, List):
        for what, wanted in (
            ("types", request.run_type),
            ("channels", request.channel),
            ("models", request.model),
        ):
            check_most(what, len(values_of(wanted or ())), MAX_LABELS)
    # a key without a value fits no run, and is still a condition in the query
    check_most(
        "labels",
        sum(max(1, len(values_of(value))) for value in request.labels.values()),
        MAX_LABELS,
    )


# ---- Which run an id, a name or a prefix means, in the daemon and in `sfad.history` without one


LISTED_RUNS = 20
"""Runs that the error for an ambiguous handle lists."""


class KnownRuns(Protocol):
    """Where runs are looked up."""

    def knows(self, run: RunId, scope: Scope) -> bool:
        """Return whether there is a run with this id, and a caller with this scope may be told of
        it."""

    def live_runs(self, scope: Scope, *, name: str) -> Collection[RunId]:
        """Return the live runs of this name."""

    def page(self, page: Page) -> Selection:
        """Return a page of runs."""

    def find(self, prefix: str, scope: Scope) -> list[RunId]:
        """Return ids that begin with `prefix`."""


def find_run(runs: KnownRuns, handle: str, scope: Scope) -> RunId:
    """Return the id of the run that `handle` means: the run with this id; else the live run of this
    name, else the newest of this name that started, else the newest that was admitted; else the
    only run whose id begins with it. Raise `RequestError` if there is none in the scope, or
    several. A refused start has no name: it would hide the run that has it.

    By its exact id, a peer inside a run also finds runs outside of its subtree (`Scope.knows`), so
    the caller checks what the peer may do with the run."""
    found = (
        handle
        if runs.knows(handle, scope)
        else _by_name(runs, handle, scope) or _by_prefix(runs, handle, scope)
    )
    if found is None:
        raise RequestError(
            ErrorCode.NO_SUCH_RUN, _only_refused(runs, handle, scope) or unknown_run(handle)
        )
    return found


def _by_name(runs: KnownRuns, name: str, scope: Scope) -> RunId | None:
    if not is_name(name):
        return None
    name = one_form(name)
    named = runs.live_runs(scope, name=name)
    if len(named) > 1:
        raise RequestError(
            ErrorCode.AMBIGUOUS_RUN,
            (
                f"'{name}' is the name of {len(named)} live runs ({_some(named)}); "
                f"give an id, or --name {name} for all of them"
            ),
        )
    if named:
        return next(iter(named))
    wanted = List(id=0, name=name, rows=1)
    return _newest(runs, Page(wanted, scope, started=True)) or _newest(
        runs, Page(replace_struct(wanted, status=list(ENDED)), scope)
    )


def _newest(runs: KnownRuns, page: Page) -> RunId | None:
    """Return the newest ended run that the page admits, however many others are newer."""
    while True:
        found = runs.page(page)
        if found.ended or not found.reached:
            return next((run_id(number) for number, _ in found.ended), None)
        page = replace(page, query=replace_struct(page.query, before=run_id(found.reached)))


def _only_refused(runs: KnownRuns, name: str, scope: Scope) -> str | None:
    """Return what a caller is told of a name that only refused starts have had."""
    if not is_name(name):
        return None
    refused = _newest(runs, Page(List(id=0, name=one_form(name), rows=1), scope))
    within = "" if scope.run is None else f" within run {scope.run}"
    return refused and (
        f"no run named '{name}' has started{within}; its last start was refused: "
        f"see 'sfactl why {refused}'"
    )


def _by_prefix(runs: KnownRuns, prefix: str, scope: Scope) -> RunId | None:
    found = runs.find(prefix, scope) if prefix else []
    if len(found) > 1:
        raise RequestError(
            ErrorCode.AMBIGUOUS_RUN,
            f"'{prefix}' fits several runs ({_some(found)}); give more of the id",
        )
    return found[0] if found else None


def _some(runs: Iterable[RunId]) -> str:
    shown = list(islice(runs, LISTED_RUNS + 1))
    return ", ".join(shown[:LISTED_RUNS]) + (", …" if len(shown) > LISTED_RUNS else "")
