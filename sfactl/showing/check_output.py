"""What the checks of a run, and its setup, have printed (`sfactl logs --check`)."""

import os

from sfad.features.checks.messages import CheckFile, CheckFiles, CheckOutput, ReadCheck
from sfad.protocol.checks import on_one_line
from sfad.protocol.encoding import to_json
from sfad.protocol.requests.following import OutputPart

from .. import output
from ..connecting.connection import Client
from ..options.shared import Tail


def show(client: Client, run: str, *, tail: Tail | None, json: bool) -> None:
    """Print it, the oldest first, each below a line that says what it is of."""
    found = client.call(CheckOutput(id=0, run=run), CheckFiles)
    for file in found.files:
        data = _read(client, found.run, file, tail)
        if json:
            for line in data.splitlines():
                output.write(to_json(_object(found.run, file, line)) + b"\n")
        else:
            output.write(f"── {_heading(file)}\n".encode(errors="backslashreplace"))
            output.write(_shown(data))


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


def _shown(data: bytes) -> bytes:
    """Return it harmless for a terminal, with a newline at its end."""
    if os.isatty(1):
        data = output.harmless(data.decode(errors="backslashreplace")).encode()
    return data if not data or data.endswith(b"\n") else data + b"\n"


def _read(client: Client, run: str, file: CheckFile, tail: Tail | None) -> bytes:
    offset = 0 if tail is None or tail.lines else -tail.amount
    data = bytearray()
    if tail is not None and not tail.amount:
        return b""
    while True:
        wanted = ReadCheck(id=0, run=run, attempt=file.attempt, number=file.number, offset=offset)
        part = client.call(wanted, OutputPart)
        if not part.data:
            break
        data += part.data
        offset = part.offset + len(part.data)
    whole = bytes(data)
    if tail is None or not tail.lines:
        return whole
    return b"".join(whole.splitlines(keepends=True)[-tail.amount :])
