"""Agent programs: a file for each says all that is known of it.

`programs`      a file for each: what it prints and saves, its options, its calls
`program`       what a program's file must say, and helpers for command lines and session files
`line_meter`    what all meters share: each decodes the few lines that can matter, and saves its
                state
`lenient`       JSON of which one field is wrong: that field is lost, and no other
`counters`      what a meter reads: sums of what agents say, bounded whatever an agent says
`text`          the text in an agent's events, for `run --text` and `result`
`setups`        how a program is routed through the gateway, and what its settings and variables say
                of where its calls go
`setup_reader`  finds that out for a whole tree, when a person starts its root
`own_server`    how a program hands work to a server of its own, outside of the run
`words`         the words after a program: options and others
`command`       a command with what its agent program was given
`registered`    registered agents: a name, and how to start the program behind it

    bytes ─▶ lines ─ lines that can matter ─▶ claude, codex … ─ typed events ─▶ Reading
                                                └ counters: sums that only grow, and are bounded

Meters read what an agent tells of its own usage: from its stdout (source `stream`) and its session
files (source `session`). A meter is pure: no clock, no file, no task. It is fed what a run has
written, in pieces of any size, and keeps its `Reading` up to date. It never raises, and keeps at
most one line (`MAX_LINE`) and bounded sets of ids, whatever it is fed.

A run may write 200 MB/s, and nearly all of it does not concern a meter. So one regular expression
per program finds, in whole pieces, where a line of an interesting type may be; only such a line is
cut out and decoded, into the fewest fields. Cutting out every line first took three to seven times
as long.

How to add a program: docs/metering.md.
"""

from collections.abc import Sequence

from ..core.state.naming import program_name
from ..protocol.known import AGENTS, ANY_PROGRAM, BY_REPORT, METERED_PROGRAMS, NO_METER
from .counters import Meter, Reading
from .program import AgentProgram, AgentSessions, arguments, program_called
from .setups import Person as Person
from .setups import Setup as Setup
from .setups import TreeUpstream as TreeUpstream

__all__ = [
    "AGENT_PROGRAMS",
    "OWN_SERVERS",
    "SESSION_VARIABLES",
    "UNREAD",
    "AgentProgram",
    "Meter",
    "Reading",
    "chosen",
    "named",
    "session_files_of",
]


AGENT_PROGRAMS = tuple(program_called(name) for name in (*METERED_PROGRAMS, ANY_PROGRAM))
"""Those with a meter, in the order in which they are tried for a command."""

SESSION_VARIABLES = (
    "HOME",
    *(
        variable
        for program in AGENT_PROGRAMS
        if (kept := program.session_files) is not None
        for variable in (kept.variable, *kept.further_variables)
    ),
)

UNREAD = (NO_METER, BY_REPORT)
"""Values of `--meter` for which no output is read."""


OWN_SERVERS = {
    name: server for name in AGENTS if (server := program_called(name).own_server) is not None
}
"""How programs hand work to servers of their own, of those that have one."""


def named(name: str | None) -> AgentProgram | None:
    return next((program for program in AGENT_PROGRAMS if program.name == name), None)


def chosen(argv: Sequence[str]) -> AgentProgram | None:
    """Return the program whose events this command will print, as far as the command itself
    tells."""
    # the name of each program's format, which few commands contain
    if not any("json" in word for word in argv):
        return None
    found = _of_command(argv)
    return (
        found
        if found is not None and found.prints_events(arguments(argv, found.name) or [])
        else None
    )


def session_files_of(meter: str | None, argv: Sequence[str]) -> AgentSessions | None:
    """Return how the program of a run keeps its sessions: the program that `--meter` names, which
    may be none, else that of the command."""
    program = named(meter) if meter is not None else _of_command(argv)
    return program.session_files if program is not None else None


def _of_command(argv: Sequence[str]) -> AgentProgram | None:
    name = program_name(argv)
    return named(name) if name in METERED_PROGRAMS else None
