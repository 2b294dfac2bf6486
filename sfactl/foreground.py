"""A run in the foreground: its output, its signals and its exit code are those of this process.

Spawn ─▶ RunReply ─▶ Logs, Wait ─▶ LogFiles: copy until … RunReply of Wait ─▶ drain to the end ─▶ exit code

If the connection is lost, output is still copied while this process connects again and repeats the requests without a reply. A
signal meanwhile is a Stop that is sent afterwards.
"""

from __future__ import annotations

import os

from sfad.protocol.requests.base import Error, Reply, RunReply
from sfad.protocol.requests.following import LogFiles, Logs, Text, TextPart, Wait, Watch
from sfad.protocol.requests.listing import Info
from sfad.protocol.requests.starting import OwnProgram, Refused, Spawn
from sfad.protocol.requests.steering import Signal
from sfad.protocol.structs import replace, to_json
from sfad.protocol.types import Event, RunId, RunInfo

from . import exits, output
from .activity import Activity, carry_on, wait
from .connection import AGAIN, Client, ConnectionLost, check
from .in_flight import RequestsInFlight
from .progress import ProgressLines
from .signals import STOPPING, JobControl, SignalPipe, StopSignals
from .spawn_options import SpawnOptions

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Sequence
    from typing import Any, Literal

    Form = Literal["raw", "text", "auto"]
    """The form of `Logs`."""

    from .follower import TextFollower
    from .terminal import Terminal
else:
    import _signal as signal  # `signal` first makes enums, which takes a third of Python's start


