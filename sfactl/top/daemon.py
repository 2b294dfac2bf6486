"""What is asked of the daemon: the runs as they change, single requests, the output of a run. Each
waits in a thread of its own.

They are daemon threads, not Textual's thread workers: asyncio waits for those at exit, but `q`
leaves while a stop is under way.
"""

import asyncio
import codecs
import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal, TypeVar

from sfad.protocol import messages as m
from sfad.protocol.types import RunId

from ..connecting.connection import Client, DaemonError, Unreachable, connect
from ..exits import Quit
from ..output import plain
from ..showing.follower import FileWatch
from ..showing.growing import LOOK, of_file, of_node, of_text

STATUS_AGAIN = 5.0
"""Seconds between two looks at the alerts and the cost of the last hour, which passes without a
change of any run."""
AGAIN = 0.5
"""Seconds between attempts to reach a daemon that is away."""
SILENT = 10.0
"""Seconds without an answer after which a daemon counts as away, although it has not gone."""

R = TypeVar("R", bound=m.Reply)
Told = m.RunList | m.RunsPush | m.DaemonStatus
Take = Callable[[Told], object]


def said(error: Quit | OSError) -> str:
    return error.message if isinstance(error, Quit) else str(error)


async def ask(source: "Feed | None", request: m.Request, expected: type[R]) -> R:
    """Return the daemon's reply. Raise `Quit`, `OSError`. If it is cancelled, the request is not
    withdrawn."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[R] = loop.create_future()

    def settle(reply: R | None, error: BaseException | None) -> None:
        if answered.done():  # cancelled
            return
        if reply is not None:
            answered.set_result(reply)
        elif error is not None:
            answered.set_exception(error)

    def work() -> None:
        reply, failure = None, None
        try:
            assert source is not None
            reply = source.call(request, expected)
        except Exception as error:  # noqa: BLE001 (raised again in the caller)
            failure = error
        with suppress(RuntimeError):  # the loop is closed: top has been left
            loop.call_soon_threadsafe(settle, reply, failure)

    threading.Thread(target=work, name="ask", daemon=True).start()
    return await answered


class Feed:
    """Receives runs and alerts of a daemon, or of a fleet, and comes back when it does."""

    def __init__(self, socket: str | None, wanted: m.WatchRuns) -> None:
        """Connect, and receive the first runs. Raise `Unreachable`, `DaemonError`."""
        self._socket, self._wanted = socket, wanted
        self._client: Client | None = connect(socket)
        self.of_fleet = self._client.fleet is not None
        """Whether runs are of several nodes."""
        self.first = self._client.call(wanted, m.RunList)
        self._away = _unanswered(self.first)

    def call(self, request: m.Request, expected: type[R]) -> R:
        """Return the reply to a request. Raise `Quit`, `OSError`."""
        with connect(self._socket) as client:
            return client.call(request, expected)

    def tail(self, run: RunId, show: "Show", *, stderr: bool) -> "Tail":
        """Follow the output of a run."""
        kind = NodeTail if self.of_fleet else OutputTail
        return kind(self._socket, run, stderr=stderr, show=show)

    def start(self, take: Take, away: Callable[[str], object]) -> None:
        """Pass on what comes. Both are called in another thread, `away` with the reason why the
        daemon, or a node, cannot be asked, and with `""` when all can be again."""
        if self._away:
            away(self._away)
        threading.Thread(target=self._work, args=(take, away), name="feed", daemon=True).start()

    def _work(self, take: Take, away: Callable[[str], object]) -> None:
        while True:
            try:
                if self._client is None:
                    self._client = connect(self._socket)
                    self._client.send(self._wanted)
                self._follow(self._client, take, away)
            except Quit as error:
                gone = isinstance(error, Unreachable) and error.kind in (
                    "missing",
                    "refused",
                    "gone",
                )
                self._tell("the daemon is away" if gone else error.message, away)
            if self._client is not None:
                self._client.close()
                self._client = None
            time.sleep(AGAIN)

    def _follow(self, client: Client, take: Take, away: Callable[[str], object]) -> None:
        """Pass on what comes until the connection ends. Raise `Unreachable`, `DaemonError`."""
        aside = {client.send(m.Events(id=0, types=["alert_*"], rows=1, follow=True))}
        due, heard_at = 0.0, time.monotonic()
        while True:
            if time.monotonic() >= due:
                # what has come while this process was stopped is not read yet
                if (
                    time.monotonic() - heard_at > SILENT
                    and not select.select([client], [], [], 0.0)[0]
                ):
                    self._tell("the daemon does not answer", away)
                else:
                    aside.add(client.send(m.DaemonInfo(id=0)))
                due = time.monotonic() + STATUS_AGAIN
            if not select.select([client], [], [], max(due - time.monotonic(), 0.0))[0]:
                continue
            heard_at = time.monotonic()
            for answer in client.arrived():
                reply = answer.reply
                if isinstance(reply, m.EventPush):
                    due = 0.0
                elif isinstance(reply, Told):
                    self._tell(_unanswered(reply), away)
                    take(reply)
                elif isinstance(reply, m.Error) and reply.id not in aside:
                    # a run may see runs, but no alerts
                    raise DaemonError(reply.code, reply.message)
                if isinstance(reply, m.DaemonStatus | m.Error):
                    aside.discard(reply.id)

    def _tell(self, words: str, away: Callable[[str], object]) -> None:
        if words != self._away:
            self._away = words
            away(words)


def _unanswered(reply: m.Reply) -> str:
    """Return which nodes of a fleet do not answer, and why."""
    return "; ".join(f"node {node}: {why}" for node, why in sorted(reply.unanswered.items()))


Show = Callable[["Tail", str], object]


class Tail(ABC):
    """Follows the output of one run. Calls `show` in its thread, with itself and text that has no
    control characters but line ends, until it is stopped."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stopped, self._stop = os.pipe()
        threading.Thread(target=self._work, name="tail", daemon=True).start()

    def stop(self) -> None:
        """Show nothing more. The thread ends by itself."""
        if self._stop >= 0:
            os.close(self._stop)
            self._stop = -1

    def _work(self) -> None:
        try:
            self._copy()
        except (Quit, OSError) as error:
            self._tell(f"\n{said(error)}\n")
        os.close(self._stopped)

    @abstractmethod
    def _copy(self) -> None:
        """Tell what there is and what comes, until it is stopped. Raise `Quit`, `OSError`."""

    def _pass_on(
        self, pieces: Iterator[tuple[bytes, object]], growth: FileWatch | None = None
    ) -> None:
        """Tell what comes, until it ends or this is stopped. `growth` tells when there is more."""
        poll = select.poll()
        poll.register(self._stopped, select.POLLIN)
        if growth is not None and growth.descriptor >= 0:
            poll.register(growth.descriptor, select.POLLIN)
        seconds = LOOK if growth is None else growth.timeout or LOOK
        for data, _ in pieces:
            if data:
                self._tell(self._decoder.decode(data))
            elif self._stopped in dict(poll.poll(1000 * seconds)):
                return
            elif growth is not None:
                growth.drain()

    def _tell(self, text: str) -> None:
        if self._stop >= 0:
            self._show(
                self, "\n".join(map(plain, text.replace("\r\n", "\n").expandtabs(4).split("\n")))
            )


