"""A daemon that re-executes itself with runs alive, and then prints what it finds and what is
reported, as JSON lines.

`python -m tests.processes.reexecuted KIND INSTANCE`; the second time also with what remains of the
runs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import psutil
import trio
from msgspec import structs

from sfad.core.events import Event, LaunchFailed, MainExited
from sfad.processes import kernel
from tests.processes.earlier_daemon import decode, encode
from tests.processes.rig import PATIENCE, Rig

TICK = "trap 'exit 7' TERM; while :; do sleep 0.02; done"
EXPECTED = {"a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"}
PARENTS = {"a2": "a1"}


def zombie(pid: int) -> None:
    """Block until a child has ended; it is not reaped meanwhile."""
    until = time.monotonic() + PATIENCE
    while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.001)


async def first(kind: str, instance: str) -> None:
    """Launch runs, and become the second daemon."""
    rig = Rig(kind, instance=instance)
    async with trio.open_nursery() as nursery:
        await nursery.start(rig.launcher.serve)
        rig.launch("a1", "sh", "-c", TICK)
        rig.launch("a2", "sh", "-c", TICK, parent="a1")
        rig.launch("a3", "sleep", "1000")  # a signal ends it before the re-exec
        rig.launch("a8", "sh", "-c", "setsid --fork sleep 1000; exit 4")  # it leaves a process
        await rig.running("a1", "a2", "a3")
        await rig.wait(MainExited, "a8")
        rig.launch("a4", "sh", "-c", "exit 5")  # the launches from here on are in flight
        rig.launch("a5", "/nonexistent/command")
        rig.launch("a6", "no\0such")  # it was not even spawned
        rig.launch("a7", "sh", "-c", TICK)
        zombie(rig.main("a4").pid)
        zombie(rig.main("a5").pid)
        os.kill(rig.main("a3").pid, signal.SIGUSR1)
        zombie(rig.main("a3").pid)
        records = encode(rig.launcher.hand_over())
        try:
            os.execve("/nonexistent", ["/nonexistent"], {})
        except OSError:
            rig.launcher.take_back()
        assert not any(map(os.get_inheritable, descriptors()))
        records = encode(rig.launcher.hand_over())
        command = [sys.executable, "-m", "tests.processes.reexecuted", kind, instance, records]
        os.execve(sys.executable, command, dict(os.environ))


def descriptors() -> list[int]:
    """Return the open descriptors above 2."""
    return [
        int(name)
        for name in os.listdir("/proc/self/fd")
        if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}")
    ]


async def second(kind: str, instance: str, records: str) -> None:
    """Adopt the runs, ask the ticking ones to end, and print what is reported."""
    rig = Rig(kind, instance=instance)
    for run, one in decode(records).items():
        say(run, "adopted", structs.asdict(rig.launcher.adopt(run, PARENTS.get(run), one)))
    say("", "inheritable", sum(map(os.get_inheritable, descriptors())))
    async with trio.open_nursery() as nursery:
        await nursery.start(rig.launcher.serve)
        await rig.running("a4", "a7")
        for run in ("a2", "a1", "a7"):
            rig.launcher.signal_main(run, signal.SIGTERM)
        for run in ("a1", "a2", "a3", "a4", "a7"):
            await rig.wait(MainExited, run)
        for run in ("a5", "a6"):
            await rig.wait(LaunchFailed, run)
        await rig.stop("a8", "a7", "a6", "a5", "a4", "a3", "a2", "a1")
        for event in rig.events:
            tell(event)
        nursery.cancel_scope.cancel()
    rig.launcher.close()


def say(run: str, what: str, value: object) -> None:
    """Print a line."""
    print(json.dumps([run, what, value]), flush=True)


def tell(event: Event) -> None:
    """Print a line about an event."""
    fields = structs.asdict(event)
    say(
        fields["run"],
        type(event).__name__,
        {name: fields[name] for name in ("code", "signal", "errno") if name in fields},
    )


if __name__ == "__main__":
    kind, instance, *records = sys.argv[1:]
    if records:
        say("", "inherited", len(descriptors()))
        trio.run(second, kind, instance, records[0])
        say("", "left", len(kernel.children()) + len(descriptors()))
    else:
        trio.run(first, kind, instance)
