"""Print the transcript of a session: its events and output, made safe for a language model.

Lines are in their order within stdout and within stderr, and stand between the events as the daemon saw them.
"""

from ... import output, sessions
from ...exits import ExitCode
from ...options import COMMON, RUN, Option, Parameter, count

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    RUN,
    Option(("--tail",), "tail", "The newest N lines (default: 100)", "N"),
)


def main(*, run: str, tail: str | None = None, socket: str | None = None, json: bool = False) -> int:
    most = count("--tail", tail)
    found = sessions.log(run, socket=socket, tail=100 if most is None else most)
    if json:
        output.print_json(output.content(found))
    else:
        output.write(found.text.encode())
    return ExitCode.DONE
