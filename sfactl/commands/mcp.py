from typing import Annotated

from ..app import app
from ..options.shared import TIME, Socket, Value, flag

ANSWER_WITHIN = 50.0
"""Seconds: several programs give a tool 60."""


@app.command()
def mcp(
    socket: Socket = None,
    print_config: Annotated[
        str | None,
        Value("PROGRAM").option("Show how to register it with a program, such as claude"),
    ] = None,
    answer_within: Annotated[
        float,
        TIME.option(
            "Answer each call within this time, before the program gives up (default: 50s)"
        ),
    ] = ANSWER_WITHIN,
    no_ask: Annotated[
        bool, flag("Do not ask the person before a stop: no person is at the program")
    ] = False,
    approvals: Annotated[
        bool,
        flag("Offer only the tool by which the program asks for approvals (spawn --approvals)"),
    ] = False,
) -> None:
    """Offer subagents to an agent program, as an MCP server on stdin and stdout.

    Register it once with your program (--print-config shows how), or give it to one run: sfactl
    run --mcp claude "the task". The model can then start subagents, wait for their answers, and
    stop them. See docs/sessions.md.
    """
    if print_config is not None:
        from ..mcp.registration import explained

        print(explained(print_config, socket), end="")
        return
    from ..mcp.server import serve

    serve(socket, answer_within, not no_ask, approvals=approvals)
