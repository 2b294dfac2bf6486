"""`send`: write to the stdin of a run that was started with a pipe for it."""

from __future__ import annotations

from ...protocol.errors import ErrorCode
from ...protocol.messages import Done, Send
from ...protocol.types import RunInfo
from ..call import Call, answers_about_run
from ..errors import RequestError


@answers_about_run(Send)
def send(call: Call, request: Send, run: RunInfo) -> None:
    live = call.runtime.catalogue.live.get(run.id)
    if live is None:
        raise RequestError(ErrorCode.WRONG_STATE, f"run {run.id} is {run.status}; it reads nothing any more")
    if live.stdin is None and live.spawn.stdin == "pipe":
        raise RequestError(
            ErrorCode.WRONG_STATE, f"run {run.id} reads nothing any more: its stdin ended with the daemon that held it"
        )
    if live.stdin is None:
        raise RequestError(ErrorCode.WRONG_STATE, f"run {run.id} was not started with --stdin, so nothing can be sent to it")
    refused = live.stdin.write(request.data, eof=request.eof)
    if refused is not None:
        raise RequestError(ErrorCode.UNAVAILABLE, f"run {run.id} was not sent {len(request.data)} bytes: {refused}")
    call.reply(Done(id=call.id))
