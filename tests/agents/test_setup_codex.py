"""Where Codex takes its address from, and how it is routed through the gateway."""

from __future__ import annotations

import json
import tomllib

import msgspec
import pytest

from sfad.agents import Person, Setup, TreeUpstream
from sfad.agents.programs import codex
from sfad.agents.setup_reader import TreeSetups, all_setups, tree_setups
from sfad.agents.setups import merged
from sfad.features.gateway.program.upstreams import route_of

CONFIG = "/home/me/.codex/config.toml"
AUTH = "/home/me/.codex/auth.json"
CORP = "https://llm.corp.example/v1"
CHATGPT_LOGIN = {AUTH: json.dumps({"auth_mode": "chatgpt", "tokens": {"access_token": "t"}})}
PROVIDER = f'[model_providers.corp]\nname = "Corp"\nbase_url = "{CORP}/"\nenv_key = "CORP_KEY"\n'
USUAL = ("-c", 'openai_base_url="{gateway}/openai"')


def at(files: dict[str, str] | None = None, **env: str) -> Person:
    known = {path: text.encode() for path, text in (files or {}).items()}

    def names(directory: str) -> list[str]:
        return [path.rpartition("/")[2] for path in known if path.rpartition("/")[0] == directory]

    return Person({"HOME": "/home/me"} | env, "/home/me/project", known.get, {}, names)


def setup(files: dict[str, str] | None = None, **env: str) -> Setup:
    return codex.setup(at(files, **env))


def places(found: Setup) -> dict[str, str]:
    """Return by provider which URL its calls get to through the gateway; `openai` stands for that
    of the config."""
    urls = {upstream.name: upstream.url for upstream in found.upstreams}
    assert set(found.words[::2]) <= {"-c"}
    settings = merged(*(tomllib.loads(word) for word in found.words[1::2]))
    own = {"openai": settings["openai_base_url"]} if "openai_base_url" in settings else {}
    others = {
        name: provider["base_url"] for name, provider in settings.get("model_providers", {}).items()
    }
    result = {}
    for name, address in (own | others).items():
        route = route_of(f"{address}/responses".removeprefix("{gateway}"))
        assert route is not None
        result[name] = urls.get(route.upstream, route.upstream)
    return result


def command(found: Setup, *options: str, **env: str) -> Setup:
    return TreeSetups(unusual=(found,)).of("codex", options, {"HOME": "/home/me"} | env)


def test_codex_without_settings_goes_to_the_upstream_of_the_config() -> None:
    found = setup()
    assert (found.words, found.upstreams, found.direct) == (USUAL, (), None)
    assert setup({AUTH: '{"OPENAI_API_KEY": "sk"}'}).words == USUAL
    assert (
        setup({AUTH: '{"auth_mode": "apikey", "OPENAI_API_KEY": "sk", "tokens": null}'}).words
        == USUAL
    )


def test_the_address_of_codexs_own_provider_is_an_upstream_of_the_tree() -> None:
    found = setup({CONFIG: f'openai_base_url = "{CORP}/"\n'} | CHATGPT_LOGIN)
    assert found.upstreams == (TreeUpstream("codex-llm.corp.example/v1", CORP, "openai-responses"),)
    assert places(found) == {"openai": CORP}


def test_codex_ignores_the_variable_that_other_programs_follow() -> None:
    """It takes the name of the config's upstream."""
    assert places(setup(OPENAI_BASE_URL=CORP)) == {"openai": "https://api.openai.com/v1"}


def test_each_provider_of_the_settings_goes_to_its_own_address() -> None:
    more = (
        '[model_providers."a.b"]\nbase_url = "http://10.0.0.1:8080/openai"\nquery_params = '
        '{api-version = "1"}\n'
    )
    found = setup({CONFIG: f'model_provider = "corp"\n{PROVIDER}{more}'})
    assert places(found) == {"openai": "openai", "corp": CORP, "a.b": "http://10.0.0.1:8080/openai"}
    assert found.direct is None


