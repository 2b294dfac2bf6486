"""The components of the machine are layers: each knows only those that the package lists before it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import sfad.core

CORE = Path(sfad.core.__file__).parent


def components() -> list[str]:
    """Their modules, in the order of the package's docstring."""
    listed = re.findall(r"^`(\w+)`", sfad.core.__doc__ or "", re.MULTILINE)
    return listed[: listed.index("machine") + 1]


def imported(module: str) -> set[str]:
    """The modules of the core that a module imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse((CORE / f"{module}.py").read_text())))
    found = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 1]
    return {node.module for node in found if node.module is not None} | {
        alias.name for node in found if node.module is None for alias in node.names
    }


def test_each_component_knows_only_those_before_it() -> None:
    order = components()
    assert len(order) > 10
    for index, module in enumerate(order):
        assert not imported(module) & set(order[index:]), f"{module} imports a component that is listed after it"


def test_values_and_rules_know_no_component() -> None:
    order = set(components())
    for path in CORE.glob("*.py"):
        if path.stem not in order:
            assert not imported(path.stem) & order, f"{path.stem} imports a component"


def test_the_package_lists_every_module() -> None:
    listed = re.findall(r"^`(\w+)`", sfad.core.__doc__ or "", re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in CORE.glob("*.py") if path.stem != "__init__")
