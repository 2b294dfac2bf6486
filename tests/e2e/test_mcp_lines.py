"""`sfactl mcp` and its client, line by line: bad input, clients that do not read or that leave,
cancellation, both eras."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactl.mcp.json_rpc import MOST_REQUESTS
from sfad.protocol import messages as m
from sfad.protocol.types import Status
from tests.conftest import Start
from tests.harness import PATIENCE, Daemon, ended, stopped, wait_until
from tests.tiers import examples, first

CONFIG = """\
[agents.shell]
command = ["sh", "-c", "{task}"]
[sessions]
max_concurrent_per_user = 6
spawn_rate_limit = { max_requests = 10000, window_seconds = 3600 }
"""

CLIENT = {"name": "test", "version": "1"}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": CLIENT,
}
INVALID = (-32602, "Invalid request parameters")

Json = dict[str, Any]


class Line:
    """A client that reads and writes lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout
        self._last = 0

    def write(self, *lines: bytes) -> None:
        for line in lines:
            left = memoryview(line + b"\n")
            while left:  # a signal cuts a write(2) short
                left = left[self.stdin.write(left) :]

    def notify(self, method: str, **params: object) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def send(self, method: str, number: object = None, **params: object) -> object:
        """Send a request, and return its id."""
        self._last += 1
        number = self._last if number is None else number
        self.write(
            json.dumps(
                {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            ).encode()
        )
        return number

    def read(self) -> Json:
        """Return the next message."""
        assert select.select([self.stdout], [], [], PATIENCE)[0], "no message came"
        message: Json = json.loads(self.stdout.readline())
        assert message.pop("jsonrpc") == "2.0"
        return message

    def ask(self, method: str, **params: object) -> Json:
        """Send a request, and return the next message, which answers it."""
        number = self.send(method, **params)
        answer = self.read()
        assert answer.pop("id") == number
        return answer

    def shake_hands(self, version: str = "2025-11-25", **capabilities: object) -> Json:
        found: Json = self.ask(
            "initialize", protocolVersion=version, capabilities=capabilities, clientInfo=CLIENT
        )
        self.notify("notifications/initialized")
        return found

    def call(self, tool: str, number: object = None, **arguments: object) -> object:
        """Send a call of a tool, and return its id."""
        return self.send("tools/call", number, name=tool, arguments=arguments)

    def close(self) -> tuple[int, list[Json]]:
        """Close stdin. Return the exit code, and what the server has still said."""
        self.stdin.close()
        return self.process.wait(PATIENCE), [json.loads(line) for line in self.stdout]


@contextmanager
def connected(socket: Path | str, *options: str, stderr: int | None = None) -> Iterator[Line]:
    env = os.environ | {"SFAD_SOCKET": str(socket), "SFAD_AUTOSTART": "0"}
    words = [sys.executable, "-m", "sfactl", "mcp", *options]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env, bufsize=0
    ) as process:
        try:
            yield Line(process)
        finally:
            process.kill()


@pytest.fixture
def line(share: Start) -> Iterator[Line]:
    with connected(share(config=CONFIG).socket) as found:
        yield found


@pytest.fixture(scope="module")
def alone() -> Iterator[Line]:
    """A server without a daemon."""
    with connected("/nonexistent/s") as found:
        found.shake_hands()
        yield found


def error(answer: Json) -> tuple[int, str]:
    return answer["error"]["code"], answer["error"]["message"]


# ---- bad input

