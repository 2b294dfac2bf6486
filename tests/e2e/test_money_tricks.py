"""Programs that try to spend more than their limit, and providers that bill in unusual ways."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from sfad.features.gateway.program.proxy import MAX_CONNECTIONS
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo, Status
from tests.conftest import Start
from tests.harness import Daemon, ended, environment, serve_in_thread, spawn, wait_until
from tests.tiers import first, variant

from .agents import limit

IN_USD, OUT_USD = 3e-6, 15e-6
"""Of claude-sonnet-4-5, for a token."""
CONFIG = """
[gateway]
enabled = true
[gateway.upstreams.anthropic]
url = "{url}"
api = "anthropic"
free = false
[gateway.upstreams.openai]
url = "{url}/v1"
api = "openai-responses"
free = false
[gateway.upstreams.gemini]
url = "{url}"
api = "gemini"
free = false
"""
AGENT = """
import http.client, json, os, socket, time
from urllib.parse import urlsplit
where = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
names = "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL"
anthropic, openai, gemini = (urlsplit(os.environ[name]).path for name in names)
def begun(path, body, method="POST"):
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=20)
    body = body if isinstance(body, bytes) else json.dumps(body)
    connection.request(method, path, body, {"x-api-key": "theirs"})
    return connection
def call(path, body, method="POST"):
    response = begun(path, body, method).getresponse()
    print(json.dumps([response.status, response.read().decode(errors="replace")[:300]]), flush=True)
def ask(content="hi", **more):
    messages = [{"role": "user", "content": content}]
    return {"model": "claude-sonnet-4-5", "max_tokens": 1000, "messages": messages, **more}
"""


@dataclass
class Biller:
    """A provider that does what a test says."""

    url: str
    answer: Callable[[BaseHTTPRequestHandler, bytes], None]
    usd: float = 0.0
    reached: list[str] = field(default_factory=list)

    def says(
        self,
        handler: BaseHTTPRequestHandler,
        status: int = 200,
        *headers: tuple[str, str],
        **reply: Any,
    ) -> None:
        data = json.dumps(reply).encode()
        handler.send_response(status)
        for name, value in [
            ("content-type", "application/json"),
            ("content-length", str(len(data))),
            *headers,
        ]:
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    def bills(self, handler: BaseHTTPRequestHandler, tokens: int, output: int = 10) -> None:
        """Answer, and bill so much."""
        self.usd += IN_USD * tokens + OUT_USD * output
        self.says(handler, content=[], usage={"input_tokens": tokens, "output_tokens": output})

    def bills_chat(self, handler: BaseHTTPRequestHandler, output: int) -> None:
        """Do the same in Chat Completions."""
        self.usd += IN_USD * 10 + OUT_USD * output
        self.says(handler, choices=[], usage={"prompt_tokens": 10, "completion_tokens": output})


class _Server(ThreadingHTTPServer):
    request_queue_size = 2048
    biller: Biller


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        self.server.biller.reached.append(self.path)
        self.server.biller.answer(self, body)

    do_GET = do_POST  # noqa: N815 - the name that the server looks for

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def billing() -> Iterator[Biller]:
    server = _Server(("127.0.0.1", 0), _Handler)
    server.biller = Biller(
        f"http://127.0.0.1:{server.server_port}",
        lambda handler, body: server.biller.bills(handler, len(body)),
    )
    with serve_in_thread(server):
        yield server.biller


@pytest.fixture
def biller() -> Iterator[Biller]:
    with billing() as made:
        yield made


def agent(
    daemon: Daemon, code: str, usd: float, url: str | None = None, models: Sequence[str] = ()
) -> str:
    """Start an agent with a limit of cost, and return its run. `url`: a person's own address."""
    own = environment()
    own += [f"ANTHROPIC_BASE_URL={url}".encode()] if url is not None else []
    with daemon.client() as client:
        words = [sys.executable, "-c", AGENT + textwrap.dedent(code)]
        reply = spawn(
            client, words, limits=[limit("cost", usd)], env=own, allowed_models=list(models)
        )
        assert isinstance(reply, m.RunReply), reply
        return reply.run.id


