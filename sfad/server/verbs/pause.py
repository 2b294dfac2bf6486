"""`pause`: freeze a run's whole tree and stop its clocks."""

from ...core import events as e
from ...protocol.messages import Pause
from ...protocol.types import RunInfo
from ..call import Call, answers_about_run


@answers_about_run(Pause)
def pause(call: Call, request: Pause, run: RunInfo) -> None:
    call.ask(e.PauseRequested, run.id, request.suspended)
