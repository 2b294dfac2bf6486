"""Limits as programs write them: one JSON object. Only the form is checked here; the core checks
ranges."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from .kinds import KINDS, LimitSpec
from .types import Action, Limit, LimitKind

_FIELDS = {name: kind for kind, spec in KINDS.items() for name in spec.fields}


def _type(name: str, spec: LimitSpec) -> Any:
    number = Annotated[int, Meta(ge=1)] if spec.whole else Annotated[float, Meta(gt=0)]
    counts, least = (
        (f"milli{spec.counts}", spec.least * 1000)
        if name.endswith("_ms")
        else (spec.counts, spec.least)
    )
    whose = "with its descendants'" if spec.scope == "tree" else "the run's own"
    upper = f"to limits.{spec.most} of the config" if spec.most else "or more"
    described = f"{counts[0].upper()}{counts[1:]}, {whose}: {least:g} {upper}."
    return Annotated[
        number | None,
        Meta(description=described if name == spec.fields[0] else f"The same as {spec.fields[0]}."),
    ]


_Word = StrEnum("Action", [(word, str(word)) for word in Action])  # type: ignore[misc]
_Word.__doc__ = Action.__doc__
_ACTION = Annotated[
    _Word | None,
    Meta(
        description="What a breach of any of these limits is answered with, not of the time alone. "
        "Without it: --on-limit, else the action of the run's type, else terminate."
    ),
]

LimitsObject = msgspec.defstruct(
    "LimitsObject",
    [
        *((name, _type(name, KINDS[kind]), None) for name, kind in _FIELDS.items()),
        ("timeout_action", _ACTION, None),
    ],
    namespace={
        "__doc__": (
            "Bounds on what a run may use. "
            "What is left out, or null, is as the run's type or the daemon's config has it."
        )
    },
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)


def parse_limits(text: str | bytes, source: str = "--limits") -> list[Limit]:
    """Return the limits of a JSON object; the source of each is `source` and the name of its field.
    Raise `ValueError` with `source`, the field and what it takes: also where two fields set one
    kind and differ, and for an action without a limit."""
    try:
        found = msgspec.structs.asdict(msgspec.json.decode(text, type=LimitsObject))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{source}: {error}{_hint(str(error))}") from None
    word = found.pop("timeout_action")
    action = None if word is None else Action(word)
    given = {name: value for name, value in found.items() if value is not None}
    if action and not given:
        raise ValueError(
            f"{source}: timeout_action is given, but no limit that it would be the action of"
        )
    return list(_limits(given, action, source).values())


def _limits(
    given: Mapping[str, float], action: Action | None, source: str
) -> dict[LimitKind, Limit]:
    limits: dict[LimitKind, Limit] = {}
    for name, value in given.items():
        kind = _FIELDS[name]
        threshold = value / 1000 if name.endswith("_ms") else float(value)
        limit = Limit(kind=kind, threshold=threshold, action=action, source=f"{source} {name}")
        other = limits.get(kind, limit)
        if other.threshold != threshold:
            both = f"{other.source} ({other.threshold:g}) and {name} ({threshold:g})"
            raise ValueError(f"{both} are the same limit and differ: give one of them")
        limits[kind] = limit
    return limits


def _hint(error: str) -> str:
    if "unknown field" in error:
        return f"; choose from: {', '.join(LimitsObject.__struct_fields__)}"
    return f"; choose from: {', '.join(Action)}" if "timeout_action" in error else ""


def schema() -> bytes:
    """Return the JSON Schema of `LimitsObject`, indented, with a newline at its end."""
    found = msgspec.json.schema(LimitsObject)
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"
