"""What is promised whatever happens to the daemon, looked for from outside. Every check returns
what is wrong, a line each."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path

import msgspec
import psutil

from sfactl.connecting.connection import Client
from sfad.core.state.run import run_number
from sfad.protocol import messages as m
from sfad.protocol.types import RunId, RunInfo, Status
from sfad.storage.store import Store
from tests.e2e.provider import IN_USD, OUT_USD, Provider
from tests.harness import Daemon, alive, carriers
from tests.leaks import cgroups

from .victim import Diary

SETTLED = 8.0
"""Seconds that what is shown may take to follow what is: another process reaps adopted processes,
and the machine may be loaded."""

_TRUE = frozenset({Status.COMPLETED, Status.FAILED, Status.LOST})


def settle(check: Callable[[], list[str]], seconds: float = SETTLED) -> list[str]:
    """What is wrong at every look: no look is of one moment, and what it shows as alive may end
    before it is looked at."""
    wrong = check()
    # the first look may have waited for a daemon, and tell what the one before said
    until = time.monotonic() + seconds
    while wrong and time.monotonic() < until:
        time.sleep(0.05)
        found = set(check())
        wrong = [line for line in wrong if line in found]
    return wrong


def all_runs(client: Client) -> dict[RunId, RunInfo]:
    """Return every run that the daemon knows, the oldest first, fetched page by page."""
    runs: list[RunInfo] = []
    before: RunId | None = None
    while True:
        page = client.call(m.List(id=client.next_id(), rows=1_000_000, before=before), m.RunList)
        runs = page.runs + runs
        if page.next is None:
            return {run.id: run for run in runs}
        before = page.next


def present(
    client: Client, daemon: Daemon, acknowledged: Collection[RunId], read: Callable[[], Diary]
) -> list[str]:
    """Of what is alive: all of it is a live run's, and every live run is what it is shown to be."""
    members = _carriers(daemon)
    shown = all_runs(client)
    wrong = [
        f"{run} was acknowledged and is not listed" for run in acknowledged if run not in shown
    ]
    for process, run in members:
        if (
            (run not in shown or shown[run].status.terminal)
            and process.is_running()
            and alive(process.pid)
        ):
            wrong.append(
                f"process {process.pid} of {run} is alive, and the run {_status(shown, run)}"
            )
    diary = read()
    for info in shown.values():
        wrong += _not_as_shown(info, diary)
    return wrong


def _status(shown: Mapping[RunId, RunInfo], run: RunId) -> str:
    return f"is {shown[run].status}" if run in shown else "is unknown"


def _not_as_shown(info: RunInfo, diary: Diary) -> list[str]:
    if info.status not in {Status.RUNNING, Status.PAUSED}:
        return []
    if info.pid is None or not alive(info.pid):
        return [f"{info.id} is shown {info.status} with pid {info.pid}, which is dead"]
    pids = {attempt.pid for attempt in diary.of(info.id) if attempt.number == info.attempts}
    if pids and pids != {info.pid}:
        return [f"{info.id} is shown with pid {info.pid}, and is {pids}"]
    return []


def _carriers(daemon: Daemon) -> list[tuple[psutil.Process, RunId]]:
    """Processes with a cookie of the instance, or in its cgroups."""
    found: dict[int, tuple[psutil.Process, RunId]] = {
        one[0].pid: one for one in carriers(daemon.instance)
    }
    for base in (path for path in cgroups() if path.endswith(f"/sfad-{daemon.instance}")):
        for directory, _, _ in os.walk(base):
            for pid in _procs(directory):
                try:
                    found[pid] = psutil.Process(pid), _run_of(directory)
                except psutil.Error:
                    continue
    return list(found.values())


