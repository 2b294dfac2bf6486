"""`sfactl result RUN`

The final answer of a finished run for a language model: terminal escapes and control characters removed, markup escaped, cut
to a size, and marked as data from another agent. If no meter knows the agent's events, or with --raw, it is the whole stdout.
`logs` shows the output unchanged.
"""

from __future__ import annotations

from sfad.protocol.messages import Result, ResultText
from sfad.protocol.units import MOST_WHOLE

from .. import environment, exits, output
from ..connection import connect
from ..options import COMMON, RUN, Option, Parameter

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    RUN,
    Option(("--max-bytes",), "max_bytes", "Keep the newest N bytes; else 65536", "N"),
    Option(("--raw",), "raw", "The whole stdout, JSON events included"),
)


def main(*, run: str, max_bytes: str | None = None, raw: bool = False, socket: str | None = None, json: bool = False) -> int:
    """Prints a run's result."""
    wanted = Result(id=0, run=run, raw=raw)
    if max_bytes is not None:
        wanted.max_bytes = environment.whole("--max-bytes", max_bytes, 0, MOST_WHOLE)
    with connect(socket) as client:
        wanted.id = client.next_id()
        found = client.call(wanted, ResultText)
    if json:
        output.print_json(output.content(found))
    else:
        output.write(output.harmless(found.text).encode() + (b"" if found.text.endswith("\n") else b"\n"))
    return exits.Exit.DONE
