"""Write a line to the stdin of a session.

The agent must keep its stdin open: `stdin = true` in its entry of the config. Fails if the session has ended, or does not read
what was sent before.
"""

from __future__ import annotations

from sfad.protocol.structs import replace

from ... import output, sessions
from ...exits import ExitCode
from ...options import COMMON, RUN, Argument, Parameter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    replace(RUN, complete="live"),
    Argument("words", "MESSAGE", "The line to send", many=True),
)


def main(*, run: str, words: Sequence[str], socket: str | None = None, json: bool = False) -> int:
    message = " ".join(words)
    sessions.send(run, message, socket=socket)
    if json:
        output.print_json({"run": run, "sent": message})
    return ExitCode.DONE
