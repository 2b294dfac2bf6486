"""`send`: write to the stdin of a run that was started with a pipe for it."""

from ...protocol.messages import Done, Send
from ...protocol.types import RunInfo
from ..call import Call, answers_about_run
from ..checks import unavailable, wrong_state


@answers_about_run(Send)
def send(call: Call, request: Send, run: RunInfo) -> None:
    live = call.runtime.catalogue.live.get(run.id)
    if live is None:
        raise wrong_state(f"run {run.id} is {run.status}; it reads no input any more")
    if live.stdin is None and live.spawn.stdin == "pipe":
        raise wrong_state(f"run {run.id} reads no input any more: its stdin ended with the daemon that held it")
    if live.stdin is None and run.session:
        where = f"{live.spawn.agent!r}" if live.spawn.agent else "it"
        raise wrong_state(f"run {run.id} reads no input: in the config, the entry of its agent {where} needs stdin = true")
    if live.stdin is None:
        raise wrong_state(f"run {run.id} was not started with --stdin, so nothing can be sent to it")
    if live.stdin.over is not None:
        raise wrong_state(f"nothing can be sent to run {run.id}: {live.stdin.over}")
    refused = live.stdin.write(request.data, eof=request.eof)
    if refused is not None:
        code = wrong_state if live.stdin.over is not None else unavailable
        raise code(f"could not send {len(request.data)} bytes to run {run.id}: {refused}")
    call.reply(Done(id=call.id))
