"""Where Claude Code takes its address and its login from, and how it is routed through the
gateway."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest

from sfad.agents import Person, Setup, TreeUpstream, setups
from sfad.agents.programs import claude
from sfad.agents.setup_reader import all_setups

CORP = "https://llm.corp.example/api"
USER, PROJECT, LOCAL = (
    "/home/me/.claude/settings.json",
    "/home/me/project/.claude/settings.json",
    "/home/me/project/.claude/settings.local.json",
)
MANAGED = "/etc/claude-code/managed-settings.json"
DROP_INS = "/etc/claude-code/managed-settings.d"


def at(
    files: Mapping[str, object] | None = None, daemon: Mapping[str, str] | None = None, **env: str
) -> Person:
    """A person in /home/me/project, with these files of JSON, or of text."""
    known = {
        path: (each if isinstance(each, str) else json.dumps(each)).encode()
        for path, each in (files or {}).items()
    }

    def names(directory: str) -> list[str]:
        return [
            path.removeprefix(f"{directory}/") for path in known if path.startswith(f"{directory}/")
        ]

    return Person({"HOME": "/home/me"} | env, "/home/me/project", known.get, daemon or {}, names)


def env(**values: object) -> dict[str, object]:
    return {"env": values}


def led(found: Setup) -> dict[str, str]:
    """The variables in `--settings`."""
    assert found.direct is None
    option, text = found.words
    assert option == "--settings"
    variables: dict[str, str] = json.loads(text)["env"]
    return variables


def test_claude_without_settings_gets_the_address_in_its_environment() -> None:
    found = claude.setup(
        at({USER: {"apiKeyHelper": "echo key", "env": {"A": "b"}}}, ANTHROPIC_API_KEY="k")
    )
    assert (found.env, found.words, found.upstreams) == (
        (("ANTHROPIC_BASE_URL", "{gateway}/anthropic"),),
        (),
        (),
    )


@pytest.mark.parametrize("path", [USER, PROJECT, LOCAL])
def test_an_address_in_settings_is_replaced_by_settings(path: str) -> None:
    """A variable of its environment would not count."""
    found = claude.setup(
        at({path: env(ANTHROPIC_BASE_URL=f"{CORP}/")}, ANTHROPIC_BASE_URL="https://other.example")
    )
    assert led(found) == {"ANTHROPIC_BASE_URL": "{gateway}/claude"}
    assert found.upstreams == (TreeUpstream("claude", CORP, "anthropic"),)
    assert found.only_in == "/home/me/project"


def test_the_settings_that_take_precedence_count() -> None:
    files = {
        USER: env(ANTHROPIC_BASE_URL="https://1.example"),
        PROJECT: env(ANTHROPIC_BASE_URL="https://2.example"),
    }
    assert claude.setup(at(files)).upstreams[0].url == "https://2.example"
    assert claude.setup(at(files | {LOCAL: env(ANTHROPIC_BASE_URL=CORP)})).upstreams[0].url == CORP
    assert (
        claude.setup(at(files | {LOCAL: env(ANTHROPIC_BASE_URL="")})).upstreams[0].url
        == "https://api.anthropic.com"
    )
    elsewhere = at(
        {"/c/settings.json": env(ANTHROPIC_BASE_URL=CORP), USER: {}}, CLAUDE_CONFIG_DIR="/c"
    )
    assert claude.setup(elsewhere).upstreams[0].url == CORP
    assert ("CLAUDE_CONFIG_DIR", "/c") in claude.setup(elsewhere).only_with


def test_a_file_that_the_program_does_not_read_leads_no_key_away() -> None:
    with_comment = '{ // mine\n "env": {"ANTHROPIC_BASE_URL": "https://llm.corp.example"}}'
    assert USER in str(all_setups(at({USER: with_comment}))["claude"].direct)


def test_claude_with_foundry_is_led_to_its_resource() -> None:
    found = claude.setup(at(CLAUDE_CODE_USE_FOUNDRY="1", ANTHROPIC_FOUNDRY_RESOURCE="mine"))
    assert found.upstreams == (
        TreeUpstream("claude", "https://mine.services.ai.azure.com/anthropic", "anthropic"),
    )
    assert dict(found.env) == {
        "ANTHROPIC_FOUNDRY_BASE_URL": "{gateway}/claude",
        "ANTHROPIC_FOUNDRY_RESOURCE": "",
    }
    in_settings = claude.setup(
        at({USER: env(CLAUDE_CODE_USE_FOUNDRY=1, ANTHROPIC_FOUNDRY_BASE_URL=CORP)})
    )
    assert led(in_settings)["ANTHROPIC_FOUNDRY_BASE_URL"] == "{gateway}/claude"
    assert in_settings.upstreams[0].url == CORP
    assert "ANTHROPIC_FOUNDRY_RESOURCE" in str(claude.setup(at(CLAUDE_CODE_USE_FOUNDRY="1")).direct)


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("CLAUDE_CODE_USE_BEDROCK", "Amazon Bedrock"),
        ("CLAUDE_CODE_USE_MANTLE", "Amazon Bedrock"),
        ("CLAUDE_CODE_USE_ANTHROPIC_AWS", "on AWS"),
        ("CLAUDE_CODE_USE_ANTHROPIC_GOOGLE_CLOUD", "on Google Cloud"),
        ("CLAUDE_CODE_USE_VERTEX", "Vertex AI"),
        ("ANTHROPIC_UNIX_SOCKET", "Unix socket"),
        ("CLAUDE_CODE_CLIENT_CERT", "client certificate"),
    ],
)
def test_claude_that_cannot_be_led_is_left_as_it_is(variable: str, words: str) -> None:
    for found in (
        claude.setup(at(None, None, **{variable: "1"})),
        claude.setup(at({PROJECT: env(**{variable: "1"})})),
    ):
        assert words in str(found.direct)
        assert (found.env, found.words, found.upstreams) == ((), (), ())
    assert claude.setup(at({USER: env(**{variable: 0})}, None, **{variable: "1"})).direct is None


@pytest.mark.parametrize(
    "files",
    [
        {MANAGED: env(ANTHROPIC_BASE_URL=CORP)},
        {f"{DROP_INS}/10-corp.json": env(ANTHROPIC_BASE_URL=CORP)},
        {MANAGED: {"allowedProviders": ["anthropic"]}},
        {MANAGED: {"forceLoginOrgUUID": "x"}},
        {MANAGED: env(HTTPS_PROXY="http://p", NO_PROXY="x")},
        {MANAGED: env(CLAUDE_CODE_USE_BEDROCK="1")},
    ],
)
def test_an_administrators_settings_win(files: dict[str, object]) -> None:
    assert claude.setup(at(files, ANTHROPIC_BASE_URL="https://other.example")).direct is not None


def test_an_administrators_other_settings_change_nothing() -> None:
    assert claude.setup(
        at({MANAGED: {"permissions": {}, "apiKeyHelper": "echo k"}})
    ) == claude.setup(at())


def test_claude_does_not_look_for_the_gateway_behind_the_proxy_of_its_settings() -> None:
    daemon = {"https_proxy": "http://p"}  # else the program is left as it is
    found = claude.setup(at({USER: env(HTTPS_PROXY="http://p", NO_PROXY="x")}, daemon))
    assert led(found)["NO_PROXY"] == "x,127.0.0.1"
    by_env = claude.setup(at({USER: env(https_proxy="http://p")}, daemon, NO_PROXY="y"))
    assert dict(by_env.env)["no_proxy"] == "y,127.0.0.1"


def test_a_profile_of_the_sdks_keeps_its_address() -> None:
    """ANTHROPIC_BASE_URL would take precedence over it, and send its login elsewhere."""
    profile = {"/home/me/.config/anthropic/configs/default.json": {"base_url": CORP}}
    assert "profile" in str(claude.setup(at(profile)).direct)
    assert "ANTHROPIC_BASE_URL" not in dict(setups.setup(at(profile)).env)
    assert claude.setup(at(profile, ANTHROPIC_BASE_URL=CORP)).direct is None
    assert claude.setup(at({"/home/me/.config/anthropic/configs/default.json": {}})).direct is None
    named = {
        "/home/me/.config/anthropic/active_config": "b\n",
        "/home/me/.config/anthropic/configs/b.json": {"base_url": CORP},
    }
    assert claude.setup(at(named)).direct is not None


@pytest.mark.parametrize(
    ("settings", "word", "undone"),
    [
        ({}, "--settings", False),
        ({}, '{"permissions": {}}', False),
        ({}, '{"env": {"ANTHROPIC_BASE_URL": "https://a.example"}}', True),
        ({}, '--settings={"env":\n{"CLAUDE_CODE_USE_BEDROCK": "1"}}', True),
        ({}, "tell me of ANTHROPIC_BASE_URL", False),
        (env(ANTHROPIC_BASE_URL=CORP), "--settings", True),
        (env(ANTHROPIC_BASE_URL=CORP), "--settings=x", True),
        (env(ANTHROPIC_BASE_URL=CORP), "--setting-sources=user", True),
        (env(ANTHROPIC_BASE_URL=CORP), "--settingsx", False),
    ],
)
def test_options_with_which_other_settings_count(
    settings: dict[str, object], word: str, undone: bool
) -> None:
    pattern = claude.setup(at({USER: settings})).undone_by
    assert pattern is not None
    assert bool(re.fullmatch(pattern, word)) is undone


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["-p", "--settings", "f", "go"], "f"),
        (["--settings=f"], "f"),
        (["--settings", ' {"env": {}}'], None),
        (["--settings", "f", "--settings", "{}"], None),
        (["--settings"], None),
        (["--setting-sources", "user"], None),
        ([], None),
    ],
)
def test_the_file_that_a_command_names_is_found(words: list[str], file: str | None) -> None:
    assert claude.settings_file(words) == file
