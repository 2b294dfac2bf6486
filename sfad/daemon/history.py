"""Answers from a state directory without its daemon: `python -m sfad.daemon.history STATE_DIR`,
with a socket as stdin.

`sfactl` starts this program where no daemon listens, and speaks the protocol with it. The program
reads the ledger and the output files; it creates, changes and migrates nothing. It is a process of
its own so that the client imports nothing of the daemon.
"""

import os
import socket
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from .. import __version__
from ..core.state.access import EVERYTHING, Scope
from ..core.state.run import run_id, run_number
from ..host.files import UNDECODABLE
from ..protocol import messages as m
from ..protocol.errors import RequestError, unavailable, wrong_state
from ..protocol.framing import MAX_REQUEST, SUPPORTED, FrameDecoder
from ..protocol.types import ErrorCode, Reason, RunId, RunInfo
from ..storage.ledger.database import LedgerError
from ..storage.ledger.opening import open_past
from ..storage.ledger.queries import CALLS, Page, Reader, Selection
from ..storage.ledger.records import EventFilter, event_page
from ..storage.ledger.rows import with_totals
from ..storage.ledger.summary import Summariser, page_of
from ..storage.output.files import OutputFiles
from ..storage.output.times import told
from .lookup import LISTED_RUNS, find_run
from .server.results import NOT_KEPT, no_output, result

UNKNOWN = "no daemon is running, so this is its last known state"


class PastRuns:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def knows(self, run: RunId, scope: Scope) -> bool:
        del scope  # who reads the files may see all that is in them
        return self._reader.get(run) is not None

    def live_runs(self, scope: Scope, *, name: str) -> list[RunId]:
        """Return the newest run of this name that had not ended, if there is one. Whether the older
        ones live is not known."""
        numbers = self._reader.select(Page(m.List(id=0, name=name, rows=0), scope)).numbers
        return [run_id(numbers[-1])] if numbers else []

    def page(self, page: Page) -> Selection:
        return self._reader.select(page)

    def find(self, prefix: str, scope: Scope) -> list[RunId]:
        return self._reader.find(prefix, scope, LISTED_RUNS + 1)

    def shown(self, runs: Sequence[RunInfo]) -> list[RunInfo]:
        """Return the runs with their totals, as the daemon left them."""
        roots = {info.root_id for info in runs if info.descendants}
        used = {run: use for root in roots for run, use in self._reader.used_below(root).items()}
        return with_totals(map(_as_left, runs), used)