def _procs(directory: str) -> list[int]:
    try:
        return [int(line) for line in Path(directory, "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _run_of(directory: str) -> RunId:
    for name in reversed(directory.split("/")):
        try:
            run_number(name)
        except ValueError:
            continue
        return name
    return directory


def history(
    shown: Mapping[RunId, RunInfo],
    diary: Diary,
    finals: Mapping[RunId, RunInfo],
    *,
    unique: bool = True,
) -> list[str]:
    """Of what has been: nothing ran twice, and how it ended is the truth, or not known. `finals`:
    as ends were told. `unique`: a label is one request's."""
    again = Counter((attempt.run, attempt.number) for attempt in diary.begun)
    wrong = [
        f"attempt {number} of {run} ran {times} times"
        for (run, number), times in again.items()
        if times > 1
    ]
    if unique:
        wrong += [
            f"{label} was asked for once and ran as {sorted(runs)}"
            for label, runs in diary.runs.items()
            if len(runs) > 1
        ]
    wrong += [
        f"{run} ran and is not listed"
        for run in {attempt.run for attempt in diary.begun} - set(shown)
    ]
    for info in shown.values():
        wrong += _untrue(info, diary)
    for run, told in finals.items():
        now = shown.get(run)
        if now is not None and (told.status, told.exit_code, told.signal) != (
            now.status,
            now.exit_code,
            now.signal,
        ):
            wrong.append(f"{run} was told to be {_end(told)}, and is {_end(now)}")
    return wrong


def charged(shown: Mapping[RunId, RunInfo], provider: Provider) -> list[str]:
    """Of model calls: each was charged once, and by no more than was reserved for it."""
    told = sum(run.total_cost_usd or 0 for run in shown.values() if run.name == "calling")
    most = sum(
        IN_USD * (1 + bill.size / 2.5) + OUT_USD * bill.max_tokens for bill in provider.bills
    )
    if provider.usd - 1e-9 <= told <= most + 1e-9:
        return []
    return [
        (
            f"the provider has billed {provider.usd:.6f} USD, "
            f"for which at most {most:.6f} were reserved, and {told:.6f} were charged"
        )
    ]


def gateway_of(daemon: Daemon) -> int | None:
    """Return the pid of the daemon's gateway, if it is alive."""
    pid = int(msgspec.json.decode((daemon.state_dir / "gateway.json").read_bytes())["pid"])
    return pid if pid and alive(pid) else None


def no_gateway(daemon: Daemon) -> list[str]:
    """After the daemon has ended: so has its gateway."""
    pid = gateway_of(daemon)
    return [f"the gateway {pid} is alive"] if pid is not None else []


def _untrue(info: RunInfo, diary: Diary) -> list[str]:
    if not info.status.terminal or info.status.rejected:
        return []
    attempts = diary.of(info.id)
    truth = diary.codes.get((info.id, max((one.number for one in attempts), default=0)))
    if info.exit_code is not None and attempts and info.exit_code != truth and truth is not None:
        return [f"{info.id} is {_end(info)}, and said that it would exit with {truth}"]
    if info.status is Status.COMPLETED and (info.exit_code != 0 or (attempts and truth != 0)):
        return [f"{info.id} is {_end(info)}, and said that it would exit with {truth}"]
    if info.status is Status.LOST and info.exit_code is not None and info.exit_code != truth:
        return [f"{info.id} is {_end(info)}"]
    if info.ended_at is None:
        return [f"{info.id} is {_end(info)} and has no end"]
    return []


def _end(info: RunInfo) -> str:
    return (
        f"{info.status} (code {info.exit_code}, "
        f"signal {info.signal}, {info.reason.message if info.reason else '-'})"
    )


def nothing_left(daemon: Daemon) -> list[str]:
    """When everything was stopped."""
    wrong = [f"process {process.pid} of {run} is alive" for process, run in _carriers(daemon)]
    for base in (path for path in cgroups() if path.endswith(f"/sfad-{daemon.instance}")):
        wrong += [f"cgroup {entry.path} is there" for entry in os.scandir(base) if entry.is_dir()]
    wrong += [
        f"{path.name} is in the spool" for path in (daemon.state_dir / "spool").glob("*.spawn*")
    ]
    keys = [key.split("/") for key in _remembered(daemon)]
    remembered = {key[1] for key in keys if key[0] in ("run", "now", "meter")}
    wrong += [
        f"{run} is remembered, and its end is not on record"
        for run in remembered - _ended(daemon.state_dir / "ledger.db")
    ]
    return wrong + _ledger(daemon.state_dir / "ledger.db")


def _ended(path: Path) -> set[RunId]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as ledger:
        return {run for (run,) in ledger.execute("SELECT id FROM runs WHERE ended = 1")}


def _remembered(daemon: Daemon) -> list[str]:
    """Read a copy, because opening a store may repair it."""
    with tempfile.TemporaryDirectory() as directory:
        copy = shutil.copy(daemon.state_dir / "spool" / "runs", directory)
        journal = Store(Path(copy))
        journal.close()
        return list(journal.items)


def _ledger(path: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as ledger:
        wrong = [
            f"the ledger: {found}"
            for (found,) in ledger.execute("PRAGMA quick_check")
            if found != "ok"
        ]
        rows = ledger.execute("SELECT id, status FROM runs WHERE ended = 0").fetchall()
        doubles = ledger.execute(
            "SELECT id, count(*) FROM runs GROUP BY id HAVING count(*) > 1"
        ).fetchall()
    return (
        wrong
        + [f"the ledger shows {run} as {status}" for run, status in rows]
        + [f"{run} is twice on record" for run, _ in doubles]
    )
