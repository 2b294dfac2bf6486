"""What the gateway adds to a model call, beside a direct connection, in one run.

    python -m tests.bench --only gateway

The upstream is a process on loopback. The caller is a run; it makes each call directly and through
the gateway in turn, over two connections that stay open.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import trio

from sfad.protocol import messages as m
from tests.bench import counts, ours
from tests.harness import Daemon, ended, spawn, wait_until

CONFIG = """
[quotas]
spawns_per_hour = 1000000
[limits]
max_turns = 1000000
[defaults]
turns = 1000000  # each call reserves one
[gateway.upstreams.anthropic]
url = "{url}"
api = "anthropic"
[prices]
bench = {{input_mtok = 0.000001, output_mtok = 0.000001}}
"""
BODY = 50_000
"""Bytes of a request, as in the middle of an agent's session."""
FIRST_BYTES = 400
EVENTS = 40_000
"""Of one large reply: 9 MB."""
STREAMS, TICKS, TICK = 200, 60, 0.05
"""Parallel replies, each with so many events, one every so many seconds."""
FEW, MANY = 50, 250


def event(text: str = "x" * 100) -> bytes:
    """Return a piece of a reply."""
    told = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": text},
    }
    return f"event: content_block_delta\ndata: {json.dumps(told)}\n\n".encode()


def told(**content: Any) -> bytes:
    """Return an event of a reply."""
    return f"event: {content['type']}\ndata: {json.dumps(content)}\n\n".encode()


BEGIN = told(type="message_start", message={"usage": {"input_tokens": 1, "output_tokens": 1}})
END = told(type="message_delta", delta={}, usage={"output_tokens": 2}) + told(type="message_stop")


# ---- the upstream