class _TailOfRun(Tail):
    def __init__(self, socket: str | None, run: RunId, *, stderr: bool, show: Show) -> None:
        self._socket, self._run, self._stderr = socket, run, stderr
        super().__init__(show)


class NodeTail(_TailOfRun):
    """Of a run that may be on another machine: its output is read in pieces."""

    def _copy(self) -> None:
        with connect(self._socket) as client:
            stream: Literal["stdout", "stderr"] = "stderr" if self._stderr else "stdout"
            self._pass_on(of_node(client, self._run, stream))


class OutputTail(_TailOfRun):
    """Of a run of the daemon here, whose files can be read."""

    def _copy(self) -> None:
        with connect(self._socket) as client:
            files, descriptors = client.ask(
                m.Logs(id=0, run=self._run, form="raw" if self._stderr else "auto"), m.LogFiles
            )
            try:
                self._follow(client, files, descriptors[1 if self._stderr else 0])
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _follow(self, client: Client, files: m.LogFiles, file: int) -> None:
        if not files.kept:
            self._tell("this run keeps no output (--no-log, or --stdio inherit)\n")
        growth = FileWatch()
        growth.watch(file)
        try:
            self._pass_on(of_text(client, self._run) if files.text else of_file(file), growth)
        finally:
            growth.close()
