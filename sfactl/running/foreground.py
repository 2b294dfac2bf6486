"""A run in the foreground: its output, its signals and its exit code are those of this process.

Spawn ─▶ RunReply ─▶ Logs, Wait ─▶ LogFiles: copy until … RunReply of Wait
                                   ─▶ drain to the end ─▶ exit code

If the connection is lost, output is still copied while this process connects again and repeats the
requests without a reply. A signal meanwhile is a Stop that is sent afterwards.
"""

from __future__ import annotations

import os
import select
import signal
import stat
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sfad.protocol.encoding import to_json
from sfad.protocol.known import AGENTS
from sfad.protocol.requests.base import Error, Reply, RunReply
from sfad.protocol.requests.following import LogFiles, Logs, Text, TextPart, Wait, Watch
from sfad.protocol.requests.listing import Info
from sfad.protocol.requests.starting import OwnProgram, OwnServerAsked, Refused, Spawn
from sfad.protocol.requests.steering import Pause, Resume, Signal, Stop, Stopped
from sfad.protocol.types import Event, RunId, RunInfo

from .. import exits, output
from ..connecting.connection import AGAIN, Client, ConnectionLost, check
from ..connecting.in_flight import Activity, RequestsInFlight, carry_on, wait
from ..options.spawn import Form, SpawnOptions
from ..showing.follower import Copying, Follower, TextFollower
from ..whole_file import write_whole
from .progress import ProgressLines
from .terminal import HangUp, Terminal, TerminalInput, await_foreground, foreign_terminal

# ---- What signals to a client in the foreground do to its run: stop it, or suspend it with this
# process

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalPipe:
    """Signals as bytes on a pipe, which can be polled and never interrupt a write. Signals that are
    already ignored (nohup, a background job of a shell) stay ignored."""

    def __init__(self, wanted: Iterable[signal.Signals]) -> None:
        self._wanted = [s for s in wanted if signal.getsignal(s) is not signal.SIG_IGN]
        self._previous = {s: signal.getsignal(s) for s in self._wanted}
        self.descriptor, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> SignalPipe:
        self._outer = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        # the interpreter writes a signal to the pipe only if it has a handler
        for wanted in self._wanted:
            signal.signal(wanted, lambda _number, _frame: None)
        return self

    def __exit__(self, *_error: object) -> None:
        for wanted, previous in self._previous.items():
            signal.signal(wanted, previous)
        signal.set_wakeup_fd(self._outer)
        os.close(self.descriptor)
        os.close(self._write_end)

    def taken(self) -> Sequence[int]:
        try:
            return os.read(self.descriptor, 64)
        except BlockingIOError:
            return b""


class StopSignals:
    """SIGINT, SIGTERM and SIGHUP: the first stops the run, the second skips the grace, the third
    leaves the run."""

    def __init__(
        self, requests: RequestsInFlight, spawn: Spawn, note: Callable[[str], None]
    ) -> None:
        self.received: list[int] = []
        self._requests = requests
        self._spawn = spawn
        self._note = note
        self._run: RunId | None = None

    def receive(self, number: int) -> None:
        """Stop the run, as soon as its id is known. Raise `Quit` at the third signal, and at the
        second if the id is not known."""
        self.received.append(number)
        self._stop(number)

    def learn_run(self, run: RunId) -> None:
        """Take the run's id, and stop the run if a signal came before. The first event brings the
        id; the reply comes later, when the run's command has been executed."""
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
        if (
            first == signal.SIGINT
            and count == 1
            and (not self._spawn.quiet or os.isatty(2))
            and not self._spawn.shim
        ):
            # with -q too: after Ctrl-C at a terminal the user must know why the prompt does not
            # come. But of a shim's caller only the program is known.
            self._note(f"sfactl: stopping {self._run}; Ctrl-C again to kill")
        grace = 0.0 if count == 2 else self._spawn.grace
        self._requests.ask(Stop(id=0, runs=[self._run], signal=number, grace=grace), _stopped)


def _stopped(reply: Reply, _descriptors: Sequence[int]) -> None:
    if isinstance(reply, Stopped) and reply.survivors:
        raise exits.Quit(exits.ExitCode.SURVIVORS, output.survivors(reply.survivors))