FORWARDED = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that reach the main process of the run, and change nothing here."""
HANDLED = (*STOPPING, *FORWARDED, signal.SIGWINCH, signal.SIGTSTP)


class Foreground:
    """One run, from the request to the exit code."""

    def __init__(
        self, client: Client, message: Spawn, options: SpawnOptions, form: Form, *, final: bool = False, silent: bool = False
    ) -> None:
        """`message` was made from `options`. `final`: of an agent's text, print the final answer alone. `silent`: print no progress
        lines, whatever the run itself is told."""
        self._client = client
        self._message = replace(message, tied=not options.keep, watch=True)
        self._keep = options.keep
        self._json = options.json
        self._status_file = options.status_file
        self._form: Form | None = form if message.stdio == "files" and message.log and not options.json else None
        self._terminal = _terminal(message)
        self._note = self._say
        shown = replace(message, quiet=True) if silent else message
        self._progress = ProgressLines(shown, self._note, verbose=options.verbose)
        self._requests = RequestsInFlight(client, self._note, tie=not options.keep)
        self._output = OutputCopy(self._requests, self._progress, self._note, final=final)
        self._activities: list[Activity] = [self._terminal] if self._terminal else self._output.activities
        self._signals = SignalPipe(HANDLED)
        self._stops = StopSignals(self._requests, shown, self._note)
        self._job = JobControl(self._requests, self._terminal, self._progress, self._take_signals, message.stdio == "inherit")
        self._run: RunInfo | None = None
        self._final: RunInfo | None = None

    @property
    def stopped_by(self) -> int | None:
        """The first signal by which this process was told to stop the run."""
        return next(iter(self._stops.received), None)

    def carry_out(self) -> int:
        """Start the run, stay until its end, and return the exit code. Raise `Quit`."""
        return self._conclude(self.stay())

    def stay(self) -> RunInfo:
        """Start the run, and return it when it has ended. Raise `Quit`."""
        try:
            with self._signals:
                self._start()
                while self._final is None or not self._output.complete:
                    self._step()
                if self._terminal:
                    self._terminal.expect_end()
                while not all(activity.drained() for activity in self._activities):
                    self._drain()
        finally:
            for activity in self._activities:
                activity.close()
            self._client.close()
        assert self._final is not None  # the loop has waited for it
        return self._final

    def _start(self) -> None:
        if self._status_file:
            _clear_status(self._status_file)
        message, descriptors = _with_descriptors(self._message, self._terminal)
        if self._terminal:
            self._terminal.begin()
        lent = self._terminal is None and 0 in descriptors and os.isatty(0)
        modes = _modes() if lent else None
        self._requests.ask(message, self._started, descriptors)
        if modes is not None:
            from .terminal import LentTerminal

            self._activities.append(LentTerminal(modes))

    def _started(self, reply: Reply, _descriptors: Sequence[int]) -> None:
        check(reply)
        if isinstance(reply, Refused):
            raise output.refusal(reply, as_json=self._json)
        if isinstance(reply, OwnProgram):
            raise exits.NoChildRun(reply.argv)
        assert isinstance(reply, RunReply)  # after `check`, the protocol has no other reply
        self._run = run = reply.run
        if self._terminal:
            self._terminal.handed_over()
        self._progress.started(run)
        if self._form is not None:
            self._output.request(run.id, self._form)
        self._requests.ask(Wait(id=0, run=run.id), self._ended)
        self._stops.learn_run(run.id)

    def _ended(self, reply: Reply, _descriptors: Sequence[int]) -> None:
        check(reply)
        if isinstance(reply, RunReply):
            self._final = reply.run
            self._output.run_ended()

    def _step(self) -> None:
        try:
            if self._client.fileno() in self._turn([self._client.fileno()]):
                self._requests.receive(self._pushed)
            if self._terminal and self._run and not self._final and self._terminal.program_stopped():
                self._job.suspend(self._run, group=True)
        except ConnectionLost:
            self._reconnect()

    def _turn(self, fixed: Sequence[int], timeout: float | None = None) -> dict[int, int]:
        """Wait once, handle signals and advance the activities. Return the ready descriptors."""
        ready = wait([self._signals.descriptor, *fixed], self._activities, timeout)
        self._take_signals()
        for activity in self._activities:
            activity.advance(ready)
        return ready

    def _say(self, text: str) -> None:
        _note(self._terminal, text)

    def _turn_alone(self, seconds: float) -> None:
        self._turn([], seconds)

    def _drain(self) -> None:
        ready = wait([self._signals.descriptor], self._activities)
        for number in self._signals.taken():
            if number in STOPPING:
                raise exits.Quit(128 + number)
        for activity in self._activities:
            activity.advance(ready)

    def _pushed(self, event: Event) -> None:
        if event.run_id is not None:
            self._stops.learn_run(event.run_id)
        self._progress.event(event)

    def _take_signals(self) -> Sequence[int]:
        for number in (numbers := self._signals.taken()):
            self._on_signal(number)
        return numbers

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGWINCH:
            if self._terminal:
                self._terminal.resize()
        elif number in FORWARDED:
            if self._run is not None:
                request = Signal(id=0, run=self._run.id, signal=number)
                self._requests.ask(request, self._progress.failed)
        elif number == signal.SIGTSTP:
            self._job.suspend(self._run, group=False)
        elif number == signal.SIGHUP and self._keep and self._run is not None:
            raise exits.Quit(128 + number)  # the terminal is gone, but the run should continue
        elif self._final is not None:
            raise exits.Quit(128 + number)
        else:
            self._stops.receive(number)

    def _reconnect(self) -> None:
        if self._final is not None and self._output.give_up_text():
            self._note(f"sfactl: the daemon went away before all text was shown; see it with: sfactl result {self._final.id}")
            self._client.close()
            return
        self._note("sfactl: the daemon went away; waiting for it to come back")
        self._progress.forget_early()
        if self._run is None:
            self._stops.forget_run()
        lost = self._requests.reconnect(self._advice(), lambda: carry_on(self._turn_alone, AGAIN))
        if self._run is not None and self._final is None:
            self._watch_again(self._run)
        self._requests.repeat(lost)

    def _watch_again(self, run: RunInfo) -> None:
        self._requests.ask(Watch(id=0, run=run.id), self._progress.failed)
        if self._progress.queued:
            # No connection received the events from before this request.
            self._requests.ask(Info(id=0, run=run.id), self._looked)

    def _looked(self, reply: Reply, _descriptors: Sequence[int]) -> None:
        if isinstance(reply, RunReply) and reply.run.started_at is not None:
            self._progress.left_queue()

    def _advice(self) -> str:
        if self._run is None:
            then = "; check with: sfactl list" if self._keep else " until the daemon is back, which stops it"
            return f"the run may have been started, and continues{then}"
        run = self._run.id
        then = "" if self._keep else "; the daemon stops it when it is back"
        return f"run {run} may continue{then}. Check with: sfactl info {run}"

    def _conclude(self, final: RunInfo) -> int:
        self._progress.ended(final, by_user=self.stopped_by is not None)
        if self._status_file:
            _write_status(self._status_file, final)
        if self._json:
            output.print_json(final)
        return exits.of_run(final) if self.stopped_by is None else 128 + self.stopped_by


class OutputCopy:
    """The run's output, copied to stdout and stderr: its files, or an agent's text instead of its stdout."""

    def __init__(self, requests: RequestsInFlight, progress: ProgressLines, note: Callable[[str], None], *, final: bool) -> None:
        self.activities: list[Activity] = []
        """What copies, once the daemon has sent the files."""
        self._requests = requests
        self._progress = progress
        self._note = note
        self._final = final
        self._text: TextFollower | None = None
        self._requested = False
        """Whether `Logs` has no reply yet; for a short run it may come after the run's end."""

    @property
    def complete(self) -> bool:
        """Whether the daemon will send no more files and text. Files that it has sent may not be drained yet."""
        return not self._requested and (self._text is None or self._text.finished)

    def request(self, run: RunId, form: Form) -> None:
        """Ask the daemon for the files, and copy them from then on."""
        self._requested = True
        self._requests.ask(Logs(id=0, run=run, form=form), self._opened)

    def run_ended(self) -> None:
        """Ask for the rest of the text, because the run has ended."""
        if self._text:
            self._text.run_ended()

    def give_up_text(self) -> bool:
        """Wait for no more text. Return whether the output is text."""
        if self._text:
            self._text.give_up()
        return self._text is not None

    def _opened(self, reply: Reply, descriptors: Sequence[int]) -> None:
        self._requested = False
        if isinstance(reply, Error):
            self._note(f"sfactl: the run's output is not copied: {reply.message}")
        if not isinstance(reply, LogFiles):
            return
        # Imported here: while ctypes loads, the daemon starts the run.
        from .follower import Copying, Follower, TextFollower

        out, err = descriptors
        if reply.text:
            self._text = TextFollower(out, 1, self._note, lambda cursor: self._ask_for_text(reply.run, cursor))
        stdout = self._text or Follower(out, 1, self._note)
        self.activities.append(Copying([stdout, Follower(err, 2, self._note)]))

    def _ask_for_text(self, run: RunId, cursor: bytes) -> None:
        self._requests.ask(Text(id=0, run=run, cursor=cursor, final=self._final), self._told)

    def _told(self, reply: Reply, _descriptors: Sequence[int]) -> None:
        assert self._text is not None  # only the follower asks
        if isinstance(reply, TextPart):
            for call in reply.tools if self._progress.verbose else ():
                self._progress.say(call)
            self._text.take_in(reply)
        elif isinstance(reply, Error):
            self._note(f"sfactl: the rest of the run's text is not shown: {reply.message}")
            self._text.give_up()


