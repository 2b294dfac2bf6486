"""The parts of the machine are layers: each knows only those that its package lists before it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import sfad.core

from ..test_imports import name_of, targets

CORE = Path(sfad.core.__file__).parent
PACKAGES = sorted(CORE.rglob("__init__.py"))


def listed(init: Path) -> list[str]:
    """The parts of a package, in the order of its docstring."""
    return re.findall(
        r"^`(\w+)`", ast.get_docstring(ast.parse(init.read_text())) or "", re.MULTILINE
    )


@pytest.mark.parametrize("init", PACKAGES, ids=name_of)
def test_each_part_knows_only_those_before_it(init: Path) -> None:
    order, package = listed(init), name_of(init)
    assert len(order) > 3
    for index, part in enumerate(order):
        files = (
            [init.parent / f"{part}.py"]
            if (init.parent / f"{part}.py").exists()
            else [*(init.parent / part).rglob("*.py")]
        )
        for path in files:
            known = {
                name.removeprefix(f"{package}.").split(".")[0]
                for name in targets(path)
                if name.startswith(f"{package}.")
            }
            assert not known & set(order[index + 1 :]), (
                f"{name_of(path)} imports a part that {package} lists after it"
            )
