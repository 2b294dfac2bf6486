"""How refusals, and processes that survived SIGKILL, are shown."""

from collections.abc import Sequence

from sfad.protocol.messages import Refused
from sfad.protocol.types import Survivor
from sfad.protocol.units import counted

from . import exits, output


def as_quit(reply: Refused, *, as_json: bool) -> exits.Quit:
    """Return the error that ends the program with 1, or 77 for permission: the message for people and models, then the detail.
    With `as_json` print the refusal on stdout, as scripts read all results there."""
    refusal = reply.refused
    code = exits.of_refusal(refusal)
    if as_json:
        output.print_json({"refused": refusal})
        return exits.Quit(code)
    detail = "" if refusal.detail in refusal.message else refusal.detail
    recorded = f"(recorded as {reply.run})" if reply.run else ""
    more = " ".join(filter(None, (output.plain(detail), recorded)))
    return exits.Quit(code, f"refused: {output.plain(refusal.message)}" + (f"\n  {more}" if more else ""))


def survivors(found: Sequence[Survivor]) -> str:
    """Return a line for each process that survived SIGKILL, below a heading."""
    lines = [output.plain(f"  pid {s.pid} of run {s.run_id}: {s.why}") for s in found]
    return "\n".join([f"{counted(len(found), 'process is', 'processes are')} still there after SIGKILL:", *lines])
