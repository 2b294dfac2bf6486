"""`python -m tests.crash`: the daemon dies at each effect in turn. One line a point, and a
summary."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count
from pathlib import Path

from tests import surroundings

from .point import KINDS, MODES, Outcome, Point, crash

AFTER_RECOVERY = 12
"""Effects after it serves again of which each is tried: those are the scenario's, which is tried by
itself."""


def attempt(root: Path, point: Point) -> Outcome:
    """In a process of its own. What failed is kept to be looked at."""
    directory = root / f"{point.kind[:3]}-{point.mode}-{point.number}"
    directory.mkdir()
    outcome = crash(directory, point)
    if not outcome.wrong:
        shutil.rmtree(directory)
    return outcome


AFTER_EXECVE = 60
"""Effects after a process has decided to re-execute itself, of which each is tried: likewise."""


class Series:
    """One kind in one mode, until there is no such effect any more."""

    def __init__(self, kind: str, mode: str, first: int, step: int) -> None:
        self._numbers = count(first, step)
        self._kind, self._mode = kind, mode
        self._beyond = 0
        self.over = False

    def next(self) -> Point:
        """Where to die next."""
        return Point(self._kind, self._mode, next(self._numbers))

    def learn(self, outcome: Outcome) -> None:
        """Whether it goes on."""
        if self._kind == "recovery" and outcome.effect is not None and outcome.serving:
            self._beyond += 1
        renewed = self._kind == "reexec" and outcome.point.number >= AFTER_EXECVE
        self.over |= outcome.effect is None or self._beyond > AFTER_RECOVERY or renewed


def outcomes(root: Path, series: Series, jobs: int) -> Iterator[Outcome]:
    """As they come."""
    with ProcessPoolExecutor(jobs) as pool:
        running: set[Future[Outcome]] = set()
        while running or not series.over:
            while len(running) < jobs and not series.over:
                running.add(pool.submit(attempt, root, series.next()))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                series.learn(future.result())
                yield future.result()


def main() -> int:
    """0 if every promise was kept at every point."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--mode", choices=MODES, action="append", help="both, if it is not said")
    parser.add_argument("--kind", choices=KINDS, action="append", help="all, if it is not said")
    parser.add_argument(
        "--from", dest="first", type=int, default=1, metavar="N", help="the first effect"
    )
    parser.add_argument("--every", type=int, default=1, metavar="K", help="only each K-th effect")
    parser.add_argument("--jobs", type=int, default=2, help="points at a time")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="sfad-crash-"))
    surroundings.enter(root / "surroundings")
    began = time.monotonic()
    effects: Counter[str] = Counter()
    failed: list[Outcome] = []
    for mode in options.mode or MODES:
        for kind in options.kind or KINDS:
            for outcome in outcomes(
                root, Series(kind, mode, options.first, options.every), options.jobs
            ):
                print(outcome, flush=True)
                effects.update([outcome.effect] if outcome.effect else [])
                failed += [outcome] if outcome.wrong else []
    print(
        f"\n{sum(effects.values())} deaths in {time.monotonic() - began:.0f} s, "
        f"{len(failed)} broke a promise"
    )
    print(", ".join(f"{what} {times}" for what, times in effects.most_common()))
    for outcome in failed:
        print(f"broken: {outcome.point} at {outcome.effect!r}")
    if failed:
        print(f"what they left is in {root}")
        return 1
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
