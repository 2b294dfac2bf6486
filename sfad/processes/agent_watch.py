"""Notices agent programs within runs: by the kernel's events of execve(2), else by looking at all
processes twice a second.

Most processes are told from agents by one read of /proc/PID/cmdline and one question about the file
that they execute (`executed_files`). While no run is live, nothing is looked at.
"""

import math
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import psutil
import trio
from msgspec import Struct

from ..core.events import AgentProcess, AgentSeen
from ..core.state.naming import agent_of, executed_word, only_tells
from ..host.linux.process_events import ExecEvents
from ..host.tasks import in_thread
from ..protocol.known import KNOWN_PROGRAMS
from ..protocol.types import RunId
from . import kernel
from .contain.interface import RunContainment
from .executed_files import Executed, ExecutedFiles, Unsure
from .launched_runs import LaunchedRun, LaunchedRuns
from .launcher import Unidentifiable
from .watch import Emitter, Reactor

_LOOK_EVERY = 0.5
"""Seconds between two looks at all processes; with exec events, until the first and only one."""
_SHARE = 19
"""A pause is at least so many times as long as the look before it, so looking takes at most a
twentieth of a CPU."""
_GATHER = 0.05
"""Seconds for which exec events gather if there are many: a build may execute a thousand programs a
second, and each wake-up costs more than a look at a process."""
_AT_ONCE, _BACK = 20, 0.1
"""Wake-ups without gathering, for what lives for some milliseconds only, and the seconds in which
one of them comes back."""
_BEGIN = 0.005
"""Seconds before the first wait for events: a run that ends sooner costs none."""
_MAX_COMMAND = 512
"""Characters of a command line that are told."""
_MAX_ABOVE = 64
"""Ancestors of a process that are looked at."""


class _Seen(Struct, frozen=True):
    started: int
    program: str
    command: int
    """The hash of its command line: `env -i claude` becomes `claude`, which is told again."""
    word: int | None = None


class _Question(NamedTuple):
    process: Unsure
    arguments_at: int
    """As `kernel.arguments_at`: another one when it executes something else."""


