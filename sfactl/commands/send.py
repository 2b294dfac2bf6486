import os
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

from sfad.protocol.requests.base import Done
from sfad.protocol.requests.steering import Send

from .. import output
from ..app import OverFleet, app
from ..connecting.connection import connect
from ..options.shared import Json, LiveRun, Socket, Value, flag

CHUNK = 64 * 1024
"""Bytes of one request: what a pipe holds (pipe(7)). More would wait in the daemon."""


@app.command(cls=OverFleet)
def send(
    run: LiveRun,
    words: Annotated[list[str], Value("MESSAGE").argument("The line to send; - is stdin")] = [],
    socket: Socket = None,
    json: Json = False,
    eof: Annotated[bool, flag("Close the run's stdin afterwards")] = False,
    keys: Annotated[
        bool, flag("Type MESSAGE into the run's terminal; <Enter>, <C-c>, <Up> and others are keys")
    ] = False,
) -> None:
    """Write to the stdin of a run started with --stdin, or type into its terminal.

    A newline is added to MESSAGE. Without MESSAGE, or with -, stdin is copied unchanged.

    --keys types: sfactl send RUN --keys 'y<Enter>'. Nothing is added. Keys are Enter, Tab,
    S-Tab, Esc, Space, BS, Del, Insert, Up, Down, Left, Right, Home, End, PageUp, PageDown, F1
    to F12, C-x (Ctrl) and M-x (Alt); <lt> is the character <. Nothing keeps what is typed. A
    run may type into runs below it (permission: keys).
    """
    if keys:
        from ..terminals.typing import type_into

        type_into(run, words, socket, json=json, eof=eof)
        return
    sent = 0
    with connect(socket) as client:
        for data in _data(words):
            client.call(Send(id=0, run=run, data=data), Done)
            sent += len(data)
        if eof or not sent:  # also with an empty stdin, to check that the run exists
            client.call(Send(id=0, run=run, data=b"", eof=eof), Done)
    if json:
        output.print_json({"run": run, "sent": sent, "eof": eof})


def _data(words: Sequence[str]) -> Iterator[bytes]:
    if words and list(words) != ["-"]:
        yield os.fsencode(" ".join(words)) + b"\n"
        return
    while data := os.read(sys.stdin.fileno(), CHUNK):
        yield data
