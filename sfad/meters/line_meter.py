"""What the meters of all programs share: each decodes lines, and saves its state."""

import re
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import msgspec

from ..protocol.types import Tokens
from . import counters
from .lines import BOM, WantedLines, without_surrogates
from .reading import Reading

E = TypeVar("E")
S = TypeVar("S", bound=msgspec.Struct)

STATE = 5
"""The version of what meters dump. Raise it when a field of `Reading`, or of a meter's state, is added, removed or changes its
meaning: older dumps are then ignored and the run's output is read again."""


class _Dump(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    kind: str
    reading: Reading
    lines: tuple[bytes, bool, int]
    state: bytes


_TO_BYTES = msgspec.msgpack.Encoder()
_FROM_BYTES = msgspec.msgpack.Decoder(_Dump)


class LineMeter(ABC, Generic[E, S]):
    """A meter of a program that prints one JSON object a line. A subclass sets the first three attributes."""

    wanted: re.Pattern[bytes]
    """Where a line may be that matters (`lines_of_type`)."""
    decoder: msgspec.json.Decoder[E]
    state_type: type[S]
    """What the meter keeps beside its reading, except what the command says."""

    def __init__(self) -> None:
        self.reading = Reading()
        self._state = self.state_type()
        self._lines = WantedLines(self.wanted)

    def feed(self, data: bytes | memoryview) -> None:
        for line in self._lines.of(bytes(data)):
            event = self._decoded(line.removeprefix(BOM))
            if event is not None:
                self._take(event)
        self.reading.skipped_lines = self._lines.skipped

    def dump(self) -> bytes:
        state = _TO_BYTES.encode(self._state)
        return _TO_BYTES.encode(_Dump(STATE, type(self).__name__, self.reading, self._lines.dump(), state))

    def load(self, saved: bytes) -> None:
        """Continue where the meter was that dumped this. Raises `ValueError`."""
        try:
            found = _FROM_BYTES.decode(saved)
            state = msgspec.msgpack.decode(found.state, type=self.state_type)
        except msgspec.DecodeError as error:
            raise ValueError(f"no dump of a meter: {error}") from error
        if (found.version, found.kind) != (STATE, type(self).__name__):
            raise ValueError(f"a dump of {found.kind}, version {found.version}")
        self.reading, self._state = found.reading, state
        self._lines.load(found.lines)

    @abstractmethod
    def _take(self, event: E) -> None:
        """Count what a line says."""

    def _decoded(self, line: bytes) -> E | None:
        try:
            return self.decoder.decode(line)
        except (msgspec.ValidationError, RecursionError):
            return None
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        try:
            return self.decoder.decode(without_surrogates(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


class MessageCharge(msgspec.Struct, frozen=True, array_like=True):
    model: str
    used: Tokens


class SessionState(msgspec.Struct, array_like=True):
    messages: counters.RecentIds[MessageCharge] = msgspec.field(default_factory=counters.RecentIds[MessageCharge])
    calls: counters.RecentIds[bool] = msgspec.field(default_factory=counters.RecentIds[bool])


class SessionMeter(LineMeter[E, SessionState]):
    state_type = SessionState

    def __init__(self, since: str) -> None:
        """`since`: the time from which on lines count, as the file writes it."""
        super().__init__()
        self._since = since

    def _in_time(self, timestamp: Any) -> bool:
        # a line without a time counts: too much rather than too little
        return not isinstance(timestamp, str) or timestamp >= self._since

    def _asked(self) -> None:
        self.reading.partial = True
        counters.recognised(self.reading)

    def _charge(self, message: str, model: str, used: Tokens) -> None:
        """Count a message, in the place of what was counted for it before."""
        known = self._state.messages.get(message)
        if known is None:
            counters.message(self.reading)
        else:
            self.reading.models[known.model] = counters.minus(self.reading.models[known.model], known.used)
        self._state.messages.put(message, MessageCharge(counters.add(self.reading.models, model, used), used))
