"""`deny`: refuse the increase that a run waits for."""

from ...core import events as e
from ...protocol.messages import Deny
from ...protocol.types import RunInfo
from ..call import Call, answers_about_run


@answers_about_run(Deny)
def deny(call: Call, _request: Deny, run: RunInfo) -> None:
    call.ask(e.DenyRequested, run.id)
