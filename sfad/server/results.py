"""The result of a run, from the output that it left: in the daemon, and in `sfad.history` without one."""

from ..meters import named
from ..meters.program import AgentProgram
from ..meters.text import answer, final_answer
from ..output.files import OutputFiles, Replaced
from ..protocol import messages as m
from ..protocol.sanitise import cut_oldest, newest_text, sanitise, wrap
from ..protocol.types import RunInfo, Status
from .checks import RequestError, wrong_state

MAX_RESULT = 1024 * 1024
"""Bytes of a result at most: it is meant for a model's context."""

MAX_SEARCHED = 8 * MAX_RESULT
"""Newest bytes of stdout in which the final answer is looked for: it is near their end."""

NOT_KEPT = (FileNotFoundError, NotADirectoryError, Replaced)
"""What reading raises if the output is not there."""


def result(output: OutputFiles, info: RunInfo, request: m.Result) -> m.ResultText:
    """Return the result of a run that has ended. Call this in a thread, as `final_text`. Raise `RequestError` if no output was
    kept, `OSError`."""
    most = max(1, min(request.max_bytes, MAX_RESULT))
    program = None if request.raw else named(info.meter)
    try:
        data, truncated = output.tail(info.id, most if program is None else MAX_SEARCHED)
    except NOT_KEPT as error:
        raise no_output(info, error) from None
    if program is not None:
        data, truncated = answer(program, data, begins_inside=truncated), False
    if not request.wrapped:
        text = newest_text(data, most)
        return m.ResultText(id=request.id, run=info.id, text=text, truncated=truncated or len(data) > most)
    safe, cut = cut_oldest(sanitise(data), most)
    truncated = truncated or cut
    text = wrap("subagent_result", safe, run_id=info.id, name=info.name, status=info.status.value, truncated=truncated)
    return m.ResultText(id=request.id, run=info.id, text=text, truncated=truncated)


def final_text(output: OutputFiles, run: RunInfo, program: AgentProgram) -> bytes:
    """Return the final answer of a run that has ended. Call this in a thread: decoding the run's events takes some 20 ms, and a
    second if an agent means harm. Raise `RequestError` if no output was kept, `OSError`."""
    try:
        data, truncated = output.tail(run.id, MAX_SEARCHED)
    except NOT_KEPT as error:
        raise no_output(run, error) from None
    return final_answer(program, data, begins_inside=truncated)[-MAX_RESULT:]


def no_output(run: RunInfo, error: OSError) -> RequestError:
    missing = f"the output of run {run.id} is not there: it was not kept, or has been removed since"
    if run.started_at is None and run.status is not Status.LOST:
        missing = f"run {run.id} has never started, so it has no output; sfactl why {run.id} says why"
    return wrong_state(error.message if isinstance(error, Replaced) else missing)
