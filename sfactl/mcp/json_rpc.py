"""JSON-RPC 2.0 with one client (https://www.jsonrpc.org/specification): its requests, and the
requests to it.

Bad input is answered with an error and never ends the connection. A request may be answered by a
thread of its own. One that the client cancels is never answered.
"""

from __future__ import annotations

import json
import os
import select
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeGuard

# ---- The lines that a client writes to this process and reads from it
#
# One thread reads and writes; the others only hand it lines. It never blocks on a client that does
# not read: it then reads no further requests, and sees when the client goes away.

CHUNK = 64 * 1024
"""Maximum bytes of one read. All requests in it are taken before the server looks whether the
client reads."""
PIECE = select.PIPE_BUF
"""Bytes of one write. poll(2) reports a pipe as writable when it has room for so many."""
MOST_UNREAD = 1024 * 1024
"""Bytes that the client may leave unread before the server reads no further requests."""
LONGEST = 16 * 1024 * 1024
"""Maximum bytes of a line. The daemon takes requests of 4 MiB."""


class TooLong:
    """Stands for a line that was dropped because it had more than `LONGEST` bytes."""


class LineChannel:
    """Lines from and to one client. `lines` and `linger` are for one thread, the other methods for
    all."""

    def __init__(self, source: int, sink: int) -> None:
        """`source`, `sink`: descriptors to read from and to write to."""
        self._source = source
        self._sink = sink
        self._alarm = os.eventfd(0)
        self._poll = select.poll()
        self._poll.register(self._alarm, select.POLLIN)
        self._lock = allocate_lock()
        self._unsent = bytearray()
        self._room = allocate_lock()
        """Held while the client leaves more than `MOST_UNREAD` bytes unread."""
        self._full = False
        self._deaf = False
        """The client has closed its end of `sink`."""
        self._line = bytearray()
        """What has arrived of the next line."""
        self._dropping = False

    def send(self, line: bytes) -> None:
        """Write a line soon, unless the client reads no more. Its newline is added."""
        if self._deaf:
            return
        with self._lock:
            self._unsent += line
            self._unsent += b"\n"
        self.wake()

    def wake(self) -> None:
        """Let the thread of `lines` or `linger` look again."""
        os.eventfd_write(self._alarm, 1)

    def wait_for_room(self) -> None:
        """Wait while the client leaves too much unread. Not for the thread of `lines`, which
        writes."""
        with self._room:
            pass

    def lines(self) -> Iterator[bytes | TooLong]:
        """Yield each line of the client, without its newline, until it closes its end or exits.
        Write meanwhile."""
        while data := self._read():
            yield from self._split(data)
        if self._line:
            yield bytes(self._line)

    def linger(self, farewell: float, done: Callable[[], bool], patience: float) -> None:
        """Write what is left, for at most `farewell` seconds, and wait until `done`, for at most
        `patience` seconds."""
        self._poll.unregister(self._source)
        begun = time.monotonic()
        while True:
            speaking = farewell if self._unsent and not self._deaf else 0.0
            left = begun + (speaking if done() else patience) - time.monotonic()
            if left <= 0:
                return
            self._write(self._wait(left))

    def _read(self) -> bytes:
        while True:
            self._update_room()
            # A client that closes its end is seen even if its requests are not read.
            self._poll.register(self._source, select.POLLRDHUP if self._full else select.POLLIN)
            # A client that reads no more may still have written a last word, such as a
            # cancellation.
            ready = self._wait(0.0 if self._deaf else None)
            self._write(ready)
            if self._source in ready and not self._full:
                try:
                    return os.read(self._source, CHUNK)
                except OSError:
                    return b""
            if self._source in ready or self._deaf:
                return b""

    def _update_room(self) -> None:
        full = len(self._unsent) > MOST_UNREAD and not self._deaf
        if full and not self._full:
            self._room.acquire()
        elif self._full and not full:
            self._room.release()
        self._full = full

    def _wait(self, seconds: float | None = None) -> dict[int, int]:
        """Return the descriptors that are ready, and for what."""
        if not self._deaf:
            self._poll.register(self._sink, select.POLLOUT if self._unsent else 0)
        ready = dict(self._poll.poll(None if seconds is None else seconds * 1000))
        if self._alarm in ready:
            os.eventfd_read(self._alarm)
        return ready

    def _write(self, ready: dict[int, int]) -> None:
        """Write one piece if the client has room for it."""
        events = ready.get(self._sink, 0)
        try:
            if events & ~select.POLLOUT:
                raise BrokenPipeError
            written = os.write(self._sink, self._unsent[:PIECE]) if events else 0
        except BlockingIOError:
            return
        except OSError:
            self._deaf = True
            self._poll.unregister(self._sink)
            return
        with self._lock:
            del self._unsent[:written]

    def _split(self, data: bytes) -> Iterator[bytes | TooLong]:
        *whole, rest = data.split(b"\n")
        for part in whole:
            yield from self._keep(part)
            if not self._dropping:
                yield bytes(self._line)
            self._line.clear()
            self._dropping = False
        yield from self._keep(rest)

    def _keep(self, part: bytes) -> Iterator[TooLong]:
        """Add a part to the line, or drop the line if it gets too long."""
        if not self._dropping:
            self._line += part
        if len(self._line) > LONGEST:
            self._line.clear()
            self._dropping = True
            yield TooLong()


