"""Print the final answer of ended runs, made safe for a language model.

The text has no terminal escapes or control characters, its markup is escaped, it is cut to a size, and it is marked as data from
another agent. If no meter knows the agent's events, or with --raw, it is the whole stdout. `sfactl logs` prints output unchanged.
"""

from __future__ import annotations

from sfad.protocol.requests.records import Result, ResultText

from .. import output
from ..connection import Client
from ..history import connect
from ..options import COMMON, RUNS, Option, Parameter, count
from ..selection import RunSelection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    RUNS,
    Option(("--max-bytes",), "max_bytes", "Print at most the newest N bytes (default: 65536)", "N"),
    Option(("--raw",), "raw", "Print the whole stdout, with JSON events"),
)


def main(
    *, runs: Sequence[str], max_bytes: str | None = None, raw: bool = False, socket: str | None = None, json: bool = False
) -> int:
    most = count("--max-bytes", max_bytes)
    with connect(socket) as client:
        return RunSelection("result", runs).each(client, lambda run: _show(_asked(client, run, most, raw), json))


def _asked(client: Client, run: str, most: int | None, raw: bool) -> ResultText:
    wanted = Result(id=0, run=run, raw=raw)
    if most is not None:
        wanted.max_bytes = most
    return client.call(wanted, ResultText)


def _show(found: ResultText, json: bool) -> None:
    if json:
        output.print_json(output.content(found))
    else:
        output.write(output.harmless(found.text).encode() + (b"" if found.text.endswith("\n") else b"\n"))
