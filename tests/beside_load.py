"""Repeats the fast tier beside a load: `python -m tests.beside_load --times 10 --load 8`. Each
failure is a flaky test.

The load is processes that compute without pause, with the priority of the tests.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from contextlib import ExitStack


def main() -> int:
    """0 if no test failed in any repetition."""
    parser = argparse.ArgumentParser(prog="python -m tests.beside_load", description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="repetitions (default: 10)")
    parser.add_argument(
        "--load", type=int, default=8, help="processes beside the tests (default: 8)"
    )
    options, words = parser.parse_known_args()
    failed = 0
    with ExitStack() as stack:
        for _ in range(options.load):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(busy.kill)
        for number in range(1, options.times + 1):
            began = time.monotonic()
            code = subprocess.run(
                [sys.executable, "-m", "tests.suite", "--tier", "fast", *words]
            ).returncode
            failed += code != 0
            print(
                f"\n==== repetition {number}: exit code {code}, {time.monotonic() - began:.0f} s",
                flush=True,
            )
    print(f"\n{failed} of {options.times} repetitions failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
