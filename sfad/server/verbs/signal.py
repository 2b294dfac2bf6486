"""`signal`: send a signal to a run's main process, for the client of a run in the foreground."""

import signal as os_signal

from ...protocol.messages import Done, Signal
from ...protocol.types import RunInfo, Status
from ..call import Call, answers_about_run
from ..checks import check_signal, wrong_state

MAIN_SIGNALS = frozenset({
    os_signal.SIGINT, os_signal.SIGQUIT, os_signal.SIGWINCH, os_signal.SIGTSTP, os_signal.SIGCONT, os_signal.SIGUSR1,
    os_signal.SIGUSR2, os_signal.SIGHUP,
})  # fmt: skip
"""What may be sent. SIGTERM and SIGKILL have `stop`, which tells what became of the processes; SIGSTOP has `pause`."""


@answers_about_run(Signal)
def signal(call: Call, request: Signal, run: RunInfo) -> None:
    check_signal(request.signal, MAIN_SIGNALS)
    if request.signal == os_signal.SIGCONT and run.status is Status.PAUSED:
        raise wrong_state(f"run {run.id} is paused; 'sfactl resume {run.id}' thaws it")
    if not call.runtime.launcher.signal_main(run.id, request.signal):
        raise wrong_state(f"run {run.id} is {run.status}; it has no main process to signal")
    call.reply(Done(id=call.id))