BAD = [
    (b"x", None, -32700),
    (b'{"jsonrpc":"2.0","id":1,', None, -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}', None, -32700),
    (b"\xff\xfe\x00", None, -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping"}\xff', None, -32700),
    (b"[" * 200_000, None, -32700),
    (b'{"a":' * 200_000, None, -32700),
    (b"1" * 5_000, None, -32700),
    (b"5", None, -32600),
    (b"null", None, -32600),
    (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', None, -32600),
    (b"{}", None, -32600),
    (b'{"jsonrpc":"2.0","id":1}', 1, -32600),
    (b'{"id":1,"method":"ping"}', 1, -32600),
    (b'{"jsonrpc":"1.0","id":"a","method":"ping"}', "a", -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":5}', 1, -32600),
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None, -32600),
    (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', None, -32600),
    (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', None, -32600),
    (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', None, -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', 1, -32602),
    (b'{"jsonrpc":"2.0","id":1,"method":"fly"}', 1, -32601),
    (b'{"jsonrpc":"2.0","id":1,"method":""}', 1, -32601),
    (b'{"jsonrpc":"2.0","id":1,"method":"resources/templates/list"}', 1, -32601),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":5}}', 1, -32602),
]


@pytest.mark.parametrize(("bad", "number", "code"), BAD, ids=[repr(bad[:60]) for bad, _, _ in BAD])
def test_a_bad_line_is_answered_with_an_error(
    alone: Line, bad: bytes, number: object, code: int
) -> None:
    alone.write(bad)
    answer = alone.read()
    assert (answer["id"], answer["error"]["code"]) == (number, code)
    assert alone.ask("ping") == {"result": {}}


SILENT = [
    b"",
    b" \t\r",
    b'{"jsonrpc":"2.0","id":77,"result":{}}',
    b'{"jsonrpc":"2.0","id":77,"result":5}',
    b'{"jsonrpc":"2.0","error":{"code":1,"message":"no"}}',
    b'{"jsonrpc":"2.0","method":"notifications/fly"}',
    b'{"jsonrpc":"2.0","id":null,"method":"notifications/initialized"}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled"}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[5]}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"none"}}',
    b'{"jsonrpc":"2.0","method":"ping"}',
]


def test_what_asks_for_nothing_is_not_answered(alone: Line) -> None:
    for line in SILENT:
        alone.write(line)
        assert alone.ask("ping") == {"result": {}}, line


MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "1.0", 2]),
        "id": st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([]),
        "method": st.sampled_from(
            [
                "ping",
                "initialize",
                "logging/setLevel",
                "tools/call",
                "resources/read",
                "notifications/cancelled",
                "x",
            ]
        )
        | st.integers(),
        "params": st.none()
        | st.lists(st.integers())
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "arguments",
                    "uri",
                    "level",
                    "protocolVersion",
                    "capabilities",
                    "_meta",
                    "requestId",
                ]
            ),
            st.none()
            | st.integers()
            | st.text()
            | st.just({})
            | st.just({"progressToken": {}})
            | st.just("sessions_log"),
        ),
        "result": st.integers(),
        "error": st.none() | st.integers(),
    },
)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.binary().map(lambda data: data.replace(b"\n", b""))
    | MESSAGES.map(lambda message: json.dumps(message).encode())
)
def test_no_line_ends_the_server(alone: Line, line: bytes) -> None:
    alone.write(line)
    number = alone.send("ping", f"after {time.monotonic_ns()}")
    while (answer := alone.read()).get("id") != number:
        assert {"result", "error"} & answer.keys(), answer
    assert answer["result"] == {}


def test_bytes_that_are_not_utf_8_are_replaced_within_a_text(alone: Line) -> None:
    alone.write(b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}')
    assert alone.read() == {"id": "\ufffd", "result": {}}
    alone.write(b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}')
    assert alone.read() == {"id": "\ud800", "result": {}}


def test_a_line_may_have_ten_megabytes_but_not_twenty(line: Line) -> None:
    line.shake_hands()
    number = line.call(
        "sessions_send", run_id=spawned(line, "exec sleep 1000"), message="x" * 10_000_000
    )
    answer = line.read()
    assert answer["id"] == number
    assert "bytes long; the daemon takes 4194304" in answer["result"]["content"][0]["text"]
    line.write(b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * 20_000_000)
    answer = line.read()
    assert (answer["id"], error(answer)) == (
        None,
        (-32600, "Invalid Request: the line is longer than 16777216 bytes"),
    )
    assert line.ask("ping") == {"result": {}}


def test_a_last_line_needs_no_newline() -> None:
    with connected("/nonexistent/s") as line:
        line.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
        assert line.close() == (0, [{"jsonrpc": "2.0", "id": 1, "result": {}}])


# ---- eras


@first(2)
@pytest.mark.parametrize(
    "version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28", "1.0"]
)
def test_a_handshake_agrees_on_a_version(version: str) -> None:
    with connected("/nonexistent/s") as line:
        assert error(line.ask("tools/list")) == INVALID
        assert line.ask("ping") == {"result": {}}
        said = line.shake_hands(version)["result"]
        assert said["protocolVersion"] == (
            version if version.startswith("202") and version < "2026" else "2025-11-25"
        )
        assert said["capabilities"] == {
            "logging": {}, "resources": {"subscribe": False, "listChanged": False},
            "tools": {"listChanged": False},
        }  # fmt: skip
        assert len(line.ask("tools/list")["result"]["tools"]) == 7
        assert line.ask("logging/setLevel", level="error") == {"result": {}}
        assert error(line.ask("logging/setLevel", level="loud")) == INVALID
        assert error(line.ask("server/discover")) == (-32601, "Method not found")
        assert line.ask("tools/list", _meta=ENVELOPE)["error"]["code"] == -32600


