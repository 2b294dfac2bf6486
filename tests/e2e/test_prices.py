"""A model that several providers sell costs what the provider of the upstream takes."""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from sfad.protocol.types import Status
from tests.conftest import Start
from tests.harness import environment, serve_in_thread
from tests.tiers import first

from .agents import limit, until_over, watched
from .test_local_models import CALLER, USAGE, config

MODEL = "openai/gpt-oss-120b"
"""0.15 and 0.60 USD at Groq, 0.039 and 0.18 by its name alone."""
CALL = [sys.executable, "-c", CALLER, MODEL]


@contextmanager
def standing_in_for(host: str, directory: Path) -> Iterator[list[str]]:
    """Serve a proxy that answers in place of a host, and yield words before a command that lead it
    there."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            assert self.path == f"{host}:443"
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            with context.wrap_socket(self.connection, server_side=True) as self.connection:
                self.rfile = self.connection.makefile("rb")
                self.wfile = self.connection.makefile("wb", 0)
                self.handle_one_request()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            said = {"model": MODEL, "choices": [{"message": {"content": "x"}}], "usage": USAGE}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Print nothing."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serve_in_thread(listener):
        proxy = f"HTTPS_PROXY=http://127.0.0.1:{listener.server_port}"
        yield ["env", proxy, f"SSL_CERT_FILE={directory / 'ca.pem'}"]


@first(1)
@pytest.mark.parametrize("room", [0.05, 0.02])
def test_the_host_tells_the_price(start: Start, tmp_path: Path, room: float) -> None:
    """Of the 50 000 tokens that the call may answer, a limit of 0.02 USD has room for some at
    Groq's price, and for all by the name's."""
    with standing_in_for("api.groq.com", tmp_path) as words:
        daemon = start(config=config("https://api.groq.com/openai/v1", "false"), wrap=words)
        with daemon.client() as client:
            run, _ = watched(client, CALL, limit("cost", room))
            done, _ = until_over(client, run.id)
        call = json.loads(daemon.sfactl("calls", run.id, "--json").stdout)
        shown = daemon.sfactl("calls", run.id).stdout
    assert done.status is Status.COMPLETED
    assert call["cost_usd"] == pytest.approx(0.04 * 0.15 + 9e-6 * 0.6)
    assert call["price_from"] == f"{MODEL} at groq"
    assert f"price of {MODEL} at groq" in shown
    assert (call["clamped_to"] is None) == (room == 0.05)


CODEX = """#!{python}
import datetime, json, os, pathlib
session = "01a2050d-51a6-7aa1-ab61-8a5c8988effa"
now = datetime.datetime.now(datetime.UTC)
at = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
place = pathlib.Path(os.environ["CODEX_HOME"], f"sessions/{{now:%Y/%m/%d}}")
place.mkdir(parents=True)
usage = {{"input_tokens": 1_000_000, "output_tokens": 100_000}}
begun = {{"id": session, "timestamp": at, "cwd": os.getcwd(), "model_provider": "groq"}}
with (place / f"rollout-{{now:%Y-%m-%dT%H-%M-%S}}-{{session}}.jsonl").open("w") as file:
    for what, payload in [
        ("session_meta", begun),
        ("turn_context", {{"model": {model!r}}}),
        ("event_msg", {{"type": "token_count", "info": {{"total_token_usage": usage}}}}),
        ("event_msg", {{"type": "task_complete"}}),
    ]:
        print(json.dumps({{"timestamp": at, "type": what, "payload": payload}}), file=file)
print(json.dumps({{"type": "thread.started", "thread_id": session}}))
print(json.dumps({{"type": "turn.completed", "usage": usage}}))
"""
"""A program that tells its provider in its session file alone, as Codex does."""


def test_without_the_gateway_a_session_file_tells_the_provider(
    start: Start, tmp_path: Path
) -> None:
    program = tmp_path / "codex"
    program.write_text(CODEX.format(python=sys.executable, model=MODEL))
    program.chmod(0o755)
    env = [*environment(), f"CODEX_HOME={tmp_path / 'home'}".encode()]
    daemon = start(config="[gateway]\nenabled = false")
    with daemon.client() as client:
        run, _ = watched(client, [str(program), "exec", "--json", "task"], meter=None, env=env)
        done, _ = until_over(client, run.id)
    assert done.status is Status.COMPLETED
    assert {name: use.cost_usd for name, use in done.usage_by_source.items()} == {
        "stream": pytest.approx(0.21),
        "session": pytest.approx(0.21),
    }
