"""The scripted model: an HTTP server on loopback that speaks four APIs and remembers its
requests."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from select import select
from socket import MSG_PEEK
from socketserver import ThreadingMixIn
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from sfad.features.gateway.program.bodies.coding import Coding
from tests.harness import serve_in_thread
from tests.real_agents import anthropic, chat, gemini, openai
from tests.real_agents.script import (
    ANTHROPIC,
    GEMINI,
    OPENAI,
    OUTPUT_USD,
    Fail,
    Price,
    Reply,
    Say,
    Shell,
    Stall,
    Told,
    Tool,
    Write,
)

Body = dict[str, Any]
Answer = tuple[str, bytes, bytes]
"""Type, the bytes up to the end of the text, the rest."""


class _Dialect(Protocol):
    """What the modules `anthropic`, `chat`, `gemini` and `openai` are."""

    def asks(self, path: str) -> bool: ...
    def is_turn(self, body: Body) -> bool: ...
    def tool_outputs(self, body: Body) -> list[str]: ...
    def answer(self, body: Body, reply: Told, number: int) -> Answer: ...
    def maximum(self, body: Body) -> int | None: ...


_DIALECTS: dict[str, _Dialect] = {
    "claude": anthropic,
    "codex": openai,
    "gemini": gemini,
    "opencode": anthropic,
    "qwen": chat,
    "copilot": chat,
}
_PRICES: dict[str, Price] = {
    "claude": ANTHROPIC,
    "codex": OPENAI,
    "gemini": GEMINI,
    "opencode": ANTHROPIC,
    "qwen": OPENAI,
    "copilot": OPENAI,
}
OFFICIAL = {
    "api.anthropic.com": ("claude", "opencode"),
    "api.openai.com": ("codex",),
    "dashscope.aliyuncs.com": ("qwen",),
    "chatgpt.com": ("codex",),
    "generativelanguage.googleapis.com": ("gemini",),
}
"""The agents that call their model at these hosts."""
_ACCOUNTS = b"""{"account_ordering": ["an-account"], "accounts": [
    {"id": "an-account", "name": "Somebody", "plan_type": "pro", "structure": "personal",
     "workspace_backend_origin": "https://chatgpt.com", "account_routing_override": "us"}]}"""
"""Where the account of a ChatGPT login is, which Codex asks first."""
_IDLE = 20.0
"""Seconds that a silent connection is kept: the end of the server waits for the threads of all."""


@dataclass
class Talk:
    """The conversation of one agent with the model: the replies of a script in order, then only a
    last word."""

    dialect: _Dialect
    script: Iterator[Reply]
    price: Price
    requests: list[Body] = field(default_factory=list)
    """The bodies of the agent's requests, without those of its helpers."""
    credentials: set[str] = field(default_factory=set)
    """All keys and tokens that came with its requests."""
    turns: int = 0
    """Tool calls that the model has asked for."""
    answered: int = 0
    """Replies that were sent completely, without those to helpers."""
    helped: int = 0
    """Replies to helpers."""
    stalled: bool = False
    """Set while a reply waits in its middle."""
    headers: Callable[[], Mapping[str, str]] = dict
    """Returns more headers of a reply."""
    decide: Callable[[Body], Reply] | None = None
    """Returns the reply to a request, instead of the script's next one: for several agents at
    once."""
    bills: list[float] = field(default_factory=list)
    """USD for each reply that was begun, helpers' included."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, body: Body) -> tuple[Reply, Answer]:
        """Return the answer to a request."""
        if not self.dialect.is_turn(body):
            self.helped += 1
            self.bills.append(self._bill(body, Say("ok")))
            return Say("ok"), self.dialect.answer(body, Say("ok"), 0)
        with self._lock:
            reply = (
                self.decide(body) if self.decide is not None else next(self.script, Say("Done."))
            )
            if isinstance(reply, Fail):
                return reply, (
                    "application/json",
                    b'{"error": {"type": "overloaded_error", "message": "Overloaded"}}',
                    b"",
                )
            self.requests.append(body)
            self.turns += isinstance(reply, Shell | Tool)
            self.bills.append(self._bill(body, reply))
            return reply, self.dialect.answer(body, reply, len(self.requests))

    def _bill(self, body: Body, reply: Told) -> float:
        if isinstance(reply, Write):
            return reply.usd(body, self.dialect.maximum(body))
        return self.price.input_usd + OUTPUT_USD * self.price.output

    def told(self) -> list[str]:
        """Return the results of the agent's tools that the model has received."""
        with self._lock:
            return self.dialect.tool_outputs(self.requests[-1]) if self.requests else []


