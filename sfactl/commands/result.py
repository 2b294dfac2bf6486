import os
from typing import Annotated

from msgspec.structs import replace

from sfad.protocol.requests.records import Result, ResultText

from .. import exits, output
from ..app import OverFleet, app
from ..connecting.connection import Client
from ..connecting.history import connect
from ..connecting.inside import inside_run
from ..options.selection import RunSelection
from ..options.shared import COUNT, flag
from ..options.spreading import spread


@app.command(cls=OverFleet)
@spread(RunSelection)
def result(
    chosen: RunSelection,
    max_bytes: Annotated[
        int | None, COUNT.option("Print at most the newest N bytes (default: 65536)")
    ] = None,
    plain: Annotated[
        bool, flag("Print the answer as it is (default at a terminal outside runs)")
    ] = False,
    wrapped: Annotated[
        bool, flag("Print the answer made safe for a language model (default elsewhere)")
    ] = False,
    raw: Annotated[bool, flag("Print stdout as it is, with JSON events")] = False,
) -> int:
    r"""Print the final answer of ended runs.

    At a terminal, and with --plain, it is the answer as it is. Elsewhere, and with --wrapped,
    it is made safe for a language model: it has no terminal escapes or control characters, its
    markup is escaped, and it is marked as data from another agent. If no meter knows the
    agent's events, or with --raw, it is stdout. A terminal gets control characters as \xNN.
    If not the agent has ended the run, but a limit or a person, it says so.
    """
    if wrapped and (plain or raw):
        raise exits.UsageError(
            f"--wrapped and {'--plain' if plain else '--raw'} exclude each other"
        )
    safe = wrapped or not (
        plain or raw or (not chosen.json and os.isatty(1) and inside_run() is None)
    )
    wanted = Result(id=0, run="", raw=raw, wrapped=safe)
    if max_bytes is not None:
        wanted.max_bytes = max_bytes

    def show(client: Client, run: str) -> None:
        _show(client.call(replace(wanted, run=run), ResultText), wanted, chosen.json)

    return chosen.each("result", show, connect)


def _show(found: ResultText, wanted: Result, json: bool) -> None:
    if json:
        output.print_json(output.content(found))
        return
    text = output.harmless(found.text) if wanted.wrapped or os.isatty(1) else found.text
    end = "" if wanted.raw or text.endswith("\n") else "\n"
    output.write((text + end).encode())
    if found.truncated and not wanted.wrapped:
        output.note(
            f"sfactl: only the newest part of the output of {found.run} is shown (--max-bytes); "
            f"all of it: sfactl logs {found.run}"
        )
