"""Users attack the gateways of root's daemon: their own, those of others, and the service's own.

`docs/threat-model.md` says what happens.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import resource
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo
from tests.harness import Daemon, spawn, wait_until
from tests.users import FIRST, SECOND, Failed, as_user, needs_root, open_directory, waiting_as_user

from .agents import limit
from .provider import Provider
from .test_gateway import post
from .test_users_gateways import PATH, calling, record, serving

pytestmark = needs_root

AGENT = """
import json, os, socket
from urllib.parse import urlsplit
where = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
messages = where.path + "/v1/messages"
metadata = {"stall": False, "tool": None}
asked = {
    "model": "claude-sonnet-4-5", "max_tokens": 100, "stream": True, "messages": [],
    "metadata": metadata,
}
body = json.dumps(asked).encode()
def said(data, port=None):
    with socket.create_connection(("127.0.0.1", port or where.port), timeout=30) as connection:
        connection.sendall(data)
        reply = b""
        while more := connection.recv(65536):
            reply += more
    return reply.decode("latin-1")
def send(head="", data=body, path=messages, method="POST", length=True):
    lines = [f"{method} {path} HTTP/1.1", "host: x", "connection: close", *head.splitlines()]
    lines += [f"content-length: {len(data)}"] if length else []
    return said("\\r\\n".join([*lines, "", ""]).encode("latin-1") + data)
