"""Limits as programs write them: one JSON object. Only the form is checked here; the core checks
ranges."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from .kinds import KINDS, LimitSpec
from .limits import parse_kind
from .texts.units import in_snake_case
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


_ACTION_FIELD = "timeout_action"
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
        (_ACTION_FIELD, _ACTION, None),
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


WRAPPERS = ("execution_limits", "limits")
"""Names of a field that holds the whole object, as some frameworks write it."""


class WrittenLimits(Struct, frozen=True):
    """What a JSON object of limits says."""

    limits: list[Limit]
    on_limit: Action | None = None
    """An action without a limit that it belongs to: that of each limit that names none."""


def parse_limits(text: str | bytes, source: str = "--limits") -> WrittenLimits:
    """Return what a JSON object says; the source of each limit is `source` and the name of its
    field. `max_WORD` and `WORD_limit` are understood, with a word of `parse_kind` and the plain
    unit of its kind.
    Raise `ValueError` with `source`, the field and what it takes: also where two fields set one
    kind and differ."""
    try:
        fields = _unwrapped(msgspec.json.decode(text, type=dict[str, Raw]))
        found = {name: _value(name, raw) for name, raw in fields.items()}
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{source}: {error}{_hint(str(error))}") from None
    word = found.pop(_ACTION_FIELD, None)
    action = None if word is None else Action(word)
    given = {name: value for name, value in found.items() if value is not None}
    if not given:
        return WrittenLimits([], action)
    return WrittenLimits(list(_limits(given, action, source).values()))


def _unwrapped(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the fields by their names in snake case, those of a wrapper among them."""
    found: dict[str, Raw] = {}
    for name, raw in fields.items():
        name = in_snake_case(name)
        if name in WRAPPERS:
            inner = msgspec.json.decode(raw, type=dict[str, Raw] | None) or {}
            found |= {in_snake_case(each): value for each, value in inner.items()}
        else:
            found[name] = raw
    return found


def _value(name: str, raw: Raw) -> Any:
    """Return the value of a field, checked as that of the field that it stands for."""
    own = name if name in LimitsObject.__struct_fields__ else _meant(name)
    try:
        found = msgspec.json.decode(b'{"%b":%b}' % (own.encode(), raw), type=LimitsObject)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(str(error).replace(f"$.{own}`", f"$.{name}`")) from None
    return getattr(found, own)


def _meant(name: str) -> str:
    """Return the field that `max_WORD` or `WORD_limit` stands for; an unknown name as it is."""
    if not (name.startswith("max_") or name.endswith("_limit")):
        return name
    try:
        fields = KINDS[parse_kind(name)].fields
    except ValueError:
        return name
    return fields[0] if fields else name


def _limits(
    given: Mapping[str, float], action: Action | None, source: str
) -> dict[LimitKind, Limit]:
    limits: dict[LimitKind, Limit] = {}
    for name, value in given.items():
        kind = _FIELDS.get(name) or parse_kind(name)
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
    return f"; choose from: {', '.join(Action)}" if _ACTION_FIELD in error else ""


def schema() -> bytes:
    """Return the JSON Schema of `LimitsObject`, indented, with a newline at its end."""
    found = msgspec.json.schema(LimitsObject)
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"
