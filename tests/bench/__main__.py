"""`make bench`: the daemon beside the floor of bare system calls and the other supervisors that are installed.

All are measured in turn, several times, so that the ratios to the floor mean something on a busy machine; the absolute figures
do not. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.bench import counts, gateway, meters, top
from tests.bench.native import NoCompiler
from tests.bench.ours import Sfad, directory
from tests.bench.peers import PEERS, Argv, Peer
from tests.bench.rows import ROWS, Figures, Row, Start

OTHERS = {"gateway": gateway.main, "meters": meters.main, "top": top.main}
"""What is measured only where it is asked for, because the table does not have it."""
Medians = dict[str, dict[str, float]]
"""What was measured, then of whom, then the median."""


def main() -> None:
    """Measure what the command line asks for."""
    options = _options()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each start of the client would compile it
    wanted = options.only.split(",") if options.only else ["W", "recovery", "core", "counts"]
    found: dict[str, object] = {"machine": machine(), "growth": options.growth}
    print(f"{found['machine']}\n", flush=True)
    if not options.growth:
        print("| row | floor | sfad | others |\n|---|---|---|---|", flush=True)
    for row in ROWS:
        if any(row.name.startswith(each) for each in wanted):
            found |= grown(row) if options.growth else table(row, quick=options.quick)
    if "counts" in wanted and not options.growth:
        print("\ncounts for each run of /bin/true, and for each row of a list", flush=True)
        found["counts"] = counts.main()
    for name in set(wanted) & OTHERS.keys():
        OTHERS[name]()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", metavar="ROW,…", help=f"rows that begin with this; counts; {', '.join(OTHERS)}")
    parser.add_argument("--quick", action="store_true", help="small sizes, once")
    parser.add_argument("--growth", action="store_true", help="measure sfad at doubling sizes, and print the exponents")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file too")
    return parser.parse_args()


def machine() -> str:
    """Say when and where this is."""
    return (
        f"{time.strftime('%Y-%m-%d %H:%M')}, {os.cpu_count()} CPUs, Linux {platform.release()}, Python {platform.python_version()}"
    )


def table(row: Row, *, quick: bool) -> dict[str, Medians]:
    """Measure everybody who takes part, and print a line for each figure."""
    found = {}
    for size in row.sizes if row.quick is None or not quick else row.quick:
        name = row.name.replace("N", f"{size}")
        peers: list[type[Peer]] = [Sfad]
        if row.peers:
            peers += [peer for peer in PEERS if peer.installed() and not any(name.startswith(each) for each in peer.without)]
        found[name] = measured(row, size, peers, 1 if quick else row.repeats)
        for what, figures in found[name].items():
            print(line(f"{name}: {what}", figures), flush=True)
    return found


def measured(row: Row, size: int, peers: Sequence[type[Peer]], repeats: int) -> Medians:
    """Return medians of repeats, which take turns."""
    taken: dict[str, dict[str, list[float]]] = {}
    for _ in range(repeats):
        for who, figures in turns(row, size, peers):
            for what, figure in figures.items():
                taken.setdefault(what, {}).setdefault(who, []).append(figure)
    return {what: {who: statistics.median(each) for who, each in figures.items()} for what, figures in taken.items()}


def turns(row: Row, size: int, peers: Sequence[type[Peer]]) -> Iterator[tuple[str, Figures]]:
    """Yield what each has reached, the floor first."""
    try:
        if row.floor is not None:
            yield "floor", row.floor(size)
    except NoCompiler as error:
        print(f"{row.name}: no floor: {error}", file=sys.stderr)
    for peer in peers:
        try:
            yield peer.name, row.measure(starting(peer), size)
        except NoCompiler as error:
            print(f"{row.name}: {error}", file=sys.stderr)
            return
        except Exception as error:
            if peer is Sfad:
                raise
            print(f"{row.name}: {peer.name}: {error!r}", file=sys.stderr)  # others may not stop the measurement


def starting(peer: type[Peer]) -> Start:
    """Return the function that starts this peer in a directory of its own."""

    @contextmanager
    def start(*runs: tuple[Argv, int]) -> Iterator[Peer]:
        with directory() as place:
            one = peer(place, runs)
            try:
                yield one
            finally:
                one.close()

    return start


def line(what: str, figures: dict[str, float]) -> str:
    """Return a line of the table."""
    told = {
        who: number(figure) + (f" = {number(figure / figures['floor'])} ×" if figures.get("floor") else "")
        for who, figure in figures.items()
    }
    others = ", ".join(f"{who} {each}" for who, each in told.items() if who not in ("floor", "sfad"))
    return f"| {what} | {number(figures['floor']) if 'floor' in figures else ''} | {told.get('sfad', '')} | {others} |"


def number(figure: float) -> str:
    """Return a figure with some three digits."""
    return f"{figure:,.0f}".replace(",", " ") if figure >= 100 else f"{figure:.3g}"


def grown(row: Row) -> dict[str, object]:
    """Measure ours at doubling sizes, and print the exponent of each figure."""
    taken = [row.measure(starting(Sfad), size) for size in row.growth]
    found: dict[str, object] = {}
    for what in taken[0] if taken else ():
        points = [(size, each[what]) for size, each in zip(row.growth, taken, strict=True) if each[what] > 0]
        if len(points) < 2:
            continue  # there is no logarithm of nothing
        power = exponent(points)
        found[f"{row.name}: {what}"] = {"sizes": dict(points), "exponent": power}
        sizes = ", ".join(f"{size}: {number(figure)}" for size, figure in points)
        print(f"| {row.name}: {what} | {sizes} | {power:.2f} |", flush=True)
    return found


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the power of the size that fits best: least squares of the logarithms."""
    xs, ys = ([math.log(each) for each in column] for column in zip(*points, strict=True))
    return statistics.linear_regression(xs, ys).slope


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    main()