def tell(*found):
    print(json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def everyones(module_provider: Provider) -> Iterator[Daemon]:
    with open_directory() as place, serving(place, module_provider) as daemon:
        yield daemon


def start(daemon: Daemon, uid: int, code: str, *env: str, **options: Any) -> str:
    """Start a run of a user that executes code after `AGENT`, and return its id."""

    def submit() -> str:
        with Client(daemon.socket) as client:
            words = ["/usr/bin/python3", "-c", AGENT + code]
            reply = spawn(client, words, cwd=b"/", env=[*PATH, *map(os.fsencode, env)], **options)
            assert isinstance(reply, m.RunReply), reply
            return reply.run.id

    return as_user(uid, submit)


def over(daemon: Daemon, run: str) -> tuple[RunInfo, list[Any]]:
    """Return a run that has ended, and what it told."""
    with daemon.client() as client:
        info = client.call(m.Wait(id=client.next_id(), run=run, timeout=90), m.RunReply).run
    output = daemon.state_dir / "output"
    assert (output / f"{run}.err").read_text() == ""
    return info, [json.loads(line) for line in (output / f"{run}.out").read_text().splitlines()]


LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@contextmanager
def saying(reply: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of an upstream that answers each request with these bytes and hangs up, and
    the heads of the calls that it got."""
    heads: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    with connection.makefile("rb") as requests:
                        head = b"".join(iter(requests.readline, b"\r\n"))
                        # what is not read would end the connection in the middle of the reply
                        requests.read(int((LENGTH.findall(head) or [0])[0]))
                    if head.startswith(b"POST"):  # the rest asks which program it is
                        heads.append(head)
                    connection.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heads
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


# ---- who is taken for a gateway, or for its caller


def test_no_other_process_takes_the_port_of_a_gateway_that_cannot_be_started(
    everyones: Daemon,
) -> None:
    """It would get the calls of the user's runs, with their keys."""
    with calling(everyones, SECOND, then=True) as call:
        assert call.said == "200 True"
        _, port = record(everyones, SECOND)

        def refused() -> bool:
            if pid := record(everyones, SECOND)[0]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionRefusedError:
                return True
            return False

        wait_until(refused, "the gateway has died again and again")

        def take() -> None:
            with socket.socket() as mine:
                mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                mine.bind(("127.0.0.1", port))
                mine.listen()

        with pytest.raises(Failed, match="Address already in use"):
            as_user(FIRST, take)
        pid, _ = record(everyones, SECOND)
        wait_until(lambda: record(everyones, SECOND)[0] not in {0, pid}, "another one is started")
        assert call.again() == "200 True"
        call.ended()


def test_no_name_of_a_run_lets_a_process_in(everyones: Daemon) -> None:
    """Names that are forged, of ended runs, and of another user's run."""
    secret = bytes.fromhex(json.loads((everyones.state_dir / "gateway.json").read_text())["secret"])

    def name(run: str, key: bytes = secret) -> str:
        return f"{run}.{blake2b(run.encode(), key=key, digest_size=16).hexdigest()}"

    with calling(everyones, FIRST, then=True) as call:
        assert call.said == "200 True"
        ports = {record(everyones, FIRST)[1]: "anthropic", record(everyones, None)[1]: "keyed"}
        forged = [
            name(call.run, b"x"),
            call.run,
            f"{call.run}.",
            f"{name(call.run)}.x",
            name(call.run).upper(),
            name("a999"),
        ]
        tried = [(FIRST, each) for each in forged] + [
            (SECOND, each) for each in (*forged, name(call.run))
        ]

        def post_all(uid: int) -> list[int]:
            return [
                post(port, f"/run/{each}/{upstream}/v1/messages")
                for of, each in tried for port, upstream in ports.items() if of == uid
            ]  # fmt: skip

        assert {
            *as_user(FIRST, lambda: post_all(FIRST)),
            *as_user(SECOND, lambda: post_all(SECOND)),
        } == {403}
        call.ended()
    ended = name(call.run)
    _, port = record(everyones, None)
    assert as_user(FIRST, lambda: post(port, f"/run/{ended}/keyed/v1/messages")) == 403


@pytest.mark.parametrize("host", ["localhost", "127.1", "[::ffff:127.0.0.1]", "0"])
def test_a_gateway_is_no_upstream_in_any_spelling(
    everyones: Daemon, provider: Provider, host: str
) -> None:
    with (
        calling(everyones, SECOND, then=True) as other,
        calling(everyones, FIRST, then=True) as own,
    ):
        assert (other.said, own.said) == ("200 True", "200 True")
        ways = [
            (record(everyones, uid)[1], name)
            for uid, name in ((SECOND, "anthropic"), (None, "keyed"), (FIRST, "keyed"))
        ]
        runs = [
            start(
                everyones, FIRST, "tell(send())", f"ANTHROPIC_BASE_URL=http://{host}:{port}/{name}"
            )
            for port, name in ways
        ]
        answers = [over(everyones, run)[1][0][0].split()[1] for run in runs]
        assert answers == ["403", "403", "400"]
        other.ended()
        own.ended()
    assert len(provider.bills) == 2


def test_a_user_that_a_run_has_become_makes_no_calls(everyones: Daemon, provider: Provider) -> None:
    with calling(everyones, SECOND, then=True) as other:
        assert other.said == "200 True"
        _, port = record(everyones, SECOND)
        become = f"os.setgroups([]); os.setresgid(*[{SECOND}] * 3); os.setresuid(*[{SECOND}] * 3)\n"
        request = (
            "data = b'POST /anthropic/v1/messages HTTP/1.1\\r\\nhost: x\\r\\nconnection: "
            "close\\r\\n\\r\\n'\n"
        )
        _, told = over(
            everyones, start(everyones, 0, f"{become}{request}tell(send(), said(data, {port}))")
        )
        assert [answer.split()[1] for answer in told[0]] == ["403", "403"]
        other.ended()
    assert len(provider.bills) == 1


def test_a_connection_that_outlives_its_run(everyones: Daemon, provider: Provider) -> None:
    """Its run passes it to a process outside, in the middle of a reply. The rest is counted, and no
    other call is made on it."""
    with open_directory() as place:
        path = str(place / "outside")

        def outside() -> tuple[bytes, bytes]:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen()
                with listener.accept()[0] as taken:
                    _, descriptors, _, _ = socket.recv_fds(taken, 1, 1)
            with socket.socket(fileno=descriptors[0]) as connection:
                reply = b""
                while not reply.endswith(b"0\r\n\r\n"):
                    reply += connection.recv(65536)
                connection.sendall(
                    b"POST /anthropic/v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: "
                    b"2\r\n\r\n{}"
                )
                return reply, connection.recv(65536)

        code = f"""
asked["metadata"]["stall"] = True
body = json.dumps(asked).encode()
connection = socket.create_connection(("127.0.0.1", where.port))
head = f"POST {{messages}} HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: {{len(body)}}\\r\\n\\r\\n"
connection.sendall(head.encode() + body)
tell(connection.recv(1000).decode("latin-1"))
with socket.socket(socket.AF_UNIX) as passing:
    passing.connect({path!r})
    socket.send_fds(passing, [b"x"], [connection.fileno()])
"""
        place.chmod(0o777)
        found: list[tuple[bytes, bytes]] = []
        with waiting_as_user(FIRST, outside) as (_, go):
            thread = threading.Thread(target=lambda: found.append(go()))
            thread.start()
            wait_until(lambda: Path(path).exists(), "it listens")
            run, told = over(everyones, start(everyones, FIRST, code, limits=[limit("cost", 1)]))
            provider.released.set()
            thread.join()
        assert told[0][0].startswith("HTTP/1.1 200")
        reply, refused = found[0]
        assert b"message_stop" in reply
        assert refused.startswith(b"HTTP/1.1 403")
        assert run.total_cost_usd is not None
        assert run.total_cost_usd >= provider.bills[0].usd


# ---- the process


def test_no_process_of_the_user_changes_its_gateways_limits(everyones: Daemon) -> None:
    """With a limit of file sizes, the gateway could not note what its calls have used."""
    user = pwd.getpwnam("daemon")
    with calling(everyones, user.pw_uid, then=True) as call:
        assert call.said == "200 True"
        pid, _ = record(everyones, user.pw_uid)

        def change() -> None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))

        with pytest.raises(Failed, match="Operation not permitted"):
            as_user(user.pw_uid, change, gid=user.pw_gid)
        for name in ("oom_score_adj", "coredump_filter", "comm", "clear_refs"):
            with pytest.raises(Failed, match="Permission denied"):
                as_user(user.pw_uid, lambda name=name: os.open(f"/proc/{pid}/{name}", os.O_WRONLY))  # type: ignore[misc]
        call.ended()


