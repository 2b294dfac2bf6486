"""Asks a person for each call of a tool that the agent program would ask about: the tool of
`claude --permission-prompt-tool`, which stands alone in its server, and the hook `sfactl ask`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from sfad.features.approvals.messages import ApprovalAnswer, AskApproval
from sfad.protocol.types import ErrorCode

from ..connecting.connection import ABSENT, DaemonError, Unreachable, connect
from ..exits import UsageError
from .json_rpc import INVALID_PARAMS, ClientRequest, RpcError

Json = dict[str, Any]

SERVER, TOOL = "sfad_approvals", "permission"
HOOK = "PermissionRequest"
AGAIN = 1.0
"""Seconds between two tries to reach a daemon that is away."""
DENIED = "A person has denied this call. Do not try it again in another way; say what you need."


def offered() -> Json:
    """Return the list of tools of such a server."""
    properties = {
        "tool_name": {"type": "string"},
        "input": {"type": "object"},
        "tool_use_id": {"type": "string"},
    }
    schema = {"type": "object", "properties": properties, "required": ["tool_name", "input"]}
    words = "Asks a person for a permission. Only the program calls it, never a model."
    return {"tools": [{"name": TOOL, "description": words, "inputSchema": schema}]}


def asked(request: ClientRequest, socket: str | None) -> Json:
    """Return the answer of a person, as Claude Code 2.1.330 takes it."""
    arguments = request.params.get("arguments") or {}
    tool, given = arguments.get("tool_name"), arguments.get("input")
    if not isinstance(tool, str) or not isinstance(given, dict):
        raise RpcError(INVALID_PARAMS, f"{TOOL}: tool_name and input are required")
    key = arguments.get("tool_use_id")
    asks = AskApproval(
        id=0,
        key=key if isinstance(key, str) and key else f"{os.getpid()}-{request.number}",
        tool=tool,
        arguments=json.dumps(given, ensure_ascii=False),
        cwd=os.getcwd(),
    )
    answer = _answered(asks, socket, lambda: request.cancelled)
    found = (
        {"behavior": "allow", "updatedInput": given}
        if answer.state == "allowed"
        else {"behavior": "deny", "message": answer.message or DENIED}
    )
    return {"content": [{"type": "text", "text": json.dumps(found)}], "isError": False}


def hooked(text: str, socket: str | None) -> Json:
    """Return the answer of a person to a hook `PermissionRequest`, as Codex 0.169 takes it. `text`:
    what the program gives the hook. Raise `UsageError` if it is another hook's."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"ask: stdin is not the JSON of a hook: {error}") from None
    if not isinstance(given, dict) or given.get("hook_event_name") != HOOK:
        raise UsageError(f"ask: stdin is not what an agent program gives its hook {HOOK}")
    asks = AskApproval(
        id=0,
        key=f"{os.getpid()}-{time.time_ns()}",
        tool=str(given.get("tool_name")),
        arguments=json.dumps(given.get("tool_input"), ensure_ascii=False),
        cwd=str(given.get("cwd", "")),
    )
    answer = _answered(asks, socket, lambda: False)
    decision = (
        {"behavior": "allow"}
        if answer.state == "allowed"
        else {"behavior": "deny", "message": answer.message or DENIED}
    )
    return {"hookSpecificOutput": {"hookEventName": HOOK, "decision": decision}}


def _answered(
    asks: AskApproval, socket: str | None, cancelled: Callable[[], bool]
) -> ApprovalAnswer:
    """Ask until a person has answered, also across restarts of the daemon."""
    while not cancelled():
        try:
            with connect(socket) as client:
                while not cancelled():
                    answer = client.call(asks, ApprovalAnswer)
                    if answer.state != "pending":
                        return answer
        except Unreachable as error:
            if error.kind not in ABSENT | {"gone", "silent"}:
                raise
        except DaemonError as error:
            if error.error is not ErrorCode.UNAVAILABLE:  # it has executed itself again
                raise
        time.sleep(AGAIN)
    return ApprovalAnswer(id=0, state="denied", message="the program has withdrawn its question")
