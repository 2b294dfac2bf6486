"""Requests of the core from flat keywords: in which group a field is does not matter to a test."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from sfad.core.state.request import Asked, Identity, Queueing, Retries, Shown, Sources, Terms

_GROUPS = {
    "shown": Shown,
    "identity": Identity,
    "terms": Terms,
    "queueing": Queueing,
    "retries": Retries,
    "sources": Sources,
}
GROUP_OF = {name: group for group, type_ in _GROUPS.items() for name in type_.__struct_fields__}
"""The group of each field that has one."""


def asked_for(argv: tuple[str, ...] = ("x",), **flat: Any) -> Asked:
    """Return a request for this command: `asked_for(("x",), name="a", attempts=2)`."""
    return replaced(Asked(Shown(argv)), **flat)


def field_of(asked: Asked, name: str) -> Any:
    """Return the value of a field."""
    return getattr(getattr(asked, GROUP_OF[name]) if name in GROUP_OF else asked, name)


def replaced(asked: Asked, **flat: Any) -> Asked:
    """Return the request with other values of these fields."""
    groups: dict[str, dict[str, Any]] = {}
    for name in flat.keys() & GROUP_OF.keys():
        groups.setdefault(GROUP_OF[name], {})[name] = flat.pop(name)
    for group, changes in groups.items():
        flat[group] = replace(getattr(asked, group), **changes)
    return replace(asked, **flat)
