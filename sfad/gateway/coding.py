"""What a body holds under its content encoding (RFC 9110, section 8.4), within bounds."""

import zlib
from collections.abc import Callable


class UnreadableBodyError(Exception):
    """The body is not what its encoding says, or more than is read."""


class Coding:
    """Decodes a body piece by piece, under all of its encodings."""

    def __init__(self, encodings: str) -> None:
        """`encodings`: the header's value. Raises `UnreadableBodyError` for an encoding that is not known."""
        names = [name.strip().lower() for name in encodings.split(",")]
        self._decoders = [_new(name) for name in reversed(names) if name not in {"", "identity"}]

    def feed(self, data: bytes, most: int) -> bytes:
        """Return what a piece holds, at most `most` bytes. Raises `UnreadableBodyError`, also if it is more."""
        for decode in self._decoders:
            data = decode(data, most)
        if len(data) > most:
            raise UnreadableBodyError(f"it is longer than {most} bytes")
        return data


_Decode = Callable[[bytes, int], bytes]


def _new(name: str) -> _Decode:
    make = _KNOWN.get(name)
    if make is None:
        raise UnreadableBodyError(f"its content encoding '{name[:40]}' is not one of {', '.join(sorted(_KNOWN))}")
    return make()


def _gzip() -> _Decode:
    return _zlib(zlib.MAX_WBITS | 32)  # the header tells gzip from zlib


def _deflate() -> _Decode:
    decode: _Decode | None = None

    def first(data: bytes, most: int) -> bytes:
        # some servers leave out the header of zlib that RFC 9110 asks for
        nonlocal decode
        if decode is None:
            decode = _zlib(zlib.MAX_WBITS if data[:1] and data[0] & 0x0F == 8 else -zlib.MAX_WBITS)
        return decode(data, most)

    return first


def _zlib(bits: int) -> _Decode:
    state = zlib.decompressobj(bits)

    def decode(data: bytes, most: int) -> bytes:
        try:
            out = state.decompress(data, most + 1)
        except zlib.error as error:
            raise UnreadableBodyError(str(error)) from error
        return out

    return decode


def _brotli() -> _Decode:
    import brotli  # type: ignore[import-untyped]

    state = brotli.Decompressor()

    def decode(data: bytes, most: int) -> bytes:
        try:
            return bytes(state.process(data, output_buffer_limit=most + 1))
        except brotli.error as error:
            raise UnreadableBodyError(str(error)) from error

    return decode


def _zstd() -> _Decode:
    from backports import zstd

    state = zstd.ZstdDecompressor()

    def decode(data: bytes, most: int) -> bytes:
        try:
            return bytes(state.decompress(data, most + 1))
        except (zstd.ZstdError, EOFError) as error:
            raise UnreadableBodyError(str(error)) from error

    return decode


_KNOWN: dict[str, Callable[[], _Decode]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
