"""Options that several verbs have, declared once as the fields of a struct."""

from collections.abc import Callable, Collection, Mapping
from copy import copy
from functools import wraps
from inspect import Parameter, Signature, signature
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

Function = Callable[..., int | None]


def spread(
    struct: type[Struct],
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    headings: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Function], Function]:
    """Return a decorator for a verb with a parameter of this struct. typer sees a parameter for
    each field that is annotated as an option, and the verb receives the struct.

    `only`: leave out all other fields. `without`: leave out these. `headings`: of the help, by the
    first field below each.
    """
    spread_fields = {
        each.name: each
        for each in _parameters(struct, headings)
        if (only is None or each.name in only) and each.name not in without
    }

    def decorate(function: Function) -> Function:
        own = signature(function).parameters
        name = next(each.name for each in own.values() if each.annotation is struct)

        @wraps(function)
        def verb(**values: Any) -> int | None:
            given = {field: values.pop(field) for field in spread_fields if field in values}
            return function(**{name: struct(**given)}, **values)

        at = list(own).index(name)
        around = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own.values()]
        parameters = [*around[:at], *spread_fields.values(), *around[at + 1 :]]
        vars(verb)["__signature__"] = Signature(parameters)
        verb.__annotations__ = {each.name: each.annotation for each in parameters}
        return verb

    return decorate


def _parameters(struct: type[Struct], headings: Mapping[str, str]) -> list[Parameter]:
    found, heading = [], None
    hints = get_type_hints(struct, include_extras=True)
    for field in fields(struct):
        hint, heading = hints[field.name], headings.get(field.name, heading)
        if get_origin(hint) is Annotated:
            annotation = hint if heading is None else _under(heading, hint)
            found.append(
                Parameter(
                    field.name,
                    Parameter.KEYWORD_ONLY,
                    default=_default(field),
                    annotation=annotation,
                )
            )
    return found


def _under(heading: str, hint: Any) -> Any:
    kind, option = get_args(hint)
    option = copy(option)
    option.rich_help_panel = heading
    return Annotated[kind, option]


def _default(field: FieldInfo) -> Any:
    if field.default is not NODEFAULT:
        return field.default
    return Parameter.empty if field.required else field.default_factory()
