"""msgpack in Python, without msgspec's import (https://github.com/msgpack/msgpack/blob/master/spec.md)."""

from __future__ import annotations

from struct import pack as packed
from struct import unpack_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timezone
    from typing import Any
else:
    from _datetime import datetime, timezone  # the same classes; `datetime` defines them in Python first

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def pack(value: Any) -> bytes:
    """Return a value as msgpack. What is neither a plain value, a list nor a time has `items`, as a dict has."""
    found = bytearray()
    _pack(value, found)
    return bytes(found)


def _pack(value: Any, to: bytearray) -> None:
    if value is None:
        to.append(0xC0)
    elif value is True or value is False:
        to.append(0xC3 if value else 0xC2)
    elif isinstance(value, int):
        _pack_int(value, to)
    elif isinstance(value, str):
        text = str.encode(value)
        _head(len(text), to, 0xA0, 32, (0xD9, 0xDA, 0xDB))
        to += text
    elif isinstance(value, bytes | bytearray):
        _head(len(value), to, 0, 0, (0xC4, 0xC5, 0xC6))
        to += value
    elif isinstance(value, float):
        to += packed(">Bd", 0xCB, value)
    elif isinstance(value, list | tuple):
        _head(len(value), to, 0x90, 16, (None, 0xDC, 0xDD))
        for item in value:
            _pack(item, to)
    elif hasattr(value, "items"):
        _pack_map(list(value.items()), to)
    else:
        to += b"\xc7\x0c\xff" + _timestamp(value)


def _pack_map(items: list[tuple[str, Any]], to: bytearray) -> None:
    _head(len(items), to, 0x80, 16, (None, 0xDE, 0xDF))
    for key, item in items:
        _pack(key, to)
        _pack(item, to)


def _timestamp(moment: datetime) -> bytes:
    since = moment - _EPOCH
    return packed(">Iq", since.microseconds * 1000, since.days * 86_400 + since.seconds)


def _head(size: int, to: bytearray, small: int, most: int, heads: Sequence[int | None]) -> None:
    """Append the head of a text, bytes, a list or a map: in itself for less than `most`, or with 1, 2 or 4 bytes of size."""
    if size < most:
        to.append(small + size)
        return
    for head, width in zip(heads, (1, 2, 4), strict=True):
        if head is not None and size < 1 << 8 * width:
            to.append(head)
            to += size.to_bytes(width, "big")
            return
    raise OverflowError(f"{size} is too long for msgpack")


def _pack_int(value: int, to: bytearray) -> None:
    if -32 <= value < 128:
        to.append(value & 0xFF)
    elif value < 0:
        to.append(0xD3)
        to += value.to_bytes(8, "big", signed=True)
    else:
        to.append(0xCF)
        to += value.to_bytes(8, "big")


LONG = 256 * 1024
"""Bytes from which a reply is read by msgspec: reading it here would take longer than the import."""


def unpack(body: bytes) -> Any:
    """Return what msgpack holds. Raise several kinds of errors if it is none."""
    if len(body) > LONG:
        import msgspec

        try:
            return msgspec.msgpack.decode(body)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from None
    value, end = _unpack(body, 0)
    if end != len(body):
        raise ValueError("bytes follow the message")
    return value


def _unpack(data: bytes, at: int) -> tuple[Any, int]:
    head = data[at]
    at += 1
    if 0xA0 <= head < 0xC0:
        return _text(data, at, head - 0xA0)
    if head < 0x80:
        return head, at
    if head >= 0xE0:
        return head - 256, at
    if head < 0x90:
        return _map(data, at, head - 0x80)
    if head < 0xA0:
        return _list(data, at, head - 0x90)
    if head in _CONSTANTS:
        return _CONSTANTS[head], at
    read, width = _SIZED[head]
    if read is None:
        return int.from_bytes(data[at : at + width], "big", signed=head >= 0xD0), _within(data, at + width)
    if width == 0:
        return read(data, at, head)
    return read(data, _within(data, at + width), int.from_bytes(data[at : at + width], "big"))


def _within(data: bytes, end: int) -> int:
    if end > len(data):
        raise ValueError("the message is cut off")
    return end


def _text(data: bytes, at: int, size: int) -> tuple[str, int]:
    end = _within(data, at + size)
    return data[at:end].decode(), end


def _bytes(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = _within(data, at + size)
    return data[at:end], end


def _list(data: bytes, at: int, size: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(size):
        item, at = _unpack(data, at)
        found.append(item)
    return found, at


def _map(data: bytes, at: int, size: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    for _ in range(size):
        # what most keys and values are is read here, without a call: that is twice as fast
        head = data[at]
        end = at + head - 0x9F
        if 0xA0 <= head < 0xC0 and end < len(data):
            key = data[at + 1 : end].decode()
            at = end
        else:
            key, at = _unpack(data, at)
        head = data[at]
        if head == 0xC0:
            found[key] = None
            at += 1
        elif head < 0x80:
            found[key] = head
            at += 1
        else:
            found[key], at = _unpack(data, at)
    return found, at


def _float(data: bytes, at: int, head: int) -> tuple[float, int]:
    form, width = (">f", 4) if head == 0xCA else (">d", 8)
    return unpack_from(form, data, _within(data, at + width) - width)[0], at + width


def _fixed_extension(data: bytes, at: int, head: int) -> tuple[Any, int]:
    return _extension(data, at, 1 << (head - 0xD4))


def _extension(data: bytes, at: int, size: int) -> tuple[Any, int]:
    """Return the only extension that the protocol has: a time."""
    end = _within(data, at + 1 + size)
    found = data[at + 1 : end]
    if data[at] != 0xFF or size not in (4, 8, 12):
        raise ValueError("an unknown extension of msgpack")
    nanoseconds, seconds = 0, int.from_bytes(found[-8:], "big", signed=size == 12)
    if size == 8:
        nanoseconds, seconds = seconds >> 34, seconds & (1 << 34) - 1
    elif size == 12:
        nanoseconds = int.from_bytes(found[:4], "big")
    return datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=nanoseconds // 1000), end


_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_SIZED: dict[int, tuple[Callable[[bytes, int, int], tuple[Any, int]] | None, int]] = {
    0xC4: (_bytes, 1), 0xC5: (_bytes, 2), 0xC6: (_bytes, 4),
    0xC7: (_extension, 1), 0xC8: (_extension, 2), 0xC9: (_extension, 4),
    0xCA: (_float, 0), 0xCB: (_float, 0),
    0xCC: (None, 1), 0xCD: (None, 2), 0xCE: (None, 4), 0xCF: (None, 8),
    0xD0: (None, 1), 0xD1: (None, 2), 0xD2: (None, 4), 0xD3: (None, 8),
    0xD4: (_fixed_extension, 0), 0xD5: (_fixed_extension, 0), 0xD6: (_fixed_extension, 0), 0xD7: (_fixed_extension, 0),
    0xD8: (_fixed_extension, 0),
    0xD9: (_text, 1), 0xDA: (_text, 2), 0xDB: (_text, 4),
    0xDC: (_list, 2), 0xDD: (_list, 4), 0xDE: (_map, 2), 0xDF: (_map, 4),
}  # fmt: skip
"""By the first byte: what reads the value, `None` for a whole number; and the bytes of its size, 0 if the first byte tells it."""