def test_the_address_of_azure_is_still_known_as_such_by_codex() -> None:
    found = setup(
        {CONFIG: '[model_providers.a]\nbase_url = "https://my.openai.azure.com/openai"\n'}
    )
    assert "/codex-my.openai.azure.com%2Fopenai" in found.words[-1]


def test_a_chatgpt_login_goes_to_its_own_backend() -> None:
    assert places(setup(CHATGPT_LOGIN)) == {"openai": "https://chatgpt.com/backend-api/codex"}
    old = {AUTH: '{"OPENAI_API_KEY": null, "tokens": {"access_token": "t"}}'}
    assert places(setup(old)) == {"openai": "https://chatgpt.com/backend-api/codex"}


def test_settings_are_those_of_codex_home_above_those_of_the_system() -> None:
    files = {
        "/etc/codex/config.toml": f'openai_base_url = "{CORP}"\n',
        CONFIG: 'openai_base_url = "https://other.example"\n',
    }
    assert places(setup(files)) == {"openai": "https://other.example"}
    assert places(setup(files, CODEX_HOME="/srv/codex")) == {"openai": CORP}


@pytest.mark.parametrize(
    ("files", "env", "words"),
    [
        ({CONFIG: 'model_provider = "ollama"'}, {}, "'ollama'"),
        ({CONFIG: 'model_provider = "amazon-bedrock"'}, {}, "signed"),
        (
            {
                CONFIG: (
                    'model_provider = "x"\n[model_providers.x]\nbase_url = '
                    '"https://x.example"\naws = {}\n'
                )
            },
            {},
            "'aws'",
        ),
        ({CONFIG: 'model_provider = "x"\n[model_providers.x]\nenv_key = "K"\n'}, {}, "base_url"),
        ({CONFIG: 'model_provider = "nowhere"'}, {}, "nowhere"),
        ({CONFIG: 'openai_base_url = "llm.corp.example"'}, {}, "openai_base_url"),
        ({CONFIG: 'openai_base_url = "https://me:secret@llm.corp.example"'}, {}, "openai_base_url"),
        ({CONFIG: 'cli_auth_credentials_store = "keyring"'}, {}, "'keyring'"),
        (
            {CONFIG: 'chatgpt_base_url = "https://cg.example"'} | CHATGPT_LOGIN,
            {},
            "chatgpt_base_url",
        ),
        ({CONFIG: "openai_base_url ="}, {}, CONFIG),
        ({AUTH: "{"}, {}, AUTH),
        ({AUTH: '{"auth_mode": "agentIdentity"}'}, {}, "agentIdentity"),
        (CHATGPT_LOGIN, {"CODEX_API_KEY": "sk"}, "CODEX_API_KEY"),
        ({}, {"CODEX_ACCESS_TOKEN": "t"}, "CODEX_ACCESS_TOKEN"),
        ({}, {"CODEX_HOME": "here"}, "CODEX_HOME is 'here'"),
        (
            {"/etc/codex/managed_config.toml": f'openai_base_url = "{CORP}"'},
            {},
            "managed_config.toml sets openai_base_url",
        ),
        (
            {"/etc/codex/requirements.toml": 'model_provider = "x"'},
            {},
            "requirements.toml sets model_provider",
        ),
    ],
)
def test_codex_that_cannot_be_led_is_left_as_it_is(
    files: dict[str, str], env: dict[str, str], words: str
) -> None:
    direct = all_setups(at(files, **env))["codex"].direct
    assert direct is not None
    assert words in direct
    assert "secret" not in direct


def test_the_name_of_a_provider_may_be_any_text() -> None:
    names = ['a "quoted" \\ one', "größer 🚀", "a.b"]
    tables = "".join(
        f"[model_providers.{json.dumps(name, ensure_ascii=False)}]\nbase_url = '{CORP}'\n"
        for name in names
    )
    assert places(setup({CONFIG: tables})) == {"openai": "openai"} | dict.fromkeys(names, CORP)


def test_a_login_that_is_not_known_does_not_matter_where_the_address_is() -> None:
    found = setup(
        {CONFIG: f'model_provider = "corp"\ncli_auth_credentials_store = "keyring"\n{PROVIDER}'}
    )
    assert (found.direct, places(found)) == (None, {"corp": CORP})
    assert "'openai'" in str(command(found, "-c", "model_provider=openai").direct)


