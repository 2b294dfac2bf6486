"""Start a session, wait for it, and print its answer.

The answer is made safe for a language model and marked as data. Waits for `sessions.sync_timeout_seconds` of the config at most. If
the session has not ended by then, prints its id and exits with 75; it continues. It continues also if this client is killed.

Exit codes: 0; 1 refused; 75 not over yet; 77 not permitted; else as the session ended (see `sfactl --help`).
"""

from __future__ import annotations

from functools import partial
from typing import Unpack

from ... import output, session_options, sessions
from ...options import Option, Parameter, seconds
from ...session_options import OrderOptions, order
from ...sessions import SessionView

PARAMETERS: tuple[Parameter, ...] = (
    *session_options.PARAMETERS,
    Option(("--wait",), "wait", "Wait at most so long (default and at most: sessions.sync_timeout_seconds)", "TIME"),
)


def main(
    *,
    task: str,
    wait: str | None = None,
    channel: str | None = None,
    socket: str | None = None,
    json: bool = False,
    **given: Unpack[OrderOptions],
) -> int:
    longest = seconds("--wait", wait)
    begun: list[SessionView] = []

    def told(session: SessionView) -> None:
        begun.append(session)
        session_options.tell(session)

    delegate = partial(sessions.delegate, order(task, given), socket=socket, channel=channel, wait=longest, started=told)
    try:
        session = session_options.started(delegate, json=json)
    except KeyboardInterrupt:
        for run in (each.run_id for each in begun):
            how = f"to wait for its end: sfactl session info {run} --wait 60; to stop it: sfactl session stop {run}"
            output.note(f"sfactl: {run} goes on; {how}")
        raise
    return session_options.show(session, json=json)
