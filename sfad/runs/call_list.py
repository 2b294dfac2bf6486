"""The one answer to which calls of models a run has made: under way, not written yet, or in the ledger."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..ledger.reader import CALLS
from ..ledger.records import Records
from ..protocol.types import CallInfo, RunId
from .live import Live

OpenCalls = Callable[[RunId], list[CallInfo]]
"""Returns the calls of a live run that wait or are under way."""


@dataclass(frozen=True, slots=True)
class CallList:
    _records: Records
    _live: Mapping[RunId, Live]
    _waiting: OpenCalls
    _under_way: OpenCalls

    def page(self, run: RunId, after: tuple[float, int]) -> tuple[list[CallInfo], bool]:
        """Return calls in the order of their time, those after a time in seconds since the epoch and a number, and whether there
        are more."""
        rows = self._records.calls(run, after)
        more = len(rows) == CALLS
        last = key(rows[-1]) if more else (float("inf"), 0)
        found = {key(call): call for call in rows} | {at: call for at, call in self._unwritten(run).items() if after < at <= last}
        open_ = {} if more else {key(call): call for call in (*self._under_way(run), *self._waiting(run))}
        return [found[at] for at in sorted(found)] + [open_[at] for at in sorted(open_) if at > after], more

    def count(self, run: RunId) -> tuple[int, int]:
        """Return how many calls a run has made, those under way included, and how many were refused."""
        unwritten = self._unwritten(run)
        made, refused = self._records.count_calls(run, unwritten)
        made += len(self._under_way(run)) + sum(call.state == "ended" for call in unwritten.values())
        return made, refused + sum(1 + call.more for call in unwritten.values() if call.state == "refused")

    def last_refusal(self, run: RunId) -> str | None:
        """Return why the last refused call of a run was refused; `None` if none was."""
        unwritten = self._unwritten(run)
        refused = [call.refused for _, call in sorted(unwritten.items()) if call.state == "refused"]
        return refused[-1] if refused else self._records.last_refusal(run)

    def _unwritten(self, run: RunId) -> dict[tuple[float, int], CallInfo]:
        live = self._live.get(run)
        return {key(call): call for call in live.calls} if live is not None and live.calls is not None else {}


def key(call: CallInfo) -> tuple[float, int]:
    return call.time.timestamp(), call.number
