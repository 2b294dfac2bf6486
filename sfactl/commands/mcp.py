"""Offer subagents to an agent program, as an MCP server on stdin and stdout.

Register it once with your program (--print-config shows how), or give it to one run: sfactl run --mcp claude "the task". The model
can then start subagents, wait for their answers, and stop them. See docs/sessions.md.
"""

from __future__ import annotations

from ..exits import ExitCode
from ..options import SOCKET, Option, Parameter, duration

PARAMETERS: tuple[Parameter, ...] = (
    SOCKET,
    Option(("--print-config",), "print_config", "Show how to register it with a program, such as claude", "PROGRAM"),
    Option(
        ("--answer-within",),
        "answer_within",
        "Answer each call within this time, before the program gives up (default: 50s)",
        "TIME",
    ),
    Option(("--no-ask",), "no_ask", "Do not ask the person before a stop: no person is at the program"),
)
ANSWER_WITHIN = "50s"
"""Several programs give a tool 60 s."""


def main(
    *, print_config: str | None = None, answer_within: str = ANSWER_WITHIN, no_ask: bool = False, socket: str | None = None
) -> int:
    if print_config is not None:
        from ..mcp.registration import explained

        print(explained(print_config, socket), end="")
        return ExitCode.DONE
    bound = duration("--answer-within", answer_within)
    from ..mcp.server import serve

    serve(socket, bound, not no_ask)
    return ExitCode.DONE
