"""`make fleet-demo`: three nodes of Ray on this machine, a tree over all three, a loop refused, a
node killed, nothing left."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from sfad.protocol import messages as m
from sfad.protocol.types import Limit, LimitKind
from tests import surroundings
from tests.harness import Daemon, started, wait_until

from .cluster import NAMES, cluster, daemons

TREE = """
case $SFA_NAME in
planner) {sfactl} run --on n2 --name coder --timeout 100 -- sh {script};;
coder) {sfactl} run --on n3 --name tester --timeout 100 -- sh {script};;
tester) {sfactl} run --on n1 --name planner --timeout 100 -- true; sleep 300;;
esac
"""


def main() -> None:
    directory = Path(tempfile.mkdtemp(prefix="sfad-fleet-demo-"))
    surroundings.enter(directory / "surroundings")
    script = directory / "tree.sh"
    script.write_text(TREE.format(sfactl=Path(sys.executable).with_name("sfactl"), script=script))
    print(
        "starting three nodes of Ray, and a daemon for each (this takes half a minute) …",
        flush=True,
    )
    with cluster() as made, daemons(made, directory) as fleet:
        first = fleet[NAMES[0]]
        _show(first, "fleet", "nodes")
        limits = [Limit(kind=LimitKind.TIME, threshold=300, source="--timeout")]
        with first.client() as client:
            top = started(client, ["sh", script], name="planner", limits=limits)

            def refused() -> bool:
                read = m.ReadOutput(id=0, run=top.id, stream="stderr")
                return b"in a circle" in client.call(read, m.OutputPart).data

            wait_until(refused, "the loop was refused", seconds=120)
            print(
                "\na tree over all three nodes; its last agent tried to start the first one again:",
                flush=True,
            )
            _show(first, "tree", "--fleet")
            print("\nthe daemon of n2 is killed, and another one continues its runs:", flush=True)
            fleet["n2"].kill()
            fleet["n2"].restart()
            wait_until(lambda: "running" in _tree(first), "n2 answers", seconds=120)
            _show(first, "tree", "--fleet")
            print(f"\n$ sfactl stop n1/{top.id}", flush=True)
            began = time.monotonic()
            stopped = client.call(m.Stop(id=0, runs=[top.id]), m.Stopped)
            assert stopped.survivors == [], stopped
            print(
                f"stopped to the last process of the last node in {time.monotonic() - began:.1f} s",
                flush=True,
            )
        _show(first, "list", "--fleet")
    print("\nnothing is left: no process, no cgroup, no node of Ray")


def _tree(daemon: Daemon) -> str:
    done = daemon.sfactl("tree", "--fleet")
    return done.stdout if done.returncode == 0 and done.stdout.count("running") >= 3 else ""


def _show(daemon: Daemon, *words: str) -> None:
    _print(words, daemon.sfactl(*words).stdout)


def _print(words: Sequence[str], text: str) -> None:
    print(f"$ sfactl {' '.join(words)}\n{text}", end="", flush=True)


if __name__ == "__main__":
    main()
