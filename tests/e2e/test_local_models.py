"""Local models behind the gateway: free where the server holds the model itself, and charged where
it is a proxy of paid ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sfad.protocol.types import Status
from tests.conftest import Start
from tests.harness import ended, environment, serve_in_thread, wait_until
from tests.tiers import first, variant

from .agents import info, limit, until_over, watched

CALLER = """
import http.client, json, os, sys, time, urllib.parse
url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
body = {"model": sys.argv[1], "max_tokens": 50_000, "messages": [{"role": "user", "content": "x"}]}
connection = http.client.HTTPConnection(url.netloc, timeout=60)
connection.request("POST", url.path + "/chat/completions", json.dumps(body))
answer = connection.getresponse()
said = json.load(answer)
usage = {"type": "usage", "model": sys.argv[1], "input_tokens": 40_000, "output_tokens": 9}
print(json.dumps(usage))
sys.exit(answer.status != 200)
"""
"""Makes a call, and tells its use itself, too."""
WAITS = """
sys.stdout.flush()
while not os.path.exists({go!r}):
    time.sleep(0.02)
print(json.dumps(usage))
"""
OLLAMA = {
    "/api/tags": {
        "models": [{"name": "qwen3:latest", "digest": "a80c4f17", "details": {"format": "gguf"}}]
    }
}
LITELLM = {"/v1/models": {"data": [{"id": "qwen3", "object": "model", "owned_by": "openai"}]}}
USAGE = {"prompt_tokens": 40_000, "completion_tokens": 9, "total_tokens": 40_009}


@dataclass
class Server:
    said: dict[str, Any]
    url: str = ""
    calls: list[bytes] = field(default_factory=list)


@contextmanager
def serving(said: dict[str, Any]) -> Iterator[Server]:
    """Serve a model on loopback. `said`: what the server answers, by path."""
    server = Server(said)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(server.said.get(self.path))

        def do_POST(self) -> None:
            server.calls.append(self.rfile.read(int(self.headers["Content-Length"])))
            said = {"model": "gpt-5", "choices": [{"message": {"content": "x"}}], "usage": USAGE}
            self.answer(said)

        def answer(self, said: Any) -> None:
            self.send_response(200 if said is not None else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Print nothing."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listener.server_port}/v1"
    with serve_in_thread(listener):
        yield server


def config(url: str, free: str = "") -> str:
    more = f"free = {free}\n" if free else ""
    return (
        "[gateway]\nenabled = true\n[gateway.upstreams.openai]\n"
        f'url = "{url}"\napi = "openai-chat"\n{more}'
    )


CALL = [sys.executable, "-c", CALLER, "qwen3"]


@first(1)
@pytest.mark.parametrize(
    ("said", "free", "words"),
    [
        (OLLAMA, "", "qwen3: local model, free"),
        (LITELLM, "true", "qwen3: free by the config"),
    ],
)
def test_a_free_model_costs_nothing_whoever_tells_of_its_use(
    start: Start, said: dict[str, Any], free: str, words: str
) -> None:
    with serving(said) as server:
        daemon = start(config=config(server.url, free))
        with daemon.client() as client:
            run, _ = watched(client, CALL, limit("cost", 0.01))
            done, events = until_over(client, run.id)
        told = daemon.sfactl("run", "--limit", "cost=0.01", "--", *CALL)
    assert done.status is Status.COMPLETED
    assert (done.total_cost_usd, done.usage.estimated) == (0, False)
    assert {name: use.cost_usd for name, use in done.usage_by_source.items()} == {
        "gateway": 0,
        "stream": 0,
    }
    assert [each.message for each in events if each.type == "model_free"] == [words]
    assert not [each for each in events if each.type == "meter_unpriced"]
    assert (told.returncode, words in told.stderr) == (0, True), told.stderr
    assert len(server.calls) == 2


@variant
def test_a_restarted_daemon_knows_which_models_of_a_run_are_free(
    start: Start, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    waits = CALLER.replace("sys.exit", WAITS.format(go=str(go)) + "sys.exit")
    with serving(OLLAMA) as server:
        daemon = start(config=config(server.url))
        with daemon.client() as client:
            run, _ = watched(client, [sys.executable, "-c", waits, "qwen3"], limit("cost", 0.01))
            wait_until(lambda: info(client, run.id).usage.tokens, "the call is counted")
        daemon.kill()
        daemon.restart()
        go.touch()
        with daemon.client() as client:
            done = ended(client, run.id)
    assert done.usage_by_source["stream"].input_tokens == 80_000
    assert (done.total_cost_usd, done.reason and done.reason.limit_kind) == (0, None)


@first(1)
@pytest.mark.parametrize(("said", "free"), [(LITELLM, ""), (OLLAMA, "false")])
def test_a_proxy_of_paid_models_on_loopback_is_charged(
    start: Start, said: dict[str, Any], free: str
) -> None:
    with serving(said) as server:
        daemon = start(config=config(server.url, free))
        with daemon.client() as client:
            run, _ = watched(client, CALL, limit("cost", 0.01))
            done, events = until_over(client, run.id)
    assert done.status is Status.FAILED
    assert not [each for each in events if each.type == "model_free"]
    assert not server.calls, "the call has no room"


@variant
def test_a_model_of_the_trees_own_address_is_free_too(start: Start) -> None:
    """As a person names it: OPENAI_BASE_URL=http://localhost:11434/v1."""
    with serving(OLLAMA) as server, serving(LITELLM) as elsewhere:
        daemon = start(config=config(elsewhere.url))
        own = [*environment(), f"OPENAI_BASE_URL={server.url}".encode()]
        with daemon.client() as client:
            run, _ = watched(client, CALL, limit("cost", 0.01), env=own)
            done, _ = until_over(client, run.id)
    assert (done.status, done.total_cost_usd, len(server.calls)) == (Status.COMPLETED, 0, 1)
