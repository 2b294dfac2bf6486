"""A provider on loopback that streams as many tokens as it is asked for, and counts what it would
have billed."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any

from tests.harness import serve_in_thread

MODEL = "claude-sonnet-4-5"
"""It answers, whatever name was asked for."""

PIECES = 10
WORD = "word"
"""What a token of output is."""
IN_USD, CACHED_USD, WRITTEN_USD, LONG_USD, OUT_USD = 3e-6, 0.3e-6, 3.75e-6, 6e-6, 15e-6
"""For a token: of input, read from a cache, written to one for five minutes and for an hour, of
output."""
ERRORS = {"500": 500, "429": 429, "529": 529}
"""What a call may ask for in its metadata, as `does`: an answer without a bill."""
DOES = (*ERRORS, "reset", "error", "hang", "thinks", "caches", "fast", "cuts")
"""The same: a reply that breaks off in the middle, by a reset or with an event; that never begins,
and is billed; that thinks more than it shows; that uses caches; that is fast; that ends
because it has its maximum."""


@dataclass
class Bill:
    """One call that was answered."""

    size: int
    """Bytes of its body."""
    input: int
    max_tokens: int
    key: str | None = None
    output: int = 0
    """Tokens that were sent."""
    cached: int = 0
    written: int = 0
    long: int = 0
    """Of the written ones: for an hour. None of these are in `input`."""
    factor: float = 1.0

    @property
    def usd(self) -> float:
        """What it costs."""
        caches = (
            CACHED_USD * self.cached
            + WRITTEN_USD * (self.written - self.long)
            + LONG_USD * self.long
        )
        return self.factor * (IN_USD * self.input + caches + OUT_USD * self.output)

    @property
    def usage(self) -> dict[str, Any]:
        """What the beginning of the reply tells."""
        told: dict[str, Any] = {"input_tokens": self.input, "output_tokens": 1}
        if self.written:
            told |= {
                "cache_read_input_tokens": self.cached,
                "cache_creation_input_tokens": self.written,
            }
            told["cache_creation"] = {"ephemeral_1h_input_tokens": self.long}
        return told | ({"speed": "fast"} if self.factor > 1 else {})


@dataclass
class Provider:
    """What it does, and what it has done."""

    url: str
    bytes_a_token: float = 4.0
    """Of the input."""
    overloaded: int = 0
    """So many calls are answered with HTTP 529 first, for which nothing is billed."""
    bills: list[Bill] = field(default_factory=list)
    stalled: int = 0
    under_way: int = 0
    released: threading.Event = field(default_factory=threading.Event)
    """Stalled replies go on."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def forget(self) -> None:
        """Be as new."""
        self.bytes_a_token, self.overloaded, self.stalled, self.bills = 4.0, 0, 0, []
        self.released = threading.Event()

    @property
    def usd(self) -> float:
        """The whole bill."""
        with self.lock:
            return sum(bill.usd for bill in self.bills)


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = False
    request_queue_size = 256
    provider: Provider

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing when a caller hangs up."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 60

    def do_POST(self) -> None:
        provider = self.server.provider
        data = self.rfile.read(int(self.headers["Content-Length"]))
        with provider.lock:
            refused = provider.overloaded > 0
            provider.overloaded -= refused
            provider.under_way += 1
        try:
            request = json.loads(data)
            if refused or request["metadata"].get("does") in ERRORS:
                self._refuse(ERRORS.get(request["metadata"].get("does"), 529))
            else:
                self._answer(provider, data, request)
        finally:
            with provider.lock:
                provider.under_way -= 1

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def _answer(self, provider: Provider, data: bytes, request: dict[str, Any]) -> None:
        bill = Bill(
            len(data),
            int(len(data) / provider.bytes_a_token),
            request["max_tokens"],
            self.headers["x-api-key"],
        )
        does = request["metadata"].get("does")
        if does == "caches":
            bill.cached, bill.written, bill.long = 4000, 2000, 500
        bill.factor = 2.0 if does == "fast" else 1.0
        with provider.lock:
            provider.bills.append(bill)
        if does == "hang":
            self._stall(provider)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self._event(type="message_start", message={"model": MODEL, "usage": bill.usage})
        for number in range(PIECES):
            tokens = bill.max_tokens * (number + 1) // PIECES - bill.max_tokens * number // PIECES
            self._event(
                type="content_block_delta",
                index=0,
                delta={"type": "text_delta", "text": WORD * tokens},
            )
            bill.output += 3 * tokens if does == "thinks" else tokens
            if number == PIECES // 2 and does == "error":
                self._event(
                    type="error", error={"type": "overloaded_error", "message": "Overloaded"}
                )
                return
            if number == PIECES // 2 and does == "reset":
                self.connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                self.connection.close()
                return
            if number == 0 and request["metadata"]["stall"]:
                self._stall(provider)
        if (tool := request["metadata"]["tool"]) is not None:
            self._event(
                type="content_block_start",
                index=1,
                content_block={"type": "tool_use", "name": tool},
            )
            self._event(
                type="content_block_delta",
                index=1,
                delta={"type": "input_json_delta", "partial_json": '{"a": 1}'},
            )
            self._event(type="content_block_stop", index=1)
        self._event(
            type="message_delta",
            delta={"stop_reason": "max_tokens" if does == "cuts" else "end_turn"},
            usage={"output_tokens": bill.output},
        )
        self._event(type="message_stop")

    def _stall(self, provider: Provider) -> None:
        with provider.lock:
            provider.stalled += 1
        provider.released.wait(60)

    def _event(self, **event: Any) -> None:
        self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@contextmanager
def providing() -> Iterator[Provider]:
    """Yield a provider on a port of its own."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.provider = Provider(f"http://127.0.0.1:{server.server_port}")
    with serve_in_thread(server):
        try:
            yield server.provider
        finally:
            server.provider.released.set()
