"""A run in the foreground: its output, its signals and its exit code are those of this process.

Spawn ─▶ RunReply ─▶ Logs, Wait ─▶ LogFiles: copy until … RunReply of Wait ─▶ drain to the end ─▶ exit code

If the connection is lost, output is still copied while this process connects again and repeats the requests without a reply. A
signal meanwhile is a Stop that is sent afterwards.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import structs

from sfad.protocol import messages as m
from sfad.protocol.types import Event, RunId, RunInfo

from . import exits, output, poll, status_file
from .connection import AGAIN, Client, ConnectionLost, again, check, unanswered
from .progress import ProgressLines

if TYPE_CHECKING:
    from .follower import TextFollower
    from .terminal import Terminal

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HANDLED = (*STOPPING, signal.SIGQUIT, signal.SIGWINCH, signal.SIGTSTP)

Form = Literal["raw", "text", "auto"]

Answered = Callable[[m.Reply, Sequence[int]], None]


class OpenRequest(NamedTuple):
    """A request without a reply, and the function that takes the reply."""

    request: m.Request
    answered: Answered
    descriptors: Sequence[int]
    sent: bool

    def repeatable(self) -> bool:
        """Whether to send it again on a new connection. `Watch` and `Info` are not, because `_watch_again` makes new ones."""
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
        """`form` is that of `Logs`."""
        self._client = client
        self._message = message
        self._keep = keep
        self._json = as_json
        self._progress = ProgressLines(message, self._note, verbose=verbose)
        self._status_file = status_file
        self._form: Form = form
        self._text: TextFollower | None = None
        self._terminal: Terminal | None = None
        self._activities: list[poll.Activity] = []
        self._pending: dict[int, OpenRequest] = {}
        self._respawned = 0
        self._known: RunId | None = None
        """The run's id, from its first event. The reply comes later, when its command has been executed."""
        self._run: RunInfo | None = None
        self._final: RunInfo | None = None
        self._output_asked = False
        """Whether `Logs` has no reply yet; for a short run it may come after the run's end."""
        self._signals: poll.Signals
        self._signalled: list[int] = []

    def carry_out(self) -> int:
        """Start the run, stay until its end, and return the exit code. Raise `Quit`."""
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
            status_file.clear(self._status_file)
        descriptors = self._descriptors()
        self._message = structs.replace(self._message, tied=not self._keep, watch=True, descriptors=len(descriptors))
        if self._terminal:
            self._terminal.enter_raw()
        self._ask(self._message, self._started, descriptors)

    def _descriptors(self) -> Sequence[int]:
        if self._message.stdio == "inherit":
            return self._inherited()
        if self._message.stdin == "null":
            # The run gets the descriptor itself, so that this process reads nothing that the run might not read.
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
        # `arrived` raises it as well, after the replies that came before the end.
        with suppress(ConnectionLost):
            self._client.send(request, descriptors)
            sent = True
        self._pending[request.id] = OpenRequest(request, answered, descriptors, sent)

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
        """Wait once, handle signals and advance the activities. Return the ready descriptors."""
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
        self._learn(event.run_id)  # the first events come before the reply
        self._progress.event(event)

    def _learn(self, run: RunId | None) -> None:
        if self._known is None and run is not None:
            self._known = run
            for number in self._signalled:
                self._stop(number)

    def _started(self, reply: m.Reply, _descriptors: Sequence[int]) -> None:
        check(reply)
        if isinstance(reply, m.Refused):
            raise output.refusal(reply, as_json=self._json)
        assert isinstance(reply, m.RunReply)  # after `check`, the protocol has no other reply
        self._run = run = reply.run
        if self._terminal:
            self._terminal.handed_over()
        self._progress.started(run)
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
        # Imported here: while ctypes loads, the daemon starts the run.
        from . import follower

        out, err = descriptors
        stdout = self._text_from(out) if reply.text else follower.Follower(out, 1, self._note)
        self._activities.append(follower.Copying([stdout, follower.Follower(err, 2, self._note)]))

    def _text_from(self, source: int) -> TextFollower:
        from .follower import TextFollower

        self._text = TextFollower(source, 1, self._note, self._ask_for_text)
        return self._text

    def _ask_for_text(self, cursor: bytes) -> None:
        assert self._run is not None  # the text is asked for only after the start
        self._ask(m.Text(id=0, run=self._run.id, cursor=cursor), self._told)

    def _told(self, reply: m.Reply, _descriptors: Sequence[int]) -> None:
        assert self._text is not None  # only the follower asks
        if isinstance(reply, m.TextPart):
            for call in reply.tools if self._progress.verbose else ():
                self._progress.say(call)
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

    def _answered(self, reply: m.Reply, _descriptors: Sequence[int]) -> None:
        """Take the reply to a request whose failure is shown only with `--verbose`, because the run's end says more."""
        if isinstance(reply, m.Error) and self._progress.verbose:
            self._note(f"sfactl: {reply.message}")

    def _unasked(self, reply: m.Reply, _descriptors: Sequence[int]) -> None:
        # Id 0: the daemon could not read which request it refuses.
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
            raise exits.Quit(128 + number)  # the terminal is gone, but the run should continue
        elif number in STOPPING and self._final is not None:
            raise exits.Quit(128 + number)
        elif number in STOPPING:
            self._signalled.append(number)
            self._stop(number)

    def _forward(self, number: int) -> None:
        if self._run is not None:
            self._ask(m.Signal(id=0, run=self._run.id, signal=number), self._answered)

    def _suspend(self, *, group: bool) -> None:
        """Pause the run, then stop as Ctrl-Z asks. If the run's program has stopped itself, which the shell does not see, stop the
        whole process group, as the shell expects of a job; if this process received the signal, stop only this process."""
        if self._run is None or self._client.closed:
            self._stand_still(group=group)
        else:
            request = m.Pause(id=0, run=self._run.id, suspended=True)
            self._ask(request, lambda reply, _descriptors: self._paused(reply, group=group))

    def _paused(self, reply: m.Reply, *, group: bool) -> None:
        suspended = isinstance(reply, m.RunReply) and reply.run.reason is not None and reply.run.reason.kind == "suspended"
        # a program that is paused for another reason (a limit, or by signals) did not press Ctrl-Z
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
        self._progress.say("paused until this job continues (fg)")
        if self._run is not None and (words := output.pause_warning(self._run)):
            self._progress.say(words)

    def _regain_terminal(self) -> bool:
        """Wait until the terminal is ours again, if the run uses it. Return False if a signal that ends the run came first."""
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
        """Stop the run at the first signal, skip the grace at the second, and leave the run at the third."""
        first, count = self._signalled[0], len(self._signalled)
        if count > 2 or (count == 2 and self._known is None):
            raise exits.Quit(128 + first)
        if self._client.closed:
            self._note("sfactl: the run will be stopped when the daemon is back")
        if self._known is None:
            return
        if first == signal.SIGINT and count == 1 and (not self._message.quiet or os.isatty(2)):
            # with -q too: after Ctrl-C at a terminal the user must know why the prompt does not come
            self._note(f"sfactl: stopping {self._known}; Ctrl-C again to kill")
        grace = 0.0 if count == 2 else self._message.grace
        request = m.Stop(id=0, runs=[self._known], signal=number, grace=grace)
        self._ask(request, self._stopped)

    def _stopped(self, reply: m.Reply, _descriptors: Sequence[int]) -> None:
        if isinstance(reply, m.Stopped) and reply.survivors:
            raise exits.Quit(exits.ExitCode.SURVIVORS, output.survivors(reply.survivors))

    def _reconnect(self) -> None:
        if self._final is not None and self._text:
            self._note(f"sfactl: the daemon went away before all text was shown; see it with: sfactl result {self._final.id}")
            self._text.give_up()
            self._client.close()
            return
        self._note("sfactl: the daemon went away; waiting for it to come back")
        self._progress.forget_early()
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
        if self._progress.queued:
            # No connection received the events from before this request.
            self._ask(m.Info(id=0, run=run.id), self._looked)

    def _looked(self, reply: m.Reply, _descriptors: Sequence[int]) -> None:
        if isinstance(reply, m.RunReply) and reply.run.started_at is not None:
            self._progress.left_queue()

    def _advice(self) -> str:
        if self._run is None:
            then = "; check with: sfactl list" if self._keep else " until the daemon is back, which stops it"
            return f"the run may have been started, and continues{then}"
        run = self._run.id
        then = "" if self._keep else "; the daemon stops it when it is back"
        return f"run {run} may continue{then}. Check with: sfactl info {run}"

    def _pause(self) -> None:
        until = time.monotonic() + AGAIN
        while (left := until - time.monotonic()) > 0:
            self._turn([], left)

    def _conclude(self, final: RunInfo | None) -> int:
        assert final is not None  # `carry_out` has waited for it
        self._progress.ended(final, by_user=bool(self._signalled))
        if self._status_file:
            status_file.write(self._status_file, final)
        if self._json:
            output.print_json(final)
        return self._code(final)

    def _code(self, final: RunInfo | None) -> int:
        if self._signalled:
            return 128 + self._signalled[0]
        return exits.ExitCode.LOST if final is None else exits.of_run(final)

    def _note(self, text: str) -> None:
        if self._terminal and self._final:
            self._terminal.leave_raw()
        raw = self._terminal is not None and self._terminal.raw
        os.write(2, text.encode(errors="backslashreplace") + (b"\r\n" if raw else b"\n"))