# ---- what the command says


def test_a_command_may_choose_a_provider_that_is_led() -> None:
    found = setup({CONFIG: f'model_provider = "ollama"\n{PROVIDER}'})
    assert command(found, "exec", "-c", "model_provider=corp").direct is None
    assert command(found, "exec", "--config=model_provider='corp'").words == found.words
    assert "'lmstudio'" in str(
        command(found, "-c", "model_provider=corp", "-cmodel_provider=lmstudio").direct
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("-c", f'openai_base_url="{CORP}"'), "-c openai_base_url"),
        ((f"--config=model_providers.corp.base_url={CORP}",), "-c model_providers.corp.base_url"),
        (("--oss",), "--oss"),
        (("exec", "--ignore-user-config"), "--ignore-user-config"),
        (("--local-provider=ollama",), "--local-provider=ollama"),
        (("--remote", "ws://127.0.0.1:1"), "--remote"),
    ],
)
def test_a_command_with_an_address_of_its_own_goes_around_the_gateway(
    options: tuple[str, ...], told: str
) -> None:
    found = command(setup(), *options)
    assert (found.direct, found.words) == (f"Codex's command line has {told}", ())


def test_what_comes_after_the_options_is_no_option() -> None:
    assert command(setup(), "exec", "--", "--oss").direct is None


def test_the_words_of_an_earlier_start_are_no_address_of_the_commands_own() -> None:
    found = setup()
    assert command(found, *found.words, "exec").words == found.words


def test_a_profile_has_addresses_of_its_own() -> None:
    files = {
        CONFIG: f'openai_base_url = "{CORP}"\n',
        "/home/me/.codex/work.config.toml": (
            f'openai_base_url = "https://work.example"\nmodel_provider = "corp"\n{PROVIDER}'
        ),
        "/home/me/.codex/broken.config.toml": "=",
    }
    found = setup(files)
    assert places(found) == {"openai": CORP}
    for options in (("-p", "work"), ("exec", "--profile=work"), ("-pwork",)):
        work = command(found, *options)
        assert (work.direct, places(work)) == (
            None,
            {"openai": "https://work.example", "corp": CORP},
        )
    assert "broken.config.toml" in str(command(found, "-p", "broken").direct)
    assert "'new' was not there" in str(command(found, "-p", "new").direct)
    upstreams = TreeSetups(unusual=(found,)).upstreams.values()
    assert {each.url for each in upstreams if each.name.startswith("codex-")} == {
        CORP,
        "https://work.example",
    }


def test_a_child_with_other_settings_or_another_login_goes_around_the_gateway() -> None:
    """Its key must not go where those of its root go."""
    found = setup(CODEX_HOME="/srv/codex")
    assert command(found, CODEX_HOME="/srv/codex", HOME="/elsewhere").direct is None
    assert "CODEX_HOME" in str(command(found, CODEX_HOME="/tmp/mine").direct)
    assert "CODEX_HOME" in str(command(setup(), CODEX_HOME="/tmp/mine").direct)
    assert "HOME" in str(command(setup(), HOME="/tmp/mine").direct)
    assert "CODEX_API_KEY" in str(command(setup(CHATGPT_LOGIN), CODEX_API_KEY="sk").direct)
    assert "CODEX_ACCESS_TOKEN" in str(command(setup(), CODEX_ACCESS_TOKEN="t").direct)  # noqa: S106
    # a key goes where the login's key goes
    assert command(setup(), CODEX_API_KEY="sk").direct is None


def test_what_is_kept_with_a_tree_leads_codex_later() -> None:
    found = tree_setups(
        at({CONFIG: f'openai_base_url = "{CORP}"', "/home/me/.codex/work.config.toml": ""}),
        ["codex"],
    )
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=TreeSetups)
    assert kept == found
    assert places(kept.of("codex", ["exec"], {"HOME": "/home/me"})) == {"openai": CORP}
