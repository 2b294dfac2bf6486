"""JSON with the functions in C of Python's own package, whose import takes as long as to start Python."""

from __future__ import annotations

from _json import encode_basestring, encode_basestring_ascii, make_encoder, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_SPACE = " \t\r\n"


def parse(text: str) -> Any:
    """Return what one JSON text holds. Raise `ValueError` for another text, and for one that is nested too deeply."""
    begin = len(text) - len(text.lstrip(_SPACE))
    try:
        value, end = _scan(text, begin)
    except StopIteration as stop:
        raise ValueError(f"no value at character {stop.value}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except SystemError:  # Python before 3.12 finds no class for the error, because `json.decoder` is not imported
        raise ValueError("it is malformed") from None
    if text[end:].strip(_SPACE):
        raise ValueError(f"more text at character {end}")
    return value


def compact(value: Any) -> str:
    """Return a value as JSON on one line, in ASCII: the text may hold half a surrogate pair, which has no UTF-8."""
    return "".join(_compact(value, 0))


def readable(value: Any) -> str:
    """Return a value as JSON for a model: in Unicode, with spaces, on one line."""
    return "".join(_readable(value, 0))


def _refuse(value: object) -> NoReturn:
    raise ValueError(f"{value} is not JSON")


class _ScannerSettings:
    """What `json.JSONDecoder` passes to the scanner."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_refuse)


_scan = make_scanner(_ScannerSettings())  # type: ignore[arg-type] # it takes any object with these attributes
_compact = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, False)
_readable = make_encoder(None, _refuse, encode_basestring, None, ": ", ", ", False, False, False)
