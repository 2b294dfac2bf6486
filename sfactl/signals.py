"""What signals to a client in the foreground do to its run: stop it, or suspend it with this process."""

from __future__ import annotations

import os

from sfad.protocol.requests.base import Reply, RunReply
from sfad.protocol.requests.starting import Spawn
from sfad.protocol.requests.steering import Pause, Resume, Stop, Stopped
from sfad.protocol.types import RunId, RunInfo

from . import exits, output
from .in_flight import RequestsInFlight
from .progress import ProgressLines

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from .terminal import Terminal
else:
    import _signal as signal  # `signal` first makes enums, which takes a third of Python's start


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalPipe:
    """Signals as bytes on a pipe, which can be polled and never interrupt a write. Signals that are already ignored (nohup, a
    background job of a shell) stay ignored."""

    def __init__(self, wanted: Iterable[signal.Signals]) -> None:
        self._wanted = [s for s in wanted if signal.getsignal(s) is not signal.SIG_IGN]
        self._previous = {s: signal.getsignal(s) for s in self._wanted}
        self.descriptor, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> SignalPipe:
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for wanted in self._wanted:  # the interpreter writes a signal to the pipe only if it has a handler
            signal.signal(wanted, lambda _number, _frame: None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for wanted, previous in self._previous.items():
            signal.signal(wanted, previous)
        signal.set_wakeup_fd(-1)
        os.close(self.descriptor)
        os.close(self._write_end)

    def taken(self) -> Sequence[int]:
        try:
            return os.read(self.descriptor, 64)
        except BlockingIOError:
            return b""


class StopSignals:
    """SIGINT, SIGTERM and SIGHUP: the first stops the run, the second skips the grace, the third leaves the run."""

    def __init__(self, requests: RequestsInFlight, spawn: Spawn, note: Callable[[str], None]) -> None:
        self.received: list[int] = []
        self._requests = requests
        self._spawn = spawn
        self._note = note
        self._run: RunId | None = None

    def receive(self, number: int) -> None:
        """Stop the run, as soon as its id is known. Raise `Quit` at the third signal, and at the second if the id is not known."""
        self.received.append(number)
        self._stop(number)

    def learn_run(self, run: RunId) -> None:
        """Take the run's id, and stop the run if a signal came before. The first event brings the id; the reply comes later, when
        the run's command has been executed."""
        if self._run is None:
            self._run = run
            for number in self.received:
                self._stop(number)

    def forget_run(self) -> None:
        """Forget the id: the daemon died before its reply, and starts the run again."""
        self._run = None

    def _stop(self, number: int) -> None:
        first, count = self.received[0], len(self.received)
        if count > 2 or (count == 2 and self._run is None):
            raise exits.Quit(128 + first)
        if not self._requests.connected:
            self._note("sfactl: the run will be stopped when the daemon is back")
        if self._run is None:
            return
        if first == signal.SIGINT and count == 1 and (not self._spawn.quiet or os.isatty(2)) and not self._spawn.shim:
            # with -q too: after Ctrl-C at a terminal the user must know why the prompt does not come. But of a shim's caller only
            # the program is known.
            self._note(f"sfactl: stopping {self._run}; Ctrl-C again to kill")
        grace = 0.0 if count == 2 else self._spawn.grace
        self._requests.ask(Stop(id=0, runs=[self._run], signal=number, grace=grace), _stopped)


def _stopped(reply: Reply, _descriptors: Sequence[int]) -> None:
    if isinstance(reply, Stopped) and reply.survivors:
        raise exits.Quit(exits.ExitCode.SURVIVORS, output.survivors(reply.survivors))


class JobControl:
    """Ctrl-Z and `fg`: the run pauses, this process stops as its shell expects, and both continue.

    `receive` handles the signals that have come, and returns them."""

    def __init__(
        self,
        requests: RequestsInFlight,
        terminal: Terminal | None,
        progress: ProgressLines,
        receive: Callable[[], Sequence[int]],
        inherits: bool,
    ) -> None:
        self._requests = requests
        self._terminal = terminal
        self._progress = progress
        self._receive = receive
        self._inherits = inherits

    def suspend(self, run: RunInfo | None, *, group: bool) -> None:
        """Pause the run, then stop as Ctrl-Z asks. If the run's program has stopped itself, which the shell does not see, stop the
        whole process group, as the shell expects of a job; if this process received the signal, stop only this process."""

        def paused(reply: Reply, _descriptors: Sequence[int]) -> None:
            suspended = isinstance(reply, RunReply) and reply.run.reason is not None and reply.run.reason.kind == "suspended"
            # a program that is paused for another reason (a limit, or by signals) did not press Ctrl-Z
            if suspended or not group:
                self._stand_still(run, group=group)

        if run is None or not self._requests.connected:
            self._stand_still(run, group=group)
        else:
            self._requests.ask(Pause(id=0, run=run.id, suspended=True), paused)

    def _stand_still(self, run: RunInfo | None, *, group: bool) -> None:
        if self._terminal:
            self._terminal.leave_raw()
        self._progress.say("paused until this job continues (fg)")
        if run is not None and (words := output.pause_warning(run)):
            self._progress.say(words)
        _stop_self(group=group)
        if self._regain_terminal() and run is not None:
            self._requests.ask(Resume(id=0, run=run.id, suspended=True), self._continued)

    def _regain_terminal(self) -> bool:
        """Wait until the terminal is ours again, if the run uses it. Return False if a signal that ends the run came first."""
        while not any(number in STOPPING for number in self._receive()):
            try:
                self._take_terminal()
            except InterruptedError:
                continue  # by a signal, which is handled first
            return True
        return False

    def _take_terminal(self) -> None:
        if self._terminal:
            self._terminal.enter_raw()
        elif self._inherits and os.isatty(0):
            from .terminal import await_foreground

            await_foreground()

    def _continued(self, reply: Reply, descriptors: Sequence[int]) -> None:
        if self._terminal:
            self._terminal.proceed()
        self._progress.failed(reply, descriptors)


def _stop_self(*, group: bool) -> None:
    """Stop this process, or its process group, as Ctrl-Z does; return when it is continued. In an orphaned process group, which
    no shell would continue, the kernel does not stop it."""
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN:
        return
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(0 if group else os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, before)