def tried(daemon: Daemon, code: str, usd: float = 0.5, **options: Any) -> tuple[RunInfo, list[Any]]:
    """Return a run that has ended, and what it was answered."""
    run = agent(daemon, code, usd, **options)
    with daemon.client() as client:
        over = ended(client, run)
    output = daemon.state_dir / "output"
    assert (output / f"{run}.err").read_text() == ""
    return over, [json.loads(line) for line in (output / f"{run}.out").read_text().splitlines()]


@pytest.fixture
def daemon(share: Start, biller: Biller) -> Daemon:
    return share(config=CONFIG.format(url=biller.url))


# ---- requests that are no call as the gateway knows them


def test_another_spelling_of_a_call(daemon: Daemon, biller: Biller) -> None:
    """Some servers do not tell letters apart, drop a slash at the end, or take a body in UTF-16."""
    _, said = tried(
        daemon,
        """
        wide = json.dumps(ask()).encode("utf-16")
        for path in ("/v1/messages/", "/V1/Messages", "/v1//messages/", "/v1/messages%20"):
            marked = b"\\xef\\xbb\\xbf" + json.dumps(ask()).encode()
            for body in (ask(), wide, marked, b'{"a": NaN}'):
                call(anthropic + path, body)
        call(openai + "/deployments/gpt-4o/chat/Completions", {"messages": []})
        call(openai + "/deployments/gpt-4o/Responses", {"input": "hi"})
        call(gemini + "/v1beta/dynamic/x:generateContent", {"contents": []})
        call(gemini + "/v1beta/openai/chat/completions", wide)
        """,
    )
    assert biller.reached == []
    assert {status for status, _ in said} == {400}
    assert len(said) == 20


def test_requests_that_are_not_known_to_be_free_are_refused(daemon: Daemon) -> None:
    _, said = tried(
        daemon,
        """
        call(anthropic + "/api/events", {"events": [{"model": "x"}]})
        call(anthropic + "/api/events", [{"model": "x"}])
        call(anthropic + "/v1/oauth/token", b"grant_type=refresh_token&refresh_token=a-b_c%2F")
        head = b'--x\\r\\nContent-Disposition: form-data; name="file"'
        call(anthropic + "/v1/skills", head + b"\\r\\n\\r\\n\\xff\\r\\n--x--")
        call(anthropic + "/v1/nothing", b"")
        """,
    )
    assert [status for status, _ in said] == [400] * 5


@first(2)
@pytest.mark.parametrize(
    "field",
    [
        '"n": "100"',
        '"n": 100.5',
        '"n": [100]',
        '"models": ["claude-opus-4-1"]',
        '"fallbacks": ["x"]',
    ],
)
def test_a_field_that_makes_a_call_dearer_than_it_looks(
    daemon: Daemon, biller: Biller, field: str
) -> None:
    body = f'{{"model": "claude-sonnet-4-5", "max_tokens": 1000, "messages": [], {field}}}'
    _, said = tried(daemon, f"call(openai + '/chat/completions', {body.encode()!r})")
    assert (said[0][0], biller.reached) == (400, [])


@variant
def test_two_maxima_of_which_the_server_obeys_the_larger(daemon: Daemon, biller: Biller) -> None:
    biller.answer = lambda handler, body: biller.bills_chat(handler, json.loads(body)["max_tokens"])
    run, _ = tried(
        daemon,
        "call(openai + '/chat/completions', ask(max_tokens=60_000, max_completion_tokens=10))",
    )
    assert biller.usd <= 0.5
    assert run.total_cost_usd == pytest.approx(biller.usd, rel=0.01)


# ---- inputs that have more tokens than they seem


def test_a_text_that_looks_like_an_image(daemon: Daemon, biller: Biller) -> None:
    biller.answer = lambda handler, body: biller.bills(handler, len(body))
    run, _ = tried(
        daemon,
        """
        text = 'image/ "data": "iVBORw0KGgo' + "A" * 600_000 + '"'
        call(anthropic + "/v1/messages", ask(text))
        call(anthropic + "/v1/messages", ask([{"type": "text", "text": text}]))
        """,
        usd=0.2,
    )
    assert (biller.reached, run.status) == ([], Status.FAILED)


