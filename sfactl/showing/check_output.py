"""What the checks of a run, and its setup, have printed (`sfactl logs --check`)."""

import os
from collections.abc import Iterator

from sfad.features.checks.messages import CheckFile, CheckFiles, CheckOutput
from sfad.protocol.checks import on_one_line
from sfad.protocol.encoding import to_json

from .. import output
from ..connecting.connection import Client
from ..options.shared import Tail
from .follower import data_from

BLOCK = 1 << 20


def show(client: Client, run: str, *, tail: Tail | None, json: bool) -> None:
    """Print it, the oldest first, each below a line that says what it is of."""
    files, descriptors = client.ask(CheckOutput(id=0, run=run), CheckFiles)
    try:
        for file, descriptor in zip(files.files, descriptors, strict=True):
            if json:
                for line in _whole(descriptor, tail).splitlines():
                    output.write(to_json(_object(files.run, file, line)) + b"\n")
            else:
                output.write(f"── {_heading(file)}\n".encode(errors="backslashreplace"))
                for block in _blocks(descriptor, tail):
                    output.write(block)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


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


def _blocks(descriptor: int, tail: Tail | None) -> Iterator[bytes]:
    """Yield what is shown of a file: at a terminal harmless, and with a newline at its end."""
    data = _whole(descriptor, tail)
    if os.isatty(1):
        data = output.harmless(data.decode(errors="backslashreplace")).encode()
    yield data if not data or data.endswith(b"\n") else data + b"\n"


def _whole(descriptor: int, tail: Tail | None) -> bytes:
    size = os.fstat(descriptor).st_size
    wanted = 0 if tail is None or tail.lines else max(0, size - tail.amount)
    start = data_from(descriptor, wanted) or 0  # the oldest bytes may have been freed
    data = bytearray()
    while start < size and (part := os.pread(descriptor, min(BLOCK, size - start), start)):
        data += part
        start += len(part)
    whole = bytes(data)
    if tail is None or not tail.lines:
        return whole
    return b"".join(whole.splitlines(keepends=True)[-tail.amount :]) if tail.amount else b""
