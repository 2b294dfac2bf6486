"""The operator's key goes to the operator's upstreams only, whatever address a person has for which
program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sfad.protocol.known import AGENTS
from tests.conftest import Start
from tests.harness import serve_in_thread
from tests.tiers import first, variant

REAL = "of-the-operator"
CALLER = """#!/usr/bin/python3
import os, re, sys, urllib.error, urllib.parse, urllib.request
text = "\\n".join([*sys.argv[1:], *os.environ.values()])
urls = r"http://127\\.0\\.0\\.1:%s/[^\\s\\"',}]+" % os.environ["GATEWAY_PORT"]
keys = (("authorization", "Bearer own"), ("x-api-key", "own"), ("x-goog-api-key", "own"))
hosts = r"/aider-(deepseek|groq|openrouter|xai)$"  # of the world: nobody has set another address
for url in sorted(set(re.findall(urls, text))):
    for name, value in keys if re.search(hosts, url) is None else ():
        try:
            request = urllib.request.Request(url + "/v1/models", headers={name: value})
            urllib.request.urlopen(request).read()
        except urllib.error.HTTPError as error:
            print(url, error.code, error.read())
    print("called", url)
"""
"""Asks each address of the gateway that it is given, with a key of its own."""


class Host:
    """A host of models that answers anything, and notes the credentials."""

    def __init__(self) -> None:
        self.credentials: set[str] = set()
        self.url = ""

    def note(self, headers: dict[str, str]) -> None:
        names = ("authorization", "x-api-key", "x-goog-api-key", "api-key")
        self.credentials |= {
            headers[name].removeprefix("Bearer ") for name in names if name in headers
        }


@contextmanager
def serving() -> Iterator[Host]:
    """Serve a host on loopback."""
    host = Host()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host.note({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    host.url = f"http://127.0.0.1:{server.server_address[1]}"
    with serve_in_thread(server):
        yield host


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    """Serve the operator's upstream, and a person's own."""
    with ExitStack() as stack:
        yield stack.enter_context(serving()), stack.enter_context(serving())


def write(home: Path, own: str) -> None:
    """Write settings of each program with an address of the person's own."""
    opencode = {
        "provider": {
            name: {"options": {"baseURL": f"{own}/v1"}}
            for name in ("anthropic", "openai", "google")
        }
    }
    files = {
        ".claude/settings.json": json.dumps({"env": {"ANTHROPIC_BASE_URL": own}}),
        ".codex/config.toml": (
            f'openai_base_url = "{own}/v1"\n[model_providers.openai2]\nbase_url = "{own}/2/v1"\n'
        ),
        ".config/opencode/opencode.json": json.dumps(opencode),
        ".aider.conf.yml": f"openai-api-base: {own}/v1\nset-env:\n  - ANTHROPIC_API_BASE={own}\n",
        ".gemini/.env": f"GOOGLE_GEMINI_BASE_URL={own}\n",
    }
    for path, text in files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)


more = variant


@first(1)
@pytest.mark.parametrize(
    "where",
    [
        pytest.param("nowhere", marks=more),
        pytest.param("variables", marks=more),
        "settings",
        pytest.param("both", marks=more),
    ],
)
def test_no_address_of_a_persons_gets_the_operators_key(
    start: Start,
    hosts: tuple[Host, Host],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    """Also where the names of both are the same."""
    operator, own = hosts
    (tmp_path / "key").write_text(REAL)
    apis = {
        "anthropic": "anthropic",
        "openai": "openai-responses",
        "gemini": "gemini",
        "claude": "anthropic",
    }
    tables = (
        (
            f'[gateway.upstreams.{name}]\nurl = "{operator.url}"\napi = '
            f'"{api}"\nkey_file = "{tmp_path / "key"}"\n'
        )
        for name, api in apis.items()
    )
    daemon = start(config="".join(("[gateway]\nenabled = true\n", *tables)))
    home = tmp_path / "home"
    bin_ = home / "bin"
    bin_.mkdir(parents=True)
    for program in (*AGENTS, "other"):
        (bin_ / program).write_text(CALLER)
        (bin_ / program).chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")
    monkeypatch.setenv("GEMINI_CLI_TRUST_WORKSPACE", "true")
    monkeypatch.setenv(
        "GATEWAY_PORT", str(json.loads((daemon.state_dir / "gateway.json").read_text())["port"])
    )
    if where in ("settings", "both"):
        write(home, own.url)
    if where in ("variables", "both"):
        for variable in (
            "ANTHROPIC_BASE_URL",
            "ANTHROPIC_API_BASE",
            "OPENAI_BASE_URL",
            "OPENAI_API_BASE",
            "GOOGLE_GEMINI_BASE_URL",
            "COPILOT_PROVIDER_BASE_URL",
        ):
            monkeypatch.setenv(variable, own.url)
    # Copilot CLI has no address but that of a person's provider
    led = [each for each in AGENTS if each != "copilot" or where in ("variables", "both")]
    for program in (*led, "other"):
        for words in ([program], ["sh", "-c", program]):
            done = daemon.sfactl("run", "-q", "--", *words)
            assert done.returncode == 0, (program, done.stdout + done.stderr)
            assert "called" in done.stdout, (program, done.stdout)
    assert operator.credentials == ({REAL} if where in ("nowhere", "settings") else set())
    assert own.credentials == (set() if where == "nowhere" else {"own"})