class AgentWatch:
    def __init__(
        self, reactor: Reactor, emitter: Emitter, runs: LaunchedRuns, containment: RunContainment
    ) -> None:
        self._reactor = reactor
        self._emitter = emitter
        self._runs = runs
        self._containment = containment
        self._programs: frozenset[str] = frozenset()
        self._mentioned = re.compile(rb"(?!)")
        self._files = ExecutedFiles(self._programs)
        self._unsure: dict[int, _Question] = {}
        """Processes whose files are to be searched, by pid."""
        self._searching: set[RunId] = set()
        """Runs of which files are searched now. Their file systems may never answer, which must
        delay no other run."""
        self._told: dict[int, _Seen] = {}
        """What the last look at all processes has found, by pid."""
        self._at_once = float(_AT_ONCE)
        self._counted_at = -math.inf
        self._scope = trio.CancelScope()
        self._waiting: trio.CancelScope | None = None
        """That of the wait for events; `None` while it does not wait."""
        self._leave_at = 0.0
        """Until then it goes on without a live run."""
        runs.emptied = self._stop_soon

    def watch(self, programs: frozenset[str]) -> None:
        if programs != self._programs:
            self._programs = programs
            # each package that a program comes in is named after it
            self._mentioned = re.compile(
                b"|".join(re.escape(name.encode()) for name in programs) or rb"(?!)"
            )
            self._files, self._unsure, self._told = ExecutedFiles(programs), {}, {}
            self._scope.cancel()

    async def serve(self) -> None:
        while True:
            with trio.CancelScope() as self._scope:
                if not self._programs:
                    await trio.sleep_forever()
                while True:
                    await self._runs.some()
                    try:
                        events = ExecEvents()
                    except OSError:
                        await self._look_now_and_then()
                    else:
                        with events:
                            await self._follow(events)

    async def _follow(self, events: ExecEvents) -> None:
        """Look at what the kernel tells, until no run is live, and some time beyond that: runs may
        follow each other, and to begin again takes as much as ten of them."""
        look_at = trio.current_time() + _LOOK_EVERY  # runs may have been adopted
        await trio.sleep(self._pause(_BEGIN))
        while self._runs or trio.current_time() < self._leave_at:
            pause, complete = 0.0, True
            until = look_at if self._runs else self._leave_at
            # one for many waits: it costs more than a wait
            with trio.CancelScope(deadline=until) as self._waiting:
                while complete and not pause:
                    await trio.lowlevel.wait_readable(events)
                    pids = events.pids()
                    complete = pids is not None
                    if pids is not None and self._runs:
                        self._look_at(pids)
                        self._search_soon()
                    pause = self._pause(0)
            self._waiting = None
            if self._runs and (not complete or trio.current_time() >= look_at):
                pause, look_at = max(_GATHER, self._look_at_all()), math.inf
                self._search_soon()
            if pause:
                await trio.sleep(pause)

    def _stop_soon(self) -> None:
        """Look soon whether a run is live."""
        waiting, self._leave_at = self._waiting, trio.current_time() + _LOOK_EVERY
        # to set it costs ten calls, whatever it was
        if waiting is not None and self._leave_at < waiting.deadline:
            waiting.deadline = self._leave_at

    def _pause(self, least: float) -> float:
        """Count a wake-up. Return for how long events gather: `least` while wake-ups are rare."""
        now = trio.current_time()
        self._at_once = min(_AT_ONCE, self._at_once + (now - self._counted_at) / _BACK)
        self._counted_at = now
        if self._at_once < 1:
            return _GATHER
        self._at_once -= 1
        return least

    async def _look_now_and_then(self) -> None:
        pause = _LOOK_EVERY
        while self._runs:
            await trio.sleep(pause)
            pause = max(_LOOK_EVERY, self._look_at_all())
            self._search_soon()

    def _look_at(self, pids: Iterable[int]) -> None:
        for pid in sorted(pids):  # parents first
            seen = self._seen(pid)
            if seen is not None:
                self._tell(pid, seen)

    def _look_at_all(self) -> float:
        """Tell agents that the last look has not found. Return for how long to pause after it.
        Raises `OSError`."""
        began = trio.current_time()
        before, self._told = self._told, {}
        for pid in psutil.pids():
            seen = self._seen(pid)
            if seen is not None and (before.get(pid) == seen or self._tell(pid, seen)):
                self._told[pid] = seen
        return _SHARE * (trio.current_time() - began)

    def _seen(self, pid: int) -> _Seen | None:
        """Return which agent program a process executes, if it does, as far as that is known
        without a search."""
        cmdline = kernel.read(f"/proc/{pid}/cmdline")
        if not cmdline:
            return None
        executed, unsure = self._executed(pid, cmdline)
        if unsure is not None:
            self._unsure[pid] = _Question(unsure, kernel.arguments_at(pid))
        return self._as_seen(pid, executed, cmdline)

    def _executed(
        self, pid: int, cmdline: bytes
    ) -> tuple[tuple[str, int | None] | None, Unsure | None]:
        """Return the program and the word that stands for it; and what to search, if that may find
        another."""
        words = kernel.words(cmdline)
        if only_tells(words):
            return None, None
        named = agent_of(words, self._programs) if self._mentioned.search(cmdline) else None
        told = self._files.told(pid, words)
        if isinstance(told, Executed) and told.program != named:
            return told, None
        unsure = told if isinstance(told, Unsure) else None
        if unsure is not None and named is not None and unsure.interpreter is not None:
            unsure = None  # its script is named
        return (named, None) if named is not None else None, unsure

    def _as_seen(
        self, pid: int, executed: tuple[str, int | None] | None, cmdline: bytes
    ) -> _Seen | None:
        process = kernel.stat(pid) if executed is not None else None
        return (
            _Seen(process.started, executed[0], hash(cmdline), executed[1])
            if process is not None and process.alive and executed is not None
            else None
        )

    def _search_soon(self) -> None:
        """Search the files of processes that have not shown what they execute."""
        unsure, self._unsure = self._unsure, {}
        wanted: dict[RunId, list[_Question]] = {}
        for each in unsure.values():
            with suppress(Unidentifiable):
                if (run := self._run_of(each.process.pid)) is not None:
                    main = run.main.pid if run.main is not None else None
                    process = each.process._replace(main=main)
                    wanted.setdefault(run.id, []).append(each._replace(process=process))
        for run_id, questions in wanted.items():
            if run_id in self._searching:
                self._unsure.update((each.process.pid, each) for each in questions)
            else:
                self._searching.add(run_id)
                self._reactor.task(self._search, run_id, questions)

    async def _search(self, run: RunId, wanted: list[_Question]) -> None:
        """Tell the agent programs of a run that only their files show. Raises `OSError`."""
        own = trio.CapacityLimiter(1)
        processes = [each.process for each in wanted]
        found = await in_thread(self._files.search, processes, abandon=True, limiter=own)
        self._searching.discard(run)
        for each in wanted:
            pid = each.process.pid
            executed = found.get(pid)
            cmdline = kernel.read(f"/proc/{pid}/cmdline")
            if executed is None or not cmdline:
                continue
            if kernel.arguments_at(pid) == each.arguments_at:
                seen = self._as_seen(pid, executed, cmdline)
            else:  # it executes another program by now
                seen = self._seen(pid)
            if seen is not None:
                self._tell(pid, seen)
        if self._unsure:
            self._search_soon()

    def _tell(self, pid: int, seen: _Seen) -> bool:
        """Tell an agent program that is in a run. Return whether it need not be looked at again."""
        if not kernel.executed(pid):
            return False  # it is its parent's program, until it executes one
        if hash(kernel.read(f"/proc/{pid}/cmdline")) != seen.command:
            # it has executed one meanwhile, and was its parent's program before
            found = self._seen(pid)
            if found is None:
                return False
            seen = found
        try:
            run = self._run_of(pid)
        except Unidentifiable:
            return False
        if run is not None:
            self._emitter.emit(AgentSeen, run.id, self._described(run, pid, seen))
        return True

    def _run_of(self, pid: int) -> LaunchedRun | None:
        """Raises `Unidentifiable`."""
        run_id = self._containment.run_of(pid, None)
        return self._runs.get(run_id) if run_id is not None else None

    def _program_of(self, pid: int) -> str | None:
        cmdline = kernel.read(f"/proc/{pid}/cmdline")
        executed, _ = self._executed(pid, cmdline) if cmdline else (None, None)
        return executed[0] if executed is not None else None

    def _described(self, run: LaunchedRun, pid: int, seen: _Seen) -> AgentProcess:
        main = run.main.command if run.main is not None else None
        line = [
            each.pid
            for each in islice(kernel.ancestors(pid, os.getpid()), _MAX_ABOVE)
            if each.pid != os.getpid()
        ]
        if main in line:
            line = line[: line.index(main) + 1]
        above = tuple((each, self._program_of(each)) for each in line[1:])
        own_group = False
        with suppress(ProcessLookupError):
            own_group = len(line) > 1 and os.getpgid(pid) != os.getpgid(line[1])
        words = kernel.command(pid)
        return AgentProcess(
            pid=pid,
            started=seen.started,
            program=seen.program,
            command=" ".join(words)[:_MAX_COMMAND],
            above=above,
            is_main=pid == main,
            below_main=main in line[1:],
            own_group=own_group,
            serves=_serves(words, seen),
            word=seen.word,
        )


def _serves(words: list[str], seen: _Seen) -> bool:
    """Return whether a process is a background process of an agent program's own."""
    at = seen.word if seen.word is not None else executed_word(words, seen.program)
    known = KNOWN_PROGRAMS.get(seen.program)
    return (
        at is not None
        and known is not None
        and known.serves is not None
        and words[at + 1 : at + 2] == [known.serves]
    )
