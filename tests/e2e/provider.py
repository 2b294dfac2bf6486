"""A provider on loopback that streams as many tokens as it is asked for, and counts what it would have billed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any

PIECES = 10
WORD = "word"
"""What a token of output is."""
IN_USD, OUT_USD = 3e-6, 15e-6
"""For a token."""


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

    @property
    def usd(self) -> float:
        """What it costs."""
        return IN_USD * self.input + OUT_USD * self.output


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
            if refused:
                self._overloaded()
            else:
                self._answer(provider, data, json.loads(data))
        finally:
            with provider.lock:
                provider.under_way -= 1

    def _overloaded(self) -> None:
        self.send_response(529)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def _answer(self, provider: Provider, data: bytes, request: dict[str, Any]) -> None:
        bill = Bill(len(data), int(len(data) / provider.bytes_a_token), request["max_tokens"], self.headers["x-api-key"])
        with provider.lock:
            provider.bills.append(bill)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self._event(type="message_start", message={"usage": {"input_tokens": bill.input, "output_tokens": 1}})
        for number in range(PIECES):
            tokens = bill.max_tokens * (number + 1) // PIECES - bill.max_tokens * number // PIECES
            self._event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": WORD * tokens})
            bill.output += tokens
            if number == 0 and request["metadata"]["stall"]:
                self._stall(provider)
        if (tool := request["metadata"]["tool"]) is not None:
            self._event(type="content_block_start", index=1, content_block={"type": "tool_use", "name": tool})
            self._event(type="content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": '{"a": 1}'})
            self._event(type="content_block_stop", index=1)
        self._event(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": bill.output})
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
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.provider = Provider(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=[0.05], name="provider")
        thread.start()
        try:
            yield server.provider
        finally:
            server.provider.released.set()
            server.shutdown()
            thread.join()
