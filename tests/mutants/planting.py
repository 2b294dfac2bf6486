"""The defects that can be planted in a module.

Most are those of mutmut: numbers, operators, assignments, arguments and cases. Its own runner does
not fit, because it mutates only functions without a decorator, and rights and system calls are
tables of modules. Three more are added, for what guards rights: conditions that never hold, filters
and calls that are left out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

_NOT_DONE = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom)
_NAMES = {"TYPE_CHECKING", "__all__", "__slots__"}


class Mutant:
    """A module with one defect."""

    def __init__(self, module: str, tree: Any, node: Any, changed: Any, line: int) -> None:
        self.module, self.line = module, line
        self._change = tree, node, changed

    @cached_property
    def code(self) -> str:
        """The whole module. Built when it is asked for, because each takes some 20 ms."""
        tree, node, changed = self._change
        return str(tree.deep_replace(node, changed).code)

    @cached_property
    def key(self) -> tuple[str, str, str]:
        """The module and the lines that differ, without indentation. They name the mutant when
        other lines have changed."""
        lines = list(
            difflib.unified_diff(
                self._change[0].code.splitlines(), self.code.splitlines(), n=0, lineterm=""
            )
        )[3:]
        was, now = (
            " ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+"
        )
        return self.module, was, now

    def __str__(self) -> str:
        _, was, now = self.key
        return f"{self.module}:{self.line}\n- {was}\n+ {now}"


def mutants(root: Path, module: str) -> Iterator[Mutant]:
    """Yield each mutant of `module`, a path below `root`. Always in the same order."""
    wrapper = MetadataWrapper(cst.parse_module((root / module).read_text()), unsafe_skip_copy=True)
    positions = wrapper.resolve(PositionProvider)
    line = 0
    for node in _nodes(wrapper.module):
        line = positions[node].start.line if node in positions else line
        for changed in _changes(node):
            yield Mutant(module, wrapper.module, node, changed, line)


def _nodes(node: Any) -> Iterator[Any]:
    """Yield what a defect may be planted in, below `node` and in it."""
    docstring = isinstance(node, cst.Expr) and isinstance(
        node.value, (cst.SimpleString, cst.ConcatenatedString)
    )
    if (
        docstring
        or isinstance(node, _NOT_DONE)
        or _is_for_types(node)
        or (isinstance(node, cst.SimpleString) and " " in node.value)
    ):
        return
    yield node
    for child in node.children:
        yield from _nodes(child)


def _is_text(node: Any) -> bool:
    """Return whether this is for people to read: what it says is not what these tests are about."""
    words = isinstance(node, cst.SimpleString) and " " in node.value
    return words or isinstance(node, (cst.FormattedString, cst.ConcatenatedString))


def _is_for_types(node: Any) -> bool:
    names = [node.test] if isinstance(node, cst.If) else []
    names += [target.target for target in node.targets] if isinstance(node, cst.Assign) else []
    return any(isinstance(name, cst.Name) and name.value in _NAMES for name in names)


def _changes(node: Any) -> Iterator[Any]:
    """Yield what may stand in place of `node`."""
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            changed = list(operator(node))
            if isinstance(node, cst.SimpleString):  # not the same word in capitals too
                changed = changed[:1]
            for other in changed:
                if not (isinstance(node, cst.Call) and _tells_little(node, other)):
                    yield other
    if isinstance(node, (cst.If, cst.While)):
        yield node.with_changes(test=cst.Name("False"))
    if isinstance(node, cst.If):
        yield node.with_changes(test=cst.Name("True"))
    if isinstance(node, cst.CompFor) and node.ifs:
        yield node.with_changes(ifs=[])
    if isinstance(node, cst.Expr) and isinstance(node.value, (cst.Call, cst.Await)):
        yield cst.Pass()
    if isinstance(node, cst.Raise):
        yield cst.Pass()


def _tells_little(call: Any, other: Any) -> bool:
    """Return whether the other call only lacks a text for people, or an argument without which
    Python raises TypeError."""
    missing = [argument for argument in call.args if argument not in other.args]
    shorter = len(other.args) < len(call.args)
    text = bool(missing) and all(_is_text(argument.value) for argument in missing)
    return text or (shorter and any(argument.keyword is None for argument in missing))
