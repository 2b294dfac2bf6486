"""A run in the foreground: this process stands for it, with its output, its signals and its exit code.

Spawn ─▶ RunReply ─▶ Logs, Wait ─▶ LogFiles: copy until … RunReply of Wait ─▶ drain to the end ─▶ exit code

Where the connection is lost, output is copied on while we connect again, and then whatever is unanswered is asked again: signals
that came meanwhile are Stops that wait to be sent.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import json, structs

from sfad.protocol import messages as m
from sfad.protocol.types import Event, RunId, RunInfo, Status

from . import exits, output, poll, refused, request
from .connection import AGAIN, Client, ConnectionLost, again, check, unanswered

if TYPE_CHECKING:
    from .limits import Notices
    from .terminal import Terminal
    from .text_follower import TextFollower

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HANDLED = (*STOPPING, signal.SIGQUIT, signal.SIGWINCH, signal.SIGTSTP)

Form = Literal["raw", "text", "auto"]

Answered = Callable[[m.Reply, Sequence[int]], None]


class Pending(NamedTuple):
    """A request without an answer, and who takes that."""

    request: m.Request
    answered: Answered
    descriptors: Sequence[int]
    sent: bool

    def repeatable(self) -> bool:
        """Whether it is to be sent on a new connection. `Watch` and `Info` are not: `_watch_again` asks anew."""
        signalled_in_vain = isinstance(self.request, m.Signal) and not self.sent
        return signalled_in_vain or isinstance(self.request, m.Spawn | m.Logs | m.Text | m.Wait | m.Stop | m.Resume)


class Foreground:
    """One run, from the request to the exit code."""

    def __init__(
        self,
        client: Client,
        message: m.Spawn,
        *,
        keep: bool = False,
        as_json: bool = False,
        verbose: bool = False,
        status_file: str | None = None,
        form: Form = "raw",
    ) -> None:
        """`form`: of the copied output, as `Logs` has it."""
        self._client = client
        self._message = message
        self._keep = keep
        self._json = as_json
        self._verbose = verbose and not message.quiet
        self._status_file = status_file
        self._form: Form = form
        self._text: TextFollower | None = None
        self._terminal: Terminal | None = None
        self._notices: Notices | None = None
        self._early: list[Event] = []
        """Events of the run that came before the answer that says which one it is."""
        self._activities: list[poll.Activity] = []
        self._pending: dict[int, Pending] = {}
        self._respawned = 0
        self._known: RunId | None = None
        """Its id, which its first event tells; the answer comes when its command has been executed."""
        self._run: RunInfo | None = None
        self._final: RunInfo | None = None
        self._output_asked = False
        """Its descriptors may arrive after the news that a short run has ended."""
        self._queued = False
        self._signals: poll.Signals
        self._signalled: list[int] = []

    def carry_out(self) -> int:
        """Starts the run, stays until its end, and returns the exit code. Raises what ends the program."""
        try:
            with poll.Signals(HANDLED) as self._signals:
                self._start()
                while self._final is None or self._output_asked or (self._text and not self._text.finished):
                    self._step()
                if self._terminal:
                    self._terminal.expect_end()
                while not all(activity.drained() for activity in self._activities):
                    self._drain()
        finally:
            for activity in self._activities:
                activity.close()
            self._client.close()
        return self._conclude(self._final)

    def _start(self) -> None:
        if self._status_file:
            clear_status(self._status_file)
        descriptors = self._descriptors()
        self._message = structs.replace(self._message, tied=not self._keep, watch=True, descriptors=len(descriptors))
        if self._terminal:
            self._terminal.enter_raw()
        self._ask(self._message, self._started, descriptors)

    def _descriptors(self) -> Sequence[int]:
        if self._message.stdio == "inherit":
            return self._inherited()
        if self._message.stdin == "null":
            # The descriptor itself: the run reads what we would have read, and nothing is read on its behalf.
            self._message = structs.replace(self._message, stdin="descriptor")
            return (0,)
        return ()

    def _inherited(self) -> Sequence[int]:
        if not (os.isatty(0) and os.isatty(1)):
            return (0, 1, 2)
        from .terminal import Terminal

        self._terminal = Terminal()
        self._activities.append(self._terminal)
        return (self._terminal.slave,) * 3

    def _ask(self, request: m.Request, answered: Answered, descriptors: Sequence[int] = ()) -> None:
        sent = False
        # Who reads notices the end of the connection too, and what was answered before it.
        with suppress(ConnectionLost):
            self._client.send(request, descriptors)
            sent = True
        self._pending[request.id] = Pending(request, answered, descriptors, sent)

    def _step(self) -> None:
        try:
            if self._client.fileno() in self._turn([self._client.fileno()]):
                for reply, descriptors in self._client.arrived():
                    self._listen(reply, descriptors)
            if self._terminal and self._run and not self._final and self._terminal.program_stopped():
                self._suspend(group=True)
        except ConnectionLost:
            self._reconnect()

    def _turn(self, fixed: Sequence[int], timeout: float | None = None) -> dict[int, int]:
        """Waits once, and does everything but listen."""
        ready = poll.wait([self._signals.descriptor, *fixed], self._activities, timeout)
        for number in self._signals.taken():
            self._on_signal(number)
        for activity in self._activities:
            activity.advance(ready)
        return ready

    def _drain(self) -> None:
        ready = poll.wait([self._signals.descriptor], self._activities)
        for number in self._signals.taken():
            if number in STOPPING:
                raise exits.Quit(128 + number)
        for activity in self._activities:
            activity.advance(ready)

    def _listen(self, reply: m.Reply, descriptors: Sequence[int]) -> None:
        if isinstance(reply, m.EventPush):
            self._pushed(reply.event)
            return
        asked = self._pending.pop(reply.id, None)
        (asked.answered if asked else self._unasked)(reply, descriptors)

    def _pushed(self, event: Event) -> None:
        """The first events of the run come before the answer that says which one it is."""
        self._learn(event.run_id)
        if self._run is None and not self._verbose:
            self._early.append(event)
        else:
            self._event(event)

    def _learn(self, run: RunId | None) -> None:
        if self._known is None and run is not None:
            self._known = run
            for number in self._signalled:
                self._stop(number)

    def _started(self, reply: m.Reply, _descriptors: Sequence[int]) -> None:
        check(reply)
        if isinstance(reply, m.Refused):
            raise refused.as_quit(reply, as_json=self._json)
        assert isinstance(reply, m.RunReply)  # `check` and the protocol leave nothing else
        self._run = run = reply.run
        if self._terminal:
            self._terminal.handed_over()
        self._queued = run.status in (Status.ACCEPTED, Status.QUEUED)
        if not run.status.terminal:
            self._progress("queued" if self._queued else self._starting(run))
        if words := request.unenforceable(run, self._message):
            self._note(words)
        for event in self._early:
            self._event(event)
        self._copy_output(run)
        self._ask(m.Wait(id=0, run=run.id), self._ended)
        self._learn(run.id)

    def _copy_output(self, run: RunInfo) -> None:
        if self._message.stdio == "files" and self._message.log and not self._json:
            self._output_asked = True
            self._ask(m.Logs(id=0, run=run.id, form=self._form), self._opened)

    def _opened(self, reply: m.Reply, descriptors: Sequence[int]) -> None:
        self._output_asked = False
        if isinstance(reply, m.Error):
            self._note(f"sfactl: the run's output is not copied: {reply.message}")
        if not isinstance(reply, m.LogFiles):
            return
        # Imported here: while ctypes loads, the daemon has been starting the run.
        from . import follow

        out, err = descriptors
        stdout = self._text_from(out) if reply.text else follow.Follower(out, 1, self._note)
        self._activities.append(follow.Copying([stdout, follow.Follower(err, 2, self._note)]))

    def _text_from(self, source: int) -> TextFollower:
        from .text_follower import TextFollower

        self._text = TextFollower(source, 1, self._note, self._ask_for_text)
        return self._text

    def _ask_for_text(self, cursor: bytes) -> None:
        assert self._run is not None  # whose files these are
        self._ask(m.Text(id=0, run=self._run.id, cursor=cursor), self._told)

    def _told(self, reply: m.Reply, _descriptors: Sequence[int]) -> None:
        assert self._text is not None  # it has asked
        if isinstance(reply, m.TextPart):
            for call in reply.tools if self._verbose else ():
                self._progress(call)
            self._text.take_in(reply)
        elif isinstance(reply, m.Error):
            self._note(f"sfactl: the rest of the run's text is not shown: {reply.message}")
            self._text.give_up()

    def _ended(self, reply: m.Reply, _descriptors: Sequence[int]) -> None:
        check(reply)
        if isinstance(reply, m.RunReply):
            self._final = reply.run
            if self._text:
                self._text.run_ended()

    def _event(self, event: Event) -> None:
        own = self._run is not None and event.run_id == self._run.id
        if self._verbose:
            self._note(f"[agent:{event.agent_name or '-'}] {event.type}: {output.plain(event.message)}".removesuffix(": "))
        elif own and event.type == "run_started" and self._queued:
            self._left_queue()
        elif own and event.limit_kind is not None:
            self._limit(event)
        elif own and event.type == "run_paused" and event.message:
            self._progress(f"paused: {output.plain(event.message)}")
        elif own and event.type == "run_progress":
            self._progress(output.plain(event.message))
        elif own and event.type in ("meter_unpriced", "meter_gap", "meter_silent"):
            self._progress(f"not all of its use is known: {output.plain(event.message)}")

    def _limit(self, event: Event) -> None:
        if self._notices is None:
            # Few runs come near a limit; the others need not know how that is said.
            from .limits import Notices

            self._notices = Notices()
        if self._run is not None and (words := self._notices.of(event, self._run)):
            self._progress(words)

    def _answered(self, reply: m.Reply, _descriptors: Sequence[int]) -> None:
        """For requests whose failure the user should know of, but that the run's end will answer better."""
        if isinstance(reply, m.Error) and self._verbose:
            self._note(f"sfactl: {reply.message}")

    def _unasked(self, reply: m.Reply, _descriptors: Sequence[int]) -> None:
        # Id 0: the daemon could not even read which request it refuses.
        check(reply)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGWINCH:
            if self._terminal:
                self._terminal.resize()
        elif number == signal.SIGQUIT:
            self._forward(number)
        elif number == signal.SIGTSTP:
            self._suspend(group=False)
        elif number == signal.SIGHUP and self._keep and self._run is not None:
            raise exits.Quit(128 + number)  # the terminal has gone away, and the run is to go on
        elif number in STOPPING and self._final is not None:
            raise exits.Quit(128 + number)
        elif number in STOPPING:
            self._signalled.append(number)
            self._stop(number)

    def _forward(self, number: int) -> None:
        if self._run is not None:
            self._ask(m.Signal(id=0, run=self._run.id, signal=number), self._answered)

    def _suspend(self, *, group: bool) -> None:
        """Pause the run, then stop as Ctrl-Z asks. Where the run's program has stopped itself, which the shell does not see, the
        whole process group stops, as the shell expects of a job; where the signal came to this process, only this one."""
        if self._run is None or self._client.closed:
            self._stand_still(group=group)
        else:
            request = m.Pause(id=0, run=self._run.id, suspended=True)
            self._ask(request, lambda reply, _descriptors: self._paused(reply, group=group))

    def _paused(self, reply: m.Reply, *, group: bool) -> None:
        suspended = isinstance(reply, m.RunReply) and reply.run.reason is not None and reply.run.reason.kind == "suspended"
        # a program that stands still for another reason (a limit; a pause by signals) has not asked for this
        if suspended or not group:
            self._stand_still(group=group)

    def _stand_still(self, *, group: bool) -> None:
        if self._terminal:
            self._terminal.leave_raw()
        self._tell_pause()
        poll.stop_self(group=group)
        if self._regain_terminal() and self._run is not None:
            self._ask(m.Resume(id=0, run=self._run.id, suspended=True), self._continued)

    def _tell_pause(self) -> None:
        self._progress("paused until this job continues (fg)")
        # few runs are suspended: the others need not load this
        from .commands.pause import caution

        if self._run is not None and (words := caution(self._run)):
            self._progress(words)

    def _regain_terminal(self) -> bool:
        """Wait until the terminal is ours again, if the run uses it. Return False if a signal came first that ends the run."""
        while True:
            for number in (numbers := self._signals.taken()):
                self._on_signal(number)
            if any(number in STOPPING for number in numbers):
                return False
            try:
                if self._terminal:
                    self._terminal.enter_raw()
                elif self._message.stdio == "inherit" and os.isatty(0):
                    poll.await_foreground()
                return True
            except InterruptedError:
                continue  # by a signal, which is handled first

    def _continued(self, reply: m.Reply, descriptors: Sequence[int]) -> None:
        if self._terminal:
            self._terminal.proceed()
        self._answered(reply, descriptors)

    def _stop(self, number: int) -> None:
        """The first signal stops the run, the second skips the grace, the third lets go."""
        first, count = self._signalled[0], len(self._signalled)
        if count > 2 or (count == 2 and self._known is None):
            raise exits.Quit(128 + first)
        if self._client.closed:
            self._note("sfactl: the run is stopped as soon as the daemon is back")
        if self._known is None:
            return
        if first == signal.SIGINT and count == 1 and (not self._message.quiet or os.isatty(2)):
            # -q too: who pressed Ctrl-C at a terminal has to know why the prompt does not come, and what helps
            self._note(f"sfactl: stopping {self._known}; Ctrl-C again to kill")
        grace = 0.0 if count == 2 else self._message.grace
        request = m.Stop(id=0, runs=[self._known], signal=number, grace=grace)
        self._ask(request, self._stopped)

    def _stopped(self, reply: m.Reply, _descriptors: Sequence[int]) -> None:
        if isinstance(reply, m.Stopped) and reply.survivors:
            raise exits.Quit(exits.ExitCode.SURVIVORS, refused.survivors(reply.survivors))

    def _reconnect(self) -> None:
        if self._final is not None and self._text:
            self._note(f"sfactl: the daemon went away before all text was shown; look with: sfactl result {self._final.id}")
            self._text.give_up()
            self._client.close()
            return
        self._note("sfactl: the daemon went away; waiting for it to come back")
        self._early.clear()
        self._known = self._run.id if self._run is not None else None
        self._client.reconnect(self._advice(), self._pause)
        pending = list(self._pending.values())
        self._pending.clear()
        if self._run is not None and self._final is None:
            self._watch_again(self._run)
        for asked in pending:
            if asked.repeatable():
                self._ask(self._repeated(asked.request), asked.answered, asked.descriptors)
            elif isinstance(asked.request, m.Signal):
                self._note("sfactl: the signal may have been lost with the connection; it was not sent again")

    def _repeated(self, request: m.Request) -> m.Request:
        if isinstance(request, m.Spawn):
            self._respawned += 1
            if self._respawned > request.repeats:
                raise ConnectionLost(self._client.path, unanswered(request))
        if isinstance(request, m.Wait):
            request = structs.replace(request, tie=not self._keep)
        return again(request, 0.0)

    def _watch_again(self, run: RunInfo) -> None:
        self._ask(m.Watch(id=0, run=run.id), self._answered)
        if self._queued:
            # Whatever happened before this was told to nobody.
            self._ask(m.Info(id=0, run=run.id), self._looked)

    def _looked(self, reply: m.Reply, _descriptors: Sequence[int]) -> None:
        if isinstance(reply, m.RunReply) and reply.run.started_at is not None:
            self._left_queue()

    def _left_queue(self) -> None:
        if self._queued:
            self._queued = False
            if self._run is not None:
                self._progress(self._starting(self._run))

    def _starting(self, run: RunInfo) -> str:
        if self._message.quiet:
            return ""
        # Imported here: while the module loads, the run is under way.
        from .limits import in_force

        return f"starting: {in_force(run)}"

    def _advice(self) -> str:
        if self._run is None:
            then = "; look with: sfactl list" if self._keep else ", and is stopped when the daemon is back"
            return f"it is not known whether the run was started; if it was, it goes on{then}"
        run = self._run.id
        then = "" if self._keep else "; it is stopped when the daemon is back"
        return f"run {run} may go on{then}. Look with: sfactl info {run}"

    def _pause(self) -> None:
        until = time.monotonic() + AGAIN
        while (left := until - time.monotonic()) > 0:
            self._turn([], left)

    def _conclude(self, final: RunInfo | None) -> int:
        assert final is not None  # `carry_out` has waited for it
        self._tell_end(final)
        if self._status_file:
            write_status(self._status_file, final)
        if self._json:
            output.print_json(final)
        return self._code(final)

    def _tell_end(self, final: RunInfo) -> None:
        """Quiet silences progress, never the reason of a failure that the caller has not asked for."""
        if not self._message.quiet:
            self._progress(_ending(final))
        elif not self._signalled and (words := output.failure(final)):
            self._note(words)

    def _code(self, final: RunInfo | None) -> int:
        if self._signalled:
            return 128 + self._signalled[0]
        return exits.ExitCode.LOST if final is None else exits.of_run(final)

    def _progress(self, what: str) -> None:
        if not self._message.quiet and self._run is not None:
            self._note(f"[agent:{self._run.name}] {what}")

    def _note(self, text: str) -> None:
        if self._terminal and self._final:
            self._terminal.leave_raw()
        raw = self._terminal is not None and self._terminal.raw
        os.write(2, text.encode(errors="backslashreplace") + (b"\r\n" if raw else b"\n"))


