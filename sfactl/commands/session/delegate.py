"""Start a session, wait for it, and print its answer.

The answer is made safe for a language model and marked as data. Waits for `sessions.sync_timeout_seconds` of the config at most. If
the session has not ended by then, prints its id and exits with 75; it continues. It continues also if this client is killed.

Exit codes: 0; 1 refused; 75 not over yet; 77 not permitted; else as the session ended (see `sfactl --help`).
"""

from functools import partial
from typing import Unpack

from ... import session_options, sessions
from ...options import Option, Parameter, seconds
from ...session_options import OrderOptions, order

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
    wanted, told = order(task, given), session_options.tell
    delegate = partial(sessions.delegate, wanted, socket=socket, channel=channel, wait=longest, started=told)
    return session_options.show(session_options.started(delegate, json=json), json=json)
