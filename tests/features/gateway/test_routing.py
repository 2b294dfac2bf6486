"""Variables of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from subprocess import Popen

import pytest

from sfad.agents import Person
from sfad.agents.command import Command
from sfad.agents.setup_reader import TreeSetups, tree_setups
from sfad.core.events import AgentProcess
from sfad.features.gateway.gateways import Gateways
from sfad.features.gateway.routing import (
    PLACEHOLDER,
    Routed,
    exempt_from_proxies,
    routed,
    with_objects,
)
from sfad.processes import kernel
from tests.harness import wait_until
from tests.loop.shell import shell
from tests.processes.fake import FakeLauncher

from .gateways import gateways_of


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ([b"A=b", b"NO_PROXY=x"], b"x"),
        ([b"A=b", b"HTTPS_PROXY=", b"NO_PROXY=x"], b"x"),
        ([b"HTTPS_PROXY=http://p"], b"127.0.0.1"),
        ([b"http_proxy=http://p", b"NO_PROXY=a, b"], b"a, b,127.0.0.1"),
        ([b"ALL_PROXY=http://p", b"NO_PROXY=a", b"no_proxy=b"], b"b,127.0.0.1"),
        ([b"all_proxy=http://p", b"NO_PROXY=", b"no_proxy=*"], b"*"),
        ([b"https_proxy=http://p", b"NO_PROXY=a, 127.0.0.1 ,b"], b"a, 127.0.0.1 ,b"),
    ],
)
def test_no_program_looks_for_the_gateway_behind_a_proxy(env: list[bytes], told: bytes) -> None:
    new = exempt_from_proxies(env)
    values = dict(item.split(b"=", 1) for item in new)
    assert values[b"NO_PROXY"] == told
    assert values.get(b"no_proxy", told) == told
    assert len(values) == len(new)
    assert [item for item in new if not item.lower().startswith(b"no_proxy=")] == [
        item for item in env if not item.lower().startswith(b"no_proxy=")
    ]
    assert exempt_from_proxies(new) == new


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ([b"A=b"], [b"A=b", b'V={"url": "http://g/x"}']),
        (
            [b'V={"url": "mine", "more": 1, // mine\n}', b"A=b"],
            [b"A=b", b'V={"url": "http://g/x", "more": 1}'],
        ),
        ([b"V=not JSON"], [b"V=not JSON"]),
    ],
)
def test_an_object_iswith_objects_into_what_a_program_is_given(
    env: list[bytes], told: list[bytes]
) -> None:
    """A child's own settings, or the server of `--mcp`, are in the same variable."""
    assert with_objects(env, [("V", '{"url": "{gateway}/x"}')], "http://g") == told


def tree(env: Mapping[str, str], files: Mapping[str, str] | None = None) -> TreeSetups:
    known = {path: text.encode() for path, text in (files or {}).items()}
    return tree_setups(Person({"HOME": "/h"} | dict(env), "/w", known.get, {}), ())


def run(gateways: Gateways, setups: TreeSetups, program: str, env: Mapping[str, str]) -> Routed:
    told = [f"{name}={value}".encode() for name, value in ({"HOME": "/h"} | dict(env)).items()]
    command = Command([program.encode()], b"/w", told)
    return routed(command, setups, gateways, os.getuid(), gateway=True)


def variables(spawn: Routed) -> dict[str, str]:
    return dict(os.fsdecode(item).split("=", 1) for item in spawn.env)


FOUNDRY = {"CLAUDE_CODE_USE_FOUNDRY": "1", "ANTHROPIC_FOUNDRY_RESOURCE": "mine"}


@pytest.mark.parametrize(
    ("changed", "direct"),
    [
        ({}, False),
        ({"OPENAI_BASE_URL": "https://other.example"}, False),
        ({"ANTHROPIC_FOUNDRY_RESOURCE": "other"}, True),
        ({"ANTHROPIC_FOUNDRY_BASE_URL": "https://other.example"}, True),
        ({"CLAUDE_CODE_USE_FOUNDRY": ""}, True),
        ({"CLAUDE_CODE_USE_BEDROCK": "1"}, True),
    ],
)
async def test_what_a_script_changes_of_foundry_leads_around_the_gateway(
    tmp_path: Path, changed: dict[str, str], direct: bool
) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        setups = tree(FOUNDRY)
        spawn = run(gateways_of(runtime), setups, "claude", FOUNDRY | changed)
        assert (spawn.direct is not None) is direct
        if direct:
            assert variables(spawn).items() >= (FOUNDRY | changed).items()
        else:
            again = run(gateways_of(runtime), setups, "claude", variables(spawn))
            assert (again.direct, variables(again)) == (None, variables(spawn))


def is_led(gateways: Gateways, env: Mapping[str, str]) -> bool:
    """Return whether a Gemini CLI with this environment calls its model through a gateway."""
    with Popen(["sleep", "60"], env=env, executable=which("sleep")) as process:
        try:
            wait_until(lambda: kernel.environ(process.pid), "it is executed")
            return gateways.lead(AgentProcess(process.pid, 0, "gemini", ""))
        finally:
            process.kill()