# ---- HTTP

REFUSED = {
    "a trailer that is about the transfer": (
        'send("transfer-encoding: '
        'chunked", b"0\\r\\ntransfer-encoding: gzip\\r\\n\\r\\n", length=False)',
        "501",
    ),
    "two lengths": ('send("content-length: 5")', "400"),
    "a length with a sign": ('send(f"content-length: +{len(body)}", length=False)', "400"),
    "an encoding of transfers": ('send("transfer-encoding: gzip, chunked", length=False)', "501"),
    "two hosts": ('send("host: evil.example")', "400"),
    "a NUL": ('send("x-a: a\\0b")', "400"),
    "HTTP/2": ("said(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n')", "405"),
    "WebSocket": ('send("upgrade: websocket", b"", method="GET")', "426"),
    "an absolute target": (
        'send(path=f"http://127.0.0.1:{where.port}/anthropic/v1/messages")',
        "403",
    ),
    "metadata of a cloud": (
        'send(path="http://169.254.169.254/latest", method="GET", data=b"")',
        "403",
    ),
    "a tunnel": ('send(path="127.0.0.1:22", method="CONNECT", data=b"")', "403"),
    "a line break in the path": ('send(path=messages + "%0d%0ax-evil:%201")', "400"),
    "another host in the path": ('send(path="//evil.example/v1/messages")', "404"),
    "a head that is too large": (
        'send("".join(f"x-{n}: {1000 * chr(97)}\\n" for n in range(100)))',
        "431",
    ),
}


def test_requests_that_two_servers_could_read_differently(
    everyones: Daemon, provider: Provider
) -> None:
    code = "\n".join(f"tell({name!r}, {request})" for name, (request, _) in REFUSED.items())
    _, told = over(everyones, start(everyones, FIRST, code))
    assert {name: answer.split()[1] for name, answer in told} == {
        name: status for name, (_, status) in REFUSED.items()
    }
    assert provider.bills == []


OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
REPLIES = {
    "a length and chunks": (
        OK + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "200",
        "{}",
    ),
    "a length, and less in chunks": (
        OK + b"content-length: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "200",
        "{}",
    ),
    "two lengths": (OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\n{}", "502", "conflicting"),
    "no URL": (
        b"HTTP/1.1 302 Found\r\nlocation: http://[evil/\r\ncontent-length: 0\r\n\r\n",
        "502",
        "redirects calls to what is no URL",
    ),
    "another protocol": (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        "502",
        "does not answer",
    ),
    "no status": (b"HTTP/1.1 099 Odd\r\ncontent-length: 0\r\n\r\n", "502", "does not answer"),
    "many heads": (
        200 * b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + OK + b"content-length: 2\r\n\r\n{}",
        "200",
        "{}",
    ),
    "a head that is too large": (OK + b"x: y\r\n" * 40_000 + b"\r\n", "502", "does not answer"),
}


@pytest.mark.parametrize("name", REPLIES)
def test_replies_that_are_no_http(everyones: Daemon, name: str) -> None:
    """The daemon's log has no internal error at the end."""
    reply, status, words = REPLIES[name]
    with saying(reply) as (url, heads):
        _, told = over(
            everyones, start(everyones, FIRST, "tell(send())", f"ANTHROPIC_BASE_URL={url}")
        )
    head, _, body = told[0][0].partition("\r\n\r\n")
    assert (head.split()[1], len(heads)) == (status, 1)
    assert words in body
    assert not ("content-length" in head.lower() and "transfer-encoding" in head.lower())


USAGES: Sequence[bytes] = (
    b'{"input_tokens": -1000000, "output_tokens": -5}',
    b'{"input_tokens": 1e400, "output_tokens": 99999999999999999999999}',
    b'{"input_tokens": NaN, "output_tokens": "5", "iterations": [[[]]]}',
    b"[" * 100_000,
)


@pytest.mark.parametrize("usage", USAGES, ids=["negative", "huge", "no numbers", "deep"])
def test_an_upstream_that_lies_about_usage_makes_no_call_cheaper_than_nothing(
    everyones: Daemon, usage: bytes
) -> None:
    with saying(OK + b'connection: close\r\n\r\n{"usage": ' + usage + b"}") as (url, _):
        run, told = over(
            everyones, start(everyones, FIRST, "tell(send())", f"ANTHROPIC_BASE_URL={url}")
        )
    assert told[0][0].startswith("HTTP/1.1 200")
    assert run.total_cost_usd is not None
    assert 0 < run.total_cost_usd < 0.01
