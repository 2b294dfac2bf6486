"""An agent that calls a model. Plain Python, so that it starts quickly.

    python caller.py JSON       see `PLAN`

It calls the model at ANTHROPIC_BASE_URL, and prints a line of JSON about each call. It exits with 1
if one failed.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - another user could not import it
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MODEL = "claude-sonnet-4-5"
"""3 USD a million tokens in, 15 out."""

HEADERS = {
    "content-type": "application/json",
    "x-api-key": os.environ.get("ANTHROPIC_API_KEY", "none"),
}

PLAN: dict[str, Any] = {
    "threads": 1,
    "calls": 1,  # of each thread
    "output": 20_000,  # tokens that each call asks for, and gets
    "padding": 0,  # bytes of its input
    "tool": None,  # that each reply asks for
    "does": None,  # what the provider does, of `provider.DOES`
    "stall": False,  # the provider waits in the middle of the first reply of each thread
    "tries": 1,
    "on": False,  # a call that failed does not end the thread
    "hang_up": 0.0,  # seconds after which the caller closes its connection
    "children": 0,  # runs with this plan
    "child_options": [],
    "child_url": None,  # in their environment
    "uid": None,  # to become before the first call
    "cgroup": None,  # to enter before the first call
    "then": None,  # the file to wait for at the end
}

_printing = threading.Lock()


def said(response: http.client.HTTPResponse) -> dict[str, Any]:
    """Read a reply."""
    data, error = b"", None
    try:
        while piece := response.read1(1 << 16):
            data += piece
    except (http.client.HTTPException, OSError) as failure:
        error = type(failure).__name__
    words = json.loads(data)["error"]["message"] if response.status == 400 else None
    return {
        "status": response.status,
        "whole": b"message_stop" in data,
        "said": words,
        "error": error,
    }


def call(plan: dict[str, Any], *, stall: bool) -> dict[str, Any]:
    """Make one call."""
    url = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
    body = {
        "model": plan.get("model", MODEL),
        "max_tokens": plan["output"],
        "stream": True,
        "messages": [{"role": "user", "content": "x" * plan["padding"]}],
        "metadata": {"stall": stall, "tool": plan["tool"], "does": plan["does"]},
    }
    connection = http.client.HTTPConnection(url.netloc, timeout=plan["hang_up"] or 120)
    try:
        connection.request("POST", f"{url.path}/v1/messages", json.dumps(body), HEADERS)
        return said(connection.getresponse())
    except (http.client.HTTPException, OSError) as failure:
        return {"status": None, "whole": False, "said": None, "error": type(failure).__name__}
    finally:
        connection.close()


def work(plan: dict[str, Any], failures: list[dict[str, Any]]) -> None:
    """Make the calls of one thread."""
    for number in range(plan["calls"]):
        for _ in range(plan["tries"]):
            result = call(plan, stall=plan["stall"] and number == 0)
            with _printing:
                print(json.dumps(result), flush=True)
            if result["whole"] or result["status"] == 400:
                break
        if not result["whole"]:
            failures.append(result)
            if not plan["on"]:
                return


def children(plan: dict[str, Any]) -> list[subprocess.Popen[bytes]]:
    """Start runs below this one."""
    env = os.environ | ({"ANTHROPIC_BASE_URL": plan["child_url"]} if plan["child_url"] else {})
    words = [sys.executable, __file__, json.dumps(plan | {"children": 0})]
    return [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "sfactl",
                "run",
                "--quiet",
                "--name",
                f"c{number}",
                *plan["child_options"],
                "--",
                *words,
            ],
            env=env,
        )
        for number in range(plan["children"])
    ]


def main() -> int:
    """Carry out the plan."""
    plan = PLAN | json.loads(sys.argv[1])
    if plan["children"]:
        return max(child.wait() for child in children(plan))
    if plan["cgroup"]:
        Path(plan["cgroup"], "cgroup.procs").write_text(str(os.getpid()))
    if plan["uid"]:
        os.setuid(plan["uid"])
    failures: list[dict[str, Any]] = []
    # as daemons: an interrupted process does not wait for a reply that stalls
    threads = [
        threading.Thread(target=work, args=[plan, failures], daemon=True)
        for _ in range(plan["threads"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while plan["then"] and not Path(plan["then"]).exists():
        time.sleep(0.01)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