class History:
    def __init__(self, state: Path, connection: sqlite3.Connection) -> None:
        self._state = state
        self._connection = connection
        self._reader = Reader(connection)
        self._runs = PastRuns(self._reader)
        self._output = OutputFiles(state / "output", make=False)

    def answer(self, request: m.Request) -> tuple[m.Reply, Sequence[int]]:
        """Return the reply, and the descriptors that travel with it, which the caller closes."""
        try:
            return self._answer(request)
        except RequestError as error:
            return m.Error(id=request.id, code=error.code, message=str(error)), ()
        except (sqlite3.Error, OSError, *UNDECODABLE) as error:
            message = f"the state directory {self._state} cannot be read: {error}"
            return m.Error(id=request.id, code=ErrorCode.UNAVAILABLE, message=message), ()

    def _answer(self, request: m.Request) -> tuple[m.Reply, Sequence[int]]:
        match request:
            case m.Hello():
                return self._welcome(request), ()
            case m.Info():
                return self._info(request), ()
            case m.List():
                return self._list(request), ()
            case m.Summarise():
                return self._summarise(request), ()
            case m.ListCalls():
                return self._calls(request), ()
            case m.Result():
                return self._result(request), ()
            case m.Events():
                return self._events(request), ()
            case m.Logs():
                return self._logs(request)
            case _:
                raise unavailable("no daemon is running; start one with 'sfad serve'")

    def _resolve(self, handle: str) -> RunInfo:
        (found,) = self._reader.runs([run_number(find_run(self._runs, handle, EVERYTHING))])
        return found

    def _welcome(self, request: m.Hello) -> m.Reply:
        version = max(set(request.versions) & set(SUPPORTED), default=SUPPORTED[0])
        return m.Welcome(
            id=request.id,
            version=version,
            daemon=__version__,
            pid=os.getpid(),
            state_dir=str(self._state),
        )

    def _info(self, request: m.Info) -> m.Reply:
        (info,) = self._runs.shown([self._resolve(request.run)])
        made, refused = self._reader.count_calls(info.id)
        if made or refused or info.by_gateway:
            last = self._reader.last_refusal(info.id) if refused else None
            info = msgspec.structs.replace(
                info, calls=made, calls_refused=refused, last_refusal=last
            )
        return m.RunReply(id=request.id, run=info)

    def _list(self, request: m.List) -> m.Reply:
        root = None if request.root is None else self._resolve(request.root).id
        found = self._reader.select(
            Page(msgspec.structs.replace(request, root=None), EVERYTHING, within=root)
        )
        runs = self._runs.shown(self._reader.runs(found.numbers))
        if not request.limits:
            runs = [
                msgspec.structs.replace(run, limits=[]) if run.status.terminal else run
                for run in runs
            ]
        return m.RunList(
            id=request.id, runs=runs, next=run_id(found.reached) if found.reached else None
        )

    def _summarise(self, request: m.Summarise) -> m.Reply:
        page = page_of(request, EVERYTHING)
        found = (
            self._reader.get(info.id)
            for info in self._reader.open_runs()
            if page.admits(info, None, ())
        )
        live = [info for info, _ in filter(None, found)]
        return m.Summarised(
            id=request.id, summary=Summariser(self._connection, page, request, live).summary()
        )

    def _events(self, request: m.Events) -> m.Reply:
        if request.follow:
            raise unavailable(
                "no daemon is running, so there will be no further events; "
                "leave -f out to see the past ones"
            )
        runs = tuple(self._resolve(run).id for run in request.runs)
        wanted = EventFilter(
            EVERYTHING, runs, tuple(request.types), request.severity, request.since
        )
        return event_page(self._connection, wanted, request, request.rows)

    def _logs(self, request: m.Logs) -> tuple[m.Reply, Sequence[int]]:
        run = self._resolve(request.run)
        try:
            descriptors = self._output.open_all(run)
        except NOT_KEPT as error:
            raise no_output(run, error) from None
        out, err = told(self._output, run, descriptors[:2]) if request.times else ([], [])
        # without a daemon, a reader would not learn when a live run ends: it gets what there is
        return m.LogFiles(
            id=request.id,
            run=run.id,
            ended=True,
            descriptors=len(descriptors),
            terminal=len(descriptors) > 2,
            out_times=out,
            err_times=err,
        ), descriptors

    def _calls(self, request: m.ListCalls) -> m.Reply:
        run = self._resolve(request.run)
        after = (
            request.after.timestamp() if request.after is not None else 0.0,
            request.after_number,
        )
        found = self._reader.calls(run.id, after)
        return m.CallPage(
            id=request.id,
            run=run.id,
            calls=found,
            more=len(found) == CALLS,
            ended=True,
            gateway=run.by_gateway,
            usage=run.usage if run.costs_more_than_calls else None,
        )

    def _result(self, request: m.Result) -> m.Reply:
        info = self._resolve(request.run)
        if not info.status.terminal:
            raise wrong_state(
                f"run {info.id} was {info.status} when its daemon was last there; read its logs"
            )
        return result(self._output, info, request)


def _as_left(info: RunInfo) -> RunInfo:
    """A run that had not ended may have ended since, or be alive: only a daemon could say."""
    if info.status.terminal:
        return info
    message = UNKNOWN if info.reason is None else f"{UNKNOWN}: {info.reason.message}"
    return msgspec.structs.replace(
        info, deadline=None, reason=Reason(kind="no_daemon", message=message)
    )


def serve(state: Path, sock: socket.socket) -> None:
    """Answer until the client closes the connection. If the ledger cannot be read, the answer to
    `hello` says so."""
    try:
        with closing(open_past(state)) as connection:
            _serve(History(state, connection).answer, sock)
    except LedgerError as error:
        message = str(error)
        _serve(
            lambda request: (
                m.Error(id=request.id, code=ErrorCode.UNAVAILABLE, message=message),
                (),
            ),
            sock,
        )


def _serve(
    answer: Callable[[m.Request], tuple[m.Reply, Sequence[int]]], sock: socket.socket
) -> None:
    decoder = FrameDecoder(MAX_REQUEST)
    while data := sock.recv(65536):
        for body in decoder.feed(data):
            reply, descriptors = answer(m.unpack_request(body))
            frame = m.pack_message(reply)
            sent = socket.send_fds(sock, [frame], descriptors) if descriptors else 0
            sock.sendall(memoryview(frame)[sent:])
            for descriptor in descriptors:
                os.close(descriptor)


def main() -> None:
    try:
        with socket.socket(fileno=0) as sock:
            serve(Path(sys.argv[1]), sock)
    except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return


if __name__ == "__main__":
    main()
