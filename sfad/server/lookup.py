"""Which run an id, a name or a prefix means, in the daemon and in `sfad.history` without one."""

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Protocol

from ..core.access import Scope, unknown_run
from ..core.naming import is_name, one_form
from ..protocol.types import ErrorCode, RunId
from .checks import RequestError

LISTED_RUNS = 20
"""Runs that the error for an ambiguous handle lists."""


class KnownRuns(Protocol):
    """Where runs are looked up."""

    def knows(self, run: RunId, scope: Scope) -> bool:
        """Return whether there is a run with this id, and a caller with this scope may be told of it."""

    def live_runs(self, scope: Scope, *, name: str) -> Collection[RunId]:
        """Return the live runs of this name."""

    def newest_ended(self, name: str, scope: Scope) -> RunId | None:
        """Return the newest ended run of this name."""

    def find(self, prefix: str, scope: Scope) -> list[RunId]:
        """Return ids that begin with `prefix`."""


def find_run(runs: KnownRuns, handle: str, scope: Scope) -> RunId:
    """Return the id of the run that `handle` means: the run with this id; else the live run of this name, else the newest of this
    name; else the only run whose id begins with it. Raise `RequestError` if there is none in the scope, or several.

    By its exact id, a peer inside a run also finds runs outside of its subtree (`Scope.knows`), so the caller checks what the peer
    may do with the run."""
    found = handle if runs.knows(handle, scope) else _by_name(runs, handle, scope) or _by_prefix(runs, handle, scope)
    if found is None:
        raise RequestError(ErrorCode.NO_SUCH_RUN, unknown_run(handle))
    return found


def _by_name(runs: KnownRuns, name: str, scope: Scope) -> RunId | None:
    if not is_name(name):
        return None
    name = one_form(name)
    named = runs.live_runs(scope, name=name)
    if len(named) > 1:
        raise RequestError(
            ErrorCode.AMBIGUOUS_RUN,
            f"'{name}' is the name of {len(named)} live runs ({_some(named)}); give an id, or --name {name} for all of them",
        )
    return next(iter(named)) if named else runs.newest_ended(name, scope)


def _by_prefix(runs: KnownRuns, prefix: str, scope: Scope) -> RunId | None:
    found = runs.find(prefix, scope) if prefix else []
    if len(found) > 1:
        raise RequestError(ErrorCode.AMBIGUOUS_RUN, f"'{prefix}' fits several runs ({_some(found)}); give more of the id")
    return found[0] if found else None


def _some(runs: Iterable[RunId]) -> str:
    shown = list(islice(runs, LISTED_RUNS + 1))
    return ", ".join(shown[:LISTED_RUNS]) + (", …" if len(shown) > LISTED_RUNS else "")
