"""What the calls under way have used so far, in a file that outlives the gateway's process.

A gateway that is killed cannot tell its daemon what has passed, so it notes that of each call as it
passes. Each call has a slot, which holds the `EndCall` that would be right if nothing more came.
The daemon reads the slots before it starts the next gateway. A call is noted before it is sent, so
one without a note was not made: the first slot says whether that is true of this file.

The file is written without fsync: it has to survive the process, not the machine, whose runs end
with it. A slot never crosses a page, so the kernel writes it as a whole or not at all, even if the
process gets SIGKILL meanwhile.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ....host.files import create, is_regular
from ....protocol import messages as m
from ....protocol.framing import ProtocolError

SLOT = 4096
"""Bytes of a call. A longer one (the agent chooses the model's name) is noted as reserved."""
_EMPTY = b"\0\0\0\0"
_LENGTH = len(_EMPTY)
_COMPLETE = b"all1"
"""Begins a file in which each call is noted. No slot begins so: it would be too long."""


class Noted(NamedTuple):
    calls: list[m.EndCall]
    complete: bool
    """A call that is not among them was not sent."""


class Journal:
    def __init__(self, path: str, trouble: Callable[[str], None]) -> None:
        """Begin with an empty file. `trouble` is told, once, that a call cannot be noted; then it
        counts as reserved."""
        self._file = create(Path(path))
        self._trouble: Callable[[str], None] | None = trouble
        self._slots: dict[str, int] = {}
        """By reservation."""
        self._free: list[int] = []
        self._write(0, _COMPLETE)

    def note(self, ended: m.EndCall) -> None:
        """Note what is to be charged if the process ends now."""
        data = m.pack_message(ended)
        if len(data) > SLOT:
            short = m.EndCall(id=0, run=ended.run, reservation=ended.reservation, model="")
            data = m.pack_message(short)
        slot = self._slots.get(ended.reservation)
        if slot is None:
            slot = self._free.pop() if self._free else 1 + len(self._slots)
            self._slots[ended.reservation] = slot
        self._write(slot, data)

    def forget(self, reservation: str) -> None:
        """Free the slot of a call that the daemon knows the end of."""
        if (slot := self._slots.pop(reservation, None)) is not None:
            self._write(slot, _EMPTY)
            self._free.append(slot)

    def _write(self, slot: int, data: bytes) -> None:
        try:
            os.pwrite(self._file, data, slot * SLOT)
        except OSError as error:
            with suppress(OSError):
                os.pwrite(self._file, _EMPTY, 0)
            if self._trouble is not None:
                self._trouble(
                    f"calls under way cannot be noted: {error.strerror}; "
                    "if the gateway is killed, they count as reserved"
                )
                self._trouble = None

    def close(self) -> None:
        os.close(self._file)


def noted_in(path: Path) -> Noted:
    """Return what an ended gateway has noted. Raises `OSError`."""
    data = path.read_bytes() if is_regular(path) else b""
    complete = data.startswith(_COMPLETE)
    found = list(_noted(data[SLOT:] if complete else data))
    calls = [call for call in found if call is not None]
    return Noted(calls, complete and len(calls) == len(found))


def _noted(data: bytes) -> Iterator[m.EndCall | None]:
    """Yield the calls; `None` for one that cannot be read, and counts as reserved."""
    for start in range(0, len(data), SLOT):
        size = int.from_bytes(data[start : start + _LENGTH], "big")
        if not size:
            continue
        try:
            found = m.unpack_request(data[start + _LENGTH : start + _LENGTH + size])
        except ProtocolError:
            found = None  # written by another version
        yield found if isinstance(found, m.EndCall) else None
