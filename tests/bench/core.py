"""How many events a second the core decides. The target is 50 000; nothing asserts it."""

from __future__ import annotations

import time

from tests.core.load import Load


def main(runs: int = 100_000) -> None:
    """Print one line."""
    load = Load()
    began = time.process_time()
    load.until(runs)
    took = time.process_time() - began
    # processor time, so that a busy machine does not look like a slow core. The load generator is inside it: the core
    # alone is faster
    print(f"core          {load.events} events of {runs} runs in {took:.2f} s: {load.events / took:,.0f} events/s")
