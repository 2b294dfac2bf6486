"""The arrows of the architecture, checked: who may import whom (by syntax tree), and what a start
really loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from sfad.features.listed import FEATURES, NAMES

ROOT = Path(__file__).parents[1]

PURE_STDLIB = {
    "__future__", "abc", "bisect", "collections", "collections.abc", "dataclasses", "datetime",
    "enum", "fnmatch", "functools", "hashlib", "heapq", "itertools", "math", "operator", "re",
    "shlex", "signal", "string", "types", "typing", "unicodedata",
}  # fmt: skip
"""What the core may use of the standard library: data and functions of data. `signal` for its names
only."""

IMPURE_NAMES = {
    "msgspec": {"Meta", "Struct", "field"},
    "msgspec.structs": {"force_setattr", "replace"},  # of frozen values
    "datetime": {"UTC", "datetime", "tzinfo"},  # it is told the time, and passes it on
    "signal": {"SIGINT", "SIGTERM", "SIGKILL", "SIGHUP", "Signals"},
}
"""Of modules that can do more than hold data, the names that are data."""

IMPURE_CALLS = {
    "now",
    "utcnow",
    "today",
    "open",
    "print",
    "input",
    "__import__",
    "import_module",
    "eval",
    "exec",
}
"""What needs no import to leave the core."""

LAYERS = [
    {"sfad.protocol"},
    {"sfad.core"},
    {"sfad.processes", "sfad.storage"},
    {"sfad.runs"},
    {"sfad.usage", "sfad.durable"},
    {"sfad.start"},
    {"sfad.daemon"},
    {"sfad.features"},
    {"sfad.cli", "sfad.__main__"},
]
"""`protocol ← core ← {processes, storage} ← runs ← {usage, durable} ← start ←
daemon ← features ← cli`. Other modules (agents, config, host, and what features declare) are
leaves: any layer of the shell may use them, and they may use none."""

TRIO_FORM = {"sfactl.api.awaited", "sfactl.api.streaming", "sfactl.api.trio_agents"}
"""The Python client for trio."""

HEAVY = (
    "trio", "psutil", "textual", "mcp", "genai_prices", "rich", "asyncio", "httpx2",
    "httpcore2", "h11", "brotli", "backports", "prometheus_client", "opentelemetry", "requests",
    "starlette", "hypercorn",
)  # fmt: skip


def modules(package: str) -> list[Path]:
    """Every source file of a package."""
    return sorted((ROOT / package.replace(".", "/")).rglob("*.py"))


def name_of(path: Path) -> str:
    """`sfad/core/state/run.py` → `sfad.core.state.run`."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path) -> list[tuple[str, str | None]]:
    """Each imported (module, name), wherever it stands in the file; relative ones spelled out."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, str | None]]:
    package = name_of(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)


def targets(path: Path) -> set[str]:
    """Modules that a file depends on: `from . import x` is the module x where there is such a
    file."""
    found = set()
    for module, name in imports(path):
        inner = f"{module}.{name}" if name else module
        is_file = (ROOT / f"{inner.replace('.', '/')}.py").exists() or (
            ROOT / inner.replace(".", "/")
        ).is_dir()
        found.add(inner if is_file else module)
    return found


def within(module: str, *packages: str) -> bool:
    """Whether the module is one of these or in one of them."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def halves_in_the_core() -> Iterator[Path]:
    """The modules of features that the core executes, and those of their folders that these
    import."""
    for name, feature in FEATURES.items():
        folder = f"sfad.features.{name}"
        halves = (
            feature.watcher,
            feature.barrier,
            feature.purses,
            feature.elsewhere,
            feature.calls,
        )
        found = {f"{folder}.{half}" for half in halves if half}
        while found:
            module = found.pop()
            path = ROOT / f"{module.replace('.', '/')}.py"
            yield path
            found |= {each for each in targets(path) if within(each, folder) and not declares(each)}


def test_the_core_is_pure() -> None:
    halves = list(halves_in_the_core())
    for path in [*modules("sfad/core"), *halves]:
        known = {name_of(each) for each in halves} if path in halves else set()
        for module in targets(path):
            assert (
                within(module, "sfad.core", "sfad.protocol", "msgspec")
                or module in PURE_STDLIB | known
                or (path in halves and declares(module))
            ), f"{name_of(path)} imports {module}"
        for module, name in imports(path):
            assert module not in IMPURE_NAMES or name in IMPURE_NAMES[module], (
                f"{name_of(path)} imports {name} of {module}"
            )


def test_the_core_needs_no_transport() -> None:
    for path in modules("sfad/core"):
        names = [
            "checks",
            "event_types",
            "types",
            "kinds",
            "known",
            "limits",
            "holds",
            "texts.sanitise",
            "texts.units",
        ]
        names += ["requests.allowances", "requests.gateway", "requests.windows"]
        allowed = {f"sfad.protocol.{name}" for name in names}
        if path.stem == "access":
            # each request says there who may be permitted to send it
            allowed.add("sfad.protocol.messages")
        assert (
            not {m for m in targets(path) if within(m, "sfad.protocol") and m != "sfad.protocol"}
            - allowed
        )