async def serve(stream: trio.SocketStream) -> None:
    """Answer requests; how, `metadata` says."""
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            if not (more := await stream.receive_some(1 << 16)):
                return
            data += more
        head, _, data = data.partition(b"\r\n\r\n")
        if not head.startswith(b"POST"):  # the gateway asks whether it serves local models
            await stream.send_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            continue
        length = int(re.findall(rb"content-length: (\d+)", head.lower())[0])
        while len(data) < length:
            data += await stream.receive_some(1 << 16)
        body, data = json.loads(data[:length]), data[length:]
        pieces, pause = body["metadata"]["events"], body["metadata"]["pause"]
        size = len(BEGIN) + pieces * len(event()) + len(END)
        await stream.send_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
            % size
            + BEGIN
        )
        if pause:
            began = trio.current_time()
            for number in range(pieces):
                await trio.sleep_until(began + (number + 1) * pause)
                await stream.send_all(event())
        else:
            for _ in range(pieces // 100):
                await stream.send_all(100 * event())
        await stream.send_all(END)


async def upstream() -> None:
    """Serve, and print the port."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=512)
    print(listener.socket.getsockname()[1], flush=True)
    await trio.serve_listeners(serve, [listener])


# ---- the caller


class Connection:
    """A connection of the caller."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self._path = parts.path

    def call(self, *, events: int = 0, pause: float = 0.0, size: int = BODY) -> tuple[float, float]:
        """Return the seconds until the first byte, and until the last."""
        asked = {
            "model": "bench",
            "max_tokens": 100,
            "stream": True,
            "metadata": {"events": events, "pause": pause},
        }
        body = json.dumps(asked | {"messages": [{"role": "user", "content": "x" * size}]}).encode()
        head = (
            f"POST {self._path}/v1/messages HTTP/1.1\r\nhost: bench\r\ncontent-length: "
            f"{len(body)}\r\n\r\n"
        ).encode()
        began = time.perf_counter()
        self._socket.sendall(head + body)
        data = self._socket.recv(1 << 16)
        first = time.perf_counter() - began
        assert data.startswith(b"HTTP/1.1 200"), data
        tail = data[-20:]
        while not tail.endswith(b'"message_stop"}\n\n'):
            piece = self._socket.recv(1 << 18)
            assert piece
            tail = (tail + piece)[-20:]
        return first, time.perf_counter() - began


def caller(direct: str, what: str) -> None:
    """Make calls from inside a run, and print figures as JSON."""
    gateway = os.environ["ANTHROPIC_BASE_URL"]
    if what.isdigit():
        connection = Connection(gateway)
        for _ in range(int(what)):
            connection.call()
        print("done", flush=True)
        sys.stdin.readline()
        return
    print(
        json.dumps(
            {
                "first": first_bytes(direct, gateway),
                "whole": whole(direct, gateway),
                "streams": streams(direct, gateway),
            }
        )
    )


def first_bytes(direct: str, gateway: str) -> list[list[float]]:
    """Return the milliseconds until each first byte, direct and through the gateway in turn."""
    both = Connection(direct), Connection(gateway)
    found = [[1000 * connection.call()[0] for connection in both] for _ in range(FIRST_BYTES + 20)][
        20:
    ]
    return [list(each) for each in zip(*found, strict=True)]


def whole(direct: str, gateway: str) -> list[float]:
    """Return MB a second of a large reply, the best of five."""
    both = Connection(direct), Connection(gateway)
    times = [[connection.call(events=EVENTS)[1] for connection in both] for _ in range(5)]
    return [EVENTS * len(event()) / min(each) / 1e6 for each in zip(*times, strict=True)]


def streams(direct: str, gateway: str) -> list[list[list[float]]]:
    """Return of many replies that begin together the seconds until the first byte, and those that
    the rest takes longer than it should; direct, and then through the gateway."""
    found = []
    for url in (direct, gateway):
        late: list[list[float]] = []
        connections = [Connection(url) for _ in range(STREAMS)]
        ready = threading.Barrier(STREAMS)

        def stream(
            connection: Connection, late: list[list[float]] = late, ready: threading.Barrier = ready
        ) -> None:
            ready.wait()
            first, last = connection.call(events=TICKS, pause=TICK, size=1000)
            late.append([first, last - first - TICKS * TICK])

        threads = [threading.Thread(target=stream, args=[connection]) for connection in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found.append(late)
    return found


# ---- the measurement


@contextmanager
def provider() -> Iterator[str]:
    """Yield the URL of an upstream."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.gateway", "upstream"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def called(
    url: str, what: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[Daemon, psutil.Process, str]]:
    """Yield a daemon, its gateway, and a run that makes calls."""
    with ours.daemon(environment, CONFIG.format(url=url)) as daemon, daemon.client() as client:
        words = [sys.executable, "-m", "tests.bench.gateway", "caller", url, what]
        reply = spawn(client, words, gateway=True, stdin="pipe")
        assert isinstance(reply, m.RunReply), reply
        pid = json.loads((daemon.state_dir / "gateway.json").read_text())["pid"]
        yield daemon, psutil.Process(pid), reply.run.id


def main() -> None:
    """Print a line for each figure."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
    with provider() as url:
        with called(url, "all") as (daemon, process, run):
            idle, cpu = process.memory_full_info(), sum(process.cpu_times()[:2])
            most_rss, most_pss = 0, 0
            output = daemon.state_dir / "output" / f"{run}.out"
            while not output.exists() or not output.read_text().endswith("\n"):
                found = process.memory_full_info()
                most_rss, most_pss = max(most_rss, found.rss), max(most_pss, found.pss)
                time.sleep(0.2)
            cpu = sum(process.cpu_times()[:2]) - cpu
            measured = json.loads(output.read_text())
        direct, gateway = measured["first"]
        said = [
            f"{name} {statistics.median(each):.2f} ms, p99 {p99(each):.2f}"
            for name, each in (("direct", direct), ("gateway", gateway))
        ]
        later = statistics.median(gateway) - statistics.median(direct)
        say(f"first byte: {', '.join(said)}; {later:.2f} ms later")
        say("one stream: direct {:.0f} MB/s, gateway {:.0f} MB/s".format(*measured["whole"]))
        said = []
        for name, each in zip(("direct", "gateway"), measured["streams"], strict=True):
            first, late = zip(*each, strict=True)
            said.append(
                f"{name} first bytes {statistics.median(first):.2f} s, p99 {p99(first):.2f}, "
                f"rest {p99(late):.2f} s late"
            )
        say(f"{STREAMS} streams of {1 / TICK:.0f} events/s: {'; '.join(said)}")
        mib = [f"{each / 2**20:.0f}" for each in (idle.rss, idle.pss, most_rss, most_pss)]
        say(
            "memory: RSS {} and PSS {} MiB idle, at most {} and {}".format(*mib)
            + f"; {cpu:.1f} s CPU in all"
        )
        calls, c_calls = (
            counts_each(few_many)
            for few_many in zip(python_calls(url, FEW), python_calls(url, MANY), strict=True)
        )
        say(f"Python calls {calls:.0f}, C calls {c_calls:.0f} a call")
        if shutil.which("strace"):
            say(
                "system calls "
                f"{counts_each((system_calls(url, FEW), system_calls(url, MANY))):.0f} a call"
            )


def p99(figures: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return sorted(figures)[int(0.99 * len(figures))]


def say(figure: str) -> None:
    """Print one figure."""
    print(f"{'gateway':12}  {figure}", flush=True)


def counts_each(counted: tuple[float, float]) -> float:
    """Return the cost of a call, from the totals of few and of many."""
    return (counted[1] - counted[0]) / (MANY - FEW)


def after(
    url: str,
    calls: int,
    before: Callable[[psutil.Process], object] = lambda _: None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Make so many calls one after the other, and end the daemon."""
    with called(url, str(calls), environment) as (daemon, process, run):
        before(process)
        output = daemon.state_dir / "output" / f"{run}.out"
        wait_until(lambda: output.exists() and "done" in output.read_text(), "the calls are made")
        with daemon.client() as client:
            client.call(m.Send(id=client.next_id(), run=run, data=b"\n", eof=True), m.Done)
            ended(client, run)


def python_calls(url: str, calls: int) -> tuple[int, int]:
    """Return how often the gateway called functions of Python, and of C."""
    with counts.counting(BENCH_ONLY="sfad.features.gateway.program") as (environment, counters):
        after(url, calls, environment=environment)
        return counters.read()


def system_calls(url: str, calls: int) -> int:
    """Return the system calls of the gateway."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "calls")
        tracers: list[subprocess.Popen[bytes]] = []

        def trace(process: psutil.Process) -> None:
            command = ["strace", "-f", "-q", "-c", "-o", str(file), "-p", str(process.pid)]
            tracers.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))

        after(url, calls, trace)
        tracers[0].wait()  # it ends with what it traces
        return int(
            re.findall(r"^100\.00\s.*?(\d+)(?:\s+\d+)?\s+total$", file.read_text(), re.MULTILINE)[0]
        )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["upstream"]:
            trio.run(upstream)
        case ["caller", direct, what]:
            caller(direct, what)
        case _:
            main()