# ---- JSON. Programs in JavaScript send half a surrogate pair as it is, which msgspec neither reads
# nor writes


def parse(text: str) -> Any:
    """Return what one JSON text holds. Raise `ValueError` for another text, and for one that is
    nested too deeply."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def compact(value: Any) -> str:
    """Return a value as JSON on one line, in ASCII: the text may hold half a surrogate pair, which
    has no UTF-8."""
    return json.dumps(value, separators=(",", ":"))


def readable(value: Any) -> str:
    """Return a value as JSON for a model: in Unicode, with spaces, on one line."""
    return json.dumps(value, ensure_ascii=False)


# ---- The connection: requests of the client, and requests to it


Json = dict[str, Any]

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
CONNECTION_CLOSED = -32000
STDERR = 2
LONGEST_NOTE = 2000
"""Characters of a line on stderr."""
_noting = allocate_lock()
MOST_REQUESTS = 250
"""Requests that may be under way at once. Each has a thread."""


class RpcError(Exception):
    """Answer a request with an error, or the client's error for a request of ours."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.body: Json = {"code": code, "message": message} | (
            {} if data is None else {"data": data}
        )


class Cancelled(Exception):
    """The client has cancelled the request that a thread is working on."""


class ClientRequest:
    """A request of the client."""

    def __init__(self, rpc: JsonRpc, number: str | int, method: str, params: Json) -> None:
        self.number = number
        self.method = method
        self.params = params
        self.cancelled = False
        self.settled = False
        """It has been answered, or will never be."""
        self._rpc = rpc
        self._lock = allocate_lock()
        self._if_cancelled: Callable[[], None] | None = None

    def when_cancelled(self, act: Callable[[], None]) -> None:
        """Call `act` when the client cancels this request, at once if it has. Only the newest `act`
        counts."""
        with self._lock:
            self._if_cancelled, due = act, self.cancelled
        if due:
            act()

    def cancel(self) -> None:
        """Note that the client has cancelled this request, and act on it."""
        with self._lock:
            self.cancelled, act = True, self._if_cancelled
        if act is not None:
            act()

    def progress(self, progress: float, message: str) -> None:
        """Tell the client how far this is, if it has asked for that and still waits. `progress`
        must grow."""
        meta = self.params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        if is_id(token) and not self.cancelled:
            self._rpc.notify(
                "notifications/progress",
                {"progressToken": token, "progress": progress, "message": message},
            )

    def ask_client(self, method: str, params: Json) -> Json:
        """Send a request to the client while it waits for this one, and return its result. Raise
        `RpcError`, `Cancelled`."""
        return self._rpc.ask(self, method, params)


class _Question:
    """A request to the client that has no answer yet."""

    def __init__(self) -> None:
        self.outcome: Json | RpcError | None = None
        """`None` after the end of the wait: it was cancelled."""
        self._answered, self._first = allocate_lock(), allocate_lock()
        self._answered.acquire()

    def settle(self, outcome: Json | RpcError | None) -> None:
        """End the wait. Only the first outcome counts."""
        if self._first.acquire(blocking=False):
            self.outcome = outcome
            self._answered.release()

    def wait(self) -> None:
        self._answered.acquire()


