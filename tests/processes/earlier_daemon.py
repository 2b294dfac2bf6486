"""A daemon that launches the runs of a plan and prints what remains of them. Tests kill it.

It is forked from a template, with the arguments KIND INSTANCE PLAN; the plan is a `Plan` as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field

import msgspec
import trio

from sfad.core.events import LaunchSucceeded
from sfad.processes.launcher import Bounds, LaunchRecord
from tests.processes.rig import PATIENCE, Rig
from tests.template import EARLIER, template


def encode(records: Mapping[str, LaunchRecord]) -> str:
    """Return the records as JSON."""
    return msgspec.json.encode(records).decode()


def decode(text: str | bytes) -> dict[str, LaunchRecord]:
    """Return the records from JSON."""
    return msgspec.json.decode(text, type=dict[str, LaunchRecord])


@dataclass
class Plan:
    """Runs to launch: id, parent and command of each."""

    runs: Sequence[tuple[str, str | None, Sequence[str]]]
    frozen: Sequence[str] = ()
    """Runs to pause."""
    program: str = "elf"
    bounds: Mapping[str, int] = field(default_factory=dict)


async def _serve(kind: str, instance: str, plan: Plan) -> None:
    rig = Rig(kind, instance=instance, program=plan.program)
    async with trio.open_nursery() as nursery:
        await nursery.start(rig.launcher.serve)
        for run, parent, argv in plan.runs:
            rig.launch(run, *argv, parent=parent, bounds=Bounds(**plan.bounds))
        for run, _, _ in plan.runs:
            await rig.wait(LaunchSucceeded, run)
        for run in plan.frozen:
            await rig.freeze(run)
        print(
            os.getpid(),
            encode({run: rig.launched(run).record() for run, _, _ in plan.runs}),
            flush=True,
        )
        await trio.sleep_forever()


@contextmanager
def daemon(kind: str, instance: str, plan: Plan) -> Iterator[tuple[int, dict[str, LaunchRecord]]]:
    """Start a daemon; yield its pid and what remains of its runs. At the end it is killed, and its
    runs are not.

    Skips the test where there is no such containment. The daemon's parent, which adopts the runs
    then, reaps at once: pid 1 may take seconds.
    """
    from tests import needs  # imports pytest, which the daemon itself can do without

    needs.containment(kind)
    near, far = os.pipe()
    try:
        words = [kind, instance, json.dumps(asdict(plan))]
        started = template(EARLIER).start(words, os.environ, {1: far, 2: 2})
        assert started.wait(PATIENCE) == 0
    finally:
        os.close(far)
    with open(near, "rb") as file:
        said = file.readline()
    pid, rest = said.split(b" ", 1)
    try:
        yield int(pid), decode(rest)
    finally:
        end(int(pid))


def end(pid: int) -> None:
    """Kill a daemon, if it is there, and wait for that."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(PATIENCE * 1000)
        os.close(pidfd)


def _below_a_reaper() -> None:
    """Continue in a grandchild, whose parent reaps every process that is reparented to it, until
    none is left."""
    if os.fork():
        os._exit(0)
    os.setsid()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    if os.fork() == 0:
        return
    os.close(1)
    with suppress(ChildProcessError):
        while True:
            os.wait()
    os._exit(0)


def dead(
    kind: str, instance: str, *runs: tuple[str, str | None, Sequence[str]], **plan: object
) -> dict[str, LaunchRecord]:
    """Return what remains of the runs of a daemon that was killed."""
    with daemon(kind, instance, Plan(runs, **plan)) as (_, records):  # type: ignore[arg-type]
        pass
    return records


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _below_a_reaper()
    trio.run(_serve, sys.argv[1], sys.argv[2], Plan(**json.loads(sys.argv[3])))
