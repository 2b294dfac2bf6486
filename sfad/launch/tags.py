"""Containment without cgroups: by descent and by two tags that processes inherit. Best effort, and `doctor` says so.

This process is a subreaper, so whatever a run starts stays below it. A process is in the run of its nearest ancestor that is
known. One that lost it became our child, and is told by a soft RLIMIT_MSGQUEUE that only its run has (it survives `env -i`,
setsid and a double fork, and can be read of every process), else by the cookie in its environment. Both can be copied, so
below a known ancestor they count only if they name a run of its subtree.

Whoever lives has a living parent, up to this process, for the orphans of the dead become our children. Hence a run is
empty once none of our *direct* children that are in it is alive: one cheap read, and no race with what forks.

That does not hold of runs that were adopted from a dead daemon: their processes are elsewhere. As long as there are such,
all processes of the machine are looked at for their tags (`abroad`), and such a run is empty once two looks find none.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, count
from time import monotonic
from typing import Literal

import trio

from ..protocol.types import RunId
from . import adopted as abroad
from . import procfs
from .adopted import Look, Looks, Trace
from .base import Emit, Unplaceable
from .lineage import by_cookie, descends, left, settled, still
from .local import Complain, Door, Held, LocalLauncher
from .procfs import Stat
from .reaper import reap_orphan
from .trampoline import Trampoline

_LOOKS = 3
"""At our children, before those that come and go without pause are taken for living."""
_SLICE = 0.01
"""Seconds of signalling between two looks at the rest of the daemon."""
_PASSES = 2
"""Scans of a SIGTERM at least: the second finds what was forked during the first."""
_PURSUIT = 0.1
"""Seconds after which a SIGTERM is not followed further: what forks faster is for the SIGKILL after the grace. Nothing is reaped
meanwhile: ten scans of twenty lineages that forked without pause left 32 000 zombies, and the machine no pid."""
_WATCHED = 32
"""Pidfds waited on at a time; the next are looked for when these are gone."""
_INSIST = 0.5
"""Seconds between two kills of what does not go."""
_STILL = 1.0
"""Seconds between two looks whether what is paused stands still."""
_SETTLE, _APART = 0.002, 0.1
"""Seconds between two looks at whether everything has stopped, which nothing tells of processes that are not our children;
the second where something does not (uninterruptible sleep)."""


class TagsLauncher(LocalLauncher):
    """Runs contained by descent and tags. `why` tells the reason for not using cgroups."""

    containment: Literal["cgroup", "tags"] = "tags"

    def __init__(
        self,
        *,
        instance: str,
        emit: Emit,
        why: str = "",
        clock: Callable[[], float] = trio.current_time,
        trampoline: Trampoline | None = None,
        nofile: int | None = None,
        complain: Complain = lambda _text: None,
    ) -> None:
        super().__init__(instance=instance, emit=emit, clock=clock, trampoline=trampoline, nofile=nofile, complain=complain)
        self.detail = why or "asked for"
        self._paused: set[Held] = set()
        self._holding = False
        """Whether `_keep_still` runs."""
        self._killing: dict[Held, int] = {}
        """What is to be killed, and the ladder that asked for it."""
        self._slaying = False
        self._draining: set[Held] = set()
        self._terminating: dict[Held, tuple[int, int]] = {}
        """The signal, and the ladder that asked for it."""
        self._strays: dict[tuple[int, int], RunId] = {}
        """Processes, by pid and start, with the tag of a run that they are not in, and the run that they are in: they may
        lose the ancestor that says so."""
        self._kill_now = trio.Event()
        self._abroad: set[RunId] = set()
        """Runs that may have processes which are not below this one."""
        self._looks = Looks()

    # Entering and leaving.

    def _enter(self, held: Held) -> Door:
        self._abroad.discard(held.id)  # what was there is gone, or it would not start again
        return Door(msgqueue=self._number(held))

    def _leave(self, held: Held) -> None:
        self._forget(held)
        self._paused.discard(held)
        self._killing.pop(held, None)
        self._terminating.pop(held, None)

    # What an earlier daemon launched.

    def _rejoin(self, held: Held) -> None:
        self._number(held)

    def _forget(self, held: Held) -> None:
        self._abroad.discard(held.id)

    def _carries(self, held: Held, pid: int) -> bool:
        process = procfs.stat(pid)
        number = self._number(held)
        numbers = {number: held.id} if number is not None else {}
        return process is not None and abroad.run_of(abroad.trace(process), None, {held.cookie: held.id}, numbers) == held.id

    def _settle(self, held: Held) -> bool:
        if held.main is not None:
            if not held.main.ours:
                self._abroad.add(held.id)
            return True
        looks = self._looks.recent()
        found = {process.pid for look in looks for process in self._seen(held, look)}
        if not found <= looks[0].ours | looks[1].ours:
            self._abroad.add(held.id)
        return any(map(_lives, found))

    def _seen(self, held: Held, look: Look) -> list[Stat]:
        return look.members(held.cookie, self._number(held))

    def _elsewhere(self, look: Look) -> Iterator[tuple[Stat, RunId]]:
        """What is alive in runs that were adopted, and not below us."""
        if self._abroad:
            for one, run in look.placed(self._run_abroad, but=os.getpid()):
                if run:
                    yield one.process, run

    def _run_abroad(self, one: Trace, inherited: RunId | None) -> RunId | None:
        """The run of a process that is not below us; its parent's is known."""
        if inherited:
            tagged = self._numbers.get(one.number) if one.number is not None else None
            return tagged if tagged is not None and self._within(tagged, inherited) else inherited
        cookies = {self._runs[run].cookie: run for run in self._abroad}
        return abroad.run_of(one, inherited, cookies, {n: run for n, run in self._numbers.items() if run in self._abroad})

    # Verbs.

    def _terminate(self, held: Held, number: int) -> None:
        self._paused.difference_update(held.subtree())
        if not self._terminating:
            self._watch.soon(self._signal_all)  # one scan for all that are stopped at the same time
        self._terminating[held] = (number, held.ladder)

    def _signal_all(self) -> None:
        asked = {held: number for held, (number, ladder) in self._terminating.items() if held.on(ladder)}
        for number in set(asked.values()):
            stopping = [held for held in asked if asked[held] == number]
            done: set[tuple[int, int]] = set()
            until = monotonic() + _PURSUIT
            for scans in count(1):
                fresh = self._strike(_runs(stopping), (number, signal.SIGCONT), done)
                if not fresh or (scans >= _PASSES and monotonic() > until):
                    break
        self._terminating = {}
        for held in asked:
            self._drain_soon(held)

    def _kill(self, held: Held) -> None:
        self._killing[held] = held.ladder
        if not self._slaying:
            self._slaying = True
            self._task(self._kill_all)
        self._kill_now.set()
        self._drain_soon(held)

    async def _kill_all(self) -> None:
        while self._killing:
            self._kill_now = trio.Event()
            runs = _runs(self._killing)
            if self._slay(runs):
                await trio.lowlevel.checkpoint()
            else:
                with trio.move_on_after(_INSIST):
                    await self._kill_now.wait()
            self._killing = {held: ladder for held, ladder in self._killing.items() if held.on(ladder)}
        self._slaying = False

    def _freeze(self, held: Held) -> None:
        self._paused.add(held)
        self._task(self._hold_still, held)

    async def _hold_still(self, held: Held) -> None:
        pause = _SETTLE
        while held.freezing and (awake := [one for one, _ in self._census(_runs([held])) if not _stands(one)]):
            for process in awake:  # also one that was stopped before: somebody may have continued it
                _send(process, (signal.SIGSTOP,))
            await trio.sleep(pause)
            pause = min(2 * pause, _APART)
        self._stands(held)
        if not self._holding:
            self._holding = True
            self._task(self._keep_still)

    async def _keep_still(self) -> None:
        """Stops again what another process has continued: the clocks of these runs stand."""
        while self._paused:
            await trio.sleep(_STILL)
            for process, _ in self._census(_runs(self._paused)):
                if not _stands(process):
                    _send(process, (signal.SIGSTOP,))
        self._holding = False

    def _thaw(self, held: Held) -> None:
        self._paused.discard(held)
        still_paused = {below.id for below in held.subtree() if self._paused.intersection(below.chain())}
        for process, run in self._census(_runs([held])):
            if run not in still_paused:
                _send(process, (signal.SIGCONT,))

    # Emptying.

    def _drain_soon(self, held: Held) -> None:
        if held not in self._draining:
            self._draining.add(held)
            self._task(self._drain, held)

    async def _drain(self, held: Held) -> None:
        self._draining.add(held)
        try:
            while held.emptying:
                tops = self._tops(held)
                if tops:
                    await self._gone(tops[:_WATCHED], _INSIST)
                else:
                    self._consider(held)
                    await trio.sleep(_INSIST if _awaits_news(held) else _SETTLE)  # a main that has ended is reaped meanwhile
        finally:
            self._draining.discard(held)

    def _tops(self, held: Held) -> list[int]:
        """Our living direct children in the run. While there is none, nothing of the run is alive.

        A child that forked and ended between the listing and the look at it has left its children to us: they are in
        the next listing. So it takes one that shows nobody new to say that there is none. Where each shows somebody new,
        who may be of the run, something is alive, and others have to get on: to look until one is caught alive took eleven
        seconds and 32 000 zombies, with twenty lineages that forked without pause on two cores.
        """
        runs = _runs([held])
        seen: set[int] = set()
        for _ in range(_LOOKS):
            self._orphans.reap()
            fresh = [pid for pid in procfs.children() if pid not in seen]
            placed = [(pid, self._run_of_child(pid)) for pid in fresh]
            alive = [pid for pid, run in placed if run in runs and _lives(pid)]
            if alive:
                return alive
            if not fresh:
                return self._tops_outside(runs)
            seen.update(fresh)
        return [pid for pid, run in placed if run in runs or run is None] or self._tops_outside(runs)

    def _tops_outside(self, runs: set[RunId]) -> list[int]:
        """Processes of these that are not below us. Nothing that forks and ends without pause escapes us below; here it may."""
        for _ in range(2 if runs & self._abroad else 0):
            found = [process.pid for process, run in self._elsewhere(abroad.look()) if run in runs]
            if found:
                return found
        return []

    def _populated(self, held: Held) -> bool:
        return any(pid not in self._orphans.owned for pid in self._tops(held))

    def _slay(self, runs: set[RunId]) -> bool:
        """Kills for a while; whether the last look still found something new."""
        until = monotonic() + _SLICE
        struck: set[tuple[int, int]] = set()
        while monotonic() < until:
            fresh = self._slay_children(runs, struck)
            if not fresh and not self._strike(runs, (signal.SIGKILL,), struck):
                return False
        return True

    def _slay_children(self, runs: set[RunId], struck: set[tuple[int, int]]) -> bool:
        """Kills the direct children. Against what forks and exits this is the race to win: each of its processes is our
        child as soon as the one before is gone, so a look costs microseconds, and an unreaped pid is nobody else's."""
        fresh = False
        for pid in procfs.children():
            if (pid, 0) not in struck and self._run_of_child(pid) in runs:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                struck.add((pid, 0))
                fresh = True
            if pid not in self._orphans.owned:
                reap_orphan(pid)
        return fresh

    # Finding.

    def _run_of_child(self, pid: int) -> RunId | None:
        """The run of a direct child of this process. Of a zombie without a tag there is nothing to tell it by."""
        return self._orphans.owned.get(pid) or self._of_orphan(pid)

    def _run_below(self, pid: int, inherited: RunId | None) -> RunId | None:
        """The run of a process whose parent is in `inherited`."""
        return self._marked_below(pid, inherited) or (self._sole(pid) if inherited is None else None)

    def _marked_below(self, pid: int, inherited: RunId | None) -> RunId | None:
        """The same, by what it provably is: a guess may stop a process, but gives it no rights."""
        owned = self._orphans.owned.get(pid)
        if owned or inherited is None:
            return owned or self._stray(pid) or self._by_mark(pid)
        number = self._by_number(pid)
        return number if number is not None and self._within(number, inherited) else inherited

    def _of_orphan(self, pid: int) -> RunId | None:
        return self._stray(pid) or self._by_mark(pid) or self._sole(pid)

    def _stray(self, pid: int) -> RunId | None:
        process = procfs.stat(pid) if self._strays else None
        return self._strays.get((pid, process.started)) if process else None

    def _by_mark(self, pid: int) -> RunId | None:
        return self._by_number(pid) or (self._by_cookie(pid) if _lives(pid) else None)

    def _sole(self, pid: int) -> RunId | None:
        """The run of an orphan that has removed its marks, where only one tree can be meant."""
        process = procfs.stat(pid)
        return self._sole_tree(process.started) if process and process.alive else None

    def _census(self, runs: set[RunId]) -> Iterator[tuple[Stat, RunId]]:
        """What is alive in these runs, from one scan."""
        self._orphans.reap()
        outside = self._elsewhere(abroad.look()) if runs & self._abroad else ()
        return ((process, run) for process, run in chain(self._all(), outside) if run in runs)

    def _all(self) -> Iterator[tuple[Stat, RunId | None]]:
        """Our living descendants. A zombie has no children any more."""
        table = procfs.scan()
        self._strays = {key: run for key, run in self._strays.items() if run in self._runs and _started(key[0], table) == key[1]}
        families: dict[int, list[Stat]] = defaultdict(list)
        for process in table.values():
            families[_parent(process, table)].append(process)
        pending: list[tuple[int, RunId | None]] = [(os.getpid(), None)]
        while pending:
            parent, inherited = pending.pop()
            for process in (one for one in families.pop(parent, ()) if one.alive):
                run = self._run_below(process.pid, inherited)
                if run is not None and self._by_number(process.pid) not in (None, run):
                    self._strays[(process.pid, process.started)] = run
                pending.append((process.pid, run))
                yield process, run

    def _strike(self, runs: set[RunId], numbers: tuple[int, ...], done: set[tuple[int, int]]) -> bool:
        """Signals what is not in `done` yet; whether there was anything."""
        fresh = [process for process, _ in self._census(runs) if (process.pid, process.started) not in done]
        for process in fresh:
            _send(process, numbers)
            done.add((process.pid, process.started))
        return bool(fresh)

    def _members(self, *tops: Held) -> Iterator[tuple[int, RunId]]:
        return ((process.pid, run) for process, run in self._census(_runs(tops)))

    # Identity.

    def place(self, pid: int, pidfd: int | None) -> RunId | None:
        """The run of a descendant by its nearest ancestor that is known; of an orphan by tag, else by cookie; of any other
        process by cookie. Raises `Unplaceable`, `OSError`."""
        if pid <= 0:
            raise Unplaceable("the process is in another pid namespace")
        run, ours = settled(pid, self._by_descent)
        run = run or by_cookie(pid, self.instance, self._runs)
        if procfs.stat(pid) is None or not still(pidfd):
            raise Unplaceable(f"process {pid} ended before it could be placed")
        if run is None and ours:
            raise left(pid)
        return run

    def _by_descent(self, line: tuple[Stat, ...]) -> tuple[RunId | None, bool]:
        """The run, and whether the process descends from this one."""
        found: RunId | None = None
        ours = descends(line)
        for ancestor in reversed(line[:-1] if ours else line if self._abroad else ()):
            found = self._marked_below(ancestor.pid, found) if ours else self._run_abroad(abroad.trace(ancestor), found)
        return found or None, ours


