"""What the loop does for a short run, from the request to its end on record, in counts, which the
load of the machine does not touch: the next feature must not make each run slower unseen.

Only functions of the daemon are counted, here without processes and requests. `python -m
tests.bench --only counts` counts all."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import pytest
import trio

import sfad
from sfad.daemon.loop.runtime import Runtime
from sfad.processes.launcher import Emit
from sfad.protocol.types import Status
from tests.bench.ours import CONFIG
from tests.loop.shell import shell, spawned
from tests.processes.fake import FakeLauncher, Script

RUNS = 48
"""With five rows each, less than what calls for a checkpoint."""
LOADS = 4
HERE = str(Path(sfad.__file__).parent)


class Short(FakeLauncher):
    """Its runs end at once."""

    def __init__(self, *, emit: Emit, clock: Callable[[], float], script: object) -> None:
        del script
        super().__init__(emit=emit, clock=clock, script=lambda _run, _spec: Script())


class Counts:
    calls = 0
    """Of functions of the daemon, by the thread that asks for the count."""


@contextmanager
def counting() -> Iterator[Counts]:
    found, ours = Counts(), dict[CodeType, bool]()

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            code = frame.f_code
            if code not in ours:
                ours[code] = code.co_filename.startswith(HERE)
            found.calls += ours[code]

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(before)


def writes() -> int:
    """Return how often this process has called write(2) and its like."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["syscw"])


async def one(runtime: Runtime) -> None:
    over = trio.Event()
    run = await spawned(runtime)
    if not runtime.catalogue.over(run):
        runtime.watchers.wait_for_end(run, lambda _info: over.set())
        await over.wait()
    info = runtime.catalogue.info(run)
    assert info is not None
    assert info.status is Status.COMPLETED


async def one_by_one(runtime: Runtime) -> None:
    for _ in range(RUNS):
        await one(runtime)


async def in_a_batch(runtime: Runtime) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(RUNS):
            nursery.start_soon(one, runtime)


@pytest.mark.parametrize(
    ("load", "calls", "written"), [(one_by_one, 555, 24), (in_a_batch, 450, 6)]
)
async def test_a_run_costs_so_many_calls_and_writes_at_most(
    tmp_path: Path, load: Callable[[Runtime], Awaitable[None]], calls: int, written: int
) -> None:
    """`calls`, `written`: a little more than what it costs today. Raise them only with a reason.
    What is done each second is counted too, so the least of some loads is what counts."""
    made: list[tuple[float, float]] = []
    async with shell(tmp_path, Short, CONFIG) as runtime:
        await one(runtime)
        for _ in range(LOADS):
            before = writes()
            with counting() as found:
                await load(runtime)
            made.append((found.calls / RUNS, (writes() - before) / RUNS))
    assert min(each[0] for each in made) <= calls, f"calls and writes a run: {made}"
    assert min(each[1] for each in made) <= written, f"calls and writes a run: {made}"
