"""The runs that the daemon has told of, as a tree: sorted, filtered, folded; how much each needs a
person, and the words for it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from sfad.protocol.types import Hold, RunId, RunInfo, Status

from .. import output
from ..showing.waiting import NEAR, near, troubles

WAITS, STUCK, NEARING, ENDED, QUIET = 4, 3, 2, 1, 0
"""It waits for a person; it does not get on; it is near a limit; it ended badly; nothing is
wrong."""
MOST_ENDED = 500
"""Ended runs that are kept: those of trees with a live run, then the newest."""

Key = Callable[[RunInfo], float | str]
Order = tuple[Key, bool]
"""What siblings are sorted by, and whether the largest comes first."""


ORDERS: dict[str, Order] = {
    "age": (attrgetter("id"), False),
    "cost": (lambda run: run.in_all.cost_usd or 0.0, True),
    "cpu": (lambda run: run.cpu_cores or 0.0, True),
    "memory": (lambda run: run.memory_bytes or 0, True),
    "tokens": (lambda run: run.in_all.tokens or 0, True),
    "turns": (lambda run: run.usage.turns or 0, True),
    "name": (attrgetter("name"), False),
    "user": (attrgetter("user"), False),
}


DEFAULT_ORDER = "trouble"


class Row(NamedTuple):
    """A line of the tree."""

    run: RunInfo
    branch: str
    """What is drawn before the name: `│  └─ `."""
    rank: int
    """Of the run; where runs are folded into the line, the worst of them and the run."""
    hidden: int = 0
    """Runs that are folded into this line."""


class RunTable:
    def __init__(self) -> None:
        self.runs: dict[RunId, RunInfo] = {}
        self.order = DEFAULT_ORDER
        self.filter = ""
        self.ended_shown = True
        self._folded: set[RunId] = set()
        self._rows: list[Row] | None = None
        self._ranks: dict[RunId, int] = {}
        self.orders = {"trouble": (self._urgency, True)} | ORDERS
        self.limit_share = NEAR
        """The share of a limit from which a run is near it."""
        self.counts: tuple[Counter[Status], Counter[int]] = (Counter(), Counter())
        """Runs by status, and by their rank."""
        self.of_others = False
        """Whether there are runs of other users than this process's."""
        self.of_fleet = False
        """Whether the runs are those of several nodes."""
        self.left_out = 0
        """Queued runs that the daemon has counted only."""
        self._seen: dict[RunId, float] = {}
        """When the run was told last, on the caller's clock."""

    def replace(self, runs: Iterable[RunInfo], now: float) -> None:
        """Forget what is known, and take these."""
        self.runs.clear()
        self._seen.clear()
        self._ranks.clear()
        self.update(runs, now)

    def update(self, runs: Iterable[RunInfo], now: float) -> None:
        for run in runs:
            before = self.runs.get(run.id)
            if before is not None:
                run = _completed(run, before)
            self.runs[run.id], self._seen[run.id], self._ranks[run.id] = (
                run,
                now,
                rank(run, self.limit_share),
            )
        self._forget_old()
        self._count()

    def forget(self, gone: Iterable[RunId]) -> None:
        for run_id in gone:
            del self.runs[run_id], self._seen[run_id], self._ranks[run_id]
        self._count()

    def warn_from(self, limit_share: float) -> None:
        if limit_share != self.limit_share:
            self.limit_share = limit_share
            self._ranks = {run.id: rank(run, limit_share) for run in self.runs.values()}
            self._count()

    def rank(self, run: RunInfo) -> int:
        return self._ranks[run.id]

    def _urgency(self, run: RunInfo) -> float:
        """Return the rank, with each live run before those that have ended."""
        level = self.rank(run)
        return ENDED + 0.5 if level == QUIET and not run.status.terminal else level

    def _count(self) -> None:
        self._rows = None
        self.of_others = output.of_others({run.user for run in self.runs.values()})
        statuses = Counter(run.status for run in self.runs.values())
        self.counts = statuses, Counter(self._ranks.values())

    def elapsed_since(self, run: RunInfo, now: float) -> float:
        """Return the seconds that the run's clock has gone on since the daemon told of it."""
        ticking = run.started_at is not None and run.status in (Status.RUNNING, Status.STOPPING)
        return max(0.0, now - self._seen.get(run.id, now)) if ticking else 0.0

    def _forget_old(self) -> None:
        ended = [run for run in self.runs.values() if run.status.terminal]
        if len(ended) <= MOST_ENDED:
            return
        live = {run.root_id for run in self.runs.values() if not run.status.terminal}
        ended.sort(key=lambda run: (run.root_id in live, run.created_at, run.id))
        for run in ended[: len(ended) - MOST_ENDED]:
            del self.runs[run.id], self._seen[run.id], self._ranks[run.id]

    # ---- what is shown

    def sort_by(self, order: str) -> None:
        self.order, self._rows = order, None

    def filter_by(self, text: str) -> None:
        """Show runs that have all words of `text` in their id, name, type, user, status, labels or
        command; and those above."""
        self.filter, self._rows = text, None

    def matches(self, run: RunInfo) -> bool:
        """Whether the filter means this run itself, not only a run below it."""
        return _has(run, self.filter.casefold().split())

    def show_ended(self, shown: bool) -> None:
        self.ended_shown, self._rows = shown, None

    def fold(self, run: RunId, folded: bool) -> None:
        (self._folded.add if folded else self._folded.discard)(run)
        self._rows = None

    def is_folded(self, run: RunId) -> bool:
        return run in self._folded

    def has_below(self, run: RunId) -> bool:
        return any(each.parent_id == run for each in self.runs.values())

    def live_below(self, run: RunId) -> int:
        """Return the number of live runs below this one, at any depth."""
        return sum(not each.status.terminal for each in _inner(children(self.runs.values()), run))

    def fold_all(self, folded: bool) -> None:
        self._folded = (
            {run.parent_id for run in self.runs.values() if run.parent_id is not None}
            if folded
            else set()
        )
        self._rows = None

    @property
    def rows(self) -> Sequence[Row]:
        if self._rows is None:
            self._rows = list(self._lines(self._folded))
        return self._rows

    @property
    def unfolded(self) -> Sequence[Row]:
        """The lines as if no tree were folded."""
        return list(self._lines(frozenset()))

    def reveal(self, run: RunId) -> None:
        """Unfold the trees that the run is folded into."""
        above = self.runs[run].parent_id
        while above in self.runs:
            self.fold(above, folded=False)
            above = self.runs[above].parent_id

    @property
    def filtered_out(self) -> int:
        """Live runs in trouble that the filter hides."""
        return sum(self.rank(run) >= STUCK for run in self.runs.values()) - sum(
            self.rank(run) >= STUCK for run in self._shown()
        )

    def _shown(self) -> list[RunInfo]:
        runs = [run for run in self.runs.values() if self.ended_shown or not run.status.terminal]
        if not self.filter.split():
            return runs
        found = {run.id for run in runs if self.matches(run)}
        for run in list(found):
            above = self.runs[run].parent_id
            while above in self.runs and above not in found:
                found.add(above)
                above = self.runs[above].parent_id
        return [self.runs[run] for run in found]

    def _lines(self, folded: Set[RunId]) -> Iterator[Row]:
        tree = children(self._shown(), self.orders[self.order])
        # a stack: a tree may be deeper than the interpreter's
        stack = [self._siblings(tree, None, "")]
        while stack:
            row, deeper = next(stack[-1], (None, ""))
            if row is None:
                stack.pop()
            elif row.run.id in folded and row.run.id in tree:
                inner = _inner(tree, row.run.id)
                yield row._replace(rank=max(row.rank, *map(self.rank, inner)), hidden=len(inner))
            else:
                yield row
                stack.append(self._siblings(tree, row.run.id, deeper))

    def _siblings(
        self, below: Mapping[RunId | None, Sequence[RunInfo]], parent: RunId | None, indent: str
    ) -> Iterator[tuple[Row, str]]:
        siblings = below.get(parent, ())
        for run in siblings:
            last = run is siblings[-1]
            branch, deeper = ("", "") if parent is None else ("└─", "  ") if last else ("├─", "│ ")
            yield Row(run, indent + branch, self.rank(run)), indent + deeper


