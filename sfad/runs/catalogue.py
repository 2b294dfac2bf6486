"""The one answer to what is known of a run: live, ended a short while ago, or in the ledger."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import NamedTuple, cast

import trio
from msgspec import Raw, Struct
from msgspec.structs import replace

from ..core.machine import Machine
from ..core.state.access import Scope, means
from ..core.state.run import number_or_zero, run_id, run_number
from ..host.clock import wall_clock
from ..processes import kernel
from ..processes.launcher import Footprint
from ..protocol.framing import pack
from ..protocol.types import CallInfo, RunId, RunInfo, Status
from ..storage.ledger.queries import CALLS, Page, Selection
from ..storage.ledger.records import Records
from ..storage.ledger.rows import used_by, with_own_total, with_totals
from ..storage.ledger.summary import Unwritten
from .live import Live, SignsOfLife, SpawnKey
from .showing import holds_at, info_of, usage_of, with_account

# ---- Runs as rows of a list. An ended run does not change, so its row is read and encoded once for
# many lists.


MAX_BYTES = 6 * 1024 * 1024
"""Bytes of rows of one kind that are held: 9 000 with limits, or 20 000 without."""


def row_of(info: RunInfo, *, limits: bool) -> Raw:
    """Return a run as a row. Without `limits`, an ended run has none: a client that reads a long
    list would spend half of its time on them."""
    bare = not limits and info.status.terminal
    return Raw(pack(replace(info, limits=[]) if bare else info))


class EncodedRuns:
    """The rows that were asked for last, by the numbers of their runs."""

    def __init__(self) -> None:
        self._rows: OrderedDict[int, Raw] = OrderedDict()
        self.size = 0
        """Bytes of all rows."""

    def of(self, numbers: Sequence[int]) -> list[Raw | None]:
        """Return the row of each of these runs, `None` where it is not held."""
        found = list(map(self._rows.get, numbers))
        # until then no row has to make room soon, whenever it was asked for
        if self.size > MAX_BYTES // 2:
            for number, row in zip(numbers, found, strict=True):
                if row is not None:
                    self._rows.move_to_end(number)
        return found

    def add(self, number: int, row: Raw) -> None:
        """Hold a row, and drop those that were asked for longest ago where there are too many."""
        self.forget(number)
        self._rows[number] = row
        self.size += _size(row)
        while self.size > MAX_BYTES:
            self.forget(next(iter(self._rows)))

    def forget(self, number: int) -> None:
        """Drop the row of a run that was deleted."""
        row = self._rows.pop(number, None)
        if row is not None:
            self.size -= _size(row)


def _size(row: Raw) -> int:
    return memoryview(row).nbytes


# ---- What is known of each run


RECENT = 1000
"""Ended runs kept in memory. They cover what the ledger's writer has not committed yet, and the
pages that clients ask for most."""

SIGNS_FOR = 0.1
"""Seconds for which the signs of life of a live run are shown again. To look takes five system
calls, half of the time of a list of live runs."""

MOST_SHOWN = 1000
"""Live runs that are kept as they were shown last, in 1 KiB each."""

ENCODED_AT_ONCE = 64
"""Rows. A thousand at once take half as long again: the garbage collector looks at them."""


class RecentRun(Struct, frozen=True):
    info: RunInfo
    uid: int
    lineage_ids: tuple[RunId, ...]
    kept: bool
    """Whether its output went to files."""
    key: SpawnKey | None = None


class KnownRun(NamedTuple):
    """A run as it is now, with its user's uid and the ids from the root to it."""

    info: RunInfo
    uid: int
    lineage_ids: tuple[RunId, ...]


class Shown(Struct, frozen=True):
    """A live run as it was shown last."""

    version: int
    """Of the catalogue."""
    revision: int
    """Of the run."""
    at: float
    info: RunInfo
    row: Raw