class JobControl(Struct):
    """Ctrl-Z and `fg`: the run pauses, this process stops as its shell expects, and both continue.

    `receive` handles the signals that have come, and returns them."""

    requests: RequestsInFlight
    terminal: Terminal | None
    input_: TerminalInput | None
    progress: ProgressLines
    receive: Callable[[], Sequence[int]]
    inherits: bool

    def suspend(self, run: RunInfo | None, *, group: bool) -> None:
        """Pause the run, then stop as Ctrl-Z asks. If the run's program has stopped itself, which
        the shell does not see, stop the whole process group, as the shell expects of a job; if this
        process received the signal, stop only this process."""

        def paused(reply: Reply, _descriptors: Sequence[int]) -> None:
            suspended = isinstance(reply, RunReply) and any(
                hold.kind == "suspended" for hold in reply.run.holds
            )
            # a program that is paused for another reason (a limit, or by signals) did not press
            # Ctrl-Z
            if suspended or not group:
                self._stand_still(run, group=group)

        if run is None or not self.requests.connected:
            self._stand_still(run, group=group)
        else:
            self.requests.ask(Pause(id=0, run=run.id, suspended=True), paused)

    def _stand_still(self, run: RunInfo | None, *, group: bool) -> None:
        if self.terminal:
            self.terminal.leave_raw()
        if self.input_:
            self.input_.leave()
        self.progress.say("paused until this job continues (fg)")
        if run is not None and (words := output.pause_warning(run)):
            self.progress.say(words)
        _stop_self(group=group)
        if self.terminal:
            self.terminal.run_paused()
        if self._regain_terminal() and run is not None:
            self.requests.ask(Resume(id=0, run=run.id, suspended=True), self._continued)

    def _regain_terminal(self) -> bool:
        """Wait until the terminal is ours again, if the run uses it. Return False if a signal that
        ends the run came first."""
        while not any(number in STOPPING for number in self.receive()):
            try:
                self._take_terminal()
            except InterruptedError:
                continue  # by a signal, which is handled first
            return True
        return False

    def _take_terminal(self) -> None:
        if self.terminal:
            self.terminal.enter_raw()
        elif self.inherits and os.isatty(0):
            await_foreground()

    def _continued(self, reply: Reply, descriptors: Sequence[int]) -> None:
        if self.terminal:
            self.terminal.proceed()
        self.progress.failed(reply, descriptors)


def _stop_self(*, group: bool) -> None:
    """Stop this process, or its process group, as Ctrl-Z does; return when it is continued. In an
    orphaned process group, which no shell would continue, the kernel does not stop it."""
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN:
        return
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(0 if group else os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, before)


# ---- A run in the foreground: its output, its signals and its exit code are those of this process

