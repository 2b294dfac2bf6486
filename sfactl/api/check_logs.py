"""What the checks of a run, and its setup, have printed: what is asked next, and what is made of a
reply. No I/O. It is of a feature, which may not be there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sfad.features.checks.messages import CheckFile, CheckFiles, CheckOutput, ReadCheck
from sfad.protocol.requests.following import OutputPart
from sfad.protocol.types import RunId

from .asking import Call

Printed = tuple[CheckFile, bytes]
"""A command, and a piece of what it has printed."""


class Reading:
    """Where a reader is. While there is a `next`, it is to be asked, and its reply to be taken."""

    def __init__(self, run: RunId, *, follow: bool, begin: int = 0) -> None:
        """`begin`: where to begin in each file, as in `ReadCheck.offset`."""
        self.next: Call[Any] | None = self._list(run)
        self.waits = False
        """There is nothing new: it is to be asked after a pause."""
        self.run = run
        """Its id, once the daemon has told."""
        self._follow, self._begin = follow, begin
        self._files: list[CheckFile] = []
        self._at, self._offset = 0, begin
        self._ended = False
        self._looked = False
        """All of the present file was read since the files were listed last."""

    def take(self, reply: CheckFiles | OutputPart) -> Iterator[Printed]:
        """Take a reply. Yield what was printed."""
        self.waits = False
        if isinstance(reply, CheckFiles):
            self.run, self._files, self._ended = reply.run, reply.files, reply.ended
        elif reply.data:
            self._offset = reply.offset + len(reply.data)
            yield self._files[self._at], reply.data
        elif self._at + 1 < len(self._files):
            self._at, self._offset = self._at + 1, self._begin
        else:
            self._looked = True
        over = self._ended or not self._follow
        if (self._looked or not self._files) and over:
            self.next = None
        elif self._looked or not self._files:
            self.next, self.waits, self._looked = self._list(self.run), True, False
            self._begin = 0
        else:
            self.next = self._read(self._files[self._at])

    @staticmethod
    def _list(run: RunId) -> Call[CheckFiles]:
        return Call(CheckOutput(id=0, run=run), CheckFiles, lambda reply: reply)

    def _read(self, file: CheckFile) -> Call[OutputPart]:
        wanted = ReadCheck(
            id=0, run=self.run, attempt=file.attempt, number=file.number, offset=self._offset
        )
        return Call(wanted, OutputPart, lambda reply: reply)
