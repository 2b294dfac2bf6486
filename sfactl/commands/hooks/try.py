from typing import Annotated

from sfad.features.hooks.messages import HookTested, TryHook

from ... import output
from ...connecting.connection import call
from ...exits import ExitCode
from ...options.shared import NEW_NAME, Json, Socket, Value
from . import app

FAILED = 1
"""As of any command that has failed."""


@app.command("try")
def try_(
    name: Annotated[str, NEW_NAME.argument("The hook's name in the config")],
    socket: Socket = None,
    json: Json = False,
    event: Annotated[
        str | None,
        Value("TYPE").option(
            "Type of the event (default: run_failed, or the first that starts the hook)"
        ),
    ] = None,
) -> int:
    """Execute a hook for an invented event, and print how it ended, its output and its time.

    Exit codes: 0 it exited with 0; 1 it failed.
    """
    found = call(socket, TryHook(id=0, name=name, event=event or ""), HookTested)
    if json:
        output.print_json(output.content(found))
    else:
        print(f"{found.how}, after {output.seconds(found.elapsed_s)}")
        if found.output:
            output.write(
                output.harmless(found.output).encode()
                + (b"" if found.output.endswith("\n") else b"\n")
            )
    return ExitCode.DONE if found.ok else FAILED
