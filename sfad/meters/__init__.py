"""Meters: what an agent says of its own use, read off its stdout (SPEC section 8, source `stream`).

    bytes ─▶ lines.py ─ lines that can matter ─▶ claude.py, codex.py … ─ typed events ─▶ Reading
                                                                 └ tally.py: sums that only grow, and are bounded

A meter is pure: no clock, no file, no task. It is fed what a run has written, in pieces of any size, and keeps its `Reading`
up to date. It never raises, and it keeps at most one line (`MAX_LINE`) and bounded sets of ids, whatever it is fed.

A run may write 200 MB/s, and nearly all of it is none of a meter's business. So one regular expression per program finds, in
whole pieces, where a line of an interesting type may be; only such a line is cut out and decoded, into the fewest fields.
Cutting every line out first took three to seven times as long.

What is unknown is `None`, and `models` empty: an agent that tells its usage at its end has not used 0 until then.
How to add a program: docs/meters.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.known import BY_REPORT, NO_METER
from .base import Meter, Program, Reading
from .claude import Claude
from .codex import Codex
from .gemini import Gemini
from .jsonl import Jsonl
from .opencode import Opencode

PROGRAMS: tuple[Program, ...] = (Claude(), Codex(), Gemini(), Opencode(), Jsonl())
"""Every kind of stream there is, in the order in which they are asked whether a command is theirs."""

UNREAD = (NO_METER, BY_REPORT)
"""Values of `--meter` for which nothing is read."""

__all__ = ["PROGRAMS", "UNREAD", "Meter", "Program", "Reading", "chosen", "named"]


def named(name: str | None) -> Program | None:
    """The program that `--meter` calls so."""
    return next((program for program in PROGRAMS if program.name == name), None)


def chosen(argv: Sequence[str]) -> Program | None:
    """The program whose events this command will print, as far as the command itself tells."""
    if not any("json" in word for word in argv):  # each of their formats is called so, and few commands say it
        return None
    return next((program for program in PROGRAMS if program.prints_events(argv)), None)
