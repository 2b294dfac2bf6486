from functools import partial

from ... import output
from ...exits import ExitCode
from ...options.spreading import spread
from ...sessions import asking as sessions
from ...sessions import options as session_options
from ...sessions.options import SessionOptions, Task
from . import app


@app.command()
@spread(SessionOptions)
def spawn(task: Task, wanted: SessionOptions) -> int:
    """Start a session in the background and print its id.

    Exit codes: 0; 1 refused; 77 not permitted.
    """
    start = partial(sessions.spawn, wanted.order(task), socket=wanted.socket)
    session = session_options.started(start, json=wanted.json)
    session_options.tell_lowered(session)
    output.answer(wanted.json, session, session.run_id)
    session_options.tell_failure(session)
    return session.exit if session.ended else ExitCode.DONE