def note(words: str) -> None:
    """Print a line on stderr, or its end if it is long. Drop it if the client has closed stderr, or
    leaves it full."""
    line = f"sfactl mcp: {words[-LONGEST_NOTE:]}\n".encode("utf-8", "backslashreplace")[
        -select.PIPE_BUF :
    ]
    poll = select.poll()
    poll.register(STDERR, select.POLLOUT)
    try:
        with _noting:
            if poll.poll(0):  # a pipe has room for PIPE_BUF bytes then
                os.write(STDERR, line)
    except OSError:
        return


def is_id(value: object) -> TypeGuard[str | int]:
    """Whether this may be the id of a request or the token of its progress."""
    return isinstance(value, str | int) and not isinstance(value, bool)


class JsonRpc:
    """The messages of one client. `handle` returns the result of a request, or `None` if a thread
    answers it; it may raise `RpcError`."""

    def __init__(
        self, channel: LineChannel, handle: Callable[[ClientRequest], Json | None]
    ) -> None:
        self._channel = channel
        self._handle = handle
        self._lock = allocate_lock()
        self._open: dict[str | int, ClientRequest] = {}
        """Requests that are not settled, by id."""
        self._working = 0
        """Threads that answer requests, also settled ones."""
        self._questions: dict[int, _Question] = {}
        self._asked = 0

    def serve(self) -> None:
        """Answer the client until it goes away, and tell it then what is left unanswered."""
        for line in self._channel.lines():
            try:
                self._received(line)
            except RpcError as error:
                self._reply(None, error)
        for request in list(self._open.values()):
            self.finish(request, RpcError(CONNECTION_CLOSED, "Connection closed"))

    def work(self, request: ClientRequest, answer: Callable[[], Json]) -> None:
        """Answer a request in a thread of its own. Raise `RpcError` if there are too many."""
        self._count(1)
        try:
            start_new_thread(self._work, (request, answer))
        except RuntimeError as error:
            self._count(-1)
            raise RpcError(INTERNAL_ERROR, f"{error}; {self._working} are at work") from None

    def finish(self, request: ClientRequest, outcome: Json | RpcError) -> None:
        """Answer a request, unless the client has cancelled it."""
        if self._settle(request):
            self._reply(request.number, outcome)

    def _settle(self, request: ClientRequest) -> bool:
        """Return whether the request was open."""
        with self._lock:
            was, request.settled = request.settled, True
            if self._open.get(request.number) is request:
                del self._open[request.number]
        return not was

    def notify(self, method: str, params: Json) -> None:
        """Send a notification from a thread. Wait while the client does not read."""
        self._channel.wait_for_room()
        self.notify_now(method, params)

    def notify_now(self, method: str, params: Json) -> None:
        """Send a notification from the thread of `serve`."""
        self._send({"method": method, "params": params})

    def ask(self, request: ClientRequest, method: str, params: Json) -> Json:
        """Do what `ClientRequest.ask_client` says."""
        question = _Question()
        with self._lock:
            self._asked += 1
            number = self._asked
            self._questions[number] = question
        self._channel.wait_for_room()
        self._send({"id": number, "method": method, "params": params})
        request.when_cancelled(lambda: question.settle(None))
        question.wait()
        del self._questions[number]
        if question.outcome is None:
            self.notify(
                "notifications/cancelled",
                {"requestId": number, "reason": "the request that it was part of was cancelled"},
            )
            raise Cancelled
        if isinstance(question.outcome, RpcError):
            raise question.outcome
        return question.outcome

    def _work(self, request: ClientRequest, answer: Callable[[], Json]) -> None:
        try:
            outcome: Json | RpcError = answer()
        except RpcError as error:
            outcome = error
        except Cancelled:
            outcome = {}  # the client has stopped waiting, so it is not told
        except Exception:  # noqa: BLE001 - a bug in one request must not leave the client waiting
            from traceback import format_exc

            note(format_exc())  # it never waits
            outcome = RpcError(INTERNAL_ERROR, "Internal server error")
        self._channel.wait_for_room()
        self.finish(request, outcome)
        self._count(-1)

    def _count(self, more: int) -> None:
        with self._lock:
            self._working += more

    def _received(self, line: bytes | TooLong) -> None:
        if isinstance(line, TooLong):
            raise RpcError(
                INVALID_REQUEST, f"Invalid Request: the line is longer than {LONGEST} bytes"
            )
        text = line.decode("utf-8", "replace")
        if not text or text.isspace():
            return
        try:
            message = parse(text)
        except ValueError as error:
            raise RpcError(PARSE_ERROR, f"Parse error: {error}") from None
        if not isinstance(message, dict):
            batch = (
                "; send each message of a batch on a line of its own"
                if isinstance(message, list)
                else ""
            )
            raise RpcError(INVALID_REQUEST, f"Invalid Request: not an object{batch}")
        if "method" not in message and ("result" in message or "error" in message):
            self._answered(message)
        else:
            self._called(message)

    def _answered(self, message: Json) -> None:
        """Take the answer to a question. An answer that nothing waits for is dropped."""
        number = message.get("id")
        question = self._questions.get(number) if isinstance(number, int) else None
        if question is None:
            return
        result, error = message.get("result"), message.get("error")
        if isinstance(error, dict) and isinstance(error.get("code"), int):
            reason = error.get("message")
            question.settle(
                RpcError(
                    error["code"],
                    reason if isinstance(reason, str) else "the client gives no reason",
                )
            )
        elif isinstance(result, dict):
            question.settle(result)
        else:
            question.settle(
                RpcError(INVALID_REQUEST, "the client's answer is neither a result nor an error")
            )

    def _called(self, message: Json) -> None:
        """Take a request or a notification."""
        number = message.get("id")
        wrong = _wrong(message)
        if wrong is not None:
            self._reply(number if is_id(number) else None, wrong)
        elif number is None:
            self._notified(message["method"], message.get("params") or {})
        else:
            self._requested(
                ClientRequest(self, number, message["method"], message.get("params") or {})
            )

    def _notified(self, method: str, params: Json) -> None:
        if method != "notifications/cancelled":
            return
        number = params.get("requestId")
        request = self._open.get(number) if is_id(number) else None
        if request is None and isinstance(number, str):
            # Some clients write the id 7 as "7" here.
            request = next(
                (found for found in list(self._open.values()) if str(found.number) == number), None
            )
        if request is not None and self._settle(request):
            request.cancel()

    def _requested(self, request: ClientRequest) -> None:
        with self._lock:
            busy, known = (
                max(len(self._open), self._working) >= MOST_REQUESTS,
                request.number in self._open,
            )
            if not known:
                self._open[request.number] = request
        if known:
            self._reply(
                request.number,
                RpcError(
                    INVALID_REQUEST,
                    f"Invalid Request: request {request.number!r} is not answered yet",
                ),
            )
            return
        try:
            if busy:
                raise RpcError(
                    INTERNAL_ERROR,
                    f"too many requests at once; at most {MOST_REQUESTS} are carried out",
                )
            outcome = self._handle(request)
        except RpcError as error:
            self.finish(request, error)
        else:
            if outcome is not None:
                self.finish(request, outcome)

    def _reply(self, number: str | int | None, outcome: Json | RpcError) -> None:
        self._send(
            {"id": number, "error": outcome.body}
            if isinstance(outcome, RpcError)
            else {"id": number, "result": outcome}
        )

    def _send(self, message: Json) -> None:
        self._channel.send(compact({"jsonrpc": "2.0"} | message).encode())


def _wrong(message: Json) -> RpcError | None:
    """Return what is wrong with a request or a notification."""
    number, method, params = message.get("id"), message.get("method"), message.get("params")
    if message.get("jsonrpc") != "2.0":
        return RpcError(INVALID_REQUEST, 'Invalid Request: jsonrpc is not "2.0"')
    if not isinstance(method, str):
        return RpcError(INVALID_REQUEST, "Invalid Request: method is not a string")
    # some clients write a notification with "id": null
    if (
        "id" in message
        and not is_id(number)
        and not (number is None and method.startswith("notifications/"))
    ):
        return RpcError(INVALID_REQUEST, "Invalid Request: id is neither a string nor an integer")
    if params is not None and not isinstance(params, dict):
        return RpcError(INVALID_PARAMS, "Invalid params: not an object")
    return None
