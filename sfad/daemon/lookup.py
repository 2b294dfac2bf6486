"""Which run an id, a name or a prefix means, in the daemon and in `history` without one."""

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Protocol

from msgspec.structs import replace

from ..core.state.access import Scope, unknown_run
from ..core.state.naming import is_name, one_form
from ..core.state.run import run_id
from ..protocol.errors import RequestError
from ..protocol.messages import List
from ..protocol.types import ENDED, ErrorCode, RunId
from ..storage.ledger.queries import Page, Selection

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
        runs, Page(replace(wanted, status=list(ENDED)), scope)
    )


def _newest(runs: KnownRuns, page: Page) -> RunId | None:
    """Return the newest ended run that the page admits, however many others are newer."""
    while True:
        found = runs.page(page)
        if found.ended or not found.reached:
            return next((run_id(number) for number, _ in found.ended), None)
        page = replace(page, query=replace(page.query, before=run_id(found.reached)))


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
