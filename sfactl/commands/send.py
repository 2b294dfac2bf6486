"""Write to the stdin of a run started with --stdin.

A newline is added to MESSAGE. Without MESSAGE, or with -, stdin is copied unchanged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from sfad.protocol.requests.base import Done
from sfad.protocol.requests.steering import Send

from .. import output
from ..connection import connect
from ..exits import ExitCode
from ..options import COMMON, FLEET, RUN, Argument, Option, Parameter

CHUNK = 64 * 1024
"""Bytes of one request: what a pipe holds (pipe(7)). More would wait in the daemon."""

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    FLEET,
    replace(RUN, complete="live"),
    Argument("words", "MESSAGE", "The line to send; - is stdin", many=True, required=False),
    Option(("--eof",), "eof", "Close the run's stdin afterwards"),
)


def main(*, run: str, words: Sequence[str] = (), eof: bool = False, socket: str | None = None, json: bool = False) -> int:
    sent = 0
    with connect(socket) as client:
        for data in _data(words):
            client.call(Send(id=0, run=run, data=data), Done)
            sent += len(data)
        if eof or not sent:  # also with an empty stdin, to check that the run exists
            client.call(Send(id=0, run=run, data=b"", eof=eof), Done)
    if json:
        output.print_json({"run": run, "sent": sent, "eof": eof})
    return ExitCode.DONE


def _data(words: Sequence[str]) -> Iterator[bytes]:
    if words and list(words) != ["-"]:
        yield os.fsencode(" ".join(words)) + b"\n"
        return
    while data := os.read(sys.stdin.fileno(), CHUNK):
        yield data
