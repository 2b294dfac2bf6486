"""What a body holds under its content encoding (RFC 9110, section 8.4), within bounds."""

import sys
import zlib
from collections.abc import Callable
from typing import Protocol


class UnreadableBodyError(Exception):
    """The body is not what its encoding says, or more than is read."""


class Coding:
    """Decodes a body piece by piece, under all of its encodings."""

    def __init__(self, encodings: str) -> None:
        """`encodings`: the header's value. Raises `UnreadableBodyError` for an encoding that is not
        known."""
        names = [
            name
            for name in (name.strip().lower() for name in encodings.split(","))
            if name not in {"", "identity"}
        ]
        if len(names) > _MAX_ENCODINGS:
            raise UnreadableBodyError(
                f"it has {len(names)} content encodings; the most is {_MAX_ENCODINGS}"
            )
        for name in names:
            if name not in _KNOWN:
                known = ", ".join(sorted(_KNOWN))
                raise UnreadableBodyError(
                    f"its content encoding '{name[:40]}' is not one of {known}"
                )
        self._names = names[::-1]
        self._decoders: list[_Decode] = []
        self.window = 0
        """Bytes of memory that the decoders may take."""

    def feed(self, data: bytes, most: int) -> bytes:
        """Return what a piece holds, at most `most` bytes. Raises `UnreadableBodyError`, also if it
        is more."""
        for number, name in enumerate(self._names):
            if not data:
                break
            if number == len(self._decoders):
                decode, window = _KNOWN[name](data)
                self._decoders.append(decode)
                self.window += window
            data = self._decoders[number](data, most)
            if len(data) > most:
                break
        if len(data) > most:
            raise UnreadableBodyError(f"it is longer than {most} bytes")
        return data


_MAX_ENCODINGS = 4
_ZSTD_WINDOW = 23
"""The most that a content encoding may need, as a power of two (RFC 9659, section 3)."""
_ZLIB_WINDOW = 64 << 10
_MAX_MEMBERS = 100
"""In one piece. Each costs a copy of the rest."""
_Decode = Callable[[bytes, int], bytes]
"""Returns what a piece holds; where that is more than a number of bytes, a few bytes more than
that."""


_Made = tuple[_Decode, int]
"""A decoder of a body that begins with some bytes, and the bytes of memory that it may take."""


def _gzip(_: bytes) -> _Made:
    # members follow one another (RFC 1952, section 2.2), and zeros after the last one are common
    return _members(
        lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), zlib.error, padding=True
    ), _ZLIB_WINDOW


def _deflate(head: bytes) -> _Made:
    # some servers leave out the header of zlib that RFC 9110 asks for
    bits = zlib.MAX_WBITS if head[0] & 0x0F == 8 else -zlib.MAX_WBITS
    return _members(lambda: zlib.decompressobj(bits), zlib.error), _ZLIB_WINDOW


def import_decoders() -> None:
    """Import what is else imported when it is needed."""
    _brotli(b"\0"), _zstd(b"")


def _brotli(head: bytes) -> _Made:
    import brotli  # type: ignore[import-untyped]

    state = brotli.Decompressor()

    def decode(data: bytes, most: int) -> bytes:
        try:
            out = bytes(state.process(data, output_buffer_limit=most + 1))
            # the limit is that of one block of output, so what is left is asked for until it is too
            # much
            while len(out) <= most and not state.can_accept_more_data():
                out += state.process(b"", output_buffer_limit=most + 1 - len(out))
        except brotli.error as error:
            raise UnreadableBodyError(str(error)) from error
        return out

    return decode, 1 << _brotli_window(head[0])


def _brotli_window(first: int) -> int:
    """Return the power of two that the first byte tells (RFC 7932, section 9.1)."""
    if not first & 1:
        return 16
    if more := first >> 1 & 7:
        return 17 + more
    return 8 + (first >> 4 & 7) if first >> 4 & 7 else 17


def _zstd(head: bytes) -> _Made:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd

    window = _zstd_window(head)
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: window}
    # frames follow one another (RFC 8878, section 3)
    return _members(lambda: zstd.ZstdDecompressor(options=options), zstd.ZstdError), 1 << window


def _zstd_window(head: bytes) -> int:
    """Return the power of two that the window of the first frame takes (RFC 8878, section
    3.1.1.1.2)."""
    if len(head) < 6 or not head.startswith(b"\x28\xb5\x2f\xfd") or head[4] & 0x20:
        return _ZSTD_WINDOW  # a frame without a window takes its content's size
    exponent, mantissa = head[5] >> 3, head[5] & 7
    return min(_ZSTD_WINDOW, 10 + exponent + (mantissa > 0))


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _members(
    start: Callable[[], _Decompressor], failure: type[Exception], *, padding: bool = False
) -> _Decode:
    """Decode members that follow one another, each with a decompressor of its own."""
    state = start()

    def decode(data: bytes, most: int) -> bytes:
        nonlocal state
        out = b""
        try:
            for _ in range(_MAX_MEMBERS):
                if state.eof:
                    data = data.lstrip(b"\0") if padding else data
                    state = start() if data else state
                if not data or len(out) > most:
                    return out
                out += state.decompress(data, most + 1 - len(out))
                data = state.unused_data
        except failure as error:
            raise UnreadableBodyError(str(error)) from error
        raise UnreadableBodyError(f"a piece of it has more than {_MAX_MEMBERS} compressed members")

    return decode


_KNOWN: dict[str, Callable[[bytes], _Made]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}

ENCODINGS = frozenset(_KNOWN)
"""Those that can be decoded."""
