"""How the code is cut: modules, their lengths, imports, and the files that a spawn passes.

`python -m tests.bench.structure [DIRECTORY]` measures a checkout, by default this one. Its lines
can be compared with those of another commit.
"""

from __future__ import annotations

import ast
import os
import re
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from tests.bench import ours

ROOT = Path(__file__).parents[2]
PACKAGES = ("sfad", "sfactl")
SHORT = 60
"""Lines below which a module is counted as short."""
RUN_STRUCTS = re.compile(r"Run|Spawn|Asked|Attempt|Launch|Child")
CALL_STRUCTS = re.compile(r"Call(?!back)")
SERVER = str(ROOT / "sfad/daemon/server/server.py")
"""Where a request arrives."""

TRACER = """
import os, sys
path = os.environ.get("STRUCTURE_LOG")
if path and "serve" in sys.orig_argv:
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    package, write = os.environ["STRUCTURE_PACKAGE"], os.write
    last = None
    def called(frame, event, argument):
        global last
        code = frame.f_code
        name = code.co_filename
        if event == "call" and name is not last and name.startswith(package):
            last = name
            write(log, name.encode() + b"\\n")
        elif event == "c_return" and argument is write and code.co_name == "_let_through":
            write(log, b"EXECUTED\\n")
    sys.setprofile(called)
"""
"""`sitecustomize` of a daemon: each time that a function of another file is called, a line with
that file; and a line when the gate of a command is opened, which is executed then."""


def main(root: Path = ROOT) -> None:
    sources = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    trees = {path: ast.parse(path.read_text()) for path in sources}
    lengths = [len(path.read_text().splitlines()) for path in sources]
    print(f"modules                                   {len(sources)}")
    print(f"median lines                              {statistics.median(lengths):.0f}")
    print(
        f"share of modules below {SHORT} lines         "
        f"  {sum(length < SHORT for length in lengths) / len(lengths):.0%}"
    )
    print(f"lines                                     {sum(lengths)}")
    print(f"lines of imports                          {sum(map(import_lines, trees.values()))}")
    for what, pattern in (("a run", RUN_STRUCTS), ("a model call", CALL_STRUCTS)):
        named = sorted(
            name for tree in trees.values() for name in structs(tree) if pattern.search(name)
        )
        print(f"structs whose name tells of {what:<14}{len(named)}: {' '.join(named)}")
    print(
        "words in docs/                          "
        f"  {sum(len(path.read_text().split()) for path in (root / 'docs').glob('*.md'))}"
    )
    if root == ROOT:
        executed, answered = spawn()
        for until, passed in (("is executed", executed), ("is answered", answered)):
            print(f"files that a spawn passes until it {until}  {len(set(passed))}")
            print(f"switches between them                     {len(passed) - 1}")
        print(f"files that a stop passes until it is answered   {len(set(stop()))}")


def import_lines(tree: ast.Module) -> int:
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports)


def structs(tree: ast.Module) -> Iterator[str]:
    """Yield the names of classes that only hold fields: structs, dataclasses and named tuples."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            words = " ".join(ast.unparse(part) for part in (*node.bases, *node.decorator_list))
            if re.search(r"Struct|dataclass|NamedTuple|Request|Reply|Event|Message", words):
                yield node.name


def spawn() -> tuple[list[str], list[str]]:
    """Return the files of the functions that a daemon calls for one spawn, in order: from the
    arrival of its request until `/bin/true` is executed, and until the answer is sent. What the
    daemon does in between for other reasons is among them, such as the end of that command."""
    with traced() as (client, log):
        ours.one_by_one(client, 20)
        begin = settled(log)
        runs = ours.submitted(client, 1, ours.TRUE)
        passed = passed_since(begin, log)
        ours.awaited(client, runs)
    gate = passed.index("EXECUTED")
    return passed[:gate], [name for name in passed if name != "EXECUTED"]


def stop() -> list[str]:
    """Return those of a stop, until it is answered: all is gone, and written down."""
    with traced() as (client, log):
        for _ in range(3):
            runs = ours.submitted(client, 1, ours.SLEEP)
            begin = settled(log)
            client.call(m.Stop(id=0, runs=runs), m.Stopped)
            passed = passed_since(begin, log)
    return passed


@contextmanager
def traced() -> Iterator[tuple[Client, Path]]:
    """Start a daemon that logs the files it passes."""
    with ours.directory() as place:
        (place / "sitecustomize.py").write_text(TRACER)
        log = place / "log"
        log.touch()
        more = {"STRUCTURE_LOG": str(log), "STRUCTURE_PACKAGE": str(ROOT / "sfad")}
        path = os.pathsep.join([str(place), str(ROOT)])
        with ours.daemon({"PYTHONPATH": path, **more}) as one, one.client() as client:
            yield client, log


def passed_since(begin: int, log: Path) -> list[str]:
    passed = log.read_text()[begin:].splitlines()
    return passed[passed.index(SERVER) :]


def settled(log: Path) -> int:
    """Wait until the daemon has nothing to do any more for what has ended. Return the log's
    size."""
    size = -1
    while size != (size := log.stat().st_size):
        time.sleep(0.3)
    return size


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