async def test_gemini_cli_that_starts_itself_again_without_its_variable_is_still_led(
    tmp_path: Path,
) -> None:
    """As it does where no setting chooses its key, and Node.js leads its calls."""
    async with shell(tmp_path, FakeLauncher) as runtime:
        chosen = {"GEMINI_CLI_TRUST_WORKSPACE": "true", "GEMINI_API_KEY": "k"}
        env = variables(run(gateways_of(runtime), tree(chosen), "gemini", chosen))
        led = []
        for gone in "GOOGLE_GEMINI_BASE_URL", "NODE_OPTIONS":
            del env[gone]
            led.append(is_led(gateways_of(runtime), env))
        assert led == [True, False]


@pytest.mark.parametrize(
    ("program", "variable", "direct"),
    [
        ("codex", "OPENAI_BASE_URL", False),
        ("claude", "OPENAI_BASE_URL", False),
        ("claude", "ANTHROPIC_BASE_URL", True),
        ("gemini", "ANTHROPIC_BASE_URL", False),
        ("opencode", "OPENAI_BASE_URL", True),
        ("aider", "OPENAI_API_BASE", True),
        ("other", "OPENAI_BASE_URL", True),
    ],
)
async def test_only_the_variables_of_a_program_lead_it_around_the_gateway(
    tmp_path: Path, program: str, variable: str, direct: bool
) -> None:
    """Another one stays as the script has set it, for what the program starts."""
    async with shell(tmp_path, FakeLauncher) as runtime:
        chosen = {"GEMINI_CLI_TRUST_WORKSPACE": "true", "GEMINI_API_KEY": "k"}
        settings = {
            "/h/.gemini/settings.json": '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'
        }
        spawn = run(
            gateways_of(runtime),
            tree(chosen, settings),
            program,
            chosen | {variable: "https://other.example"},
        )
        assert (spawn.direct is not None) is direct
        assert variables(spawn)[variable] == "https://other.example"


OPERATOR = """
[gateway.upstreams.anthropic]
url = "https://a.example"
api = "anthropic"
key_file = "/k"
[gateway.upstreams.openai]
url = "https://o.example/v1"
api = "openai-responses"
key_file = "/k"
[gateway.upstreams.gemini]
url = "https://g.example"
api = "gemini"
key_file = "/k"
"""
KEYS = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o", "GEMINI_API_KEY": "g"}
CORP = (
    'model_provider = "corp"\n[model_providers.corp]\nbase_url = '
    '"https://c.example/v1"\nenv_key = "OPENAI_API_KEY"\n'
)


@pytest.mark.parametrize(
    ("files", "program", "kept"),
    [
        ({}, "claude", ""),
        ({}, "other", ""),
        (
            {"/h/.claude/settings.json": '{"env": {"ANTHROPIC_BASE_URL": "https://c.example"}}'},
            "claude",
            "a",
        ),
        (
            {"/h/.claude/settings.json": '{"env": {"ANTHROPIC_BASE_URL": "https://c.example"}}'},
            "other",
            "a",
        ),
        ({"/h/.codex/config.toml": CORP}, "codex", "o"),
        ({"/h/.codex/config.toml": 'openai_base_url = "https://c.example/v1"'}, "codex", "o"),
        ({"/w/.aider.conf.yml": "openai-api-base: https://c.example/v1"}, "aider", "o"),
        (
            {
                "/w/opencode.json": (
                    '{"provider": {"openai": {"options": {"baseURL": "https://c.example/v1"}}}}'
                )
            },
            "opencode",
            "o",
        ),
        ({"/w/.env": "ANTHROPIC_BASE_URL=https://c.example"}, "other", "a"),
    ],
)
async def test_keys_for_addresses_of_a_persons_own_stay(
    tmp_path: Path, files: Mapping[str, str], program: str, kept: str
) -> None:
    async with shell(tmp_path, FakeLauncher, OPERATOR) as runtime:
        setups = tree(KEYS, files)
        told = variables(run(gateways_of(runtime), setups, program, KEYS))
        assert {value for name, value in told.items() if name in KEYS} - {PLACEHOLDER} == {*kept}
        from_above = {"ANTHROPIC_API_KEY": PLACEHOLDER, "OPENAI_API_KEY": PLACEHOLDER}
        without = variables(run(gateways_of(runtime), setups, program, from_above))
        own = kept == "a" and (program == "claude" or "/w/.env" in files)
        variable = "ANTHROPIC_AUTH_TOKEN" if program == "claude" else "ANTHROPIC_API_KEY"
        assert [
            name
            for name in without
            if name.startswith("ANTHROPIC_") and name[-3:] in ("KEY", "KEN")
        ] == [variable] * (not own)
