"""Reads the name of the server from the first message of a TLS connection (RFC 8446, section 4.1.2; RFC 6066, section 3)."""

MOST = 16 << 10
"""Bytes of a ClientHello. With keys that withstand quantum computers they have 2 KiB."""
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4
_VERSIONS = {b"", b"\x03"}
"""The first byte of a record's version, once it is there."""


class NotTlsError(Exception):
    """The first bytes are not those of a TLS connection."""


class MalformedHelloError(Exception):
    """They are, and what follows is no ClientHello that tells one name at most."""


class ClientHello:
    """Takes the bytes of a connection until its first message is whole. It may be cut into records at will."""

    def __init__(self) -> None:
        self._records = bytearray()
        self._message = bytearray()

    def feed(self, data: bytes) -> bool:
        """Return whether the message is whole. Raises `NotTlsError`, `MalformedHelloError`."""
        self._records += data
        while self._records:
            if self._records[0] != _HANDSHAKE or bytes(self._records[1:2]) not in _VERSIONS:
                raise MalformedHelloError("a record of another type is in it") if self._message else NotTlsError
            size = int.from_bytes(self._records[3:_RECORD_HEAD])
            end = _RECORD_HEAD + size
            if len(self._records) < _RECORD_HEAD or (size and len(self._records) < end):
                break
            if not size:
                raise MalformedHelloError("a record of it is empty")
            self._message += self._records[_RECORD_HEAD:end]
            del self._records[:end]
            if self._is_whole():
                return True
        if len(self._records) + len(self._message) > MOST:
            raise MalformedHelloError(f"it has more than {MOST >> 10} KiB")
        return False

    def _is_whole(self) -> bool:
        size = int.from_bytes(self._message[1:_MESSAGE_HEAD])
        return len(self._message) >= _MESSAGE_HEAD and len(self._message) >= _MESSAGE_HEAD + size

    def server_name(self) -> str | None:
        """Return the name in the whole message, in lower case; `None` if there is none. Raises `MalformedHelloError`."""
        try:
            names = _names(_Reader(bytes(self._message)))
        except (IndexError, UnicodeDecodeError) as error:
            raise MalformedHelloError("it is malformed") from error
        if len(names) > 1:
            raise MalformedHelloError("it has several names of servers")
        return names[0].lower() if names else None


class _Reader:
    """Raises `IndexError` where bytes are missing."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __bool__(self) -> bool:
        return bool(self._data)

    def take(self, size: int) -> bytes:
        if size > len(self._data):
            raise IndexError
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def rest(self) -> bytes:
        return self._data

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int) -> "_Reader":
        """Return what follows its length, which has `size` bytes."""
        return _Reader(self.take(self.number(size)))


def _names(message: _Reader) -> list[str]:
    if message.number(1) != _CLIENT_HELLO:
        raise IndexError
    hello = message.vector(3)
    hello.take(2 + 32)  # version and random
    hello.vector(1)  # session
    hello.vector(2)  # ciphers
    hello.vector(1)  # compression
    names, extensions = [], hello.vector(2) if hello else hello
    while extensions:
        kind, content = extensions.number(2), extensions.vector(2)
        entries = content.vector(2) if kind == _SERVER_NAME else None
        while entries:
            if entries.number(1) != _HOST_NAME:
                raise IndexError
            names.append(entries.vector(2).rest().decode("ascii"))
    return names