def _terminal(message: Spawn) -> Terminal | None:
    if not (message.stdio == "inherit" and os.isatty(0) and os.isatty(1)):
        return None
    from .terminal import Terminal

    return Terminal()


def _modes() -> list[Any]:
    """Return the modes of the terminal that is stdin."""
    from termios import tcgetattr

    return tcgetattr(0)


def _with_descriptors(message: Spawn, terminal: Terminal | None) -> tuple[Spawn, Sequence[int]]:
    """Return the message and the descriptors that go with it."""
    descriptors: Sequence[int] = ()
    if terminal:
        descriptors = (terminal.slave, terminal.slave, terminal.slave if os.isatty(2) else 2)
    elif message.stdio == "inherit":
        descriptors = (0, 1, 2)
    elif message.stdin == "null":
        # The run gets the descriptor itself, so that this process reads nothing that the run might not read.
        message, descriptors = replace(message, stdin="descriptor"), (0,)
    return replace(message, descriptors=len(descriptors)), descriptors


def _clear_status(path: str) -> None:
    """Check that the `--status-file` can be written, and remove that of an earlier run. Raise `UsageError`."""
    try:
        with open(f"{path}.{os.getpid()}.tmp", "wb") as file:
            os.unlink(file.name)
        if os.path.lexists(path):
            os.unlink(path)
    except OSError as error:
        raise exits.UsageError(f"--status-file {path}: {error.strerror}") from error


def _write_status(path: str, run: RunInfo) -> None:
    """Write the run as JSON, whole or not at all. Raise `Quit`."""
    try:
        with open(f"{path}.{os.getpid()}.tmp", "wb") as file:
            file.write(to_json(run) + b"\n")
        os.replace(file.name, path)
    except OSError as error:
        raise exits.Quit(exits.ExitCode.UNAVAILABLE, f"--status-file {path}: {error.strerror}") from error


def _note(terminal: Terminal | None, text: str) -> None:
    raw = terminal is not None and terminal.raw
    os.write(2, text.encode(errors="backslashreplace") + (b"\r\n" if raw else b"\n"))
