"""The examples of hooks.md: the mail really arrives, and each command is one that the config
takes."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from email import message_from_string, policy
from pathlib import Path

import pytest

from sfad.config import load
from sfad.features.hooks.feature import Hooks
from sfad.protocol import messages as m
from tests.conftest import Start
from tests.docs.pages import blocks, text_of
from tests.harness import ended, started, wait_until

PAGE = text_of("hooks.md")

FAILS = (
    r"printf '\033[31mError: 401 invalid key API_KEY=sk-ant-secretsecretsecret\033[0m\n\n' >&2; "
    r"exit 3"
)


class Mailbox(threading.Thread):
    """A server that takes mails as RFC 5321 says, each on a connection of its own."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.mails: list[str] = []

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:  # closed
                return
            with connection, connection.makefile("rw", newline="\r\n", encoding="utf-8") as lines:
                self._talk(lines)

    def _talk(self, lines: object) -> None:
        def say(text: str) -> None:
            lines.write(f"{text}\r\n".replace("\r\n", "\n"))  # type: ignore[attr-defined]
            lines.flush()  # type: ignore[attr-defined]

        say("220 here")
        while line := lines.readline():  # type: ignore[attr-defined]
            if line.upper().startswith("DATA"):
                say("354 go on")
                self.mails.append("".join(iter(lines.readline, ".\r\n")))  # type: ignore[attr-defined]
            say("221 bye" if line.upper().startswith("QUIT") else "250 ok")


def test_a_failed_run_is_in_the_mail(start: Start, tmp_path: Path) -> None:
    (script,) = (block.text for block in blocks(PAGE) if block.language == "python")
    program = tmp_path / "mail-event"
    program.write_text(script.replace("#!/usr/bin/python3", f"#!{sys.executable}"))
    program.chmod(0o755)
    box = Mailbox()
    box.start()
    command = f'["{program}", "127.0.0.1:{box.port}", "me@example.org"]'
    patterns, *_ = re.findall(r"^    (on = .*)$", PAGE, re.MULTILINE)
    daemon = start(config=f'[[hooks]]\nname = "mail"\n{patterns}\ncommand = {command}\n')
    try:
        with daemon.client() as client:
            run = started(client, ["sh", "-c", FAILS], name="nightly").id
            ended(client, run)
            wait_until(lambda: box.mails, "the mail has arrived")
            (state,) = client.call(m.DaemonInfo(id=0), m.DaemonStatus).hooks
            assert state.failing is None
        mail = message_from_string(box.mails[0], policy=policy.default)
        assert mail["Subject"] == "sfad: run_failed nightly"
        assert mail["To"] == "me@example.org"
        assert f'"run_id": "{run}"' in mail.get_content()
        assert "exited with code 3: Error: 401 invalid key API_KEY=***\r\n" in mail.get_content()
    finally:
        box.listener.shutdown(socket.SHUT_RDWR)
        box.listener.close()


@pytest.mark.parametrize("command", re.findall(r"command = \[.*\]", PAGE))
def test_each_example_is_a_command_of_the_config(tmp_path: Path, command: str) -> None:
    file = tmp_path / "sfad.toml"
    file.write_text(f'[[hooks]]\non = ["alert_*"]\n{command}\n')
    assert load([file]).config.section("hooks", Hooks)["hooks-1"].command


def test_the_mail_of_an_alert_says_raised_and_that_it_was_cleared_is_no_mail() -> None:
    (script,) = (block.text for block in blocks(PAGE) if block.language == "python")
    box = Mailbox()
    box.start()
    event = {"type": "alert_limit", "agent_name": "nightly", "message": "80 %"}
    try:
        for state in ("cleared", "raised"):
            words = [sys.executable, "-c", script, f"127.0.0.1:{box.port}", "me@example.org"]
            subprocess.run(
                words, input=json.dumps(event | {"state": state}), text=True, check=True, timeout=60
            )
    finally:
        box.listener.shutdown(socket.SHUT_RDWR)
        box.listener.close()
    assert [message_from_string(mail, policy=policy.default)["Subject"] for mail in box.mails] == [
        "sfad: alert_limit raised nightly"
    ]


class Received(threading.Thread):
    """A server that takes what is posted to it, and answers with 200."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.posted: list[tuple[str, dict[str, str], str]] = []
        """Paths, headers and bodies."""
        received = self.posted

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                received.append((self.path, dict(self.headers), body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def run(self) -> None:
        self.server.serve_forever()


@pytest.mark.parametrize("recipe", ["ntfy", "slack"])
def test_a_push_to_a_telephone(start: Start, tmp_path: Path, recipe: str) -> None:
    """The recipes reach their services, as `sfactl hooks try` says."""
    for program in ("curl", "jq") if recipe == "slack" else ("curl",):
        if shutil.which(program) is None:
            pytest.skip(f"the recipe needs {program}")
    (command,) = (each for each in re.findall(r"command = \[.*\]", PAGE) if recipe in each)
    web = Received()
    web.start()
    (tmp_path / "slack-url").write_text(f"{web.url}/services/T0\n")
    command = command.replace("https://ntfy.sh", web.url)
    command = command.replace("/etc/sfad/slack-url", str(tmp_path / "slack-url"))
    daemon = start(
        config=f'[[hooks]]\nname = "phone"\non = ["run_waiting", "approval_*"]\n{command}\n'
    )
    try:
        done = daemon.sfactl("hooks", "try", "phone", "--event", "run_waiting")
        assert done.returncode == 0, done.stdout
        assert done.stdout.startswith("exit code 0")
    finally:
        web.server.shutdown()
        web.server.server_close()
    ((path, headers, body),) = web.posted
    if recipe == "ntfy":
        assert (path, headers["Title"]) == ("/my-topic", "run_waiting")
        assert body == "test: a test of this hook"
    else:
        assert path == "/services/T0"
        assert json.loads(body) == {"text": "test run_waiting: a test of this hook"}
    failed = daemon.sfactl("hooks", "try", "phone", "--event", "approval_requested")
    assert failed.returncode == 1, "no one listens any more"
