"""`transcript`: a run's events and output, made safe for a language model. It needs the permission for `logs`."""

from functools import partial

from ...protocol.messages import Transcript
from ...protocol.types import RunInfo
from ..call import Call, answers_about_run
from ..checks import bad_request
from ..transcripts import MAX_LINES
from ..transcripts import transcript as transcript_of


@answers_about_run(Transcript)
def transcript(call: Call, request: Transcript, run: RunInfo) -> None:
    if not 0 < request.tail <= MAX_LINES:
        raise bad_request(f"tail = {request.tail} is outside 1 to {MAX_LINES}")
    directory = call.runtime.ledger.file.directory
    work = partial(transcript_of, directory, call.runtime.output, run, request)
    call.later(lambda: call.runtime.background.walk(work, call.connection.groups.all), lambda found: found)
