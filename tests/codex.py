"""A program called `codex` that writes a session file as Codex does, and stays."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

SESSION = "01a2050d-51a6-7aa1-ab61-8a5c8988effa"

PROGRAM = """#!{python}
import datetime, json, os, pathlib, subprocess, time
subprocess.run({first!r}, check=True)
now = datetime.datetime.now(datetime.UTC)
at = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
place = pathlib.Path(os.environ["CODEX_HOME"], f"sessions/{{now:%Y/%m/%d}}")
place.mkdir(parents=True)
with (place / f"rollout-{{now:%Y-%m-%dT%H-%M-%S}}-{session}.jsonl").open("w") as file:
    def say(at, what, payload):
        print(json.dumps({{"timestamp": at, "type": what, "payload": payload}}), file=file)
    say(at, "session_meta", {{"id": {session!r}, "timestamp": at, "cwd": os.getcwd()}})
    usage = {{"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}}
    for told, primary in json.loads({primaries!r}):
        limits = {{"limit_id": "codex", "primary": primary}}
        info = {{"total_token_usage": usage}}
        count = {{"type": "token_count", "info": info, "rate_limits": limits}}
        say(told or at, "event_msg", count)
time.sleep(300)
"""


def codex(
    directory: Path,
    *primaries: tuple[str | None, dict[str, float]],
    first: Sequence[str] = ("true",),
) -> Path:
    """Make the program. `primaries`: when it tells of its primary window, by default now, and what;
    `first`: a command that it executes before."""
    program = directory / "codex"
    program.write_text(
        PROGRAM.format(
            python=sys.executable, first=[*first], session=SESSION, primaries=json.dumps(primaries)
        )
    )
    program.chmod(0o755)
    return program