@variant
def test_a_small_document_of_many_pages_exceeds_a_limit_once(
    daemon: Daemon, biller: Biller
) -> None:
    """How many tokens it has is known after the first call."""
    biller.answer = lambda handler, _: biller.bills(handler, 150_000)
    run, _ = tried(
        daemon,
        """
        source = {"type": "base64", "media_type": "application/pdf", "data": "J" * 20_000}
        for _ in range(4):
            call(anthropic + "/v1/messages", ask([{"type": "document", "source": source}]))
        """,
        usd=0.8,
    )
    assert biller.usd < 0.5
    assert run.total_cost_usd == pytest.approx(biller.usd)
    assert run.status is Status.FAILED


# ---- replies that do not tell all


@variant
def test_a_usage_without_input(daemon: Daemon, biller: Biller) -> None:
    """Its input is estimated, and its output is what was told."""
    biller.answer = lambda handler, _: biller.bills(handler, 0, output=900)
    run, _ = tried(daemon, "for _ in range(3): call(anthropic + '/v1/messages', ask())")
    assert run.total_cost_usd is not None
    assert biller.usd <= run.total_cost_usd <= 1.05 * biller.usd
    assert run.total_partial


def test_a_model_that_another_one_advises(daemon: Daemon, biller: Biller) -> None:
    def answer(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        biller.usd += IN_USD * 10 + OUT_USD * 10 + 15e-6 * 20_000 + 75e-6 * 5_000
        advised = {
            "type": "advisor_message",
            "model": "claude-opus-4-1",
            "input_tokens": 20_000,
            "output_tokens": 5_000,
        }
        own = {"input_tokens": 10, "output_tokens": 10}
        biller.says(
            handler, content=[], usage={**own, "iterations": [{"type": "message", **own}, advised]}
        )

    biller.answer = answer
    advisor = {"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-4-1"}
    run, _ = tried(
        daemon, f"for _ in range(3): call(anthropic + '/v1/messages', ask(tools=[{advisor!r}]))"
    )
    assert (len(biller.reached), run.status) == (1, Status.FAILED)
    assert run.total_cost_usd == pytest.approx(biller.usd)


@variant
def test_an_advisor_that_the_run_may_not_call(daemon: Daemon, biller: Biller) -> None:
    advisor = {"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-4-1"}
    code = f"call(anthropic + '/v1/messages', ask(tools=[{advisor!r}]))"
    _, said = tried(daemon, code, models=["claude-sonnet-*"])
    assert (said[0][0], "'claude-opus-4-1' is not one of" in said[0][1], biller.reached) == (
        400,
        True,
        [],
    )


def test_hanging_up_on_hidden_thinking(daemon: Daemon, biller: Biller) -> None:
    """The figure is not below the bill, and what may not have been used makes no room for more
    calls."""

    def answer(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.end_headers()
        start = {
            "type": "message_start",
            "message": {"usage": {"input_tokens": 20, "output_tokens": 1}},
        }
        handler.wfile.write(f"data: {json.dumps(start)}\n\n".encode())
        began = billed = time.monotonic()
        try:
            while time.monotonic() < began + 30:
                handler.wfile.write(b'data: {"type": "ping"}\n\n')
                now = time.monotonic()
                # it reads first
                biller.usd += OUT_USD * 100 * (now - billed) if now > began + 2 else 0
                billed = now
                time.sleep(0.05)
        except OSError:
            pass

    biller.answer = answer
    run, _ = tried(
        daemon,
        """
        for _ in range(3):
            connection = begun(anthropic + "/v1/messages", ask(stream=True, max_tokens=2000))
            response = connection.getresponse()
            time.sleep(3.5)
            response.close()
            connection.close()
        """,
    )
    assert run.total_cost_usd is not None
    assert biller.usd <= run.total_cost_usd <= 0.1
    assert (run.total_partial, run.total_at_most) == (True, True)


@variant
def test_hanging_up_on_a_reply_that_is_generated_all_the_same(
    daemon: Daemon, biller: Biller
) -> None:
    def answer(_: BaseHTTPRequestHandler, body: bytes) -> None:
        biller.usd += OUT_USD * json.loads(body)["max_output_tokens"]

    biller.answer = answer
    run, _ = tried(
        daemon,
        """
        for _ in range(4):
            body = {
                "model": "claude-sonnet-4-5", "input": "hi", "background": True, "stream": True,
                "max_output_tokens": 20_000,
            }
            connection = begun(openai + "/responses", body)
            time.sleep(0.5)
            connection.close()
        """,
    )
    assert biller.usd <= 0.5
    assert run.total_cost_usd is not None
    assert run.total_cost_usd >= biller.usd


# ---- upstreams that lead elsewhere


def test_the_key_of_the_operator_goes_to_no_address_of_a_person(
    start: Start, biller: Biller, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("operators-own")
    key.chmod(0o600)
    config = CONFIG.format(url=biller.url).replace(
        'api = "anthropic"', f'api = "anthropic"\nkey_file = "{key}"'
    )
    seen: dict[str, list[tuple[str | None, str | None]]] = {}

    def answer(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        server = cast(_Server, handler.server).biller
        credentials = handler.headers["x-api-key"], handler.headers["authorization"]
        if handler.command == "POST" or any(credentials):  # the rest asks which program it is
            seen.setdefault(server.url, []).append(credentials)
        server.bills(handler, len(body))

    daemon = start(config=config)
    code = (
        "call(anthropic + '/v1/messages?key=theirs', "
        "ask())\ncall(anthropic + '/@evil.example/v1/messages', ask())"
    )
    with billing() as other:
        biller.answer = other.answer = answer
        tried(daemon, code)
        tried(daemon, code, url=other.url)
        assert seen[biller.url] == [("operators-own", None)] * 2
        assert seen[other.url] == [("theirs", None)] * 2
    assert "key=theirs" not in "".join(biller.reached)


def test_an_upstream_that_redirects_a_call(daemon: Daemon, biller: Biller) -> None:
    """A program would follow with its key, and no later call would pass the gateway."""
    with billing() as other:
        location = "location", f"{other.url}/v1/messages"
        biller.answer = lambda handler, _: biller.says(handler, 307, location)
        _, said = tried(daemon, "call(anthropic + '/v1/messages', ask())")
        status, words = said[0]
        assert (status, f"redirects calls to {other.url}/v1/messages" in words) == (502, True), (
            words
        )
        assert other.reached == []


# ---- one run against the others


@pytest.mark.rest("keeps a processor busy for seconds")
def test_a_run_cannot_take_all_connections(daemon: Daemon, biller: Biller) -> None:
    free, before = threading.Event(), set(threading.enumerate())

    def answer(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        if handler.path.startswith("/v1/files"):
            free.wait(60)
        biller.bills(handler, len(body))

    biller.answer = answer
    greedy = agent(
        daemon,
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        head = f"GET {anthropic}/v1/files HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode()
        kept = []
        for _ in range(2200):
            kept.append(socket.create_connection((where.hostname, where.port)))
            kept[-1].sendall(head)
        print("all", flush=True)
        time.sleep(60)
        """,
        usd=1,
    )
    try:
        out = daemon.state_dir / "output" / f"{greedy}.out"
        wait_until(lambda: "all" in out.read_text(), "it has all connections that it can get")
        run, said = tried(daemon, "call(anthropic + '/v1/messages', ask())")
        assert (said[0][0], run.status) == (200, Status.COMPLETED)
        assert 0 < biller.reached.count("/v1/files") <= MAX_CONNECTIONS // 2
    finally:
        free.set()
        assert daemon.sfactl("stop", greedy).returncode == 0
        wait_until(
            lambda: set(threading.enumerate()) <= before,
            "the provider has answered a thousand requests",
        )
