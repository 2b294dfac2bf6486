"""How many events a second the core decides: `python tests/bench/core.py [RUNS]`. The target is 50 000; nothing asserts it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]

from tests.core.load import Load  # noqa: E402


def main() -> None:
    """Prints one line."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    load = Load()
    began = time.process_time()
    load.until(runs)
    took = time.process_time() - began
    # processor time, so that a busy machine does not look like a slow core. The load generator is inside it: the core
    # alone is faster
    print(f"{load.events} events of {runs} runs in {took:.2f} s: {load.events / took:,.0f} events/s")


if __name__ == "__main__":
    main()