class Listed(Struct, frozen=True):
    """The runs of a page."""

    numbers: list[int]
    """Of the ended runs, in the order of the pages: the newest first, or the oldest."""
    ended: list[Raw | None]
    """Their rows as they are sent, with what each run has used together with its descendants;
    `None` for one that was deleted meanwhile."""
    live: list[RunInfo]
    next: RunId | None
    """`RunList.next`"""
    limits: bool
    """Whether rows are whole; see `row_of`."""
    queued: int = 0
    """`RunList.queued`"""
    shown: Mapping[RunId, Shown] = {}
    """Live runs that are encoded already."""

    def rows(self, live: Sequence[RunInfo]) -> list[Raw]:
        """Return the ended runs and these live ones as they are sent, oldest first."""
        if not live and all(self.ended):
            up = self.numbers[:1] < self.numbers[-1:]
            return cast("list[Raw]", self.ended if up else self.ended[::-1])
        rows = {number: row for number, row in zip(self.numbers, self.ended, strict=True) if row}
        for info in live:
            shown = self.shown.get(info.id)
            rows[run_number(info.id)] = (
                shown.row
                if shown is not None and shown.info is info
                else row_of(info, limits=self.limits)
            )
        return [rows[number] for number in sorted(rows)]


def _is_stopped(pid: int | None) -> bool:
    """Return whether SIGSTOP or the like has stopped a process."""
    try:
        found = kernel.stat(pid) if pid is not None else None
    except OSError:
        return False
    return found is not None and found.state == "T"


def _may_be_in(page: Page, live: Live) -> bool:
    """Decide by what a filter of a page names and a run does not change. To show a run takes twenty
    times as long as to ask for these."""
    query, asked = page.query, live.run.asked
    return (
        (not query.status or live.run.status in query.status)
        and means(query.name, query.labels, live.run.name, asked.identity.labels)
        and query.user in (None, live.run.user)
        and query.group in (None, asked.queueing.group)
        and (asked.session is not None or not query.sessions)
        and (page.within is None or page.within in live.lineage_ids)
    )


