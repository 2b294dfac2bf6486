"""The real programs with addresses and logins of a person's own: each key goes to the host that the
person has configured for it, through the gateway where that can be, and else around it, and the
start says so."""

from __future__ import annotations

import json
import shlex
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.harness import wait_until
from tests.real_agents.clis import CLAUDE
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk, in_a_terminal
from tests.real_agents.model import Talk, serving
from tests.real_agents.script import Say, Shell
from tests.real_agents.test_gateway import GATEWAY, PRICES, command

SCRIPT = (Shell("echo one"), Shell("echo two"), Say("Done."))


@dataclass(frozen=True)
class Hosts:
    """Where calls may go: to the provider, or to a host of the person's own."""

    provider: Talk
    own: Talk
    provider_url: str
    own_url: str


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with ExitStack() as stack:
        provider, own = (stack.enter_context(serving({"claude": SCRIPT})) for _ in range(2))
        urls = (f"{model.url}/claude" for model in (provider, own))
        yield Hosts(provider.talks["claude"], own.talks["claude"], *urls)


def claude_desk(desk: MakeDesk, hosts: Hosts, more: str = "") -> Desk:
    """Return a desk where Claude Code has neither an address nor a key, and calls the provider.
    `more`: of the upstream."""
    upstream = (
        f'[gateway.upstreams.anthropic]\nurl = "{hosts.provider_url}"\napi = "anthropic"\n{more}'
    )
    at = desk(config=GATEWAY + PRICES + upstream, claude=())
    for variable in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"):
        del at.env[variable]
    return at


