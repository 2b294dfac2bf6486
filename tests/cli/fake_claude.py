"""A stand-in for Claude Code: it saves its session and prints its events as that does, and does
what its task says.

fail: exit with 3. hang: print one message and wait. Both only in a new session: what continues one
answers and ends.
"""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from datetime import UTC, datetime
from typing import Any

USAGE = {"input_tokens": 1000, "output_tokens": 10}


def value(*names: str) -> str | None:
    pairs = zip(sys.argv, sys.argv[1:], strict=False)
    return next((value for name, value in pairs if name in names), None)


def main() -> None:
    resumed = value("--resume", "-r")
    session, task = resumed or value("--session-id") or str(uuid.uuid4()), sys.argv[-1]
    cwd = os.getcwd()
    path = (
        f"{os.environ['HOME']}/.claude/projects/{re.sub('[^a-zA-Z0-9]', '-', cwd)}/{session}.jsonl"
    )
    if resumed and not os.path.exists(path):
        sys.exit(f"No conversation found with session ID: {resumed}")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:

        def save(**line: Any) -> None:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
            file.write(
                json.dumps(line | {"sessionId": session, "cwd": cwd, "timestamp": now}) + "\n"
            )
            file.flush()

        text = {"type": "text", "text": f"heard: {task}"}
        message = {
            "id": f"msg_{uuid.uuid4().hex}",
            "model": "claude-sonnet-4-5",
            "stop_reason": "end_turn",
            "usage": USAGE,
        }
        say(session, type="system", subtype="init")
        save(type="user", message={"role": "user", "content": task})
        save(type="assistant", message=message | {"content": [text]})
        say(session, type="assistant", message=message | {"content": [text]})
        if not resumed and "fail" in task:
            sys.exit(3)
        if not resumed and "hang" in task:
            sys.stdin.close()
            while True:
                os.read(os.pipe()[0], 1)
        totals = {
            "total_cost_usd": 0.00315,
            "modelUsage": {"claude-sonnet-4-5": {"inputTokens": 1000, "outputTokens": 10}},
        }
        say(
            session,
            type="result",
            subtype="success",
            is_error=False,
            result=text["text"],
            usage=USAGE,
            **totals,
        )


def say(session: str, **event: Any) -> None:
    print(json.dumps(event | {"session_id": session}), flush=True)


main()
