"""Structs for a program that must start fast: the same as msgspec's, which takes three times as long to import as Python to start.

A program chooses them by importing this module before any declaration of the protocol (`structs`). Only a client may: a light
struct does not check the types of what it receives, only which fields there are.
"""

from __future__ import annotations

from .framing import BadMessage
from .light_msgpack import pack, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, Self

__all__ = [
    "UNSET", "Any", "ClassVar", "Literal", "Protocol", "StrEnum", "Struct", "TypedDict", "UnsetType", "asdict", "datetime", "pack",
    "reader", "replace", "tag", "to_json",
]  # fmt: skip


class _Annotation:
    """Stands for the types that declarations name. Nothing evaluates their annotations."""

    def __getitem__(self, _words: object) -> _Annotation:
        return self


Any = ClassVar = Literal = datetime = _Annotation()  # type: ignore[assignment, misc]


class TypedDict:
    def __init_subclass__(cls, **_settings: bool) -> None:
        """Accept `total=False`."""


Protocol = TypedDict


# ---- words


class _Words(type):
    _members: dict[str, str]

    def __iter__(cls) -> Iterator[str]:
        return iter(cls._members.values())

    def __call__(cls, text: str) -> str:
        try:
            return cls._members[text]
        except (KeyError, TypeError):
            raise ValueError(f"{text!r} is not a valid {cls.__name__}") from None


class StrEnum(str, metaclass=_Words):
    """As `enum.StrEnum`: its members are those class attributes that are texts."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        cls._members = {}
        for name, value in list(vars(cls).items()):
            if isinstance(value, str) and name[0] != "_":
                cls._members[value] = member = str.__new__(cls, value)
                if "__init__" in vars(cls):
                    member.__init__(value)  # type: ignore[misc]
                setattr(cls, name, member)
        _CONVERSIONS[cls.__name__] = cls

    @property
    def value(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str.__repr__(self)}>"


# ---- structs


class UnsetType:
    def __bool__(self) -> bool:
        return False


UNSET = UnsetType()
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"float": float}
"""What makes a field's value of what msgpack holds, by a word of the field's annotation."""


class Struct:
    """As `msgspec.Struct`, as far as a client needs it. Its fields are its instance dict, and defaults are class attributes."""

    __struct_fields__: tuple[str, ...] = ()
    _omits_defaults = False
    _tag: str | None = None
    _by_tag: dict[str, type[Struct]]
    _required: frozenset[str] = frozenset()
    _optional: frozenset[str] = frozenset()
    _made_of: dict[str, Callable[[Any], Any]] | None = None

    def __init_subclass__(
        cls, *, tag: str | None = None, tag_field: str | None = None, omit_defaults: bool | None = None, **_settings: bool
    ) -> None:
        own = tuple(name for name, words in cls.__annotations__.items() if not words.startswith("ClassVar"))
        cls.__struct_fields__ = (*cls.__struct_fields__, *own)
        cls._required = frozenset(name for name in cls.__struct_fields__ if not hasattr(cls, name))
        cls._optional = frozenset(cls.__struct_fields__) - cls._required
        cls._made_of = None
        if omit_defaults is not None:
            cls._omits_defaults = omit_defaults
        if tag_field is not None:
            cls._by_tag = {}
        if tag is not None:
            cls._tag = tag
            cls._by_tag[tag] = cls
        _CONVERSIONS[cls.__name__] = cls._of

    def __init__(self, *values: Any, **fields: Any) -> None:
        fields.update(zip(self.__struct_fields__, values, strict=False))
        if not self._required <= fields.keys() <= {*self.__struct_fields__}:
            raise TypeError(f"{type(self).__name__} has other fields than {', '.join(fields)}")
        self.__dict__ = fields

    @classmethod
    def _of(cls, raw: dict[str, Any]) -> Self:
        """Return a struct of what msgpack holds. It keeps fields that it does not know, of a newer daemon."""
        if not cls._required <= raw.keys():
            raise ValueError(f"{cls.__name__} lacks {', '.join(cls._required - raw.keys())}")
        if cls._made_of is None:
            cls._made_of = _conversions(cls)
        for name, make in cls._made_of.items():
            value = raw.get(name)
            if value is not None:
                raw[name] = make(value)
        made = object.__new__(cls)
        made.__dict__ = raw
        return made

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield keys and values as msgpack holds them."""
        kind = type(self)
        for name, value in self.all_items():
            if not kind._omits_defaults or name not in kind._optional or value != getattr(kind, name):
                yield name, value

    def all_items(self) -> Iterator[tuple[str, Any]]:
        """Yield keys and values as JSON shows them: also defaults, so that a program finds each field."""
        if type(self)._tag is not None:
            yield "type", type(self)._tag
        for name in self.__struct_fields__:
            if (value := getattr(self, name)) is not UNSET:
                yield name, value

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and asdict(self) == asdict(other)

    def __hash__(self) -> int:
        return hash(tuple(asdict(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in asdict(self).items())})"


def _conversions(kind: type[Struct]) -> dict[str, Callable[[Any], Any]]:
    """Return, for each field that is not of a plain type, what makes its value."""
    found: dict[str, Callable[[Any], Any]] = {}
    for each in reversed(kind.__mro__[:-2]):
        for name, annotation in each.__annotations__.items():
            words = "".join(c if c.isalnum() or c == "_" else " " for c in annotation).split()
            if make := _conversion(words):
                found[name] = make
    return found


def _conversion(words: Sequence[str]) -> Callable[[Any], Any] | None:
    kinds = [_CONVERSIONS.get(word) for word in words if word != "float" or "int" not in words]
    one = next(filter(None, kinds), None)
    if one is None or words[0] not in ("list", "tuple", "dict"):
        return one
    if words[0] != "dict":  # a tuple has elements of one kind
        made = list if words[0] == "list" else tuple
        return lambda values: made(map(one, values))
    key, value = kinds[1] or str, kinds[2] or (lambda plain: plain)
    return lambda values: {key(k): value(v) for k, v in values.items()}


def replace(struct: Any, /, **changes: Any) -> Any:
    made = object.__new__(type(struct))
    made.__dict__ = struct.__dict__ | changes
    return made


def asdict(struct: Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def to_json(value: Any) -> bytes:
    from .light_json import to_json  # many a verb prints no JSON

    return to_json(value)


def tag(kind: type[Struct]) -> str:
    return str(kind._tag)


def reader(base: type[Struct]) -> Callable[[bytes], Struct]:
    """Return a function that makes of msgpack a struct of one of the classes below `base`, or `base` itself of a message that the
    program does not know. It raises `BadMessage`."""

    def read(body: bytes) -> Struct:
        try:
            raw = unpack(body)
            return base._by_tag.get(raw["type"], base)._of(raw)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
            raise BadMessage(f"not a message of this protocol: {error}") from error

    return read
