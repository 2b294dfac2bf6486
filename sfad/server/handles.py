"""From what a person calls a run to the run: the one place where ids, names, prefixes and labels are resolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..core.labels import fits, values_of
from ..core.naming import NAME
from ..ledger.reader import Page
from ..loop.runtime import Runtime
from ..protocol.errors import ErrorCode
from ..protocol.messages import List
from ..protocol.types import RunId, RunInfo, Status
from ..runs.live import Live
from .errors import RequestFailed

SHOWN = 20
"""Runs that the error for an ambiguous handle lists."""


class Handles:
    """Resolves for a peer that is in the run `own`, or in none. By name and by prefix, a peer inside a run finds only its own
    subtree. An exact id it may know from elsewhere: the caller checks what the peer may do with that run."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def resolve(self, handle: str, own: RunId | None) -> RunInfo:
        """Return the run with the id `handle`; else the live run of this name, else the newest of this name; else the only run
        whose id begins with it. Raise `RequestFailed` where there is none, or several."""
        found = self._runtime.info(handle) or self._by_name(handle, own) or self._by_prefix(handle, own)
        if found is None:
            raise RequestFailed(ErrorCode.NO_SUCH_RUN, f"no run has the id or the name '{handle}'; 'sfactl list' shows them")
        return found

    def _by_name(self, name: str, own: RunId | None) -> RunInfo | None:
        if not NAME.fullmatch(name):
            return None
        named = [run for run, live in self._runtime.live.items() if live.run.name == name and own in (None, *live.chain)]
        if len(named) > 1:
            message = (
                f"'{name}' is the name of {len(named)} live runs ({_some(named)}); give an id, or --name {name} for all of them"
            )
            raise RequestFailed(ErrorCode.AMBIGUOUS_RUN, message)
        if named:
            return self._runtime.info(named[0])
        return max(self._ended(name, own), key=lambda info: info.id, default=None)

    def _ended(self, name: str, own: RunId | None) -> Iterator[RunInfo]:
        for entry in self._runtime.recent.values():
            if entry.info.name == name and own in (None, *entry.chain):
                yield entry.info
        # the ledger's writer may be behind: what is live or recent is known better above
        rows = self._runtime.ledger.select(Page(List(id=0, name=name, rows=1), own)).runs
        yield from (info for info in rows if info.id not in self._runtime.recent)

    def _by_prefix(self, prefix: str, own: RunId | None) -> RunInfo | None:
        found = self._runtime.find(prefix) if prefix else []
        if own is not None:
            found = [run for run in found if own in self._runtime.chain(run)]
        if len(found) > 1:
            raise RequestFailed(ErrorCode.AMBIGUOUS_RUN, f"'{prefix}' fits several runs ({_some(found)}); give more of the id")
        return self._runtime.info(found[0]) if found else None

    def sweep(
        self, verb: str, own: RunId | None, *, name: str | Sequence[str] | None, labels: Mapping[str, str | Sequence[str]]
    ) -> list[RunId]:
        """Return the live runs with one of these names and these labels that `verb` makes sense for, parents first. For a peer
        inside a run, these are the runs below its own."""
        found = {
            run: live
            for run, live in self._runtime.live.items()
            if (name is None or live.run.name in values_of(name))
            and fits(labels, live.run.asked.labels)
            and own in (None, *live.chain[:-1])
        }
        if verb == "pause":
            found = {run: live for run, live in found.items() if live.run.status is Status.RUNNING}
            return [run for run, live in found.items() if not _below_any(live, found)]
        return [run for run, live in found.items() if verb != "resume" or live.run.frozen]


def _below_any(live: Live, found: Mapping[RunId, Live]) -> bool:
    return any(above in found for above in live.chain[:-1])


def _some(runs: Sequence[RunId]) -> str:
    return ", ".join(runs[:SHOWN]) + (", …" if len(runs) > SHOWN else "")