class Seen(NamedTuple):
    """A request that came."""

    target: str
    headers: Mapping[str, str]
    """With names in lower case."""


@dataclass(frozen=True)
class Model:
    """A running server."""

    url: str
    talks: Mapping[str, Talk]
    """By the name of the agent."""
    released: threading.Event
    """When it is set, waiting replies continue."""
    seen: list[Seen]
    """All requests."""


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = False  # so that closing waits for them: no test leaves a thread
    talks: dict[str, Talk]
    """By the first word of the path."""
    released: threading.Event
    """Waiting replies may continue."""
    seen: list[Seen]

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing when an agent is stopped in the middle of an answer."""


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.0: a connection an answer, so that no thread waits for what an agent might ask
    next."""

    server: _Server
    timeout = _IDLE

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        if parsed:
            self.server.seen.append(
                Seen(self.path, {name.lower(): value for name, value in self.headers.items()})
            )
        return parsed

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        data = Coding(self.headers.get("Content-Encoding", "")).feed(data, 1 << 24)
        names = OFFICIAL.get(self.headers["Host"] or "", (path.split("/")[1],))
        talk = next((found for name in names if (found := self.server.talks.get(name))), None)
        if talk is not None and talk.dialect.asks(path):
            talk.credentials |= {
                value
                for name in ("Authorization", "x-api-key")
                if (value := self.headers.get(name))
            }
            self._answer(talk, json.loads(data))
        elif path.endswith("/count_tokens"):
            self._send(200, "application/json", b'{"input_tokens": 1000}')
        else:
            self._send(
                404,
                "application/json",
                b'{"error": {"type": "not_found_error", "message": "not scripted"}}',
            )

    def _answer(self, talk: Talk, body: Body) -> None:
        reply, (kind, text, rest) = talk.take(body)
        if isinstance(reply, Fail):
            if reply.status is not None:
                self._send(reply.status, kind, text)
            return
        self._begin(200, kind, len(text) + len(rest), talk.headers())
        self.wfile.write(text)
        if isinstance(reply, Stall):
            talk.stalled = True
            if not self._released():
                return
            talk.stalled = False
        self.wfile.write(rest)
        talk.answered += talk.dialect.is_turn(body)

    def _released(self) -> bool:
        """Wait until the reply may continue. Return whether the agent is still connected."""
        while not self.server.released.wait(0.05):
            if select([self.connection], [], [], 0)[0] and not self.connection.recv(1, MSG_PEEK):
                return False
        return True

    def do_GET(self) -> None:
        known = self.path.endswith("/accounts/check")
        self._send(200 if known else 404, "application/json", _ACCOUNTS if known else b"{}")

    def do_CONNECT(self) -> None:
        """Be a proxy that lets nothing pass."""
        self._send(403, "text/plain", b"not scripted")

    def do_HEAD(self) -> None:
        self._send(200, "text/plain", b"")

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self._begin(status, kind, len(body))
        self.wfile.write(body)

    def _begin(
        self, status: int, kind: str, length: int, more: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.send_response(status)
        for name, value in more.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@contextmanager
def serving(
    scripts: Mapping[str, Iterable[Reply]],
    tls: ssl.SSLContext | None = None,
    address: tuple[str, int] = ("127.0.0.1", 0),
) -> Iterator[Model]:
    """A model for the agents of these names, on a port of its own. The path of each agent begins
    with its name, unless the host is that of its maker. With `tls`, it is called by https."""
    talks = {
        name: Talk(_DIALECTS[name], iter(script), _PRICES[name]) for name, script in scripts.items()
    }
    server = _Server(address, Handler)
    server.talks, server.released, server.seen = talks, threading.Event(), []
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with serve_in_thread(server):
        try:
            yield Model(
                f"http://127.0.0.1:{server.server_port}", talks, server.released, server.seen
            )
        finally:
            server.released.set()
