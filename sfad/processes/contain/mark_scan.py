"""A scan of all processes of the machine for the marks of runs."""

import os
import resource
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from types import MappingProxyType
from typing import NamedTuple

from ...protocol.types import RunId
from .. import procfs
from ..credentials import COOKIE
from ..procfs import Stat

_REUSED_FOR = 1.0
"""Seconds for which a scan is used again, while one run after the other is adopted."""
FOREIGN: RunId = ""
"""In the place of a run: a foreign process."""


class MarkedProcess(NamedTuple):
    """A process and the marks that it inherited."""

    process: Stat
    cookie: bytes | None
    """Of any instance."""
    tag: int | None


RunOf = Callable[[MarkedProcess, RunId | None], RunId | None]
"""Takes a process and its parent's run; returns its run, `None` if it is in none, or `FOREIGN` if it is foreign."""


def with_marks(process: Stat) -> MarkedProcess:
    """Raises `OSError`."""
    return MarkedProcess(process, procfs.variable(process.pid, COOKIE), procfs.soft_limit(process.pid, resource.RLIMIT_MSGQUEUE))


def run_by_marks(
    one: MarkedProcess, inherited: RunId | None, cookies: Mapping[bytes, RunId], tags: Mapping[int, RunId]
) -> RunId | None:
    """Return the run of a process that has no ancestor in a run, by the cookies and tags of the runs that are looked for."""
    carried = cookies.get(one.cookie) if one.cookie is not None else None
    if carried is not None:
        return carried
    if one.cookie is not None or inherited == FOREIGN:
        return FOREIGN
    return tags.get(one.tag) if one.tag is not None else None


@dataclass(frozen=True)
class MarkScan:
    """All living processes."""

    processes: Mapping[int, MarkedProcess]

    @cached_property
    def families(self) -> Mapping[int, list[int]]:
        """Children by parent; orphans, whose parent was not seen, by 0."""
        families: dict[int, list[int]] = defaultdict(list)
        for pid, one in self.processes.items():
            families[one.process.parent if one.process.parent in self.processes else 0].append(pid)
        return families

    @cached_property
    def ours(self) -> frozenset[int]:
        """This process and its descendants."""
        return frozenset(one.process.pid for one, _ in self.with_runs(lambda _one, _above: None, os.getpid()))

    def with_runs(self, of: RunOf, top: int = 0, *, but: int = 0) -> Iterator[tuple[MarkedProcess, RunId | None]]:
        """Yield `top` and every process below it, with its run; leave out `but` and what is below that."""
        pending: list[tuple[int, RunId | None]] = [(top, None)]
        while pending:
            pid, inherited = pending.pop()
            if pid and (pid == but or pid not in self.processes):
                continue
            if pid:
                inherited = of(self.processes[pid], inherited)
                yield self.processes[pid], inherited
            pending.extend((child, inherited) for child in self.families.get(pid, ()))

    @cached_property
    def _by_mark(self) -> Mapping[bytes | int | None, list[int]]:
        found: dict[bytes | int | None, list[int]] = defaultdict(list)
        for pid, one in self.processes.items():
            found[one.cookie].append(pid)
            found[one.tag].append(pid)
        return found

    def carriers(self, cookie: bytes, tag: int | None) -> list[int]:
        """Return the processes that carry one of the marks: quick, where `members` looks at each process of the machine."""
        return [*self._by_mark.get(cookie, ()), *(self._by_mark.get(tag, ()) if tag is not None else ())]

    def members(self, cookie: bytes, tag: int | None) -> list[Stat]:
        """Return the processes of one run, by its cookie and tag."""
        cookies: dict[bytes, RunId] = {cookie: "it"}
        tags: dict[int, RunId] = {tag: "it"} if tag is not None else {}

        def of(one: MarkedProcess, inherited: RunId | None) -> RunId | None:
            return inherited if inherited == "it" else run_by_marks(one, inherited, cookies, tags)

        return [one.process for one, run_id in self.with_runs(of) if run_id == "it"]


def scan_marks(known: Mapping[int, MarkedProcess] = MappingProxyType({})) -> MarkScan:
    """Look at all processes. `known` are processes of which an earlier look has found the marks. Raises `OSError`."""
    marked = {pid: one for pid, one in known.items() if one.cookie is not None}
    fresh = (procfs.stat(pid) for pid in procfs.pids() if pid not in marked)
    return MarkScan(marked | {process.pid: with_marks(process) for process in fresh if process is not None and process.alive})


class RecentScan:
    """Two looks, one after the other, for what an earlier daemon has left: the second finds what was forked during the first.
    A thousand runs may be adopted at once, and the same looks serve them all."""

    def __init__(self) -> None:
        self._taken: MarkScan | None = None
        self._at = 0.0

    def recent(self) -> MarkScan:
        """Return the processes of both looks; some have ended since. Raises `OSError`."""
        if self._taken is None or monotonic() - self._at > _REUSED_FOR:
            self._taken = scan_marks(scan_marks().processes)
            self._at = monotonic()
        return self._taken
