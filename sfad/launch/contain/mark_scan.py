"""One look at all processes of the machine for the marks of runs."""

import os
import resource
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from typing import NamedTuple

from ...protocol.types import RunId
from .. import procfs
from ..marks import COOKIE
from ..procfs import Stat

_RECENT = 1.0
"""Seconds for which two looks can be used again, while one run after the other is adopted."""
ANOTHERS: RunId = ""
"""In the place of a run: a foreign process."""


class Trace(NamedTuple):
    """A process and the marks that it inherited."""

    process: Stat
    cookie: bytes | None
    """Of any instance."""
    number: int | None


RunOf = Callable[[Trace, RunId | None], RunId | None]
"""Takes a process and its parent's run; returns its run, `None` if it is in none, or `ANOTHERS` if it is foreign."""


def trace(process: Stat) -> Trace:
    """Raises `OSError`."""
    return Trace(process, procfs.variable(process.pid, COOKIE), procfs.soft_limit(process.pid, resource.RLIMIT_MSGQUEUE))


def run_of(one: Trace, inherited: RunId | None, cookies: Mapping[bytes, RunId], numbers: Mapping[int, RunId]) -> RunId | None:
    """Return the run of a process that has no ancestor in a run, by the cookies and tags of the runs that are looked for."""
    carried = cookies.get(one.cookie) if one.cookie is not None else None
    if carried is not None:
        return carried
    if one.cookie is not None or inherited == ANOTHERS:
        return ANOTHERS
    return numbers.get(one.number) if one.number is not None else None


@dataclass(frozen=True)
class Look:
    """All living processes, from one scan."""

    traces: Mapping[int, Trace]

    @cached_property
    def families(self) -> Mapping[int, list[int]]:
        """Children by parent; orphans, whose parent was not seen, by 0."""
        found: dict[int, list[int]] = defaultdict(list)
        for pid, one in self.traces.items():
            found[one.process.parent if one.process.parent in self.traces else 0].append(pid)
        return found

    @cached_property
    def ours(self) -> frozenset[int]:
        """This process and its descendants."""
        return frozenset(one.process.pid for one, _ in self.placed(lambda _one, _above: None, os.getpid()))

    def placed(self, of: RunOf, top: int = 0, *, but: int = 0) -> Iterator[tuple[Trace, RunId | None]]:
        """Yield `top` and every process below it, with its run; leave out `but` and what is below that."""
        pending: list[tuple[int, RunId | None]] = [(top, None)]
        while pending:
            pid, inherited = pending.pop()
            if pid and (pid == but or pid not in self.traces):
                continue
            if pid:
                inherited = of(self.traces[pid], inherited)
                yield self.traces[pid], inherited
            pending.extend((child, inherited) for child in self.families.get(pid, ()))

    @cached_property
    def _by_mark(self) -> Mapping[bytes | int | None, list[int]]:
        found: dict[bytes | int | None, list[int]] = defaultdict(list)
        for pid, one in self.traces.items():
            found[one.cookie].append(pid)
            found[one.number].append(pid)
        return found

    def carriers(self, cookie: bytes, number: int | None) -> list[int]:
        """Return the processes that carry one of the marks: quick, where `members` looks at each process of the machine."""
        return [*self._by_mark.get(cookie, ()), *(self._by_mark.get(number, ()) if number is not None else ())]

    def members(self, cookie: bytes, number: int | None) -> list[Stat]:
        """Return the processes of one run, by its cookie and tag."""
        cookies: dict[bytes, RunId] = {cookie: "it"}
        numbers: dict[int, RunId] = {number: "it"} if number is not None else {}

        def of(one: Trace, inherited: RunId | None) -> RunId | None:
            return inherited if inherited == "it" else run_of(one, inherited, cookies, numbers)

        return [one.process for one, run_id in self.placed(of) if run_id == "it"]


def look() -> Look:
    """Raises `OSError`."""
    return Look({pid: trace(process) for pid, process in procfs.scan().items() if process.alive})


class Looks:
    """Two looks, one after the other, at what an earlier daemon has left: the second finds what was forked during the first.
    Several hundred runs may be adopted at once, and the same two looks serve them all."""

    def __init__(self) -> None:
        self._taken: tuple[Look, Look] | None = None
        self._at = 0.0

    def recent(self) -> tuple[Look, Look]:
        """Raises `OSError`."""
        if self._taken is None or monotonic() - self._at > _RECENT:
            self._taken = (look(), look())
            self._at = monotonic()
        return self._taken
