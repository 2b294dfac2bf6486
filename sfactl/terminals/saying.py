"""`report --waiting`: an agent program says that it waits for a person, mostly by a hook of it."""

import sys
from json import loads
from typing import Any

from sfad.features.terminals.messages import TellWaiting
from sfad.protocol.requests.base import Done

from .. import output
from ..connecting.connection import call

MOST = 1 << 20
"""Characters of stdin that are read."""
MESSAGES = ("message", "last-assistant-message", "last_assistant_message", "title", "type")
"""Fields of the JSON that Claude Code 2.1.330 and Gemini CLI 0.61 give on stdin, and Codex 0.169 as
an argument. The first that there is counts."""


def say_waiting(run: str | None, words: str | None, socket: str | None, *, json: bool) -> None:
    """`words`: what it waits for; `None`: it goes on."""
    text = "" if words is None else message(sys.stdin.read(MOST) if words == "-" else words)
    call(socket, TellWaiting(id=0, run=run, words=text[:4096], over=words is None), Done)
    if json:
        output.print_json({"run": run, "waiting": words is not None, "words": text})


def message(text: str) -> str:
    """Return what a text says: itself, or the message in an object of JSON."""
    try:
        found: Any = loads(text)
    except (ValueError, RecursionError):
        return text.strip()
    if not isinstance(found, dict):
        return text.strip()
    return next((value for name in MESSAGES if isinstance(value := found.get(name), str)), "")
