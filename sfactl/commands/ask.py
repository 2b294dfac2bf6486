import json
import sys

from ..app import app
from ..options.shared import Socket


@app.command()
def ask(socket: Socket = None) -> None:
    """Ask a person whether an agent may call a tool: a hook of its program.

    For the hook PermissionRequest of Codex, inside a run: reads what the program asks from stdin,
    waits until a person answers with sfactl approve RUN CALL or sfactl deny RUN CALL, and prints
    the answer. spawn --approvals sets it up for one run.

    Exit codes: 0 there is an answer; 2 stdin is not of such a hook, or this process is in no run.
    """
    from ..mcp.approving import hooked

    print(json.dumps(hooked(sys.stdin.read(), socket), ensure_ascii=False))
