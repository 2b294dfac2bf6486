"""Logins outlive the console, and a link leads from one device to another."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import stat
import subprocess
import sys
from contextlib import closing, suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from sfactl.web import logins
from sfactl.web.logins import Logins
from tests.harness import PATIENCE, Daemon, ended, environment, started
from tests.template import run_forked
from tests.tiers import sampled, variant
from tests.web.console import Console


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    """Return variables of a person's own state directory."""
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def sfactl(daemon: Daemon, state: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return run_forked("sfactl", words, daemon.env | state, timeout=PATIENCE)


def link(daemon: Daemon, state: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return sfactl(daemon, state, "web", "--link", *options)


@pytest.mark.parametrize("number", sampled([signal.SIGKILL, signal.SIGTERM]))
def test_a_browser_stays_logged_in_when_the_console_starts_again(
    common: Daemon, state: dict[str, str], number: signal.Signals
) -> None:
    first = Console(common, env=state)
    first.open()
    token = first.token()
    first.end(number)
    again = Console(common, port=first.port, env=state)
    try:
        again.cookie = first.cookie
        assert again.ask("/")[0] == 200
        # a page that was open all the time
        headers = {"X-CSRF-Token": token}
        assert again.ask("/api/logout", "POST", headers=headers)[0] == 200
        assert again.ask("/")[0] == 403
        # the link of the console that has ended
        assert again.ask(first.login)[0] == 403
    finally:
        again.end()


@variant
def test_a_link_that_was_printed_ends_with_its_console(
    common: Daemon, state: dict[str, str]
) -> None:
    first = Console(common, env=state)
    first.end(signal.SIGKILL)
    again = Console(common, port=first.port, env=state)
    try:
        assert again.ask(first.login)[0] == 403
    finally:
        again.end()


@pytest.mark.parametrize("options", [("--listen", "127.0.0.1:0"), ("--link",)])
def test_a_run_neither_starts_a_console_nor_gets_a_link_of_the_persons(
    common: Daemon, state: dict[str, str], options: tuple[str, ...]
) -> None:
    console = Console(common, env=state)
    try:
        with common.client() as client:
            words = [sys.executable, "-m", "sfactl", "web", *options]
            own = [f"{key}={value}".encode() for key, value in state.items()]
            run = ended(client, started(client, words, env=[*environment(), *own]).id)
        assert run.exit_code == 77
        assert "starts outside runs only" in common.errors(run.id)
        assert common.output(run.id) == ""
        assert link(common, state).stdout.startswith(f"open {console.origin}/login")
    finally:
        console.end()


@variant
def test_a_link_for_another_device(common: Daemon, state: dict[str, str]) -> None:
    assert "no console of yours runs" in link(common, state).stderr
    console = Console(common, env=state)
    try:
        done = link(common, state)
        assert done.returncode == 0, done.stderr
        assert "on this machine only" in done.stderr
        assert re.search(rf"--listen \S+:{console.port} --cert FILE", done.stderr)
        [line] = done.stdout.splitlines()
        path = line.removeprefix(f"open {console.origin}")
        assert console.ask(path)[0] == 303
        assert console.ask(path)[0] == 403
        assert console.open()[0] == 303  # the console's own link is still good
        other = Console(common, env=state)
        try:
            done = link(common, state)
            assert done.returncode == 2
            assert f"--listen one of: 127.0.0.1:{min(console.port, other.port)}" in done.stderr
            done = link(common, state, "--listen", f"127.0.0.1:{other.port}")
            assert done.stdout.startswith(f"open {other.origin}/login")
        finally:
            other.end()
    finally:
        console.end()
    assert "no console of yours runs" in link(common, state).stderr


def test_a_link_that_a_telephone_can_open(
    common: Daemon, state: dict[str, str], tmp_path: Path
) -> None:
    issued = trustme.CA().issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    words = ["--listen", "0.0.0.0:0", "--cert", str(cert), "--key", str(key)]
    console = Console(common, *words, env=state)
    try:
        done = link(common, state)
        assert "on this machine only" not in done.stderr
        links = re.findall(r"https://\S+", done.stdout)
        assert len({each.partition("?")[2] for each in links}) == 1
        on_loopback = {ip_address(urlsplit(each).hostname or "").is_loopback for each in links}
        assert len(on_loopback) == 1  # all of them, on a machine without a network
        assert "█" not in done.stdout
        assert "█" in typed(common, state, "web", "--link")
    finally:
        console.end()


def typed(daemon: Daemon, state: dict[str, str], *words: str) -> str:
    """Return what sfactl prints on a terminal."""
    ours, theirs = pty.openpty()
    env = daemon.env | state | {"PYTHONUTF8": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "sfactl", *words], env=env, stdin=theirs, stdout=theirs
    )
    os.close(theirs)
    said = b""
    with closing(open(ours, "rb", buffering=0)) as terminal, suppress(OSError):
        while part := terminal.read(65536):
            said += part
    assert process.wait(PATIENCE) == 0
    return said.decode()


def test_another_program_at_the_consoles_place_logs_all_browsers_out(
    common: Daemon, state: dict[str, str]
) -> None:
    console = Console(common, env=state)
    console.open()
    console.end()
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.bind(("127.0.0.1", console.port))
        taker.listen()
        done = sfactl(common, state, "web", "--listen", f"127.0.0.1:{console.port}")
        assert done.returncode == 2
    again = Console(common, port=console.port, env=state)
    try:
        again.cookie = console.cookie
        assert again.ask("/")[0] == 403
    finally:
        again.end()


@variant
def test_a_second_console_logs_nobody_out(common: Daemon, state: dict[str, str]) -> None:
    console = Console(common, env=state)
    try:
        console.open()
        done = sfactl(common, state, "web", "--listen", f"127.0.0.1:{console.port}")
        assert done.returncode == 2
        assert console.ask("/")[0] == 200
    finally:
        console.end()


def test_all_browsers_are_logged_out_from_one(common: Daemon, state: dict[str, str]) -> None:
    console = Console(common, env=state)
    try:
        console.open()
        mine = console.cookie
        other = console.ask(link(common, state).stdout.split(console.origin)[1].strip())
        console.cookie = other[1]["set-cookie"].partition(";")[0]
        headers = {"X-CSRF-Token": console.token()}
        assert console.ask("/api/logout-all", "POST", headers=headers)[0] == 200
        for cookie in (mine, console.cookie):
            console.cookie = cookie
            assert console.ask("/")[0] == 403
    finally:
        console.end()


@variant
def test_the_console_works_where_nothing_can_be_kept(
    common: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("a file")
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    console = Console(common, env=env)
    try:
        assert console.open()[0] == 303
        assert console.ask("/")[0] == 200
    finally:
        console.end()
    place = tmp_path / "open"
    place.mkdir()
    (place / "sfactl-web").mkdir()
    (place / "sfactl-web").chmod(0o777)
    monkeypatch.setenv("XDG_STATE_HOME", str(place))
    with logins.kept("127.0.0.1:1") as (known, _, _):
        assert place not in known.directory.parents


def test_the_files_tell_no_secret_and_are_the_users_alone(tmp_path: Path) -> None:
    known = Logins(tmp_path)
    token = known.link()
    session = known.use(token)
    assert session is not None
    other = known.link()
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(found) == 2
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_bytes() == b""
        for secret in (token, other, session.cookie, session.token):
            assert secret not in str(path)


def test_links_and_logins_end(tmp_path: Path) -> None:
    known = Logins(tmp_path)
    assert known.use(known.link(seconds=-1)) is None
    assert known.use("") is None
    assert known.login("") is None
    session = known.use(known.link())
    assert session is not None
    [file] = (tmp_path / "logins").iterdir()
    for days, good in ((29, True), (29, True), (31, False)):
        # what was seen again counts from then
        then = file.stat().st_mtime - days * 86400
        os.utime(file, (then, then))
        assert (known.login(session.cookie) is not None) is good
    assert not file.exists()


def test_of_many_browsers_the_one_that_was_seen_longest_ago_is_logged_out(tmp_path: Path) -> None:
    known = Logins(tmp_path)
    sessions = []
    for number in range(logins.MOST_LOGINS + 1):
        session = known.use(known.link())
        assert session is not None
        sessions.append(session)
        for file in (tmp_path / "logins").iterdir():
            if file.stat().st_mtime > 1e9:
                os.utime(file, (1e9 - 1000 + number, 1e9 - 1000 + number))
    kept = len(list((tmp_path / "logins").iterdir()))
    assert kept == logins.MOST_LOGINS
