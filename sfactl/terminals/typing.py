"""`sfactl send --keys`."""

import time
from collections.abc import Sequence

from sfad.features.terminals.messages import Keys
from sfad.protocol.requests.base import Done
from sfad.protocol.types import ErrorCode

from .. import output
from ..connecting.connection import Client, DaemonError, connect
from ..exits import UsageError
from .keys import sent_by

AT_ONCE = 4000
"""Bytes of a request: what is typed whole or not at all."""
PATIENCE = 10.0
"""Seconds for which a run may not read its terminal."""
AGAIN = 0.1


def type_into(run: str, words: Sequence[str], socket: str | None, *, json: bool, eof: bool) -> None:
    """Type into a run's terminal. Raise `Quit`."""
    if eof or not words:
        raise UsageError(
            "--keys needs what is to be typed, as in: --keys 'y<Enter>'; the end of a file is "
            "the key <C-d>"
        )
    try:
        data = sent_by(" ".join(words))
    except ValueError as error:
        raise UsageError(f"--keys: {error}") from None
    with connect(socket) as client:
        for at in range(0, len(data), AT_ONCE):
            _type(client, run, data[at : at + AT_ONCE])
    if json:
        output.print_json({"run": run, "sent": len(data)})


def _type(client: Client, run: str, data: bytes) -> None:
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            client.call(Keys(id=0, run=run, data=data), Done)
        except DaemonError as error:
            if error.error is not ErrorCode.UNAVAILABLE or time.monotonic() >= give_up:
                raise
            time.sleep(AGAIN)
        else:
            return
