"""The house, checked: every module on its package's map, and no test that reaches into private
names."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from importlib import import_module
from itertools import combinations
from pathlib import Path

import pytest
from msgspec import Struct

from tests.test_imports import ROOT, modules, name_of
from tests.together import together

SOURCES = [*modules("sfad"), *modules("sfactl")]

PACKAGES = [path for path in SOURCES if path.name == "__init__.py"]

NAMED_LIKE_VERBS = {
    "sfactl.commands", "sfactl.commands.fleet", "sfactl.commands.hooks", "sfactl.commands.session",
    "sfad.daemon.server.verbs"
}  # fmt: skip
"""Packages with one module for each verb, named like it: `sfactl help` is their map."""

FEATURES = ROOT / "sfad/features"
"""The map of its folders is `listed` there."""


@together("init", PACKAGES)
def test_every_module_is_on_its_packages_map(init: Path) -> None:
    """The docstring of a package has a line for each of its modules, which begins with the module's
    name."""
    if name_of(init) in NAMED_LIKE_VERBS:
        return
    inside = {path.stem for path in init.parent.glob("*.py")} | {
        path.parent.name for path in init.parent.glob("*/__init__.py") if init.parent != FEATURES
    }
    lines = re.findall(
        r"^(`\w+`(?:, `\w+`)*)  *\S",
        ast.get_docstring(ast.parse(init.read_text())) or "",
        re.MULTILINE,
    )
    assert inside - {"__init__"} == {name for line in lines for name in re.findall(r"\w+", line)}


PUBLIC = {"_exit", "_replace", "_asdict", "_fields", "_make"}
"""Documented names of the standard library that begin with an underscore."""

JUSTIFIED = {
    "tests/conftest.py: config._tmp_path_factory": (
        "pytest gives the directory of a session only to fixtures, and this is a hook"
    ),
    "tests/top/test_keys.py: self.app.screen._compositor": (
        "Textual has no other way to read a screen as text"
    ),
    "tests/usage/test_tail.py: trio._core": (
        "trio has no other way to end the idle threads that it keeps"
    ),
    "tests/usage/test_tail.py: trio._core._thread_cache": "as above",
    "tests/usage/test_tail.py: '_idle_workers'": "as above",
}
"""Private names that tests use nevertheless, and why. All are of libraries."""


SUSPECT = re.compile(
    r"""[.'"]_(?!_)\w  # an attribute, a word of a string, a module
    |^[ ]*(?:from|import)\ .*\b_(?!_)\w|^[ ]*_(?!_)\w+(?:,|\ as\ |$)  # what is imported
    """,
    re.MULTILINE | re.VERBOSE,
)
"""What a module that reaches into a private name contains. To parse all takes seconds."""

DECLARED = re.compile(
    r"\bdef (_\w+)\(|(?:^ *|, |self\.)(_\w+)(?=(?:, [\w.]+)*(?: = |: ))", re.MULTILINE
)
"""A statement of a test that declares a private name, or sets it on `self`."""


def test_no_test_reaches_into_a_private_name() -> None:
    """A test observes what callers can observe. What it must see besides has a public name with a
    docstring."""
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in modules("tests")}
    declared = {name for text in texts.values() for pair in DECLARED.findall(text) for name in pair}
    found = [
        f"{path}: {name}"
        for path, text in texts.items()
        if SUSPECT.search(text)
        for node in ast.walk(ast.parse(text))
        for name in reached_by(node, declared)
    ]
    assert sorted(set(found)) == sorted(JUSTIFIED)


def reached_by(node: ast.AST, declared: Collection[str]) -> list[str]:
    """Return the private names of other objects that a node of a test uses. Names of `self` are the
    test's own if it has `declared` them; else they are those of a class of the product from which
    it inherits."""
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if name in declared:
            return []
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
            return []
        case ast.Attribute(attr=name):
            return [ast.unparse(node)] if is_private(name) else []
        case ast.ImportFrom(module=str(module), level=level) if level or module.partition(".")[
            0
        ] in ("sfad", "sfactl", "tests"):
            words = [*module.split("."), *(name.name for name in node.names)]
            return [f"from {module} import {name}" for name in words if is_private(name)]
        case ast.Call(func=ast.Name(id=what) | ast.Attribute(attr=what)) if what in (
            "setattr",
            "delattr",
            "getattr",
            "object",
            "patch",
        ):
            # the third argument of `setattr` is a value
            words = [
                each.value
                for each in node.args[:2]
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
            return [repr(word) for word in words if any(map(is_private, word.split(".")))]
    return []


def is_private(name: str) -> bool:
    return (
        name.startswith("_") and re.fullmatch(r"_(?!_)\w+", name) is not None and name not in PUBLIC
    )


@pytest.mark.parametrize(
    "code",
    [
        "x._y", "x._y = 1", "self.x._y", "self._theirs", "x()._y.z", "from sfad.x import _y",
        "from sfad._x import y", "monkeypatch.setattr(x, '_y', 1)",
        "monkeypatch.setattr('sfad.x._y', 1)", "mock.patch('sfad.x._Y')", "getattr(x, '_y')",
        "patch.object(X, '_y')",
    ],
)  # fmt: skip
def test_a_private_name_is_found(code: str) -> None:
    assert SUSPECT.search(code)
    assert [name for node in ast.walk(ast.parse(code)) for name in reached_by(node, {"_own"})]


@pytest.mark.parametrize(
    "code",
    [
        "self._own",
        "super()._theirs()",
        "os._exit(0)",
        "x._replace(y=1)",
        "x.__y__",
        "import _ctypes",
        "setattr(x, 'y', '_z')",
    ],
)
def test_a_public_name_is_not_found(code: str) -> None:
    assert not [name for node in ast.walk(ast.parse(code)) for name in reached_by(node, {"_own"})]


SOURCE = re.compile(r"docs/([\w-]+\.md)")


def test_sources_that_are_named_can_be_read() -> None:
    """A rule or a number comes from a page of docs/, and not from a document that is not in the
    project."""
    for path in [*SOURCES, *modules("tests")]:
        text = path.read_text()
        absent = (
            re.search(r"\b(SPEC|EVIDENCE)( section|\.md|:)", text)
            if path != Path(__file__)
            else None
        )
        assert absent is None, f"{path} names {absent}"
        assert [
            page for page in SOURCE.findall(text) if not (ROOT / "docs" / page).exists()
        ] == [], path


def test_the_clock_of_a_test_is_an_argument() -> None:
    """pytest-trio does not honour `usefixtures` for a clock: such a test sleeps in real time."""
    assert [
        path
        for path in modules("tests")
        if re.search(r"usefixtures\([^)]*_clock", path.read_text())
    ] == []


# ---- Structs

MOST_FIELDS, MOST_SHARED = 40, 10


def structs() -> dict[type, set[str]]:
    """Return the fields of all structs but the flat rows of the wire."""
    found: dict[type, set[str]] = {}
    for path in modules("sfad"):
        name = name_of(path)
        if path.name == "__main__.py" or name.startswith(
            ("sfad.protocol", "sfad.features.fleet.ray")  # Ray changes the environment
        ):
            continue
        try:
            module = import_module(name)
        except ImportError:  # of what few machines have
            continue
        for each in vars(module).values():
            if not isinstance(each, type) or each.__module__ != name:
                continue
            if issubclass(each, Struct):
                found[each] = {*each.__struct_fields__}
            elif is_dataclass(each):
                found[each] = {field.name for field in fields(each)}
            elif issubclass(each, tuple):
                found[each] = {*getattr(each, "_fields", ())}
    return found


def test_structs_are_small_and_no_two_are_alike() -> None:
    """What has the fields of another one is a group of its own, which both have."""
    found = structs()
    assert len(found) > 500
    large = {
        each.__qualname__: len(names) for each, names in found.items() if len(names) > MOST_FIELDS
    }
    assert large == {}
    alike = [
        (one.__qualname__, other.__qualname__)
        for one, other in combinations(found, 2)
        if len(found[one] & found[other]) > MOST_SHARED
        and not issubclass(one, other)
        and not issubclass(other, one)
    ]
    assert alike == []
