"""Which run an id, a name or a prefix means, in the daemon and in `sfad.history` without one."""

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Protocol

from ..core.naming import NAME
from ..protocol.types import ErrorCode, RunId, RunInfo
from .checks import RequestError

LISTED_RUNS = 20
"""Runs that the error for an ambiguous handle lists."""


class KnownRuns(Protocol):
    """Where runs are looked up. `within`: only this run and its descendants."""

    def info(self, run: RunId) -> RunInfo | None:
        """Return a run by its whole id."""

    def live_runs(self, *, name: str, within: RunId | None) -> Collection[RunId]:
        """Return the live runs of this name."""

    def newest_ended(self, name: str, within: RunId | None) -> RunInfo | None:
        """Return the newest ended run of this name."""

    def find(self, prefix: str, within: RunId | None) -> list[RunId]:
        """Return ids that begin with `prefix`."""


def find_run(runs: KnownRuns, handle: str, own: RunId | None) -> RunInfo:
    """Return the run with the id `handle`; else the live run of this name, else the newest of this name; else the only run whose
    id begins with it. Raise `RequestError` if there is none, or several.

    By name and by prefix, a peer inside the run `own` finds only its own subtree. It may know an exact id from elsewhere, so the
    caller checks what the peer may do with that run."""
    found = runs.info(handle) or _by_name(runs, handle, own) or _by_prefix(runs, handle, own)
    if found is None:
        raise RequestError(ErrorCode.NO_SUCH_RUN, f"no run has the id or the name '{handle[:80]}'; 'sfactl list' shows them")
    return found


def _by_name(runs: KnownRuns, name: str, own: RunId | None) -> RunInfo | None:
    if not NAME.fullmatch(name):
        return None
    named = runs.live_runs(name=name, within=own)
    if len(named) > 1:
        raise RequestError(
            ErrorCode.AMBIGUOUS_RUN,
            f"'{name}' is the name of {len(named)} live runs ({_some(named)}); give an id, or --name {name} for all of them",
        )
    return runs.info(*named) if named else runs.newest_ended(name, own)


def _by_prefix(runs: KnownRuns, prefix: str, own: RunId | None) -> RunInfo | None:
    found = runs.find(prefix, own) if prefix else []
    if len(found) > 1:
        raise RequestError(ErrorCode.AMBIGUOUS_RUN, f"'{prefix}' fits several runs ({_some(found)}); give more of the id")
    return runs.info(found[0]) if found else None


def _some(runs: Iterable[RunId]) -> str:
    shown = list(islice(runs, LISTED_RUNS + 1))
    return ", ".join(shown[:LISTED_RUNS]) + (", …" if len(shown) > LISTED_RUNS else "")