def children(
    runs: Iterable[RunInfo], order: Order = ORDERS["age"]
) -> dict[RunId | None, list[RunInfo]]:
    """Return the runs by the id of their parent, sorted; under `None` those whose parent is not
    among them."""
    runs = list(runs)
    known = {run.id for run in runs}
    below: defaultdict[RunId | None, list[RunInfo]] = defaultdict(list)
    for run in sorted(runs, key=attrgetter("id")):
        below[run.parent_id if run.parent_id in known else None].append(run)
    key, largest_first = order
    if order is not ORDERS["age"]:
        best = _best(runs, key) if largest_first else {run.id: key(run) for run in runs}
        for siblings in below.values():
            siblings.sort(key=lambda run: best[run.id], reverse=largest_first)
    return dict(below)


def _best(runs: list[RunInfo], key: Key) -> dict[RunId, float | str]:
    """Return the largest value in the subtree of each run: a tree stands where its worst run
    would."""
    best = {run.id: key(run) for run in runs}
    for run in sorted(runs, key=attrgetter("depth"), reverse=True):
        if run.parent_id in best:
            best[run.parent_id] = max(best[run.parent_id], best[run.id])
    return best


def _completed(run: RunInfo, before: RunInfo) -> RunInfo:
    """Return a run with figures of the last push, which the end of a run and other replies leave
    out."""
    if run.total_cost_usd is None:
        run = replace(run, total_cost_usd=before.total_cost_usd, total_tokens=before.total_tokens)
    if run.processes is None and not run.status.terminal and run.attempts == before.attempts:
        load = {
            "processes": before.processes,
            "memory_bytes": before.memory_bytes,
            "cpu_cores": before.cpu_cores,
        }
        run = replace(run, **load)
    return run


