"""The generated parts of protocol.md: the messages and types, from the declarations and docstrings
of `sfad/protocol`."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import types
import typing
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from sfad.protocol import messages as m
from sfad.protocol import requests
from sfad.protocol import types as t
from tests.all_messages import REPLIES, REQUESTS, is_of_feature

Struct = type[msgspec.Struct]

WIDTH = 120
GATEWAY = "gateway"
SUBJECTS = [
    name
    for name in re.findall(r"^`(\w+)`", requests.__doc__ or "", re.MULTILINE)
    if name != GATEWAY
]
"""The modules of messages, in the order of their package's docstring; without those between the
daemon and its own gateway."""
ENUMERATIONS = (t.Status, t.Rule, t.LimitKind, t.Action)
WORDS: dict[Any, str] = {
    int: "int", float: "float", str: "str", bytes: "bin", bool: "bool", type(None): "nil",
    Any: "any", datetime: "timestamp"
}  # fmt: skip

_DOCS_PAGE = re.compile(r"docs/(\w[\w-]*)\.md(#[\w-]+)?")
_NAME = re.compile(r"`([A-Z]\w+)(?:\.(\w+))?`")
_CODE = re.compile(r"`[^`]+`")


def tag(struct: Struct) -> str:
    """Return the name of a message on the wire, or of a type."""
    return str(struct.__struct_config__.tag or struct.__name__)


def of_subjects(structs: typing.Iterable[Struct], *subjects: str) -> list[Struct]:
    """Return the messages of these modules, in this order."""
    return [
        each for subject in subjects for each in structs if each.__module__.endswith(f".{subject}")
    ]


def of_features(structs: typing.Iterable[Struct]) -> list[Struct]:
    """Return the messages of features."""
    found = (each for each in structs if is_of_feature(each) and not _is_of_gateway(each))
    return sorted(found, key=lambda each: each.__module__)


def _is_of_gateway(struct: Struct) -> bool:
    return is_of_feature(struct) and struct.__module__.split(".")[2] == GATEWAY


def parts() -> dict[str, str]:
    """Return the generated parts, by the name in their markers."""
    shared = [each for each in of_subjects(REPLIES, *SUBJECTS) if each not in _own_replies()]
    return {
        "requests": "\n".join(
            map(_request, [*of_subjects(REQUESTS, *SUBJECTS), *of_features(REQUESTS)])
        ),
        "shared replies": "\n".join(_section(each) for each in shared),
        "types": _enumerations() + "\n" + "\n".join(_section(each) for each in nested()),
        "messages of the gateway": "\n".join(
            _request(each)
            for each in [*of_subjects(REQUESTS, GATEWAY), *filter(_is_of_gateway, REQUESTS)]
        ),
    }


def nested() -> list[Struct]:
    """Return the structs within messages, by name."""
    found: set[Struct] = set()
    todo = [*REQUESTS, *REPLIES]
    while todo:
        inner = {each for hint in get_type_hints(todo.pop()).values() for each in _structs(hint)}
        todo += inner - found
        found |= inner
    return sorted(found - set(REQUESTS), key=tag)


def _structs(hint: Any) -> Iterator[Struct]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for argument in get_args(hint):
        yield from _structs(argument)


def answers(request: Struct) -> list[Struct]:
    """Return the replies that a request's docstring names."""
    named = {each.__name__: each for each in REPLIES}
    return [
        named[name] for name, _ in _NAME.findall(inspect.getdoc(request) or "") if name in named
    ]


def _own_replies() -> set[Struct]:
    """Return the replies that only one request has: they are shown below it."""
    count = Counter(reply for request in REQUESTS for reply in set(answers(request)))
    return {reply for reply, requests in count.items() if requests == 1} - {
        m.Error,
        m.EventPush,
        m.CallPush,
        m.RunsPush,
    }


def _request(struct: Struct) -> str:
    own = [reply for reply in dict.fromkeys(answers(struct)) if reply in _own_replies()]
    return _section(struct) + "".join(f"\nReply `{tag(reply)}`:\n\n{_body(reply)}" for reply in own)


def _section(struct: Struct) -> str:
    heading = f"`{tag(struct)}`" if struct.__struct_config__.tag else tag(struct)
    return f"### {heading}\n\n{_body(struct)}"