def _ending(final: RunInfo) -> str:
    reason = f": {output.plain(final.reason.message)}" if final.reason else ""
    used = _used(final)
    return final.status.value + reason + (f"; it used {used}" if used else "")


def _used(final: RunInfo) -> str | None:
    if final.reason:  # that of a limit has the figure in it
        return output.at_least(final.usage)
    if final.descendants:
        # few foreground runs have any: the others need not load this
        from .limits import totals

        return totals(final)
    return output.at_least(final.usage) or output.used(final.usage)


def clear_status(path: str) -> None:
    """Makes sure, before anything is started, that `path` can be written, and that it does not tell of an earlier run.
    Raises `UsageError`."""
    try:
        with open(f"{path}.{os.getpid()}.tmp", "wb") as file:
            os.unlink(file.name)
        with suppress(FileNotFoundError):
            os.unlink(path)
    except OSError as error:
        raise exits.UsageError(f"--status-file {path}: {error.strerror}") from error


def write_status(path: str, run: RunInfo) -> None:
    """Puts the run as JSON where `path` is, whole or not at all. Raises `Quit` where that cannot be done."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(json.encode(run) + b"\n")
        os.replace(temporary, path)
    except OSError as error:
        raise exits.Quit(exits.ExitCode.UNAVAILABLE, f"--status-file {path}: {error.strerror}") from error
