"""Who may ask: a process of the same user, a browser that has opened the link, and no page of
another site."""

from __future__ import annotations

import http.client
import os
import select
import signal
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import trio
import trustme

from sfactl.__main__ import execute
from sfactl.web.access import MOST_BODY
from sfactl.web.serving import MOST_CONNECTIONS, PeerListener
from tests.harness import PATIENCE, Daemon, as_nobody, as_root, started
from tests.tiers import first, sampled
from tests.web.console import Console

BURST = 100
"""Connections, fewer than wait in the kernel."""


@pytest.fixture
def console(common: Daemon) -> Iterator[Console]:
    one = Console(common)
    yield one
    assert one.end() == 0


def test_the_first_browser_is_let_in_and_no_other(console: Console) -> None:
    for path in (
        "/",
        "/runs/a1",
        "/history",
        "/plans",
        "/events",
        "/api/stream",
        "/api/history",
        "/api/agents",
    ):
        assert console.ask(path)[0] == 403
    assert console.ask("/login?token=wrong")[0] == 403
    assert console.ask("/login")[0] == 403
    status, headers = console.open()
    assert (status, headers["location"]) == (303, "/")
    attributes = {part.strip().lower() for part in headers["set-cookie"].split(";")[1:]}
    assert attributes == {"httponly", "samesite=strict", "path=/", f"max-age={400 * 86400}"}
    status, headers, body = console.ask("/")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "<script>" not in body
    assert " style=" not in body
    assert headers["referrer-policy"] == "no-referrer"
    first, console.cookie = console.cookie, ""
    assert console.open()[0] == 403  # the link works once
    console.cookie = first
    assert console.ask("/")[0] == 200


def test_a_link_for_another_device_works_once(console: Console) -> None:
    console.open()
    status, _, body = console.ask("/api/link", "POST", headers={"X-CSRF-Token": console.token()})
    assert status == 200
    link = body.split('"')[3].removeprefix(console.origin)
    mine, console.cookie = console.cookie, ""
    other = console.ask(link)[1]["set-cookie"].partition(";")[0]
    assert other != mine
    assert console.ask(link)[0] == 403
    console.cookie = other
    assert console.ask("/")[0] == 200
    assert console.ask("/api/logout", "POST", headers={"X-CSRF-Token": console.token()})[0] == 200
    assert console.ask("/")[0] == 403
    console.cookie = mine
    assert console.ask("/")[0] == 200


