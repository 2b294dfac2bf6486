"""`make bench`: the daemon beside the floor of bare system calls and the other supervisors that are
installed.

All are measured in turn, several times, so that the ratios to the floor mean something on a busy
machine; the absolute figures do not. See docs/performance.md.
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
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests import surroundings
from tests.bench import counts, gateway, lists, meters, newest_typer, spool, top, web
from tests.bench.native import NoCompiler
from tests.bench.ours import Sfad, directory
from tests.bench.peers import PEERS, Argv, Peer
from tests.bench.rows import ROWS, Figures, Row, Start

OTHERS = {
    "gateway": gateway.main,
    "lists": lists.main,
    "meters": meters.main,
    "spool": spool.main,
    "top": top.main,
    "typer": newest_typer.main,
    "web": web.main,
}
"""What is measured only where it is asked for, because the table does not have it."""
Medians = dict[str, dict[str, float]]
"""What was measured, then of whom, then the median."""
PAGE = Path(__file__).with_name("results.md")


def main() -> None:
    """Measure what the command line asks for."""
    options = _options()
    brief = ["W", "recovery", "core", "counts"]
    wanted = (
        options.only.split(",")
        if options.only
        else brief
        if options.quick or options.growth
        else [*brief, "web"]
    )
    rows = [row for row in ROWS if any(row.name.startswith(each) for each in wanted)]
    found: dict[str, object] = {"machine": machine()}
    if options.growth:
        report(
            options,
            "Growth",
            "| row | N is | at N: figure | exponent |",
            (line for row in rows for line in grown(row, found)),
        )
    else:
        report(
            options,
            "Results",
            "| row | floor | sfad | others |",
            (line for row in rows for line in table(row, found, options.quick)),
        )
        if "counts" in wanted:
            report(options, "Counts", "| count | one by one | in a batch | a row |", counted(found))
    for name in set(wanted) & OTHERS.keys():
        OTHERS[name]()
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--only", metavar="ROW,…", help=f"rows that begin with this; counts; {', '.join(OTHERS)}"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, once")
    parser.add_argument(
        "--growth",
        action="store_true",
        help="measure sfad at doubling sizes, and print the exponents",
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file too")
    parser.add_argument(
        "--docs", action="store_true", help=f"write the tables into tests/bench/{PAGE.name} too"
    )
    return parser.parse_args()


def machine() -> str:
    """Say when and where this is, and how busy it is."""
    where = f"{os.cpu_count()} CPUs, Linux {platform.release()}, Python {platform.python_version()}"
    return f"{time.strftime('%Y-%m-%d')}, {where}, load {os.getloadavg()[0]:.1f}"


def report(options: argparse.Namespace, section: str, head: str, lines: Iterable[str]) -> None:
    """Print a table, each line as soon as it is known, and put the table into the page if that is
    asked for."""
    told = [f"{machine()}.", "", head, "|---" * head.count(" | ") + "|---|"]
    print(*told, sep="\n", flush=True)
    for each in lines:
        print(each, flush=True)
        told.append(each)
    if options.docs:
        before, heading, rest = PAGE.read_text().partition(f"## {section}\n")
        _, following, after = rest.partition("\n## ")
        PAGE.write_text(before + heading + "\n" + "\n".join(told) + "\n" + following + after)


def table(row: Row, found: dict[str, object], quick: bool) -> Iterator[str]:
    """Measure everybody who takes part. Yield a line for each figure."""
    for size in row.sizes if row.quick is None or not quick else row.quick:
        others = [
            peer
            for peer in PEERS
            if row.peers and peer.installed() and row.name not in peer.without
        ]
        for what, figures in measured(
            row, size, [Sfad, *others], 1 if quick else row.repeats
        ).items():
            name = f"{row.name} {what}".replace("N", f"{size}")
            found[name] = figures
            yield line(name, figures)


def counted(found: dict[str, object]) -> Iterator[str]:
    """Count what a run of /bin/true costs, and a row of a list. Yield a line for each figure."""
    found["counts"] = costs = counts.main()
    for what, figures in costs.items():
        cells = (
            f"{figures[load]:.1f}" if load in figures else "" for load in (*counts.LOADS, "a row")
        )
        yield f"| {what} | {' | '.join(cells)} |"


def measured(row: Row, size: int, peers: Sequence[type[Peer]], repeats: int) -> Medians:
    """Return medians of repeats, which take turns."""
    taken: dict[str, dict[str, list[float]]] = {}
    for _ in range(repeats):
        for who, figures in turns(row, size, peers):
            for what, figure in figures.items():
                taken.setdefault(what, {}).setdefault(who, []).append(figure)
    return {
        what: {who: statistics.median(each) for who, each in figures.items()}
        for what, figures in taken.items()
    }


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
            # others may not stop the measurement
            print(f"{row.name}: {peer.name}: {error!r}", file=sys.stderr)


def starting(peer: type[Peer]) -> Start:
    """Return the function that starts this peer in a directory of its own."""

    @contextmanager
    def start(*runs: tuple[Argv, int]) -> Iterator[Peer]:
        with directory() as place:
            one = peer(place)
            try:
                one.start(runs)
                yield one
            finally:
                one.close()

    return start


def line(what: str, figures: dict[str, float]) -> str:
    """Return a line of the table."""
    told = {
        who: number(figure)
        + (f" = {number(figure / figures['floor'])} ×" if figures.get("floor") else "")
        for who, figure in figures.items()
    }
    others = ", ".join(
        f"{who} {each}" for who, each in told.items() if who not in ("floor", "sfad")
    )
    return (
        f"| {what} | {number(figures['floor']) if 'floor' in figures else ''} | "
        f"{told.get('sfad', '')} | {others} |"
    )


def number(figure: float) -> str:
    """Return a figure with some three digits."""
    return f"{figure:,.0f}".replace(",", " ") if figure >= 100 else f"{figure:.3g}"


def grown(row: Row, found: dict[str, object]) -> Iterator[str]:
    """Measure ours at doubling sizes. Yield a line for each figure, with the exponent of its
    growth."""
    taken = [row.measure(starting(Sfad), size) for size in row.growth]
    for what in taken[0] if taken else ():
        points = [
            (size, each[what])
            for size, each in zip(row.growth, taken, strict=True)
            if each[what] > 0
        ]
        if len(points) < 2:
            continue  # there is no logarithm of nothing
        power = exponent(points)
        found[f"{row.name} {what}"] = {"sizes": dict(points), "exponent": power}
        told = ", ".join(f"{size}: {number(figure)}" for size, figure in points)
        yield f"| {row.name} {what} | {row.of} | {told} | {power:.2f} |"


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the power of the size that fits best: least squares of the logarithms."""
    xs, ys = ([math.log(each) for each in column] for column in zip(*points, strict=True))
    return statistics.linear_regression(xs, ys).slope


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    with tempfile.TemporaryDirectory() as place:
        surroundings.enter(Path(place))
        main()
