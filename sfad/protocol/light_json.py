"""JSON as msgspec writes it, without its import; of structs, every field."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def to_json(value: Any) -> bytes:
    """Return a value as msgspec writes it, but also the fields that a struct leaves out of messages."""
    return _json(value).encode()


def _json(value: Any) -> str:
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return repr(value) if value - value == 0 else "null"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{','.join(map(_json, value))}]"
    if isinstance(value, dict):
        return _object(value.items())
    return _object(value.all_items()) if hasattr(value, "all_items") else _rare(value)


def _object(items: Any) -> str:
    return f"{{{','.join([f'{_quoted(str(key))}:{_json(value)}' for key, value in items])}}}"


def _quoted(text: str) -> str:
    if not text.isprintable() or '"' in text or "\\" in text:
        text = "".join(_ESCAPES.get(c) or (c if c >= " " else f"\\u{ord(c):04x}") for c in text)
    return f'"{text}"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


def _rare(value: Any) -> str:
    if hasattr(value, "isoformat"):
        return f'"{value.isoformat().removesuffix("+00:00")}Z"'
    import msgspec

    return msgspec.json.encode(value, enc_hook=lambda other: msgspec.Raw(to_json(other))).decode()
