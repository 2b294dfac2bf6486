"""Processes of runs that are not below this process: an earlier daemon started them, and pid 1 has adopted them since.

Without cgroups only their tags tell them (see `tags`): they are looked for among all processes of the machine. So what
somebody else runs must not be taken for ours. A cookie names instance, run and a random number; a tag is a mere number, and
counts only in who carries no cookie of another run, and has no ancestor that does.
"""

from __future__ import annotations

import os
import resource
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from typing import NamedTuple

from ..protocol.types import RunId
from . import procfs
from .marks import COOKIE
from .procfs import Stat

_RECENT = 1.0
"""Seconds for which looks are good that are taken for the adoption of one run after the other."""
ANOTHERS: RunId = ""
"""In the place of a run: somebody else's process."""


class Trace(NamedTuple):
    """What a process inherited."""

    process: Stat
    cookie: bytes | None
    """Of whichever instance."""
    number: int | None


RunOf = Callable[[Trace, RunId | None], RunId | None]
"""The run of a process, its parent's being known: `None` if in none, `ANOTHERS` if in somebody else's."""


def trace(process: Stat) -> Trace:
    """Raises `OSError`."""
    return Trace(process, procfs.variable(process.pid, COOKIE), procfs.soft_limit(process.pid, resource.RLIMIT_MSGQUEUE))


def run_of(one: Trace, inherited: RunId | None, cookies: Mapping[bytes, RunId], numbers: Mapping[int, RunId]) -> RunId | None:
    """The run of a process without an ancestor that is in one, by the cookies and tags of the runs that are looked for."""
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
        """Children by parent; those whose parent is not there by 0."""
        found: dict[int, list[int]] = defaultdict(list)
        for pid, one in self.traces.items():
            found[one.process.parent if one.process.parent in self.traces else 0].append(pid)
        return found

    @cached_property
    def ours(self) -> frozenset[int]:
        """This process and its descendants."""
        return frozenset(one.process.pid for one, _ in self.placed(lambda _one, _above: None, os.getpid()))

    def placed(self, of: RunOf, top: int = 0, *, but: int = 0) -> Iterator[tuple[Trace, RunId | None]]:
        """Every process below `top`, and `top` itself, with its run; without `but` and what is below it."""
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
        """Processes that carry one of the marks: candidates for `members`, which looks at each process of the machine."""
        return [*self._by_mark.get(cookie, ()), *(self._by_mark.get(number, ()) if number is not None else ())]

    def members(self, cookie: bytes, number: int | None) -> list[Stat]:
        """Processes of one run, by its cookie and tag."""
        cookies: dict[bytes, RunId] = {cookie: "it"}
        numbers: dict[int, RunId] = {number: "it"} if number is not None else {}

        def of(one: Trace, inherited: RunId | None) -> RunId | None:
            return inherited if inherited == "it" else run_of(one, inherited, cookies, numbers)

        return [one.process for one, run in self.placed(of) if run == "it"]


def look() -> Look:
    """Raises `OSError`."""
    return Look({pid: trace(process) for pid, process in procfs.scan().items() if process.alive})


class Looks:
    """Two looks, one after the other, at what an earlier daemon has left: what forks during one is in the next. Several
    hundred runs may be adopted at once, and what looks for one finds them all."""

    def __init__(self) -> None:
        self._taken: tuple[Look, Look] | None = None
        self._at = 0.0

    def recent(self) -> tuple[Look, Look]:
        """Raises `OSError`."""
        if self._taken is None or monotonic() - self._at > _RECENT:
            self._taken = (look(), look())
            self._at = monotonic()
        return self._taken
