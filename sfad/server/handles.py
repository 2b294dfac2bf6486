"""From what a person calls a run to the run: the one place where ids, names, prefixes and labels are resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.naming import NAME
from ..protocol.errors import ErrorCode
from ..protocol.types import RunId, RunInfo, Status
from ..runs.catalogue import RunCatalogue
from ..runs.live import Live
from .errors import RequestError

SHOWN = 20
"""Runs that the error for an ambiguous handle lists."""


class Handles:
    """Resolves for a peer that is in the run `own`, or in none. By name and by prefix, a peer inside a run finds only its own
    subtree. An exact id it may know from elsewhere: the caller checks what the peer may do with that run."""

    def __init__(self, catalogue: RunCatalogue) -> None:
        self._catalogue = catalogue

    def resolve(self, handle: str, own: RunId | None) -> RunInfo:
        """Return the run with the id `handle`; else the live run of this name, else the newest of this name; else the only run
        whose id begins with it. Raise `RequestError` where there is none, or several."""
        found = self._catalogue.info(handle) or self._by_name(handle, own) or self._by_prefix(handle, own)
        if found is None:
            raise RequestError(ErrorCode.NO_SUCH_RUN, f"no run has the id or the name '{handle}'; 'sfactl list' shows them")
        return found

    def _by_name(self, name: str, own: RunId | None) -> RunInfo | None:
        if not NAME.fullmatch(name):
            return None
        named = list(self._catalogue.live_runs(name=name, within=own))
        if len(named) > 1:
            message = (
                f"'{name}' is the name of {len(named)} live runs ({_some(named)}); give an id, or --name {name} for all of them"
            )
            raise RequestError(ErrorCode.AMBIGUOUS_RUN, message)
        return self._catalogue.info(named[0]) if named else self._catalogue.newest_ended(name, own)

    def _by_prefix(self, prefix: str, own: RunId | None) -> RunInfo | None:
        found = self._catalogue.find(prefix, own) if prefix else []
        if len(found) > 1:
            raise RequestError(ErrorCode.AMBIGUOUS_RUN, f"'{prefix}' fits several runs ({_some(found)}); give more of the id")
        return self._catalogue.info(found[0]) if found else None

    def sweep(
        self, verb: str, own: RunId | None, *, name: str | Sequence[str] | None, labels: Mapping[str, str | Sequence[str]]
    ) -> list[RunId]:
        """Return the live runs with one of these names and these labels that `verb` makes sense for, parents first. For a peer
        inside a run, these are the runs below its own."""
        found = self._catalogue.live_runs(name=name, labels=labels, within=own)
        if own is not None:
            found.pop(own, None)
        if verb == "pause":
            found = {run: live for run, live in found.items() if live.run.status is Status.RUNNING}
            return [run for run, live in found.items() if not _below_any(live, found)]
        return [run for run, live in found.items() if verb != "resume" or live.run.frozen]


def _below_any(live: Live, found: Mapping[RunId, Live]) -> bool:
    return any(above in found for above in live.chain[:-1])


def _some(runs: Sequence[RunId]) -> str:
    return ", ".join(runs[:SHOWN]) + (", …" if len(runs) > SHOWN else "")
