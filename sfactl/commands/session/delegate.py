from functools import partial
from typing import Annotated

from ... import output
from ...options.shared import TIME
from ...options.spreading import spread
from ...sessions import asking as sessions
from ...sessions import options as session_options
from ...sessions.asking import SessionView
from ...sessions.options import SessionOptions, Task
from . import app


@app.command()
@spread(SessionOptions)
def delegate(
    task: Task,
    wanted: SessionOptions,
    wait: Annotated[
        float | None,
        TIME.option("Wait at most so long (default and at most: sessions.sync_timeout_seconds)"),
    ] = None,
) -> int:
    """Start a session, wait for it, and print its answer.

    The answer is made safe for a language model and marked as data. Waits for
    `sessions.sync_timeout_seconds` of the config at most. If the session has not ended by then,
    prints its id and exits with 75; it continues. It continues also if this client is killed.

    Exit codes: 0; 1 refused; 75 not over yet; 77 not permitted; else as the session ended (see
    `sfactl --help`).
    """
    begun: list[SessionView] = []

    def told(session: SessionView) -> None:
        begun.append(session)
        session_options.tell(session)

    start = partial(
        sessions.delegate,
        wanted.order(task),
        socket=wanted.socket,
        wait=wait,
        started=told,
    )
    try:
        session = session_options.started(start, json=wanted.json)
    except KeyboardInterrupt:
        for run in (each.run_id for each in begun):
            how = (
                f"to wait for its end: sfactl session info {run} --wait 60; to stop it: "
                f"sfactl session stop {run}"
            )
            output.note(f"sfactl: {run} goes on; {how}")
        raise
    return session_options.show(session, json=wanted.json)