def _body(struct: Struct) -> str:
    """Return a struct's docstring and its fields, those without a docstring together."""
    written = field_docs(struct)
    items: list[tuple[list[str], str]] = []
    for name, shown in fields_of(struct).items():
        text, item = written.get(name, ""), f"`{name}: {shown}`"
        if items and items[-1][1] == text:
            items[-1][0].append(item)
        else:
            items.append(([item], text))
    paragraphs = [
        prose(each)
        for each in ((struct.__doc__ and inspect.cleandoc(struct.__doc__)) or "").split("\n\n")
        if each
    ]
    listed = [
        _wrap("- " + ", ".join(names) + (f": {prose(text)}" if text else ""), "  ")
        for names, text in items
    ]
    return (
        "\n\n".join(
            [*(_wrap(each) for each in paragraphs), *(["\n".join(listed)] if listed else [])]
        )
        + "\n"
    )


def fields_of(struct: Struct) -> dict[str, str]:
    """Return type and default of each field as the page writes them, without the `id` that every
    message has."""
    hints = get_type_hints(struct)
    message = issubclass(struct, m.Request | m.Reply)
    return {
        field.name: _shown(hints[field.name], field)
        for field in msgspec.structs.fields(struct)
        if not (message and field.name == "id")
    }


def _type_of(hint: Any) -> str:
    if get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(
            _type_of(each) for each in get_args(hint) if each is not msgspec.UnsetType
        )
    if get_origin(hint) is list or get_args(hint)[1:] == (...,):
        return f"array of {_type_of(get_args(hint)[0])}"
    if get_origin(hint) is tuple:
        return f"[{', '.join(map(_type_of, get_args(hint)))}]"
    if get_origin(hint) is dict:
        key, value = (
            f"({part})" if " or " in part else part for part in map(_type_of, get_args(hint))
        )
        return f"map of {key} to {value}"
    if get_origin(hint) is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(hint))
    return WORDS.get(hint) or (tag(hint) if hint in REQUESTS else str(hint.__name__))


def _shown(hint: Any, field: msgspec.structs.FieldInfo) -> str:
    kind, default = _type_of(hint), field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    match default:
        case msgspec.NODEFAULT:
            return kind
        case msgspec.UNSET:
            return f"{kind}, or absent"
        case None:
            inner = kind.removesuffix(" or nil")
            return f"({inner})?" if " " in inner else f"{inner}?"
        case msgspec.Struct():
            return f"{kind} = {{}}"
    return f"{kind} = {msgspec.json.encode(default).decode()}"


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def field_docs(struct: Struct) -> dict[str, str]:
    """Return the docstrings of a struct's own fields."""
    body = _classes(struct.__module__)[struct.__qualname__]
    found = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                found[name] = inspect.cleandoc(text)
    return found


def prose(text: str) -> str:
    """Return a docstring in the words of the page: names on the wire, nil, links."""
    named = {each.__name__: tag(each) for each in (*REQUESTS, *REPLIES)}

    def on_the_wire(found: re.Match[str]) -> str:
        name, field = found.groups()
        shown = named.get(name, name)
        if field is None:
            return f"`{shown}`"
        return f"`{field}` of `{shown}`"

    text = re.sub(
        r"`(None|True|False)`",
        lambda found: {"None": "nil"}.get(found[1], found[1].lower()),
        " ".join(text.split()),
    )
    text = re.sub(r"(^|\. )nil\b", r"\1Nil", _NAME.sub(on_the_wire, text)).replace(
        "docs/protocol.md#", "#"
    )
    text = re.sub(r"\(#([\w-]+)\)", r"([\1](#\1))", text)
    return _DOCS_PAGE.sub(lambda found: f"[{found[1]}]({found[1]}.md{found[2] or ''})", text)


def _wrap(text: str, indent: str = "") -> str:
    """Return the text in lines of the page's width. Code stays on one line."""
    kept = _CODE.sub(lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.fill(
        kept, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return lines.replace("\0", " ")


def _enumerations() -> str:
    """Return the table of words."""

    def row(enum: type[Enum]) -> str:
        words = ", ".join(f"`{each.value}`" for each in enum)
        return f"| {enum.__name__} | {words} | {prose(inspect.getdoc(enum) or '')} |"

    return (
        "\n".join(
            [
                "### Enumerations",
                "",
                "| type | one of | meaning |",
                "|---|---|---|",
                *map(row, ENUMERATIONS),
            ]
        )
        + "\n"
    )
