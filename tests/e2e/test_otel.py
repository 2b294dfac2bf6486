"""Spans as a collector gets them, whatever dies and whatever the collector does."""

from __future__ import annotations

import gzip
import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.conftest import GENEROUS, Start
from tests.harness import Daemon, argv, ended, serve_in_thread, started, wait_until

from .provider import providing
from .test_gateway import AMPLE, calling
from .test_gateway import config as gateway_config

KEY = "s3cr3t-of-the-collector"


@dataclass
class Collector:
    """A server of OTLP over HTTP that decodes with the classes of the SDK."""

    url: str = ""
    status: int = 200
    refused: str | None = None
    """A request with a run of this type is answered with 400."""
    spans: list[Span] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    asked: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, run: str) -> list[Span]:
        """Return the spans of a run: its own and those of its calls."""
        with self.lock:
            return [span for span in self.spans if attributes(span).get("sfad.run.id") == run]


def attributes(span: Span) -> dict[str, Any]:
    """Return the attributes of a span as values of Python."""
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value")))
        for each in span.attributes
    }


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            with collector.lock:
                collector.asked += 1
                collector.keys.add(self.headers.get("x-key"))
                request, answer = ExportTraceServiceRequest.FromString(body), collector.status
                spans = [
                    span for r in request.resource_spans for s in r.scope_spans for span in s.spans
                ]
                if any(
                    attributes(span).get("sfad.run.type") == collector.refused is not None
                    for span in spans
                ):
                    answer = 400
                if answer == 200:
                    collector.spans += spans
            self.send_response(answer)
            if answer == 302:
                self.send_header("location", f"{collector.url}/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    with serve_in_thread(server):
        yield collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def config(collector: Collector, tmp_path: Path) -> str:
    headers = tmp_path / "headers"
    headers.write_text(f"x-key={KEY}\n")
    return f'{GENEROUS}\n[otel]\nendpoint = "{collector.url}"\nheaders_file = "{headers}"\n'


def status(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(daemon.sfactl("status", "--json").stdout)
    return found


def position(daemon: Daemon) -> int | None:
    """Return where the exporter is; `None` before it has begun."""
    file = daemon.state_dir / "otel.json"
    return int(json.loads(file.read_text())["after"]) if file.exists() else None


def test_runs_of_a_tree_and_their_calls(start: Start, collector: Collector, tmp_path: Path) -> None:
    with providing() as provider:
        daemon = start(
            config=gateway_config(provider) + config(collector, tmp_path).removeprefix(GENEROUS)
        )
        wait_until(lambda: position(daemon) is not None, "the exporter has begun")
        with daemon.client() as client:
            run = calling(client, *AMPLE, output=10).id
            usage = ended(client, run).usage
        wait_until(lambda: len(collector.of(run)) == 2, "both spans are there")
        call, own = collector.of(run)
        assert (own.name.split()[0], call.kind) == ("invoke_agent", Span.SPAN_KIND_CLIENT)
        assert (call.trace_id, call.parent_span_id) == (own.trace_id, own.span_id)
        assert own.parent_span_id == b""
        assert (
            own.start_time_unix_nano
            <= call.start_time_unix_nano
            <= call.end_time_unix_nano
            <= own.end_time_unix_nano
        )
        told = attributes(call)
        assert (told["gen_ai.operation.name"], told["gen_ai.usage.output_tokens"]) == ("chat", 10)
        assert told["gen_ai.request.model"] in call.name
        assert attributes(own)["sfad.usage.cost_usd"] == pytest.approx(usage.cost_usd)


def test_no_end_is_left_out_or_sent_twice_whatever_dies(
    start: Start, collector: Collector, tmp_path: Path
) -> None:
    daemon = start(config=config(collector, tmp_path))
    wait_until(lambda: position(daemon) is not None, "the exporter has begun")
    runs = []

    def run(*words: str) -> str:
        with daemon.client() as client:
            runs.append(started(client, words, run_type="token=abcdefgh-secret").id)
            ended(client, runs[-1])
        return runs[-1]

    def seen() -> bool:
        return all(collector.of(each) for each in runs)

    run("sh", "-c", "exit 3")
    wait_until(seen, "the first is there")
    collector.status = 401
    run("true")
    wait_until(lambda: status(daemon)["otel_trouble"], "the trouble is told")
    assert "NOT EXPORTED" in daemon.sfactl("status").stdout
    daemon.kill()
    daemon.restart()
    run("true")
    collector.status = 200
    wait_until(seen, "those that ended meanwhile are there")
    wait_until(lambda: status(daemon)["otel_trouble"] is None, "it is told that it works again")
    daemon.reexecute()
    run("true")
    wait_until(seen, "the next program exports too")
    assert [len(collector.of(each)) for each in runs] == [1] * len(runs)
    first = collector.of(runs[0])[0]
    assert first.status.code == 2
    assert attributes(first)["process.exit.code"] == 3
    assert "abcdefgh-secret" not in str(collector.spans)
    assert collector.keys == {KEY}
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
    (exporter,) = [
        pid for pid in pids if argv(pid)[-3:] == ["-m", "sfactl.otel", str(daemon.socket)]
    ]
    assert KEY not in " ".join(argv(exporter)) + daemon.log.read_text()


def test_what_a_collector_may_do_and_a_second_exporter_may_not(
    start: Start, collector: Collector, tmp_path: Path
) -> None:
    """A redirection does not take the key elsewhere, and a span that the collector refuses does not
    block the others."""
    daemon = start(config=config(collector, tmp_path))
    wait_until(lambda: position(daemon) is not None, "the exporter has begun")
    done = daemon.sfactl("otel")
    assert (done.returncode, "another exporter works" in done.stderr) == (75, True)
    collector.status = 302
    with daemon.client() as client:
        ended(client, started(client, ["true"]).id)
    wait_until(lambda: status(daemon)["otel_trouble"], "the trouble is told")
    with collector.lock:
        collector.status, collector.asked = 200, 0
    wait_until(lambda: collector.spans, "it tries again")
    assert collector.asked == 1
    collector.refused = "bad"
    with daemon.client() as client:
        for kind in ("good", "bad", "fine"):
            ended(client, started(client, ["true"], run_type=kind).id)
    wait_until(
        lambda: (
            {"good", "fine"} <= {attributes(span).get("sfad.run.type") for span in collector.spans}
        ),
        "the others are there",
    )
    wait_until(lambda: "refuses the span" in daemon.log.read_text(), "the log tells of the one")


def test_without_an_endpoint_there_is_no_exporter(start: Start) -> None:
    daemon = start()
    done = daemon.sfactl("otel")
    assert (done.returncode, "otel.endpoint is not set" in done.stderr) == (2, True)
    assert status(daemon)["otel"] is None


BOUNDED = """
import sys
from sfactl.otel import exporter
from sfactl.otel.exporter import Settings
exporter.TIMEOUT = exporter.WHOLE = 1.0
exporter.export(sys.argv[1], Settings(sys.argv[2], {}), sys.argv[3])
"""


def test_a_collector_that_answers_a_byte_at_a_time(common: Daemon, tmp_path: Path) -> None:
    class Trickle(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            with suppress(OSError):
                while not ending.wait(0.05):
                    self.request.sendall(b"x")

    ending = threading.Event()
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Trickle)
    with serve_in_thread(server):
        url = f"http://127.0.0.1:{server.server_address[1]}"
        command = [sys.executable, "-c", BOUNDED, str(common.socket), url, str(tmp_path)]
        exporter = subprocess.Popen(command, stderr=subprocess.PIPE, env=common.env, text=True)
        try:
            wait_until((tmp_path / "otel.json").exists, "the exporter has begun")
            with common.client() as client:
                ended(client, started(client, ["true"]).id)
            assert exporter.stderr is not None
            said = [exporter.stderr.readline() for _ in range(2)]
        finally:
            exporter.kill()
            exporter.communicate()
            ending.set()
    assert f"cannot export spans to {url}: " in said[1]