FORWARDED = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that reach the main process of the run, and change nothing here."""
HANDLED = (*STOPPING, *FORWARDED, signal.SIGWINCH, signal.SIGTSTP)


class Foreground:
    """One run, from the request to the exit code."""

    def __init__(
        self,
        client: Client,
        message: Spawn,
        options: SpawnOptions,
        form: Form,
        *,
        final: bool = False,
        silent: bool = False,
    ) -> None:
        """`message` was made from `options`. `final`: of an agent's text, print the final answer
        alone. `silent`: print no progress lines, whatever the run itself is told."""
        self._client = client
        self._keep = options.keep
        self._json = options.json
        self._status_file = options.status_file
        self._form: Form | None = (
            form if message.stdio == "files" and message.log and not options.json else None
        )
        self._message = replace(message, tied=not options.keep, watch=True, copies=self._form)
        self._terminal = _terminal(message)
        self._input = _input(message) if self._terminal is None else None
        self._note = self._say
        shown = replace(message, quiet=True) if silent else message
        self._progress = ProgressLines(shown, self._note, verbose=options.verbose)
        self._requests = RequestsInFlight(client, self._note, tie=not options.keep)
        self._output = OutputCopy(self._requests, self._progress, self._note, final=final)
        self._activities: list[Activity] = (
            [self._terminal] if self._terminal else self._output.activities
        )
        if self._input:
            self._activities.append(self._input)
        foreign = foreign_terminal()
        if foreign is not None:
            self._activities.append(HangUp(foreign))
        self._signals = SignalPipe(HANDLED)
        self._stops = StopSignals(self._requests, shown, self._note)
        self._job = JobControl(
            self._requests,
            self._terminal,
            self._input,
            self._progress,
            self._take_signals,
            message.stdio == "inherit",
        )
        self._run: RunInfo | None = None
        self._final: RunInfo | None = None

    @property
    def stopped_by(self) -> int | None:
        """The first signal by which this process was told to stop the run."""
        return next(iter(self._stops.received), None)

    @property
    def final(self) -> RunInfo | None:
        """The run as it has ended."""
        return self._final

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
        message, descriptors = _with_descriptors(self._message, self._terminal, self._input)
        if self._terminal:
            self._terminal.begin()
        self._requests.ask(message, self._started, descriptors)

    def _started(self, reply: Reply, _descriptors: Sequence[int]) -> None:
        check(reply)
        if isinstance(reply, Refused):
            raise output.refusal(reply, as_json=self._json)
        if isinstance(reply, OwnProgram):
            raise exits.NoChildRun(reply.argv)
        if isinstance(reply, OwnServerAsked):
            raise exits.OwnServer(reply.act, reply.what, reply.argv, reply.says)
        assert isinstance(reply, RunReply)  # after `check`, the protocol has no other reply
        self._run = run = reply.run
        if self._terminal:
            self._terminal.handed_over()
        if run.terminal:
            self._note(f"sfactl: {run.id} has a terminal of its own: sfactl attach {run.id}")
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
            if (
                self._terminal
                and self._run
                and not self._final
                and self._terminal.program_stopped()
            ):
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
            self._note(
                "sfactl: the daemon went away before all text was shown; see it with: "
                f"sfactl result {self._final.id}"
            )
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
            then = (
                "; check with: sfactl list"
                if self._keep
                else " until the daemon is back, which stops it"
            )
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
    """The run's output, copied to stdout and stderr: its files, or an agent's text instead of its
    stdout."""

    def __init__(
        self,
        requests: RequestsInFlight,
        progress: ProgressLines,
        note: Callable[[str], None],
        *,
        final: bool,
    ) -> None:
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
        """Whether the daemon will send no more files and text. Files that it has sent may not be
        drained yet."""
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
        out, err = descriptors
        if reply.text:
            self._text = TextFollower(
                out, 1, self._note, lambda cursor: self._ask_for_text(reply.run, cursor)
            )
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
    return Terminal()


def _input(message: Spawn) -> TerminalInput | None:
    reads = message.stdio == "inherit" or message.stdin == "null"
    return TerminalInput() if reads and os.isatty(0) else None


def _with_descriptors(
    message: Spawn, terminal: Terminal | None, input_: TerminalInput | None
) -> tuple[Spawn, Sequence[int]]:
    """Return the message and the descriptors that go with it."""
    descriptors: Sequence[int] = ()
    stdin = input_.slave if input_ else 0
    if terminal:
        descriptors = (terminal.slave, terminal.slave, terminal.slave if os.isatty(2) else 2)
    elif message.stdio == "inherit":
        descriptors = (stdin, 1, 2)
    elif message.stdin == "null":
        # The run gets the descriptor itself, so that this process reads nothing that the run might
        # not read.
        if not (_has_task(message) and _is_silent(0)):
            message, descriptors = replace(message, stdin="descriptor"), (stdin,)
        elif not message.quiet:
            output.note(
                f"sfactl: nothing came through stdin within {SILENT_STDIN:g} s, so "
                f"{message.agent} gets none"
            )
    return replace(message, descriptors=len(descriptors)), descriptors


SILENT_STDIN = 3.0
"""Seconds in which something must come through a pipe, as in Claude Code."""


def _has_task(message: Spawn) -> bool:
    """Return whether an agent program is started by its name with a task. It takes stdin for more
    of the task, and some (Codex, opencode) read it to its end before they begin."""
    return message.agent in AGENTS and bool(message.argv or message.placeholders.get("task"))


def _is_silent(descriptor: int) -> bool:
    """Return whether nothing comes through a pipe or a socket, which stays open: that of a
    supervisor or of a script may do so forever."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False  # it is closed
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return not poll.poll(1000 * SILENT_STDIN)


def _clear_status(path: str) -> None:
    """Check that the `--status-file` can be written, and remove that of an earlier run. Raise
    `UsageError`, also for anything but a regular file: a device or a pipe would be replaced, and so
    would the link /dev/stdout of the whole machine."""
    try:
        with open(f"{path}.{os.getpid()}.tmp", "wb") as file:
            os.unlink(file.name)
        if os.path.lexists(path):
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise exits.UsageError(f"--status-file {path}: it exists, and is no regular file")
            os.unlink(path)
    except OSError as error:
        raise exits.UsageError(f"--status-file {path}: {error.strerror}") from error


def _write_status(path: str, run: RunInfo) -> None:
    """Write the run as JSON, whole or not at all. Raise `Quit`."""
    try:
        write_whole(path, to_json(run) + b"\n")
    except OSError as error:
        raise exits.Quit(
            exits.ExitCode.UNAVAILABLE, f"--status-file {path}: {error.strerror}"
        ) from error


def _note(terminal: Terminal | None, text: str) -> None:
    raw = terminal is not None and terminal.raw
    os.write(2, text.encode(errors="backslashreplace") + (b"\r\n" if raw else b"\n"))
