"""`make mutants`: plant one defect at a time in what decides about rights, limits, money,
containment and isolation, and show the defects that no test notices. Needs root, for namespaces in
which a defect cannot end processes of others."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from .cage import ROOT, CageError, outcome
from .planting import Mutant, mutants

HERE = Path(__file__).parent
ONCE = 1800.0
"""Seconds that tests without a defect may take."""


@dataclass(frozen=True)
class Guarded:
    """A module, and the tests that must notice its defects."""

    module: str
    part: str
    stages: Sequence[str]
    """Tests that run one after the other, as words below `tests/`. The first ones take seconds."""


def table() -> list[Guarded]:
    """Read the table."""
    return [
        Guarded(str(path.relative_to(ROOT)), part, [tests, row["slow"]])
        for part, row in tomllib.loads((HERE / "parts.toml").read_text()).items()
        for pattern, tests in row["modules"].items()
        for path in sorted(ROOT.glob(pattern))
    ]


def harmless() -> dict[tuple[str, str, str], str]:
    """Read why some mutants are harmless, by module, what was there and what is."""
    table = tomllib.loads((HERE / "harmless.toml").read_text())
    return {
        (module, row["was"], row["now"]): row["why"]
        for module, rows in table.items()
        for row in rows
    }


class Trial:
    """Tries mutants."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._most: dict[str, float] = {}
        self._locks: dict[str, Lock] = defaultdict(Lock)

    def attempt(self, guarded: Guarded, mutant: Mutant) -> str:
        """Return what noticed the mutant, or `""`."""
        for tests in guarded.stages[: self._stages]:
            if noticed := outcome(tests, self._seconds(tests), mutant.module, mutant.code):
                return noticed
        return ""

    def _seconds(self, tests: str) -> float:
        """Return how long tests may take with a defect. They are run without one before they are
        first needed."""
        with self._locks[tests]:
            if tests not in self._most:
                began = time.monotonic()
                if failed := outcome(tests, ONCE):
                    raise CageError(f"without a defect: {failed}")
                self._most[tests] = 60 + 4 * (time.monotonic() - began)
            return self._most[tests]


def main() -> int:
    """0 if each mutant was noticed, or is known to be harmless."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--most",
        type=int,
        default=300,
        metavar="N",
        help="mutants, chosen by --seed; 0: all (default: 300)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="another number chooses other mutants (default: 1)"
    )
    parser.add_argument(
        "--part", action="append", default=[], help="a part of parts.toml (default: all)"
    )
    parser.add_argument(
        "--module",
        action="append",
        default=[],
        help="a module, such as sfad/core/admission/guard.py (default: all)",
    )
    parser.add_argument("--fast", action="store_true", help="leave out the tests that are slow")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default: 2)")
    options = parser.parse_args()
    known = harmless()
    every = [
        (guarded, mutant)
        for guarded in table()
        if guarded.part in (options.part or [guarded.part])
        and guarded.module in (options.module or [guarded.module])
        for mutant in mutants(ROOT, guarded.module)
    ]
    chosen = random.Random(options.seed).sample(every, min(options.most or len(every), len(every)))
    tried = [(guarded, mutant) for guarded, mutant in chosen if mutant.key not in known]
    print(
        f"{len(chosen)} of {len(every)} mutants, {len(chosen) - len(tried)} of them harmless",
        flush=True,
    )
    began = time.monotonic()
    trial = Trial(1 if options.fast else 2)
    survivors: list[Mutant] = []
    counts: dict[str, Counter[str]] = {guarded.part: Counter() for guarded, _ in tried}
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            found = {pool.submit(trial.attempt, *one): one for one in tried}
            for future in as_completed(found):
                (guarded, mutant), noticed = found[future], future.result()
                word = (
                    "survived" if not noticed else "timeout" if noticed == "timeout" else "killed"
                )
                counts[guarded.part][word] += 1
                print(f"{word} {noticed}\n{mutant}", flush=True)
                survivors += [] if noticed else [mutant]
        except (CageError, KeyboardInterrupt) as error:
            pool.shutdown(cancel_futures=True)
            print(f"mutants: {error or 'interrupted'}", file=sys.stderr)
            return 1
    print(f"\n{len(tried)} mutants in {time.monotonic() - began:.0f} s")
    for name, count in counts.items():
        print(f"  {name}: " + ", ".join(f"{times} {word}" for word, times in sorted(count.items())))
    for mutant in survivors:
        print(f"\nsurvived: {mutant}")
    return int(bool(survivors))


if __name__ == "__main__":
    os.nice(10)
    sys.exit(main())