class RunCatalogue:
    """Knows every run. `live` is read by others, and changed here only.

    `keys`: the runs of an earlier daemon, by the keys of their requests. `forgotten` is told of
    each run that is not in memory any more. `holds` returns why a live run waits."""

    def __init__(
        self,
        records: Records,
        keys: dict[SpawnKey, RunId],
        forgotten: Callable[[RunId], object],
        machine: Machine,
    ) -> None:
        self.live: dict[RunId, Live] = {}
        self.heard: Callable[[Live, float], float | None] = lambda _live, _now: None
        """Returns when a live run was heard of last. The runtime sets it."""
        self.version = 0
        """Counts how often something was decided that may have changed what is shown of live
        runs."""
        self._shown_last: dict[RunId, Shown] = {}
        """Live runs that may be shown so again."""
        self._recent: OrderedDict[RunId, RecentRun] = OrderedDict()
        self._unrecorded: dict[RunId, RunInfo] = {}
        """Ended runs whose end the ledger has not confirmed yet."""
        self._never_recorded: dict[RunId, RecentRun] = {}
        """Recent runs that the ledger could not admit."""
        self._encoded = {limits: EncodedRuns() for limits in (True, False)}
        """Rows with limits, and rows without."""
        self._keys = keys
        self._records = records
        self._forgotten = forgotten
        self._machine = machine

    def add(self, live: Live) -> None:
        """A run was admitted or adopted."""
        self.live[live.run.id] = live
        if (live.request_key is not None) and (key := live.key) is not None:
            self._keys[key] = live.run.id

    def retire(self, live: Live, info: RunInfo, *, admitted: bool) -> None:
        """An ended run leaves the live ones. `admitted`: the ledger has it."""
        del self.live[info.id]
        self._shown_last.pop(info.id, None)
        self._unrecorded[info.id] = info
        ended = RecentRun(info, live.uid, live.lineage_ids, live.kept, live.key)
        self._keep(ended)
        if not admitted:
            self._never_recorded[info.id] = ended

    def refuse(self, live: Live, info: RunInfo) -> None:
        self._keep(RecentRun(info, live.uid, live.lineage_ids, kept=False))

    def continued(self, run: RunId, *, by: RunId) -> None:
        """An ended run is continued by another one, which the ledger has."""
        for rows in self._encoded.values():
            rows.forget(number_or_zero(run))
        if (ended := self._recent.get(run)) is not None:
            self._recent[run] = replace(ended, info=replace(ended.info, continued_by=by))

    def take_recorded(self, run: RunId) -> RunInfo | None:
        """The ledger holds the end of this run, or cannot be waited for. Return the run, the first
        time."""
        return self._unrecorded.pop(run, None)

    @property
    def unrecorded(self) -> list[RunId]:
        """Ended runs whose end the ledger has not confirmed yet."""
        return list(self._unrecorded)

    def forget(self, runs: Iterable[RunId]) -> None:
        """These ended runs were deleted from the ledger."""
        for run in runs:
            for rows in self._encoded.values():
                rows.forget(number_or_zero(run))
            ended = self._recent.pop(run, None)
            if ended is not None:
                self._drop(run, ended)

    @property
    def encoded_size(self) -> int:
        """Bytes of the rows that are kept encoded."""
        return sum(rows.size for rows in self._encoded.values())

    def forget_requests(self, runs: Iterable[RunId]) -> None:
        """A request with the key of one of these runs is to be answered with another run."""
        gone = set(runs)
        self._keys = {key: run for key, run in self._keys.items() if run not in gone}

    def close(self) -> None:
        """Close the descriptors of live runs. When the daemon was drained there are none."""
        for live in self.live.values():
            live.close()
        self.live.clear()

    def _keep(self, ended: RecentRun) -> None:
        self._recent[ended.info.id] = ended
        if len(self._recent) > RECENT:
            self._drop(*self._recent.popitem(last=False))

    def _drop(self, run: RunId, ended: RecentRun) -> None:
        self._forgotten(run)
        self._never_recorded.pop(run, None)
        if ended.key is not None:
            self._keys.pop(ended.key, None)

    def info(self, run: RunId) -> RunInfo | None:
        live = self.live.get(run)
        if live is not None:
            return self.shown(live)
        ended = self._recent.get(run)
        return ended.info if ended is not None else self._records.get(run)

    def uid(self, run: RunId) -> int | None:
        """Return the uid of the run's user; `None` if that, or the run, is unknown."""
        known = self.known(run)
        return known.uid if known is not None else self._records.uid(run)

    def known(self, run: RunId) -> Live | RecentRun | None:
        """Return a run that is live, or has ended a short time ago."""
        return self.live.get(run) or self._recent.get(run)

    def knows(self, run: RunId, scope: Scope) -> bool:
        """Return whether there is such a run, and a caller with this scope may be told of it."""
        known = self.known(run)
        if known is not None:
            return scope.knows(known.uid, known.lineage_ids)
        owner = self._records.owner(run)
        return owner is not None and scope.knows(
            owner[0], () if scope.run is None else self._records.lineage(run)
        )

    def with_total(self, run: RunInfo) -> RunInfo:
        """Do the same for one run."""
        return self.with_totals([run])[0] if run.descendants else with_own_total(run)

    def shown(self, live: Live, footprint: Footprint | None = None) -> RunInfo:
        """Return a live run as it is shown now."""
        return self._shown(live, trio.current_time(), footprint)

    def _shown_lately(self, live: Live, now: float) -> RunInfo:
        """Return the same, as it was shown a moment ago if nothing has happened since: to make and
        encode it takes as long as 20 rows of ended runs."""
        run, shown = live.run.id, self._shown_last.get(live.run.id)
        if (
            shown is None
            or shown.version != self.version
            or shown.revision != live.revision
            or now - shown.at >= SIGNS_FOR
        ):
            info = self._shown(live, now)
            if not info.descendants:
                info = with_own_total(info)
            if len(self._shown_last) >= MOST_SHOWN and run not in self._shown_last:
                return info
            row = row_of(info, limits=True)
            shown = self._shown_last[run] = Shown(self.version, live.revision, now, info, row)
        return shown.info

    def _shown(self, live: Live, now: float, footprint: Footprint | None = None) -> RunInfo:
        holds = holds_at(self._machine, live.run, now)
        return info_of(live, now, footprint, holds, self._signs(live, now))

    def begun(self, run: RunId) -> RunInfo | None:
        """As `info`, of a run that was admitted or started just now, of which there is no sign of
        life yet: to look takes five system calls."""
        live = self.live.get(run)
        if live is None:
            return self.info(run)
        begun, live.begun = live.begun, None
        return begun or self._begun(live)

    def note_begun(self, live: Live) -> None:
        """Have `begun` return the run as it is now, though more may be decided about it before
        that: no client is told of an end that is not on record."""
        live.look_at_the_clock(wall_clock())
        live.begun = self._begun(live)

    def _begun(self, live: Live) -> RunInfo:
        now = live.run.started_at or trio.current_time()
        return info_of(live, now, holds=holds_at(self._machine, live.run, now))

    def _signs(self, live: Live, now: float) -> SignsOfLife | None:
        """Look when the run was heard of last, and whether a signal has stopped it."""
        pid, signs = live.run.latest.pid, live.signs
        if not live.run.latest.number or live.run.status.terminal:
            return None
        if signs is None or now - signs.looked_at >= SIGNS_FOR or signs.pid != pid:
            live.signs = signs = SignsOfLife(now, pid, self.heard(live, now), _is_stopped(pid))
        return signs if signs.heard is not None else None

    def in_memory(
        self, run: RunId, footprint: Footprint | None = None, cpu: float | None = None
    ) -> KnownRun | None:
        """Return a run that is live or ended a short while ago. `footprint`, `cpu`: of a live run,
        what is to be shown."""
        live = self.live.get(run)
        if live is not None:
            info = self._shown(live, trio.current_time(), footprint)
            return KnownRun(with_account(info, live, cpu), live.uid, live.lineage_ids)
        ended = self._recent.get(run)
        return KnownRun(ended.info, ended.uid, ended.lineage_ids) if ended is not None else None

    def request(self, run: RunId) -> bytes | None:
        """Return what the run was started with, as `to_recall` made it, if that is known."""
        live = self.live.get(run)
        return live.for_recall if live is not None else self._records.request(run)

    def lineage(self, run: RunId) -> list[RunId]:
        """Return the ids from the root to the run."""
        known = self.known(run)
        return list(known.lineage_ids) if known is not None else self._records.lineage(run)

    def root(self, run: RunId) -> RunId:
        """Return the root of a run that is in memory, else the run itself. This reads no ledger."""
        known = self.known(run)
        return known.lineage_ids[0] if known is not None else run

    def kept(self, run: RunId) -> bool:
        """Whether the run's output goes to files. Of a run that only the ledger knows, it may
        have."""
        known = self.known(run)
        return known is None or known.kept

    def over(self, run: RunId) -> bool:
        """Whether the run has ended and the ledger holds its end."""
        return run not in self.live and run not in self._unrecorded

    def answer_to(self, key: SpawnKey) -> RunId | None:
        """Return the run that was admitted for an earlier request with this key."""
        run = self._keys.get(key)
        return run if run is not None and self.info(run) is not None else None

    def find(self, prefix: str, scope: Scope) -> list[RunId]:
        """Return ids that begin with `prefix`, in order. Of those that only the ledger knows, some
        ten at most."""
        held = (
            (run, known)
            for runs in (self.live, self._recent)
            for run, known in runs.items()
            if run.startswith(prefix)
        )
        mine = (run for run, known in held if scope.admits(known.uid, known.lineage_ids))
        return sorted({*mine, *self._records.find(prefix, scope)})

    def live_runs(
        self,
        scope: Scope,
        *,
        name: str | Sequence[str] | None = None,
        labels: Mapping[str, str | Sequence[str]] | None = None,
    ) -> dict[RunId, Live]:
        """Return the live runs with one of these names and with these labels, parents first."""
        return {
            run: live
            for run, live in self.live.items()
            if means(name, labels or {}, live.run.name, live.run.asked.identity.labels)
            and scope.admits(live.uid, live.lineage_ids)
        }

    def select(
        self,
        page: Page,
        footprints: Mapping[RunId, Footprint] | None = None,
        *,
        limits: bool = True,
    ) -> Listed:
        """Return the runs of a page. `footprints`: of live runs, where they are to be shown;
        `limits`: see `row_of`."""
        found, queued = self.page(page), 0
        if page.up:
            between = self._live_between(page, found.reached, footprints or {})
            shown = dict(islice(between, max(0, page.query.rows) + 1))
            found = Selection.of(page, list(shown), found.ended, found.reached)
            live = self.with_totals(shown[number] for number in found.live)
        else:
            queued = self._queued_beyond(page)
            live = self.with_totals(info for info, _ in self._live(page, footprints or {}))
        numbers = list(map(itemgetter(0), found.ended))
        ended = self._rows(numbers, limits=limits)
        more = run_id(found.reached) if found.reached else None
        return Listed(numbers, ended, live, more, limits, queued, self._shown_last)

    def unwritten(self, page: Page) -> Unwritten:
        """Return the runs of a page that are not in the ledger's file as they are now."""
        ended = (info for info, _ in self._records.unwritten(page) if info.id not in self.live)
        return [*ended, *(info for info, _ in self._live(page, {}))]

    def with_totals(self, runs: Iterable[RunInfo]) -> list[RunInfo]:
        """Return the runs with what each has used together with its descendants."""
        runs = list(runs)
        roots = {info.root_id for info in runs if info.descendants}
        if not roots:
            return list(map(with_own_total, runs))
        used = self._records.used_below(roots)
        for live in self.live.values():
            parent = live.run.parent
            if parent is not None and live.run.root.id in roots:
                used[live.run.id] = used_by(parent.id, usage_of(live))
        return with_totals(runs, used)

    def _live(
        self, page: Page, footprints: Mapping[RunId, Footprint]
    ) -> Iterator[tuple[RunInfo, Live]]:
        """Yield the live runs of a page, but of queued ones only as many as it asks for."""
        now, left = trio.current_time(), page.query.queued
        for live in self.live.values():
            if left is not None and live.run.status is Status.QUEUED:
                if left <= 0:
                    continue
                left -= 1 if (found := self._shown_in(page, live, now, footprints)) else 0
            else:
                found = self._shown_in(page, live, now, footprints)
            if found is not None:
                yield found, live

    def _live_between(
        self, page: Page, reached: int, footprints: Mapping[RunId, Footprint]
    ) -> Iterator[tuple[int, RunInfo]]:
        """Yield the live runs between the start of a page and a number, by their numbers."""
        now, start = trio.current_time(), page.start
        for number in sorted(map(run_number, self.live)):
            if reached and number > reached:
                return
            if number > start:
                live = self.live[run_id(number)]
                if (found := self._shown_in(page, live, now, footprints)) is not None:
                    yield number, found

    def _shown_in(
        self, page: Page, live: Live, now: float, footprints: Mapping[RunId, Footprint]
    ) -> RunInfo | None:
        if not (page.scope.admits(live.uid, live.lineage_ids) and _may_be_in(page, live)):
            return None
        if footprints:
            info = self._shown(live, now, footprints.get(live.run.id))
        else:
            info = self._shown_lately(live, now)
        return info if page.admits(info, live.uid, live.lineage_ids) else None

    def queued(self, page: Page) -> list[RunId]:
        """Return the queued runs of a page in their order, by what is known of them without a look
        at each."""
        return [
            run
            for run, live in self.live.items()
            if live.run.status is Status.QUEUED
            and page.scope.admits(live.uid, live.lineage_ids)
            and _may_be_in(page, live)
        ]

    def _queued_beyond(self, page: Page) -> int:
        """Return how many queued runs a page leaves out."""
        most = page.query.queued
        if most is None or page.query.before is not None:
            return 0
        return max(0, len(self.queued(page)) - max(0, most))

    def page(self, page: Page) -> Selection:
        """Return a page of the ledger, with the ended runs that it could not admit. Of live ones,
        its rows are behind."""
        found = self._records.select(page)
        if not self._never_recorded:
            return found
        more = (
            ended
            for ended in self._never_recorded.values()
            if page.admits(ended.info, ended.uid, ended.lineage_ids)
        )
        ended = [*found.ended, *((run_number(each.info.id), 0) for each in more)]
        return Selection.of(page, found.live, ended, found.reached)

    def _rows(self, numbers: Sequence[int], *, limits: bool) -> list[Raw | None]:
        """Return ended runs as they are sent, `None` for one that was deleted meanwhile."""
        held = self._encoded[limits]
        rows = held.of(numbers)
        if all(rows):
            return rows
        missing = [number for number, row in zip(numbers, rows, strict=True) if row is None]
        found = dict[int, Raw]()
        for at in range(0, len(missing), ENCODED_AT_ONCE):
            for info in self._ended(missing[at : at + ENCODED_AT_ONCE]):
                number = run_number(info.id)
                found[number] = row = row_of(info, limits=limits)
                held.add(number, row)
        return [row or found.get(number) for number, row in zip(numbers, rows, strict=True)]

    def _ended(self, numbers: Sequence[int]) -> list[RunInfo]:
        known = {
            number: ended.info
            for number in numbers
            if (ended := self._recent.get(run_id(number))) is not None
        }
        infos = [
            *known.values(),
            *self._records.runs([number for number in numbers if number not in known]),
        ]
        # no run ends before its descendants, so the totals of an ended run do not change either
        return self.with_totals(infos)