def test_a_request_with_an_envelope_stands_alone() -> None:
    with connected("/nonexistent/s") as line:
        said = line.ask("server/discover", _meta=ENVELOPE)["result"]
        assert (said["supportedVersions"], said["resultType"], said["ttlMs"]) == (
            ["2026-07-28"],
            "complete",
            0,
        )
        assert said["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "sfad"
        assert len(line.ask("tools/list", _meta=ENVELOPE)["result"]["tools"]) == 7
        assert error(line.ask("ping", _meta=ENVELOPE)) == (-32601, "Method not found")
        assert line.ask("tools/list")["error"]["code"] == -32602
        assert line.ask("initialize", protocolVersion="2025-11-25")["error"] == {
            "code": -32022,
            "message": (
                "connection is serving the 2026-07-28 protocol; "
                "the initialize handshake is not accepted"
            ),
            "data": {"supported": ["2026-07-28"], "requested": "2025-11-25"},
        }
        for key, value in (
            ("protocolVersion", "2027-01-01"),
            ("protocolVersion", 5),
            ("clientCapabilities", 5),
            ("clientInfo", {}),
        ):
            wrong: Json = ENVELOPE | {f"io.modelcontextprotocol/{key}": value}
            assert line.ask("tools/list", _meta=wrong)["error"]["code"] == (
                -32022 if value == "2027-01-01" else -32602
            )


def test_listening_ends_when_it_is_cancelled_and_has_a_bound() -> None:
    with connected("/nonexistent/s") as line:
        for number in range(MOST_REQUESTS):
            line.send(
                "subscriptions/listen",
                number,
                notifications={"toolsListChanged": True, "other": 1},
                _meta=ENVELOPE,
            )
            said = line.read()
            assert said["method"] == "notifications/subscriptions/acknowledged"
            assert said["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": number}
            assert said["params"]["notifications"] == {"toolsListChanged": True}
        refused = line.ask("subscriptions/listen", notifications={}, _meta=ENVELOPE)
        assert error(refused) == (
            -32603,
            f"too many requests at once; at most {MOST_REQUESTS} are carried out",
        )
        for number in range(2, MOST_REQUESTS):
            line.notify("notifications/cancelled", requestId=str(number))
        assert "result" in line.ask("server/discover", _meta=ENVELOPE)
        code, rest = line.close()
        assert (code, [(each["id"], each["error"]["code"]) for each in rest]) == (
            0,
            [(0, -32000), (1, -32000)],
        )


# ---- calls


def spawned(line: Line, task: str) -> str:
    line.call("sessions_spawn", task=task, agent="shell")
    return str(line.read()["result"]["structuredContent"]["run_id"])


def started(daemon: Daemon, seen: int) -> str:
    """Return the newest session when there are more than `seen`."""

    def found() -> str | None:
        with daemon.client() as client:
            runs = client.call(m.List(id=0, sessions=True), m.RunList).runs
        return max(run.id for run in runs) if len(runs) > seen else None

    return str(wait_until(found, "a session has started"))


def test_of_two_calls_the_one_that_is_cancelled_is_not_answered(share: Start) -> None:
    daemon = share(config=CONFIG)
    with connected(daemon.socket) as line, daemon.client() as client:
        line.shake_hands()
        run = spawned(line, "sleep 1000")
        cancelled = line.call("sessions_info", run_id=run, wait_seconds=60)
        kept = line.call("sessions_info", run_id=run, wait_seconds=60)
        line.notify("notifications/cancelled", requestId=cancelled)
        assert line.ask("ping") == {"result": {}}
        stopped(client, run)
        while "id" not in (told := line.read()):
            assert told["method"] == "notifications/message"
        assert told["id"] == kept
        _, rest = line.close()
        assert [each for each in rest if "id" in each] == []


@first(1)
@pytest.mark.parametrize("how", ["stays", "leaves", "is killed"])
def test_a_cancelled_delegate_is_stopped(share: Start, how: str) -> None:
    daemon = share(config=CONFIG)
    with connected(daemon.socket) as line, daemon.client() as client:
        line.shake_hands()
        seen = len(client.call(m.List(id=0, sessions=True), m.RunList).runs)
        number = line.call(
            "delegate_to_subagent", task="exec sleep 1000", tools_needed=[], agent="shell"
        )
        if how == "stays":
            run = started(daemon, seen)
            line.notify("notifications/cancelled", requestId=str(number))
            assert ended(client, run).status is Status.CANCELLED
            line.call("sessions_list")
            (news,) = line.read()["result"]["structuredContent"]["news"]
            assert news == (
                f"Session {run} was stopped because your call was cancelled. "
                "sessions_log shows what it had done."
            )
            return
        run = started(daemon, seen)
        line.notify("notifications/cancelled", requestId=number)
        line.stdin.close()
        if how == "is killed":
            line.stdout.close()
        assert line.process.wait(PATIENCE) == 0
        assert ended(client, run).status is Status.CANCELLED


def test_a_delegate_may_be_cancelled_before_its_subagent_has_started(share: Start) -> None:
    daemon = share(config=CONFIG)
    with connected(daemon.socket) as line, daemon.client() as client:
        line.shake_hands()
        for number in range(100, 110):
            line.call(
                "delegate_to_subagent",
                number,
                task="exec sleep 1000",
                tools_needed=[],
                agent="shell",
            )
            line.notify("notifications/cancelled", requestId=number)
        assert line.ask("ping") == {"result": {}}
        assert line.close() == (0, [])
        runs = client.call(m.List(id=0, sessions=True), m.RunList).runs
        assert {ended(client, run.id).status for run in runs if not run.status.rejected} <= {
            Status.CANCELLED
        }


def test_a_question_is_withdrawn_when_its_call_is_cancelled(share: Start) -> None:
    with connected(share(config=CONFIG).socket) as line:
        line.shake_hands(elicitation={})
        run = spawned(line, "sleep 1000")
        for answer, said in (
            ({"result": {"action": "decline"}}, "declined to stop"),
            ({"result": {"action": ["fly"]}}, "did not answer whether to stop"),
            ({"result": 5}, "the client's answer is neither a result nor an error"),
            ({"error": {"code": -5, "message": "no screen"}}, "no screen"),
            ({"error": 5}, "the client's answer is neither a result nor an error"),
        ):
            number = line.call("sessions_stop", run_id=run)
            question = line.read()
            assert question["params"]["message"].startswith(
                f"Stop this subagent and everything below it? {run} (shell): running"
            )
            line.write(json.dumps({"jsonrpc": "2.0", "id": question["id"]} | answer).encode())
            found = line.read()
            assert found["id"] == number
            assert said in json.dumps(found)
        number = line.call("sessions_stop", run_id=run)
        asked = line.read()["id"]
        line.notify("notifications/cancelled", requestId=number)
        withdrawn = line.read()
        assert (withdrawn["method"], withdrawn["params"]["requestId"]) == (
            "notifications/cancelled",
            asked,
        )
        line.write(
            json.dumps({"jsonrpc": "2.0", "id": asked, "result": {"action": "accept"}}).encode()
        )
        line.call("sessions_info", run_id=run)
        assert ": running" in line.read()["result"]["content"][0]["text"]
        line.call("sessions_stop", run_id=run)
        line.write(
            json.dumps(
                {"jsonrpc": "2.0", "id": line.read()["id"], "result": {"action": "accept"}}
            ).encode()
        )
        assert line.read()["result"]["content"][0]["text"] == f"stopped: {run}"


# ---- clients that leave, or do not read


def test_progress_is_told_to_who_asks_for_it_and_the_end_answers_what_is_open(line: Line) -> None:
    line.shake_hands()
    arguments = {"task": "sleep 5", "tools_needed": [], "agent": "shell"}
    number = line.send(
        "tools/call", name="delegate_to_subagent", arguments=arguments, _meta={"progressToken": "p"}
    )
    for least in (0, 4):
        told = line.read()
        assert told["method"] == "notifications/progress"
        assert told["params"]["progressToken"] == "p"
        assert least <= told["params"]["progress"] < least + 1
    began = time.monotonic()
    code, rest = line.close()
    closed = {
        "jsonrpc": "2.0",
        "id": number,
        "error": {"code": -32000, "message": "Connection closed"},
    }
    assert (code, rest) == (0, [closed])
    assert time.monotonic() - began < 1


@first(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once(line: Line, number: int) -> None:
    line.shake_hands()
    run = spawned(line, "sleep 1000")
    line.call("sessions_info", run_id=run, wait_seconds=60)
    assert line.ask("ping") == {"result": {}}
    line.process.send_signal(number)
    assert line.process.wait(PATIENCE) == -number


def test_a_client_that_never_reads_is_not_read_either(share: Start) -> None:
    daemon = share(config=CONFIG)
    with connected(daemon.socket) as line:
        line.shake_hands()
        os.set_blocking(line.stdin.fileno(), False)
        server = psutil.Process(line.process.pid)
        sent = 0
        end = time.monotonic() + 20
        while select.select([], [line.stdin], [], 2)[1] and time.monotonic() < end:
            sent += line.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n' * 20) or 0
        assert 0 < sent < 8_000_000, "it read on without end"
        assert server.memory_info().rss < 100_000_000

        def waits() -> bool:
            before = sum(server.cpu_times()[:2])
            time.sleep(0.3)
            return sum(server.cpu_times()[:2]) - before < 0.05

        wait_until(
            waits,
            "it waits, when the threads of the requests that it has read have asked the daemon",
        )
        began = time.monotonic()
        line.stdin.close()
        assert line.process.wait(PATIENCE) == 0
        assert time.monotonic() - began < 3


def test_a_client_that_closes_only_its_ear_ends_the_server() -> None:
    with connected("/nonexistent/s") as line:
        line.shake_hands()
        line.stdout.close()
        assert line.process.wait(PATIENCE) == 0


def test_the_server_starts_without_a_daemon_and_says_so_when_a_tool_needs_it() -> None:
    with connected("/nonexistent/s", stderr=subprocess.PIPE) as line:
        line.shake_hands()
        assert line.process.stderr is not None
        assert len(line.ask("tools/list")["result"]["tools"]) == 7
        assert line.process.stderr.readline().startswith(
            b"sfactl mcp: the daemon cannot be reached at /nonexistent/s"
        )
        line.process.stderr.close()
        assert len(line.ask("tools/list")["result"]["tools"]) == 7
        line.call("sessions_list")
        said = line.read()["result"]
        assert said["isError"] is True
        assert said["content"][0]["text"].startswith(
            "the daemon cannot be reached at /nonexistent/s: the socket does not exist"
        )
        assert error(line.ask("resources/list"))[0] == -32603


HALF = "\ud83d"


@first(1)
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("sessions_info", {"run_id": HALF}),
        ("sessions_spawn", {"task": HALF, "agent": "shell"}),
        ("delegate_to_subagent", {"task": "true", "tools_needed": [HALF], "agent": "shell"}),
        ("sessions_send", {"run_id": "a1", "message": HALF}),
        ("sessions_spawn", {"task": "true", "agent": "shell", "limits": {HALF: 1}}),
    ],
)
def test_half_a_character_is_a_result_that_a_model_can_read(
    line: Line, tool: str, arguments: Json
) -> None:
    line.shake_hands()
    line.call(tool, **arguments)
    said = line.read()["result"]
    assert said["isError"] is True
    assert "\\ud83d" in said["content"][0]["text"]
    assert error(line.ask("resources/read", uri=f"sfad://sessions/{HALF}"))[0] in (-32602, -32603)


