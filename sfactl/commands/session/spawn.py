"""Start a session in the background and print its id.

Exit codes: 0; 1 refused; 77 not permitted.
"""

from __future__ import annotations

from functools import partial
from typing import Unpack

from ... import output, session_options, sessions
from ...exits import ExitCode
from ...options import Parameter
from ...session_options import OrderOptions, order

PARAMETERS: tuple[Parameter, ...] = session_options.PARAMETERS


def main(
    *, task: str, channel: str | None = None, socket: str | None = None, json: bool = False, **given: Unpack[OrderOptions]
) -> int:
    session = session_options.started(partial(sessions.spawn, order(task, given), socket=socket, channel=channel), json=json)
    session_options.tell_lowered(session)
    if json:
        output.print_json(session)
    else:
        print(session.run_id)
    session_options.tell_failure(session)
    return session.exit if session.ended else ExitCode.DONE