def write(at: Desk, path: str, content: object, *, mode: int = 0o600) -> None:
    """Write a file of JSON below the home directory."""
    file = Path(at.env["HOME"], path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    file.chmod(mode)


def run(at: Desk, *words: str) -> tuple[str, dict[str, Any]]:
    """Run Claude Code. Return what the start said, and what its run used, by source."""
    done = at.sfactl("run", "--name", "planner", "--", *(words or command(CLAUDE, "argv")))
    assert done.returncode == 0, done.stdout + done.stderr
    (planner, *_) = at.listed()
    usage: dict[str, Any] = at.json("info", planner["id"])["usage_by_source"]
    return done.stderr, usage


# ---- Claude Code

SETTINGS = ".claude/settings.json"


@pytest.mark.parametrize(
    ("file", "settings", "env", "credentials"),
    [
        (SETTINGS, {"env": {"ANTHROPIC_BASE_URL": "OWN/api", "ANTHROPIC_AUTH_TOKEN": "mine"}}, {},
         {"Bearer mine"}),
        (SETTINGS, {"env": {"ANTHROPIC_BASE_URL": "OWN"}}, {"ANTHROPIC_API_KEY": "scripted"},
         {"scripted"}),
        (SETTINGS, {"env": {"ANTHROPIC_BASE_URL": "OWN"}, "apiKeyHelper": "echo helped"}, {},
         {"Bearer helped", "helped"}),
        (SETTINGS, {"env": {"ANTHROPIC_BASE_URL": "OWN"}},
         {"CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01"}, {"Bearer sk-ant-oat01"}),
        (".claude/settings.local.json",
         {"env": {"ANTHROPIC_BASE_URL": "OWN", "ANTHROPIC_API_KEY": "scripted"}}, {}, {"scripted"}),
        (
            "mine/settings.json",
            {"env": {"ANTHROPIC_BASE_URL": "OWN", "ANTHROPIC_AUTH_TOKEN": "mine"}},
            {"CLAUDE_CONFIG_DIR": "HOME/mine"},
            {"Bearer mine"},
        ),
        (SETTINGS, {}, {"ANTHROPIC_BASE_URL": "OWN/api/v1", "ANTHROPIC_AUTH_TOKEN": "mine"},
         {"Bearer mine"}),
        (
            SETTINGS, {},
            {"CLAUDE_CODE_USE_FOUNDRY": "1", "ANTHROPIC_FOUNDRY_BASE_URL": "OWN",
             "ANTHROPIC_FOUNDRY_API_KEY": "azure"},
            {"azure"},
        ),
        (
            SETTINGS,
            {"env": {"CLAUDE_CODE_USE_FOUNDRY": 1, "ANTHROPIC_FOUNDRY_BASE_URL": "OWN/anthropic/"}},
            {"ANTHROPIC_FOUNDRY_AUTH_TOKEN": "azure"},
            {"Bearer azure"},
        ),
    ],
    ids=["token", "key", "helper", "login", "project", "config-dir", "path", "azure",
         "azure-settings"],
)  # fmt: skip
def test_claude_calls_the_address_of_its_settings_through_the_gateway(
    desk: MakeDesk,
    hosts: Hosts,
    file: str,
    settings: dict[str, Any],
    env: dict[str, str],
    credentials: set[str],
) -> None:
    at = claude_desk(desk, hosts)

    def filled(text: str) -> str:
        return text.replace("OWN", hosts.own_url).replace("HOME", at.env["HOME"])

    write(at, file, json.loads(filled(json.dumps(settings))))
    at.env.update({variable: filled(value) for variable, value in env.items()})
    said, usage = run(at)
    assert (hosts.own.credentials, hosts.provider.credentials) == (credentials, set())
    assert (usage["gateway"]["turns"], hosts.own.answered) == (2, 3)
    assert "gateway" not in said


LOGIN = {
    "accessToken": "sk-ant-oat01-login",
    "refreshToken": "r",
    "scopes": ["user:inference"],
    "subscriptionType": "max",
}


@pytest.mark.parametrize(
    ("file", "content", "env", "credentials"),
    [
        (SETTINGS, {"apiKeyHelper": "echo helped"}, {}, {"Bearer helped", "helped"}),
        (SETTINGS, {"env": {"ANTHROPIC_AUTH_TOKEN": "mine"}}, {}, {"Bearer mine"}),
        (SETTINGS, {}, {"CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-x"}, {"Bearer sk-ant-oat01-x"}),
        (".claude/.credentials.json", {"claudeAiOauth": LOGIN}, {}, {"Bearer sk-ant-oat01-login"}),
    ],
    ids=["helper", "token", "login", "login-file"],
)
def test_claude_without_an_address_calls_the_provider_through_the_gateway(
    desk: MakeDesk,
    hosts: Hosts,
    file: str,
    content: dict[str, Any],
    env: dict[str, str],
    credentials: set[str],
) -> None:
    at = claude_desk(desk, hosts)
    if "claudeAiOauth" in content:
        content = {"claudeAiOauth": LOGIN | {"expiresAt": int(time.time() + 9 * 3600) * 1000}}
    write(at, file, content)
    at.env.update(env)
    _, usage = run(at)
    assert (hosts.provider.credentials, hosts.own.credentials) == (credentials, set())
    assert usage["gateway"]["turns"] == 2


TYPED = '{"env": {"ANTHROPIC_BASE_URL": "OWN"}}'
MANTLE = {
    "CLAUDE_CODE_USE_MANTLE": "1",
    "AWS_BEARER_TOKEN_BEDROCK": "aws",
    "AWS_REGION": "us-east-1",
}


@pytest.mark.parametrize(
    ("settings", "options", "credential", "why"),
    [
        (
            {"env": MANTLE | {"ANTHROPIC_BEDROCK_MANTLE_BASE_URL": "OWN"}},
            [],
            "Bearer aws",
            "CLAUDE_CODE_USE_MANTLE",
        ),
        (
            {"env": {"ANTHROPIC_BASE_URL": "OTHER"}},
            ["--settings", TYPED],
            "scripted",
            "the settings in its command",
        ),
        ({}, ["--settings", TYPED], "scripted", "the settings in its command"),
    ],
    ids=["mantle", "other-settings", "settings"],
)
def test_claude_that_cannot_be_led_goes_around_the_gateway_and_the_start_says_so(
    desk: MakeDesk,
    hosts: Hosts,
    settings: dict[str, Any],
    options: list[str],
    credential: str,
    why: str,
) -> None:
    at = claude_desk(desk, hosts)

    def filled(text: str) -> str:
        return text.replace("OWN", hosts.own_url).replace("OTHER", hosts.provider_url)

    write(at, SETTINGS, json.loads(filled(json.dumps(settings))))
    at.env["ANTHROPIC_API_KEY"] = "scripted"
    program, *words = command(CLAUDE, "argv")
    said, usage = run(at, program, *map(filled, options), *words)
    assert (hosts.own.credentials, hosts.provider.credentials) == ({credential}, set())
    assert "gateway" not in usage
    assert why in said


def test_claude_with_a_proxy_that_the_daemon_does_not_have_goes_around_the_gateway(
    desk: MakeDesk, hosts: Hosts
) -> None:
    at = claude_desk(desk, hosts)
    at.env.update(
        HTTPS_PROXY="http://127.0.0.1:9",
        NO_PROXY="127.0.0.1",
        ANTHROPIC_API_KEY="scripted",
        ANTHROPIC_BASE_URL=hosts.own_url,
    )
    said, usage = run(at)
    assert (hosts.own.credentials, hosts.provider.credentials) == ({"scripted"}, set())
    assert "gateway" not in usage
    assert "HTTPS_PROXY" in said


def test_claude_is_told_of_a_dead_proxy_of_the_daemon_at_once(
    desk: MakeDesk, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer for it, it tries for three minutes."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    at = claude_desk(desk, hosts)
    monkeypatch.undo()
    at.env["ANTHROPIC_API_KEY"] = "scripted"
    done = at.sfactl("run", "--", *CLAUDE.as_text)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "through the proxy that HTTP_PROXY of the daemon's environment names" in done.stdout
    assert hosts.provider.credentials == set()


def test_claude_calls_a_host_with_a_certificate_of_the_persons_own(
    desk: MakeDesk, hosts: Hosts, tmp_path: Path
) -> None:
    """The daemon's environment does not name its authority."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    at = claude_desk(desk, hosts)
    with serving({"claude": SCRIPT}, context) as model:
        url = model.url.replace("http://127.0.0.1", "https://localhost")
        at.env.update(
            ANTHROPIC_BASE_URL=f"{url}/claude",
            ANTHROPIC_API_KEY="scripted",
            NODE_EXTRA_CA_CERTS=str(tmp_path / "ca.pem"),
        )
        _, usage = run(at)
        assert (model.talks["claude"].credentials, hosts.provider.credentials) == (
            {"scripted"},
            set(),
        )
    assert usage["gateway"]["turns"] == 2


def test_claude_with_servers_of_mcp_and_an_unknown_model_sends_its_key_to_no_other_host(
    desk: MakeDesk, hosts: Hosts
) -> None:
    """Nor does the gateway get what is meant for the server."""
    at = claude_desk(desk, hosts)
    write(
        at, SETTINGS, {"env": {"ANTHROPIC_BASE_URL": hosts.own_url, "ANTHROPIC_AUTH_TOKEN": "mine"}}
    )
    server = {
        "type": "http",
        "url": f"{hosts.provider_url}/v1/messages",
        "headers": {"Authorization": "Bearer of-mcp"},
    }
    program, *words = CLAUDE.argv
    options = [
        "--mcp-config",
        json.dumps({"mcpServers": {"s": server}}),
        "--model",
        "claude-of-tomorrow",
    ]
    _, usage = run(at, program, *words, *options)
    assert (hosts.own.credentials, hosts.provider.credentials) == (
        {"Bearer mine"},
        {"Bearer of-mcp"},
    )
    assert usage["gateway"]["turns"] == 2


def test_claude_in_a_terminal_calls_the_address_of_its_settings_through_the_gateway(
    desk: MakeDesk, hosts: Hosts
) -> None:
    at = claude_desk(desk, hosts)
    write(
        at, SETTINGS, {"env": {"ANTHROPIC_BASE_URL": hosts.own_url, "ANTHROPIC_AUTH_TOKEN": "mine"}}
    )
    with in_a_terminal(
        at, "run", "--stdio", "inherit", "--name", "planner", "--", *command(CLAUDE, "in_terminal")
    ):
        wait_until(lambda: hosts.own.answered == 3, "it has made its calls")
        at.sfactl("stop", "planner")
    (planner,) = at.listed()
    assert at.json("info", planner["id"])["usage_by_source"]["gateway"]["turns"] == 2
    assert (hosts.own.credentials, hosts.provider.credentials) == ({"Bearer mine"}, set())


@pytest.mark.parametrize("moved", ["directory", "home"])
def test_claude_with_other_settings_below_is_left_as_it_is(
    desk: MakeDesk, hosts: Hosts, moved: str
) -> None:
    """The settings of the root's directory must not lead the key of others away."""
    at = claude_desk(desk, hosts)
    write(at, ".claude/settings.local.json", {"env": {"ANTHROPIC_BASE_URL": hosts.provider_url}})
    own = {"env": {"ANTHROPIC_BASE_URL": hosts.own_url, "ANTHROPIC_AUTH_TOKEN": "mine"}}
    write(at, "other/.claude/settings.local.json", own)
    write(at, "other/settings.json", own)
    there = (
        "cd other"
        if moved == "directory"
        else f"cd tmp; export CLAUDE_CONFIG_DIR={at.env['HOME']}/other"
    )
    _, usage = run(at, "sh", "-c", f"{there}; {shlex.join(command(CLAUDE, 'argv'))}")
    assert (hosts.own.credentials, hosts.provider.credentials) == ({"Bearer mine"}, set())
    assert "gateway" not in usage


def test_an_address_that_a_script_sets_keeps_its_key(desk: MakeDesk, hosts: Hosts) -> None:
    at = claude_desk(desk, hosts)
    own = f"ANTHROPIC_BASE_URL={hosts.own_url} ANTHROPIC_AUTH_TOKEN=mine"
    run(at, "sh", "-c", f"{own} {shlex.join(command(CLAUDE, 'argv'))}")
    assert (hosts.own.credentials, hosts.provider.credentials) == ({"Bearer mine"}, set())


@pytest.mark.parametrize("form", ["argv", "script"])
def test_a_key_for_an_address_in_settings_stays_where_the_gateway_has_the_providers(
    desk: MakeDesk, hosts: Hosts, tmp_path: Path, form: str
) -> None:
    (tmp_path / "key").write_text("of-the-operator")
    at = claude_desk(desk, hosts, f'key_file = "{tmp_path / "key"}"\n')
    at.env["ANTHROPIC_API_KEY"] = "scripted"
    words = command(CLAUDE, "argv")
    run(at, *(words if form == "argv" else ("sh", "-c", shlex.join(words))))
    assert (hosts.own.credentials, hosts.provider.credentials) == (set(), {"of-the-operator"})
    hosts.provider.credentials.clear()
    write(at, SETTINGS, {"env": {"ANTHROPIC_BASE_URL": hosts.own_url}})
    run(at, *(words if form == "argv" else ("sh", "-c", shlex.join(words))))
    assert (hosts.own.credentials, hosts.provider.credentials) == ({"scripted"}, set())


def test_another_resource_of_foundry_that_a_script_sets_keeps_its_key(
    desk: MakeDesk, hosts: Hosts
) -> None:
    at = claude_desk(desk, hosts)
    provider = {"CLAUDE_CODE_USE_FOUNDRY": "1", "ANTHROPIC_FOUNDRY_API_KEY": "azure"}
    at.env.update(provider, ANTHROPIC_FOUNDRY_BASE_URL=hosts.provider_url)
    other = f"ANTHROPIC_FOUNDRY_BASE_URL={hosts.own_url} ANTHROPIC_FOUNDRY_API_KEY=mine"
    _, usage = run(at, "sh", "-c", f"{other} {shlex.join(command(CLAUDE, 'argv'))}")
    assert (hosts.own.credentials, hosts.provider.credentials) == ({"mine"}, set())
    assert "gateway" not in usage


@pytest.mark.parametrize("form", ["argv", "script"])
@pytest.mark.parametrize("address", [True, False])
def test_an_address_in_a_file_that_the_command_names_leads_around_the_gateway(
    desk: MakeDesk, hosts: Hosts, form: str, address: bool
) -> None:
    at = claude_desk(desk, hosts)
    write(
        at,
        "own.json",
        {
            "env": {"ANTHROPIC_AUTH_TOKEN": "mine"}
            | ({"ANTHROPIC_BASE_URL": hosts.own_url} if address else {})
        },
    )
    program, *words = command(CLAUDE, "argv")
    argv = [program, "--settings", "own.json", *words]
    said, _ = run(at, *(argv if form == "argv" else ("sh", "-c", shlex.join(argv))))
    assert [hosts.own.credentials, hosts.provider.credentials] == [{"Bearer mine"}, set()][
        :: 1 if address else -1
    ]
    called = [
        at.json("info", each["id"])["usage_by_source"]
        for each in at.listed()
        if each["name"] != "planner" or form == "argv"
    ]
    assert ["gateway" not in usage for usage in called] == [address]
    assert ("ANTHROPIC_BASE_URL in" in said) is address
