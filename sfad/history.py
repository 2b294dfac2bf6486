"""The past of a state directory without its daemon: `python -m sfad.history STATE_DIR`, with a socket as stdin.

`sfactl` starts it where no daemon listens, and speaks with it as with a daemon. It reads the ledger and the output files, and
makes, changes and migrates nothing. A process of its own, so that the client imports nothing of the daemon.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from . import __version__
from .ledger.errors import LedgerError
from .ledger.opening import open_past
from .ledger.reader import Page, Reader
from .ledger.summary import summary_of
from .ledger.totals import with_totals
from .output.files import OutputStore, Replaced
from .protocol import messages as m
from .protocol.errors import ErrorCode
from .protocol.framing import MAX_REQUEST, FrameDecoder
from .protocol.types import Reason, RunInfo
from .protocol.version import SUPPORTED
from .server.errors import RequestError
from .server.result import no_output, result

FOUND = 2
"""Ids looked up for a prefix: one more than may fit."""

UNKNOWN = "no daemon is running, so this is its last known state"


class History:
    """Answers the requests that only read."""

    def __init__(self, state: Path, connection: sqlite3.Connection) -> None:
        self._state = state
        self._connection = connection
        self._reader = Reader(connection)
        self._output = OutputStore(state / "output", make=False)
        self._handlers: dict[type, Callable[[Any], m.Reply]] = {
            m.Hello: self._hello,
            m.Info: self._info,
            m.List: self._list,
            m.Summarise: self._summarise,
            m.Result: self._result,
        }

    def answer(self, request: m.Request) -> tuple[m.Reply, Sequence[int]]:
        """The reply, and the descriptors that travel with it, which are the caller's to close."""
        try:
            if isinstance(request, m.Logs):
                return self._logs(request)
            handler = self._handlers.get(type(request))
            if handler is None:
                raise RequestError(ErrorCode.UNAVAILABLE, "no daemon is running; start one with 'sfad serve'")
            return handler(request), ()
        except RequestError as error:
            return m.Error(id=request.id, code=error.code, message=str(error)), ()
        except (sqlite3.Error, msgspec.MsgspecError, OSError) as error:
            message = f"what a daemon left in {self._state} cannot be read: {error}"
            return m.Error(id=request.id, code=ErrorCode.UNAVAILABLE, message=message), ()

    def _hello(self, request: m.Hello) -> m.Reply:
        version = max(set(request.versions) & set(SUPPORTED), default=SUPPORTED[0])
        return m.Welcome(id=request.id, version=version, daemon=__version__, pid=os.getpid(), state_dir=str(self._state))

    def _info(self, request: m.Info) -> m.Reply:
        (info,) = self._shown([self._resolve(request.run)])
        return m.RunReply(id=request.id, run=info)

    def _list(self, request: m.List) -> m.Reply:
        root = None if request.root is None else self._resolve(request.root).id
        found = self._reader.select(Page(msgspec.structs.replace(request, root=None), within=root))
        return m.RunList(id=request.id, runs=self._shown(found.runs), next=found.reached or None)

    def _summarise(self, request: m.Summarise) -> m.Reply:
        page = Page(m.List(id=0, since=request.since, name=request.name, user=request.user, labels=request.labels))
        found = (self._reader.get(info.id) for info in self._reader.open_runs() if page.admits(info))
        live = [(info, extra.model) for info, extra in filter(None, found)]
        return m.Summarised(id=request.id, summary=summary_of(self._connection, page, request.by, live))

    def _logs(self, request: m.Logs) -> tuple[m.Reply, Sequence[int]]:
        run = self._resolve(request.run).id
        try:
            descriptors = self._output.open_for_reader(run)
        except (FileNotFoundError, NotADirectoryError, Replaced) as error:
            raise no_output(run, error) from None
        # nothing would tell when a run ends that is still alive: a reader gets what there is
        return m.LogFiles(id=request.id, run=run, ended=True), descriptors

    def _result(self, request: m.Result) -> m.Reply:
        info = self._resolve(request.run)
        if not info.status.terminal:
            raise RequestError(
                ErrorCode.WRONG_STATE, f"run {info.id} was {info.status} when its daemon was last there; read its logs"
            )
        return result(self._output, info, request)

    def _resolve(self, handle: str) -> RunInfo:
        """Return the run of an id; else of a name, one that had not ended before the newest; else of a unique prefix."""
        found = self._reader.get(handle)
        if found is not None:
            return found[0]
        named = self._reader.select(Page(m.List(id=0, name=handle, rows=1))).runs
        if named:
            return max(named, key=lambda info: (not info.status.terminal, info.id))
        ids = self._reader.find(handle, FOUND) if handle else []
        if len(ids) > 1:
            raise RequestError(ErrorCode.AMBIGUOUS_RUN, f"'{handle}' fits several runs ({', '.join(ids)}, …); give more of the id")
        found = self._reader.get(ids[0]) if ids else None
        if found is None:
            raise RequestError(ErrorCode.NO_SUCH_RUN, f"no run has the id or the name '{handle}'; 'sfactl list' shows them")
        return found[0]

    def _shown(self, runs: Sequence[RunInfo]) -> list[RunInfo]:
        roots = {info.root_id for info in runs if info.descendants}
        used = {run: use for root in roots for run, use in self._reader.used_below(root).items()}
        return with_totals(map(_as_left, runs), used)


def _as_left(info: RunInfo) -> RunInfo:
    """A run that had not ended may have ended since, or be alive: only a daemon could tell."""
    if info.status.terminal:
        return info
    message = UNKNOWN if info.reason is None else f"{UNKNOWN}: {info.reason.message}"
    return msgspec.structs.replace(info, deadline=None, reason=Reason(kind="no_daemon", message=message))


def serve(state: Path, sock: socket.socket) -> None:
    """Answer until the client closes the connection. If the ledger cannot be read, the answer to `hello` says so."""
    try:
        with closing(open_past(state)) as connection:
            _serve(History(state, connection).answer, sock)
    except LedgerError as error:
        message = str(error)
        _serve(lambda request: (m.Error(id=request.id, code=ErrorCode.UNAVAILABLE, message=message), ()), sock)


def _serve(answer: Callable[[m.Request], tuple[m.Reply, Sequence[int]]], sock: socket.socket) -> None:
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
    """Serve the client at stdin, until it goes away."""
    try:
        with socket.socket(fileno=0) as sock:
            serve(Path(sys.argv[1]), sock)
    except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return


if __name__ == "__main__":
    main()