def _stands(process: Stat) -> bool:
    """Whether it runs no more. Who waits in vfork(2) for a child cannot be stopped, and would wait for ever for one that is; but
    it does nothing else, and is stopped before it does."""
    if process.state in "ZX":  # the main thread has ended, others have not
        return procfs.threads_stopped(process.pid)
    return process.stopped or (process.state == "D" and procfs.will_stop(process.pid))


def _awaits_news(held: Held) -> bool:
    """Whether somebody else has to reap a main process: that can take seconds, and is reported."""
    return any(below.main and not below.main.ours for below in held.subtree())


def _runs(tops: Iterable[Held]) -> set[RunId]:
    """These runs and their descendants."""
    return {below.id for held in tops for below in held.subtree()}


def _started(pid: int, table: dict[int, Stat]) -> int | None:
    return table[pid].started if pid in table else None


def _lives(pid: int) -> bool:
    process = procfs.stat(pid)
    return process is not None and process.alive


def _parent(process: Stat, table: dict[int, Stat]) -> int:
    """Its parent. One that has ended meanwhile has left it to us, if it was below us."""
    above = table.get(process.parent)
    return process.parent if process.parent == 0 or (above and above.alive) else os.getpid()


def _send(process: Stat, numbers: tuple[int, ...]) -> None:
    """Signals exactly this process: between its pidfd and its start time no pid can be mistaken."""
    with suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(process.pid)
        try:
            now = procfs.stat(process.pid)
            if now is not None and now.started == process.started:
                for number in numbers:
                    signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)