def test_the_core_asks_no_clock_and_opens_nothing() -> None:
    """Without an import, too: `datetime.now()`, `open()`, `__import__`, `input`, `print`."""
    for path in [*modules("sfad/core"), *halves_in_the_core()]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = (
                    node.func.attr
                    if isinstance(node.func, ast.Attribute)
                    else getattr(node.func, "id", "")
                )
                assert called not in IMPURE_CALLS, f"{name_of(path)} calls {called}"


def test_the_protocol_imports_msgspec_and_the_standard_library() -> None:
    for path in modules("sfad/protocol"):
        for module in targets(path):
            top = module.split(".")[0]
            assert (
                within(module, "sfad.protocol")
                or top == "msgspec"
                or top in sys.stdlib_module_names
            ), f"{name_of(path)}: {module}"
            assert top not in {"asyncio", "subprocess", "threading"}


def test_the_client_imports_only_the_protocol_of_the_daemon() -> None:
    """The demo included: it starts a daemon as anybody would, as a program."""
    for path in modules("sfactl"):
        looks = (
            ["sfad.host", "sfad.host.probe", "sfad.features.listed"]
            if path.stem == "doctor"
            else []
        )
        # git looks at a worktree in the same way for the daemon and for these
        if path.stem in {"diff", "land", "landing", "pruning"}:
            looks += ["sfad.git", "sfad.features.worktrees"]
        # what a terminal shows is worked out by who looks
        if within(name_of(path), "sfactl.terminals", "sfactl.web.terminal"):
            looks += ["sfad.features.terminals.screen", "sfad.features.terminals.recorded"]
        looks += ["sfad.features.fleet.files.packing"] if path.stem == "shipping" else []
        # both install shims
        looks += ["sfad.features.shims", "sfad.features.shims.files"] if path.stem == "shim" else []
        # the kernel says whose a connection is, to the console as to the gateway
        looks += ["sfad.host", "sfad.host.linux.callers"] if path.stem == "serving" else []
        # and what a feature's requests are
        messages = [f"sfad.features.{name}.messages" for name in features()]
        allowed = ["sfad.protocol", *messages, *looks]
        versions = {
            module for module, name in imports(path) if (module, name) == ("sfad", "__version__")
        }
        for module in targets(path) - versions:
            assert not within(module, "psutil") or path.stem in ("doctor", "addresses"), (
                f"{name_of(path)} imports {module}"
            )
            served = within(name_of(path), "sfactl.web") or name_of(path) in TRIO_FORM
            assert not within(module, "trio") or served, f"{name_of(path)} is not served by trio"
            assert module != "asyncio" or within(name_of(path), "sfactl.top"), (
                f"{name_of(path)} is not run by Textual"
            )
            assert within(module, *allowed) or not within(module, "sfad"), (
                f"{name_of(path)} imports {module}"
            )


def declares(module: str) -> bool:
    """Whether a module is what a feature declares, or their list."""
    feature, _, inner = module.removeprefix("sfad.features").strip(".").partition(".")
    return within(module, "sfad.features") and (
        feature in {"", "listed"} or inner in {"", "feature", "messages"}
    )


def layer(module: str) -> int | None:
    """How high up a module is."""
    if declares(module):
        return None
    return next(
        (height for height, packages in enumerate(LAYERS) if within(module, *packages)), None
    )


def features() -> list[str]:
    """The folders of features."""
    return [path.parent.name for path in (ROOT / "sfad/features").glob("*/__init__.py")]


def test_arrows_go_one_way() -> None:
    for path in modules("sfad"):
        own = name_of(path)
        height = layer(own)
        for module in (module for module in targets(path) if within(module, "sfad")):
            other = layer(module)
            if height is None:
                assert other is None or other <= 1, f"{own} is a leaf, but imports {module}"
            elif other is not None:
                assert other <= height, f"{own} imports {module}, which is above it"
                siblings = other == height and own.split(".")[:2] != module.split(".")[:2]
                assert not siblings or height == len(LAYERS) - 1, (
                    f"{own} imports {module}, which is beside it"
                )


def test_the_heart_knows_no_feature() -> None:
    """Only their list. A feature knows no other one."""
    for path in modules("sfad"):
        own = name_of(path)
        for module in targets(path):
            if within(module, "sfad.features"):
                mine = ".".join(own.split(".")[:3])
                assert module == "sfad.features.listed" or within(module, mine), (
                    f"{own} imports {module}"
                )


def test_features_use_what_the_seam_gives_them() -> None:
    """A feature is given `Heart`. It does not take the daemon's `Runtime` from an `Asker`."""
    for path in modules("sfad/features"):
        used = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute)
        }
        assert "runtime" not in used, name_of(path)


