"""What a hook is given: the event as JSON on stdin, and few variables. It gets neither the daemon's keys nor those of a run."""

import msgspec

from ..protocol.redaction import redacted_object
from ..protocol.types import Event

_VALUE = 2000
"""Characters of a variable."""


def event_json(event: Event) -> bytes:
    return msgspec.json.encode(redacted_object(msgspec.to_builtins(event))) + b"\n"


def event_variables(event: Event, socket: str) -> list[bytes]:
    shown = redacted_object(msgspec.to_builtins(event))
    names = {"agent_name": "NAME"}
    fields = ("type", "severity", "time", "seq", "run_id", "root_id", "agent_name", "user", "message", "state")
    told = {f"SFAD_EVENT_{names.get(field, field.upper())}": _one_line(shown.get(field, "")) for field in fields}
    return [f"{key}={value}".encode() for key, value in ({"SFAD_SOCKET": socket} | told).items()]


def _one_line(value: object) -> str:
    text = str(value if value is not None else "")[:_VALUE]
    return "".join(letter if letter.isprintable() else " " for letter in text)