def _inner(tree: Mapping[RunId | None, Sequence[RunInfo]], run: RunId) -> list[RunInfo]:
    """Return the runs below one in what `children` returns, at any depth."""
    found = list(tree.get(run, ()))
    for each in found:  # it grows
        found += tree.get(each.id, ())
    return found


def _has(run: RunInfo, words: Sequence[str]) -> bool:
    labels = (f"{key}={value}" for key, value in run.labels.items())
    text = " ".join(
        (run.id, run.name, run.type or "", run.user, run.status.value, *labels, *run.argv)
    ).casefold()
    return all(word in text for word in words)


def rank(run: RunInfo, limit_share: float) -> int:
    """`limit_share`: the share of a limit from which a run is near it."""
    if run.status is Status.PAUSED and {hold.kind for hold in run.holds} != {"suspended"}:
        return WAITS
    if run.status.terminal:
        return (
            ENDED
            if run.status in (Status.FAILED, Status.TIMEOUT, Status.LOST) or run.status.rejected
            else QUIET
        )
    if run.waiting is not None or run.approvals:
        return WAITS
    silent = run.api_silence is not None or run.api_trouble is not None or output.unanswered(run)
    if silent or run.repeating is not None or run.unadmitted:
        return STUCK
    return NEARING if near(run, limit_share) else QUIET


def reason(run: RunInfo, limit_share: float, now: datetime | None = None) -> str:
    """Return a sentence about a run for the lines below the tree: its trouble and the keys that
    help, else its state and what it does."""
    now = now or datetime.now(UTC)
    if found := _trouble(run, limit_share, now, keys=True):
        return found
    return f"{run.status.value}: {_news(run) or output.command(run)}"


def remark(run: RunInfo, limit_share: float, now: datetime) -> str:
    """Return what there is to say of a run beside its name and state; its command if it has
    arguments. Empty if there is nothing."""
    command = output.command(run) if len(run.argv) > 1 else ""
    return _trouble(run, limit_share, now, keys=False) or _news(run) or command


def _trouble(run: RunInfo, limit_share: float, now: datetime, *, keys: bool) -> str | None:
    """`keys`: name those that help."""
    if run.status is Status.PAUSED and run.holds:
        return _held(run, now, keys=keys)
    if not run.status.terminal and (found := list(troubles(run, now, limit_share))):
        return "; ".join(found)
    if run.unadmitted and not run.status.terminal:
        return f"{run.unadmitted} agent programs were started within it without asking the daemon"
    return None


def _news(run: RunInfo) -> str:
    if why := output.why_waits(run) or output.why_ended(run):
        return why
    return output.plain(run.milestone or "")


KEYS = {
    "approval": "a approves, d denies",
    "limit": "r resumes it with more room, s stops it",
    "person": "r resumes it",
}
"""What helps, by the kind of hold."""


def _held(run: RunInfo, now: datetime, *, keys: bool) -> str:
    """Return what has paused a run. `keys`: name those that help, in the place of commands."""
    return "; ".join(_told(hold, now, keys=keys) for hold in run.holds)


def _told(hold: Hold, now: datetime, *, keys: bool) -> str:
    asks, until = hold.kind == "approval", ""
    if asks and hold.until is not None:
        left = output.until(hold.until, now)
        until = f" until {output.clock(hold.until, now)}, {left} left"
    helps = f"; {KEYS[hold.kind]}" if keys and hold.kind in KEYS else ""
    begins = f"waits for approval{until}" if asks else "paused"
    return f"{begins}: {output.plain(hold.words)}{helps}"