@first(1)
@pytest.mark.parametrize("depth", [100, 480, 700, 900])
def test_a_deep_parameter_is_a_result_too(line: Line, depth: int) -> None:
    line.shake_hands()
    limits = "[" * depth + "]" * depth
    line.write(
        b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"sessions_spawn","arguments":'
        b'{"task":"true","agent":"shell","limits":{"max_turns":%b}}}}' % limits.encode()
    )
    answer = line.read()
    assert answer["id"] == 9
    assert answer["result"]["isError"] is True


def test_a_client_that_leaves_stderr_full_is_answered() -> None:
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        os.set_blocking(writing, True)
        with connected("/nonexistent/s", stderr=writing) as line:
            line.shake_hands()
            for _ in range(3):  # each would print that there is no daemon
                assert len(line.ask("tools/list")["result"]["tools"]) == 7
    finally:
        os.close(reading)
        os.close(writing)


def test_an_id_that_is_not_answered_yet_is_refused(share: Start) -> None:
    daemon = share(config=CONFIG)
    with connected(daemon.socket) as line:
        line.shake_hands()
        run = spawned(line, "sleep 1000")
        line.call("sessions_info", number="x", run_id=run, wait_seconds=30)
        line.call("sessions_info", number="x", run_id=run, wait_seconds=30)
        assert error(line.read()) == (-32600, "Invalid Request: request 'x' is not answered yet")
        line.notify("notifications/cancelled", requestId="x")
        assert line.ask("ping")["result"] == {}
