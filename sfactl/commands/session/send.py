"""Write a line to the stdin of a session, or continue one that has ended.

The agent of a live session must keep its stdin open: `stdin = true` in its entry of the config. Fails if it does not read what was
sent before. A session that has ended is continued in a new one, with the message as its task; its id is printed.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ... import output, sessions
from ...exits import ExitCode
from ...options import COMMON, RUN, Argument, Parameter

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    replace(RUN, complete="live"),
    Argument("words", "MESSAGE", "The line to send", many=True),
)


def main(*, run: str, words: Sequence[str], socket: str | None = None, json: bool = False) -> int:
    message = " ".join(words)
    new = sessions.send(run, message, socket=socket)
    if json:
        output.print_json({"run": run, "sent": message} | ({} if new is None else {"continued_by": new.run_id}))
    elif new is not None:
        print(new.run_id)
    return ExitCode.DONE