def test_a_page_of_another_site_gets_nothing(console: Console) -> None:
    console.open()
    token, there = console.token(), "http://evil.example"
    # a name that resolves to 127.0.0.1
    assert console.ask("/", headers={"Host": "evil.example"})[0] == 403
    assert console.ask("/", headers={"Host": f"localhost:{console.port}"})[0] == 403
    assert console.ask("/static/app.js", headers={"Host": "evil.example"})[0] == 403
    for path in ("/api/history", "/api/stream?runs=all", "/"):
        assert console.ask(path, headers={"Origin": there})[0] == 403
        assert console.ask(path, headers={"Origin": "null"})[0] == 403
    assert (
        console.ask(
            "/api/history", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
        )[0]
        == 403
    )
    # another port
    assert (
        console.ask(
            "/api/history", headers={"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}
        )[0]
        == 403
    )
    for headers in (
        {},
        {"X-CSRF-Token": "guess"},
        {"X-CSRF-Token": token, "Origin": there},
        {"X-CSRF-Token": token, "Host": "a.b"},
    ):
        assert console.ask("/api/start", "POST", "{}", headers)[0] == 403
    # it names no agent
    assert (
        console.ask("/api/start", "POST", "{}", {"X-CSRF-Token": token, "Origin": console.origin})[
            0
        ]
        == 400
    )
    # a link in a message of another site may be followed: without the cookie, which is strict, our
    # own page asks again
    mine, console.cookie = console.cookie, ""
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    status, _, body = console.ask("/runs/a1?x=%22%3E%3Cscript%3E", headers=visit)
    assert status == 200
    assert "http-equiv" in body
    assert "<script>" not in body
    console.cookie = mine
    assert console.ask("/runs/a1", headers=visit)[0] == 200


def test_wrong_requests_are_refused_in_words(console: Console) -> None:
    console.open()
    token = console.token()
    assert console.ask("/nowhere")[0] == 404
    assert console.ask("/static/../access.py")[0] in (403, 404)
    assert console.ask("/static/%2e%2e/access.py")[0] == 404
    assert "no run" in console.ask("/api/runs/zz")[2]
    for path in (
        "/api/costs?by=colour&days=1,2",
        "/api/costs?days=2,1",
        "/api/history?status=dead",
        "/api/events?severity=x&before=9",
    ):
        status, _, body = console.ask(path)
        assert status == 400, path
        assert "error" in body
    assert console.ask(f"/api/events?before={'9' * 30}")[0] == 200
    for body in ("[]", "{", '{"limits": 3}', '{"limits": {"turns": "-1"}}'):
        assert console.ask("/api/runs/zz/limit", "POST", body, {"X-CSRF-Token": token})[0] in (
            400,
            404,
        )
    assert console.ask("/api/runs/zz/explode", "POST", "{}", {"X-CSRF-Token": token})[0] == 404
    said = console.ask("/api/start", "POST", "{" + " " * MOST_BODY + "}", {"X-CSRF-Token": token})
    assert (said[0], said[2]) == (413, f"the body is longer than {MOST_BODY} bytes")


def chunked(console: Console, pieces: Iterator[bytes]) -> tuple[int, str]:
    """Return the answer to a body without a length, which is sent until there is an answer."""
    with closing(socket.create_connection(("127.0.0.1", console.port), PATIENCE)) as connection:
        head = [
            "POST /api/runs/zz/limit HTTP/1.1", f"Host: {console.host}",
            f"Cookie: {console.cookie}", f"X-CSRF-Token: {console.token()}",
            "Transfer-Encoding: chunked", "Connection: close", "", "",
        ]  # fmt: skip
        connection.sendall("\r\n".join(head).encode())
        with suppress(OSError):
            for piece in pieces:
                connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
                if select.select([connection], [], [], 0)[0]:
                    break
            else:
                connection.sendall(b"0\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, answer.read().decode()


def test_a_body_in_chunks_is_read_up_to_the_same_size(console: Console) -> None:
    console.open()
    status, said = chunked(console, iter([b'{"limits"', b': {"turns": "9"}}']))
    assert status == 404, said
    assert "no run" in said
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 64 * MOST_BODY:
            sent += 1 << 14
            yield b" " * (1 << 14)

    status, said = chunked(console, endless())
    assert (status, f"longer than {MOST_BODY} bytes" in said) == (400, True)
    assert sent < 64 * MOST_BODY, "it was answered before its end"


def test_no_more_connections_are_kept_than_the_bound() -> None:
    async def main() -> None:
        here = trio.socket.socket()
        await here.bind(("127.0.0.1", 0))
        here.listen(2 * MOST_CONNECTIONS)
        listener = PeerListener(trio.SocketListener(here), lambda _: True)
        address = here.getsockname()
        async with listener, trio.open_nursery() as nursery:
            accepted: list[trio.SocketStream] = []

            async def accept() -> None:
                while True:
                    accepted.append(await listener.accept())

            nursery.start_soon(accept)
            kept = [await trio.open_tcp_stream(*address) for _ in range(MOST_CONNECTIONS)]
            refused = await trio.open_tcp_stream(*address)
            with trio.fail_after(PATIENCE):
                assert await refused.receive_some() == b"", "one more is closed at once"
            assert len(accepted) == MOST_CONNECTIONS
            await accepted[7].aclose()
            again = await trio.open_tcp_stream(*address)
            with trio.fail_after(PATIENCE):
                while len(accepted) == MOST_CONNECTIONS:
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
            for each in (*kept, *accepted, refused, again):
                each.socket.close()

    trio.run(main)


@as_root
def test_another_user_is_cut_off_before_it_asks(console: Console) -> None:
    "localhost".encode("idna")  # loads the codec, which the other user may not be able to read

    def ask() -> str:
        taken = []
        for _ in range(300):
            connection = socket.create_connection(("127.0.0.1", console.port), timeout=PATIENCE)
            taken.append(connection)
        try:
            taken[-1].sendall(
                f"GET {console.login} HTTP/1.1\r\nHost: {console.host}\r\n\r\n".encode()
            )
            return str(taken[-1].recv(100))
        except ConnectionError:
            return "cut off"

    assert as_nobody(ask) in ("cut off", "b''")
    assert console.open()[0] == 303


@contextmanager
def nobody_connecting(port: int) -> Iterator[None]:
    """Have another user connect to `port` and hang up without pause."""
    begun, tell_begun = os.pipe()
    stop, tell_stop = os.pipe()

    def connect() -> None:
        count = 0
        while not select.select([stop], [], [], 0)[0]:
            with (
                suppress(ConnectionError),
                socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection,
            ):
                # reset, so that no port is left waiting
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            count += 1
            if count == BURST:
                os.write(tell_begun, b"-")

    thread = threading.Thread(target=as_nobody, args=(connect,))
    thread.start()
    try:
        assert select.select([begun], [], [], PATIENCE)[0], "the other user has connected"
        yield
    finally:
        os.write(tell_stop, b"-")
        thread.join()
        for each in (begun, tell_begun, stop, tell_stop):
            os.close(each)


@as_root
def test_another_user_who_connects_without_pause_does_not_keep_the_browser_out(
    console: Console,
) -> None:
    "localhost".encode("idna")  # as above
    with nobody_connecting(console.port):
        assert console.open()[0] == 303
        assert console.ask("/")[0] == 200


def test_tls_has_a_cookie_for_tls_only(common: Daemon, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key, root = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "root.pem"
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(root))
    console = Console(common, "--cert", str(cert), "--key", str(key))
    try:
        assert console.link.startswith("https://127.0.0.1:")
        connection = http.client.HTTPSConnection(
            "127.0.0.1", console.port, context=ssl.create_default_context(cafile=str(root))
        )
        connection.request("GET", console.login, headers={"Host": console.host})
        answer = connection.getresponse()
        assert answer.status == 303
        cookie = answer.getheader("set-cookie") or ""
        assert cookie.startswith("__Host-")
        assert "Secure" in cookie
        connection.close()
    finally:
        assert console.end() == 0


@as_root
def test_behind_a_proxy_only_its_user_and_ones_own_may_connect(common: Daemon) -> None:
    console = Console(common, "--proxy", "https://agents.example.org", "--from", "65534")
    try:
        assert console.link.startswith("https://agents.example.org/login?token=")
        # the address in the link is the proxy's: ask where the console listens itself
        port = next(
            each.laddr.port
            for each in psutil.Process(console.process.pid).net_connections("tcp")
            if each.status == "LISTEN"
        )
        assert console.ask("/", headers={"Host": "127.0.0.1"}, port=port)[0] == 403
        "localhost".encode("idna")  # as above
        assert (
            as_nobody(
                lambda: console.ask(
                    console.login, headers={"Host": "agents.example.org"}, port=port
                )[0]
            )
            == "303"
        )
    finally:
        assert console.end() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--listen 0.0.0.0:0", "--listen 0.0.0.0:0: other machines can connect"),
        ("--listen localhost:1", "--listen: 'localhost' is not an IP address"),
        ("--listen 127.0.0.1", "not of the form"),
        ("--listen 127.0.0.1:99999", "not of the form"),
        ("--cert x", "need each other"),
        ("--proxy http://a", "--proxy: 'http://a' is not an address such as https://"),
        ("--listen 0.0.0.0:0 --proxy https://a", "with --from"),
        ("--listen [::]:0 --proxy https://a --from www-data", "--from: 'www-data' is not an IP"),
        ("--proxy https://a --from no-such-user", "no user"),
        ("--from root", "needs --proxy"),
    ],
)
def test_a_place_that_is_not_safe_is_refused(
    options: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SFAD_SOCKET", "/nonexistent")
    assert execute(["web", *options.split()]) == 2
    assert said in capsys.readouterr().err


@first(1)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "0.0.0.0:0"], "--cert"),
        (["--cert", "/nowhere", "--key", "/nowhere"], "No such file"),
    ],
)
def test_it_ends_with_2_before_it_prints_a_link(
    common: Daemon, options: list[str], said: str
) -> None:
    done = common.sfactl("web", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert "login" not in done.stdout


def test_a_port_that_is_taken_is_told(common: Daemon, console: Console) -> None:
    done = common.sfactl("web", "--listen", f"127.0.0.1:{console.port}")
    assert done.returncode == 2
    assert "127.0.0.1:0" in done.stderr


def test_without_a_daemon_it_says_so(common: Daemon) -> None:
    done = common.sfactl("web", "--socket", "/nowhere/s")
    assert done.returncode == 69
    assert "cannot be reached" in done.stderr


@pytest.mark.parametrize("number", sampled([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
def test_it_ends_although_a_page_does_not_read(common: Daemon, number: int) -> None:
    console = Console(common)
    console.open()
    with common.client() as client:
        run = started(client, ["sh", "-c", "yes | head -c 3000000; sleep 300"], name="talker").id
    with socket.create_connection(("127.0.0.1", console.port)) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = (
            f"GET /api/stream?runs=all&output={run} HTTP/1.1\r\nHost: {console.host}\r\nCookie: "
            f"{console.cookie}\r\n\r\n"
        )
        stuck.sendall(request.encode())
        assert stuck.recv(10)
        assert console.end(number) == 0
