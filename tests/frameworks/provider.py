"""A provider of Chat Completions on loopback. All its answers have the same number of tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness import serve_in_thread

IN_USD, OUT_USD = 2.5e-6, 10e-6
"""Of gpt-4o, for a token."""
INPUT, OUTPUT = 1000, 1000


@dataclass
class Provider:
    url: str
    calls: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def usd(self) -> float:
        return self.calls * (INPUT * IN_USD + OUTPUT * OUT_USD)


class _Server(ThreadingHTTPServer):
    provider: Provider


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.provider.lock:
            self.server.provider.calls += 1
        answer = json.dumps(_answer(json.loads(data))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "It is fine."}
    if any(tool["function"]["name"] == "final_answer" for tool in request.get("tools", [])):
        said = {"name": "final_answer", "arguments": json.dumps({"answer": "It is fine."})}
        message["tool_calls"] = [{"id": "t", "type": "function", "function": said}]
    usage = {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {
        "id": "c", "object": "chat.completion", "created": 1, "model": request["model"],
        "choices": [choice], "usage": usage,
    }  # fmt: skip


@contextmanager
def providing() -> Iterator[Provider]:
    """Yield a provider on a port of its own."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.provider = Provider(f"http://127.0.0.1:{server.server_port}/v1")
    with serve_in_thread(server):
        yield server.provider
