"""The house, checked: no import cycle, one class for each name, and every module on its package's map."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.test_imports import ROOT, modules, name_of, targets

SOURCES = [*modules("sfad"), *modules("sfactl")]

PACKAGES = [path for path in SOURCES if path.name == "__init__.py"]

NAMED_LIKE_VERBS = {
    "sfactl.commands", "sfactl.commands.fleet", "sfactl.commands.hooks", "sfactl.commands.session", "sfad.daemon.server.verbs"
}  # fmt: skip
"""Packages with one module for each verb, named like it: `sfactl help` is their map."""


def test_no_import_cycle() -> None:
    """Imports under `TYPE_CHECKING` count: two modules that name each other's types cannot be read one after the other."""
    graph = {name_of(path): targets(path) - {name_of(path)} for path in SOURCES}
    # a package's __init__ is imported with each of its modules, so only what it imports by name is an arrow of its own
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_no_ring_within_a_package() -> None:
    """The children of each package, whole packages among them, can be read one after the other too."""
    graphs: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in SOURCES:
        for module in targets(path):
            package, child, other = fork(name_of(path), module)
            if child and other:
                graphs[package][child].add(other)
    for package, graph in graphs.items():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(f"{package}: {' → '.join(error.args[1])}")


def fork(one: str, other: str) -> tuple[str, str, str]:
    """Return the innermost package of two modules, and its child on the way to each; `""` if a module is the package itself."""
    names, others = one.split("."), other.split(".")
    depth = next((at for at, (a, b) in enumerate(zip(names, others, strict=False)) if a != b), min(len(names), len(others)))
    return ".".join(names[:depth]), "".join(names[depth : depth + 1]), "".join(others[depth : depth + 1])


@pytest.mark.parametrize("init", PACKAGES, ids=name_of)
def test_every_module_is_on_its_packages_map(init: Path) -> None:
    """The docstring of a package has a line for each of its modules, which begins with the module's name."""
    if name_of(init) in NAMED_LIKE_VERBS:
        return
    inside = {path.stem for path in init.parent.glob("*.py")} | {path.parent.name for path in init.parent.glob("*/__init__.py")}
    lines = re.findall(r"^(`\w+`(?:, `\w+`)*)  *\S", ast.get_docstring(ast.parse(init.read_text())) or "", re.MULTILINE)
    assert inside - {"__init__"} == {name for line in lines for name in re.findall(r"\w+", line)}


SOURCE = re.compile(r"docs/([\w-]+\.md)")


def test_sources_that_are_named_can_be_read() -> None:
    """A rule or a number comes from a page of docs/, and not from a document that is not in the project."""
    for path in [*SOURCES, *modules("tests")]:
        text = path.read_text()
        absent = re.search(r"\b(SPEC|EVIDENCE)( section|\.md|:)", text) if path != Path(__file__) else None
        assert absent is None, f"{path} names {absent}"
        assert [page for page in SOURCE.findall(text) if not (ROOT / "docs" / page).exists()] == [], path


def test_the_clock_of_a_test_is_an_argument() -> None:
    """pytest-trio does not honour `usefixtures` for a clock: such a test sleeps in real time."""
    assert [path for path in modules("tests") if re.search(r"usefixtures\([^)]*_clock", path.read_text())] == []
