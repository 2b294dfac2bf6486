"""What the checks of a run, and its setup, have printed (`sfactl logs --check`)."""

import os
import time
from collections import deque

from sfad.features.checks.messages import CheckFile
from sfad.protocol.checks import on_one_line
from sfad.protocol.encoding import to_json

from .. import output
from ..api.asking import LOOK
from ..api.check_logs import Reading
from ..connecting.connection import Client
from ..options.shared import Tail


def show(client: Client, run: str, *, tail: Tail | None, json: bool, follow: bool) -> None:
    """Print it, the oldest first, each below a line that says what it is of. `follow`: until the
    run has ended."""
    lines = Lines(tail, json=json)
    reading = Reading(run, follow=follow, begin=-tail.amount if tail and not tail.lines else 0)
    while (call := reading.next) is not None:
        if reading.waits:
            lines.show_tail()
            time.sleep(LOOK)
        reply = client.call(call.request, call.expected)
        for file, data in reading.take(call.result(reply)):
            lines.add(reading.run, file, data)
    lines.end()


class Lines:
    """Shows whole lines. Of what was printed before, `tail` lines are shown of each command."""

    def __init__(self, tail: Tail | None, *, json: bool) -> None:
        self._run, self._json = "", json
        self._none = tail is not None and not tail.amount
        self._most = tail.amount if tail is not None and tail.lines else None
        self._file: CheckFile | None = None
        self._partial = b""
        self._kept: deque[bytes] | None = None
        """The last lines so far, of which `tail` are going to be shown."""

    def add(self, run: str, file: CheckFile, data: bytes) -> None:
        if file != self._file:
            self.end()
            self._run, self._file = run, file
            if not self._json:
                output.write(f"── {_heading(file)}\n".encode(errors="backslashreplace"))
            if self._most is not None:
                self._kept = deque(maxlen=self._most)
        *whole, self._partial = (self._partial + data).split(b"\n")
        for line in () if self._none else whole:
            if self._kept is not None:
                self._kept.append(line)
            else:
                self._show(line)

    def show_tail(self) -> None:
        """From now on, show what comes."""
        self._none, kept, self._kept, self._most = False, self._kept or (), None, None
        for line in kept:
            self._show(line)

    def end(self) -> None:
        """Nothing more comes of the present command."""
        if self._partial and not self._none:
            if self._kept is not None:
                self._kept.append(self._partial)
            else:
                self._show(self._partial)
        self._partial = b""
        kept, self._kept = self._kept or (), None
        for line in kept:
            self._show(line)

    def _show(self, line: bytes) -> None:
        assert self._file is not None
        if self._json:
            output.write(to_json(_object(self._run, self._file, line)) + b"\n")
            return
        if os.isatty(1):
            line = output.harmless(line.decode(errors="backslashreplace")).encode()
        output.write(line + b"\n")


def _heading(file: CheckFile) -> str:
    what = f"check {file.number}" if file.number else "setup"
    command = f": {output.plain(on_one_line(file.command))}" if file.command else ""
    return f"attempt {file.attempt}, {what}{command}"


def _object(run: str, file: CheckFile, line: bytes) -> dict[str, object]:
    return {
        "run": run,
        "attempt": file.attempt,
        "check": file.number or None,
        "command": file.command or None,
        "text": line.decode(errors="backslashreplace"),
    }
