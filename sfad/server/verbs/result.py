"""`result`: a finished run's final answer, made safe for a language model."""

from functools import partial

from ...protocol.messages import Result
from ...protocol.types import RunInfo
from ..call import Call, answers_about_run
from ..checks import wrong_state
from ..results import result as result_of


@answers_about_run(Result)
def result(call: Call, request: Result, run: RunInfo) -> None:
    if not run.status.terminal:
        raise wrong_state(f"run {run.id} is {run.status}; wait for its end, or read its logs")
    work = partial(result_of, call.runtime.output, run, request)
    call.later(lambda: call.runtime.background.walk(work, call.connection.groups.all), lambda found: found)
