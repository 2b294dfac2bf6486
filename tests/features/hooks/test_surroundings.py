"""What a hook is given of an event."""

from __future__ import annotations

import pytest

from sfad.features.hooks.reports import event_variables
from sfad.protocol.types import Event


@pytest.mark.parametrize(
    "odd", ["\n", "\r", "\0", "\x1b", "\x7f", "\x9b", "\u2028", "\u202e", "\ufeff"]
)
def test_no_variable_has_control_characters(odd: str) -> None:
    """A hook that prints one must not steer a terminal or begin another line of a log, and no
    environment holds a NUL."""
    event = Event(
        type="run_failed",
        run_id="a1",
        agent_name=f"pl{odd}an",
        user="ann",
        message=f"exited{odd}SFAD_EVENT_TYPE=run_completed",
    )
    found = dict(item.decode().split("=", 1) for item in event_variables(event, "/run/sfad.sock"))
    assert (found["SFAD_EVENT_NAME"], found["SFAD_EVENT_USER"]) == ("pl an", "ann")
    assert found["SFAD_EVENT_MESSAGE"] == "exited SFAD_EVENT_TYPE=run_completed"
    assert found["SFAD_EVENT_TYPE"] == "run_failed"