# ---- The one answer to which model calls a run has made: under way, not written yet, or in the
# ledger


class CallList(Struct, frozen=True):
    _records: Records
    _live: Mapping[RunId, Live]
    _machine: Machine

    def page(self, run: RunId, after: tuple[float, int]) -> tuple[list[CallInfo], bool]:
        """Return calls in the order of their time, those after a time in seconds since the epoch
        and a number, and whether there are more."""
        rows = self._records.calls(run, after)
        more = len(rows) == CALLS
        last = key(rows[-1]) if more else (float("inf"), 0)
        found = {key(call): call for call in rows} | {
            at: call for at, call in self._unwritten(run).items() if after < at <= last
        }
        machine = self._machine
        calls = () if more else (*machine.calls_under_way(run), *machine.waiting_calls(run))
        open_ = {key(call): call for call in calls}
        return [found[at] for at in sorted(found)] + [
            open_[at] for at in sorted(open_) if at > after
        ], more

    def count(self, run: RunId) -> tuple[int, int]:
        """Return how many calls a run has made, those under way included, and how many were
        refused."""
        unwritten = self._unwritten(run)
        made, refused = self._records.count_calls(run, unwritten)
        made += len(self._machine.calls_under_way(run)) + sum(
            call.state == "ended" for call in unwritten.values()
        )
        return made, refused + sum(
            1 + call.more for call in unwritten.values() if call.state == "refused"
        )

    def last_refusal(self, run: RunId) -> str | None:
        """Return why the last refused call of a run was refused; `None` if none was."""
        unwritten = self._unwritten(run)
        refused = [call.refused for _, call in sorted(unwritten.items()) if call.state == "refused"]
        return refused[-1] if refused else self._records.last_refusal(run)

    def _unwritten(self, run: RunId) -> dict[tuple[float, int], CallInfo]:
        live = self._live.get(run)
        return (
            {key(call): call for call in live.calls}
            if live is not None and live.calls is not None
            else {}
        )


def key(call: CallInfo) -> tuple[float, int]:
    return call.time.timestamp(), call.number