def test_no_import_cycle() -> None:
    """Imports under `TYPE_CHECKING` count: two modules that name each other's types cannot be read
    one after the other."""
    graph = {
        name_of(path): targets(path) - {name_of(path)}
        for path in [*modules("sfad"), *modules("sfactl")]
    }
    # a package's __init__ is imported with each of its modules, so only what it imports by name is
    # an arrow of its own
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_no_ring_within_a_package() -> None:
    """The children of each package, whole packages among them, can be read one after the other
    too. What features declare is read apart from what they do."""
    graphs: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in [*modules("sfad"), *modules("sfactl")]:
        for module in targets(path):
            package, child, other = fork(*map(placed, (name_of(path), module)))
            if child and other:
                graphs[package][child].add(other)
    for package, graph in graphs.items():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(f"{package}: {' → '.join(error.args[1])}")


def placed(module: str) -> str:
    """Return a module's name, that of a declaration as if all of them were a package."""
    return module.replace("sfad.features", "sfad.declarations") if declares(module) else module


def fork(one: str, other: str) -> tuple[str, str, str]:
    """Return the innermost package of two modules, and its child on the way to each; `""` if a
    module is the package itself."""
    names, others = one.split("."), other.split(".")
    depth = next(
        (at for at, (a, b) in enumerate(zip(names, others, strict=False)) if a != b),
        min(len(names), len(others)),
    )
    return (
        ".".join(names[:depth]),
        "".join(names[depth : depth + 1]),
        "".join(others[depth : depth + 1]),
    )


def test_nobody_imports_the_client_or_the_tests() -> None:
    for path in [*modules("sfad"), *modules("sfactl")]:
        own = name_of(path)
        for module in targets(path):
            assert not within(module, "tests")
            assert within(own, "sfactl") or not within(module, "sfactl")


def test_the_checks_see_something() -> None:
    """A glob that matches nothing would pass everything."""
    assert len(modules("sfad/core")) > 10
    assert len(modules("sfactl")) > 10
    machine = ROOT / "sfad/core/machine.py"
    assert {"sfad.core.events", "sfad.core.life.attempts", "typing"} <= targets(machine)


# ---- what is really loaded


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after a statement."""
    script = f"{statement}\nimport sys\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=60,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_the_core_loads_no_shell() -> None:
    statement = "import " + ", ".join(name_of(path) for path in modules("sfad/core"))
    assert not loaded_by(statement) & {*HEAVY, "typer", "socket", "subprocess", "sqlite3"}


def test_the_daemon_loads_nothing_of_the_gateways() -> None:
    assert not loaded_by("import sfad.daemon, sfad.daemon.serving, sfad.cli") & {
        "httpx2", "httpcore2", "h11", "brotli", "backports", "genai_prices", "prometheus_client",
    }  # fmt: skip


HELPER = re.compile(r"python_words\(__name__|\bfrom (sfad\.[\w.]+) import main; main\(")


def test_what_helpers_load_is_of_the_standard_library() -> None:
    """They are executed by a bare interpreter, which finds no package but this one."""
    found = {
        each[1] or name_of(path)
        for path in modules("sfad")
        for each in HELPER.finditer(path.read_text())
    } | {"sfad.processes.kernel"}
    assert "sfad.features.worktrees.steps" in found or "worktrees" not in NAMES
    script = f"import sys; sys.path.append({str(ROOT)!r}); import {', '.join(sorted(found))}"
    command = [sys.executable, "-I", "-S", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_protocol_loads_little() -> None:
    assert not loaded_by("import sfad.protocol.messages, sfad.protocol.framing") & {
        *HEAVY,
        "typer",
        "sqlite3",
    }


@pytest.mark.parametrize("verb", [["list", "--help"], ["spawn", "--help"], ["stop", "--help"]])
def test_a_verb_of_the_client_starts_light(verb: list[str]) -> None:
    """`-X importtime` names every module that was loaded, to the very end of the process."""
    command = [sys.executable, "-X", "importtime", "-m", "sfactl", *verb]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = {
        line.rsplit("|", 1)[1].strip().split(".")[0]
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "sfactl" in loaded
    assert not loaded & set(HEAVY)


START = """
import dataclasses, sys
made, process = [], dataclasses._process_class
def counting(kind, *options, **more):
    made.append(kind)
    return process(kind, *options, **more)
dataclasses._process_class = counting
import sfad.cli, sfad.daemon.serving, sfad.daemon.startup
print(len([each for each in made if each.__module__.startswith("sfad")]), len(sys.modules))
"""
DATACLASSES, MODULES = 2, 600


def test_a_start_loads_and_compiles_little() -> None:
    """Imports are three quarters of a start. Modules take half a millisecond each, and so does a
    dataclass, which is compiled each time; a struct of msgspec takes a fiftieth of that. Raise
    these only with a reason."""
    done = subprocess.run(
        [sys.executable, "-c", START],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=60,
    )
    dataclasses, modules = map(int, done.stdout.split())
    assert dataclasses <= DATACLASSES
    assert modules <= MODULES
