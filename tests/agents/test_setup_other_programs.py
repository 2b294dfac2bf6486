"""Where Gemini CLI, opencode, Qwen Code and aider take their address from, and how each is routed
through the gateway."""

from __future__ import annotations

import json
import re

import pytest

from sfad.agents import Person, Setup, TreeUpstream, setups
from sfad.agents.programs import aider, copilot, gemini, opencode, qwen
from sfad.agents.setup_reader import all_setups
from sfad.agents.setups import UnreadableError, dotenv, json_object

CORP = "https://llm.corp.example/v1"


def at(files: dict[str, str] | None = None, **env: str) -> Person:
    """A person in /home/me/project/sub, in a git repository."""
    content = {"/home/me/project/.git/HEAD": "ref", **(files or {})}
    known = {path: text.encode() for path, text in content.items()}
    return Person({"HOME": "/home/me"} | env, "/home/me/project/sub", known.get, {})


def urls(found: Setup) -> dict[str, str]:
    return {upstream.name: upstream.url for upstream in found.upstreams}


# ---- Gemini CLI


CHOSEN = {"security": {"auth": {"selectedType": "gemini-api-key"}}}


def test_gemini_whose_settings_do_not_choose_the_key_is_led_by_what_nodejs_executes_first() -> None:
    found = gemini.setup(at(GEMINI_API_KEY="k"))
    assert (found.upstreams, found.direct) == ((), None)
    assert found.env == (("GOOGLE_GEMINI_BASE_URL", "{gateway}/gemini"),)
    ((variable, option),) = found.appended
    assert variable == "NODE_OPTIONS"
    assert option.startswith("--import=data:text/javascript,")
    assert option.count("{gateway}/gemini") == 1
    assert set(' "\\\n').isdisjoint(option), "Node.js splits the variable at these"


def test_gemini_whose_settings_choose_the_key_follows_the_variable_alone() -> None:
    found = gemini.setup(at({"/home/me/.gemini/settings.json": f"{json.dumps(CHOSEN)} // mine"}))
    assert (found.env, found.appended) == ((("GOOGLE_GEMINI_BASE_URL", "{gateway}/gemini"),), ())


def test_gemini_is_led_if_its_settings_choose_the_key_only_where_it_trusts_them() -> None:
    found = gemini.setup(
        at({"/home/me/project/sub/.gemini/settings.json": json.dumps(CHOSEN)}, GEMINI_API_KEY="k")
    )
    assert (found.direct, len(found.appended)) == (None, 1)


@pytest.mark.parametrize(
    "files",
    [{"/etc/gemini-cli/settings.json": "{}"}, {"/home/me/.gemini/.env": "GEMINI_API_KEY=k"}],
)
def test_gemini_is_led_beside_settings_of_the_system_and_with_a_key_in_a_file(
    files: dict[str, str],
) -> None:
    found = gemini.setup(at(files))
    assert (found.direct, len(found.appended)) == (None, 1)


@pytest.mark.parametrize("login", ["oauth-personal", "vertex-ai"])
def test_gemini_with_another_login_is_left_as_it_is(login: str) -> None:
    settings = json.dumps({"security": {"auth": {"selectedType": login}}})
    found = gemini.setup(at({"/home/me/.gemini/settings.json": settings}, GEMINI_API_KEY="k"))
    assert found.direct is not None
    assert (found.env, found.words) == ((), ())
    assert "set security.auth.selectedType to gemini-api-key" in found.direct


@pytest.mark.parametrize(
    ("variable", "login"),
    [
        ("GOOGLE_GENAI_USE_VERTEXAI", "Vertex AI"),
        ("GOOGLE_GENAI_USE_GCA", "'oauth-personal'"),
        ("CLOUD_SHELL", "'compute-default-credentials'"),
        ("GEMINI_CLI_USE_COMPUTE_ADC", "'compute-default-credentials'"),
    ],
)
def test_gemini_with_another_login_by_a_variable_is_left_as_it_is_though_there_is_a_key(
    variable: str, login: str
) -> None:
    assert login in str(gemini.setup(at(None, GEMINI_API_KEY="k", **{variable: "true"})).direct)


def test_the_address_in_a_file_of_gemini_is_an_upstream_of_its_own() -> None:
    """Its key must not go to Google, and no other program's key there."""
    file = f"GEMINI_API_KEY=k\nexport GOOGLE_GEMINI_BASE_URL='{CORP}' # ours\n"
    person = at({"/home/me/project/.env": file}, GEMINI_CLI_TRUST_WORKSPACE="true")
    found = gemini.setup(person)
    assert found.upstreams == (TreeUpstream("gemini-cli", CORP, "gemini"),)
    assert dict(found.env)["GOOGLE_GEMINI_BASE_URL"] == "{gateway}/gemini-cli"
    assert "GOOGLE_GEMINI_BASE_URL" not in dict(setups.setup(person).env)


def test_gemini_is_left_as_it_is_if_its_address_depends_on_trust() -> None:
    file = {"/home/me/project/.env": f"GOOGLE_GEMINI_BASE_URL={CORP}"}
    assert "GEMINI_CLI_TRUST_WORKSPACE" in str(gemini.setup(at(file)).direct)
    assert gemini.setup(at(file, GEMINI_CLI_TRUST_WORKSPACE="false")).upstreams == ()


def test_only_the_first_env_file_counts_for_gemini() -> None:
    files = {
        "/home/me/project/sub/.env": "A=b",
        "/home/me/project/.env": f"GOOGLE_GEMINI_BASE_URL={CORP}",
    }
    assert gemini.setup(at(files, GEMINI_CLI_TRUST_WORKSPACE="true")).upstreams == ()


def test_programs_with_googles_sdk_are_led_unless_that_would_mislead_gemini() -> None:
    assert (
        dict(all_setups(at(GEMINI_API_KEY="k"))[""].env)["GOOGLE_GEMINI_BASE_URL"]
        == "{gateway}/gemini"
    )
    assert all_setups(at(GEMINI_API_KEY="k"))[""].appended == (), (
        "other programs of Node.js are left alone"
    )
    vertex = all_setups(at(GOOGLE_GENAI_USE_VERTEXAI="true"))[""]
    assert "GOOGLE_GEMINI_BASE_URL" not in dict(vertex.env)


# ---- aider


def test_aider_is_led_by_the_variables_that_its_files_and_options_override() -> None:
    found = aider.setup(at())
    env = dict(found.env)
    assert (env["ANTHROPIC_BASE_URL"], env["OPENAI_API_BASE"]) == (
        "{gateway}/anthropic",
        "{gateway}/openai",
    )
    assert env["OPENROUTER_API_BASE"] == "{gateway}/aider-openrouter"
    assert urls(found)["aider-openrouter"] == "https://openrouter.ai/api/v1"
    assert (found.words, found.unset) == ((), ("ANTHROPIC_API_BASE", "OPENAI_BASE_URL"))


def test_aider_keeps_the_address_of_a_persons_variable() -> None:
    found = aider.setup(
        at(OPENAI_API_BASE=f"{CORP}/", AZURE_API_BASE="https://my.openai.azure.com")
    )
    assert (urls(found)["aider-openai"], urls(found)["aider-azure"]) == (
        CORP,
        "https://my.openai.azure.com",
    )
    assert dict(found.env)["OPENAI_API_BASE"] == "{gateway}/aider-openai"


def test_the_address_in_an_env_file_of_aider_is_replaced_on_its_command_line() -> None:
    """The file would override a variable. What the person types comes later, and wins."""
    files = {
        "/home/me/.env": "OPENAI_API_BASE=https://other.example",
        "/home/me/project/.env": f"OPENAI_API_BASE={CORP}",
    }
    found = aider.setup(at(files))
    assert found.words == ("--set-env=OPENAI_API_BASE={gateway}/aider-openai",)
    assert urls(found)["aider-openai"] == CORP
    assert "OPENAI_BASE_URL" in found.unset
    assert "OPENAI_BASE_URL" not in dict(setups.setup(at(files)).env)


def test_the_address_in_aiders_own_settings_is_replaced_on_its_command_line() -> None:
    settings = (
        f"openai-api-base: {CORP}\nset-env:\n  - A=b\n "
        " - ANTHROPIC_API_BASE=https://a.example/v1/messages\n"
    )
    found = aider.setup(at({"/home/me/.aider.conf.yml": settings}))
    assert found.words == (
        "--set-env=A=b",
        "--set-env=ANTHROPIC_API_BASE=https://a.example/v1/messages",
        "--set-env=ANTHROPIC_API_BASE={gateway}/aider-anthropic",
        "--openai-api-base={gateway}/aider-openai",
    )
    assert (urls(found)["aider-openai"], urls(found)["aider-anthropic"]) == (
        CORP,
        "https://a.example",
    )


def test_aider_with_a_model_of_bedrock_is_left_as_it_is() -> None:
    assert "Amazon Bedrock" in str(aider.setup(at(AIDER_MODEL="bedrock/anthropic.claude")).direct)
    assert "Vertex AI" in str(
        aider.setup(at({"/home/me/.aider.conf.yml": "model: vertex_ai/gemini-2.5-pro"})).direct
    )


# ---- opencode


def merged(found: Setup) -> dict[str, object]:
    (variable, text) = found.merged[0]
    assert variable == "OPENCODE_CONFIG_CONTENT"
    result: dict[str, object] = json.loads(text)["provider"]
    return result


def led(name: str) -> dict[str, object]:
    return {"options": {"baseURL": f"{{gateway}}/opencode-{name}"}}


def test_opencode_with_the_providers_of_its_variables_needs_nothing_more() -> None:
    assert opencode.setup(at(ANTHROPIC_API_KEY="k", OPENAI_API_KEY="k")) == Setup("opencode")


def test_opencode_is_led_to_the_address_in_its_configuration() -> None:
    file = f'{{ // mine\n "provider": {{"anthropic": {{"options": {{"baseURL": "{CORP}",}}}}}}, }}'
    found = opencode.setup(at({"/home/me/project/opencode.jsonc": file}))
    assert (found.upstreams, merged(found)) == (
        (TreeUpstream("opencode-anthropic", CORP, "anthropic"),),
        {"anthropic": led("anthropic")},
    )


def test_the_configuration_of_opencode_that_takes_precedence_counts() -> None:
    def content(url: str) -> str:
        return json.dumps({"provider": {"openai": {"options": {"baseURL": url}}}})

    files = {
        "/home/me/.config/opencode/opencode.json": content("https://1.example/v1"),
        "/home/me/project/opencode.json": content("https://2.example/v1"),
        "/home/me/project/sub/opencode.json": content("https://3.example/v1"),
        "/home/me/project/.opencode/opencode.json": content("https://4.example/v1"),
    }
    assert urls(opencode.setup(at(files))) == {"opencode-openai": "https://4.example/v1"}
    own = at(files, OPENCODE_CONFIG_CONTENT=content("https://5.example/v1"))
    assert urls(opencode.setup(own)) == {"opencode-openai": "https://5.example/v1"}
    managed = at(files | {"/etc/opencode/opencode.json": content("https://6.example/v1")})
    assert opencode.setup(managed).upstreams == ()


def test_opencode_offers_the_same_providers_as_before() -> None:
    """A provider that is named counts as one that the person wants, and the others as unwanted."""
    auth = {
        "/home/me/.local/share/opencode/auth.json": '{"openrouter": {"type": "api", "key": "k"}}'
    }
    found = opencode.setup(at(auth, ANTHROPIC_API_KEY="k"))
    assert merged(found) == {"anthropic": {}, "openrouter": led("openrouter"), "opencode": {}}


def test_a_provider_of_opencode_with_an_address_that_is_not_known_is_not_led() -> None:
    def provider(url: str, **more: object) -> Person:
        mine = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": url}, **more}
        return at(
            {"/home/me/project/opencode.json": json.dumps({"provider": {"mine": mine}})},
            OPENAI_HOST="h.example",
        )

    assert urls(opencode.setup(provider("https://{env:OPENAI_HOST}/v1"))) == {
        "opencode-mine": "https://h.example/v1"
    }
    assert opencode.setup(provider("{env:NOT_SET}/v1")).upstreams == ()
    assert opencode.setup(provider("{file:~/url}")).upstreams == ()
    assert opencode.setup(provider(CORP, npm="some-other-package")).upstreams == ()
    assert (
        opencode.setup(
            provider(CORP, models={"m": {"provider": {"api": "https://m.example"}}})
        ).upstreams
        == ()
    )


@pytest.mark.parametrize(
    ("config", "auth", "words"),
    [
        ({"model": "amazon-bedrock/claude"}, {}, "Amazon Bedrock"),
        ({"model": "opencode/big-pickle"}, {"anthropic": {"type": "api"}}, "OpenCode Zen"),
        ({}, {"openai": {"type": "oauth"}}, "a ChatGPT login"),
        ({}, {"github-copilot": {"type": "oauth"}}, "GitHub Copilot"),
    ],
)
def test_opencode_that_cannot_be_led_is_left_as_it_is(
    config: object, auth: object, words: str
) -> None:
    files = {
        "/home/me/project/opencode.json": json.dumps(config),
        "/home/me/.local/share/opencode/auth.json": json.dumps(auth),
    }
    found = opencode.setup(at(files))
    assert words in str(found.direct)
    assert (found.env, found.merged, found.upstreams) == ((), (), ())


def test_a_configuration_of_opencode_that_is_broken_is_named() -> None:
    assert "/home/me/project/opencode.json" in str(
        all_setups(at({"/home/me/project/opencode.json": "{"}))["opencode"].direct
    )


# ---- Qwen Code


def qwen_setup(files: dict[str, str] | None = None, **env: str) -> Setup:
    return qwen.PROGRAM.setup(at(files, **env))


def test_qwen_obeys_the_variables_of_any_program() -> None:
    chosen = {
        "/home/me/.qwen/settings.json": '{"security": {"auth": {"selectedType": "openai"}}} // mine'
    }
    assert dict(qwen_setup(chosen).env)["OPENAI_BASE_URL"] == "{gateway}/openai"
    found = qwen_setup(chosen, OPENAI_BASE_URL=CORP)
    assert (found.program, found.direct, urls(found)) == ("qwen", None, {"openai": CORP})


@pytest.mark.parametrize(
    ("files", "env", "words"),
    [
        (
            {
                "/home/me/.qwen/settings.json": (
                    '{"security": {"auth": {"selectedType": "qwen-oauth"}}}'
                )
            },
            {},
            "the login 'qwen-oauth'",
        ),
        ({}, {"QWEN_OAUTH": "1"}, "the login 'qwen-oauth'"),
        ({}, {"GEMINI_API_KEY": "k", "GEMINI_MODEL": "m"}, "the login 'gemini'"),
        (
            {"/home/me/.qwen/settings.json": '{"security": {"auth": {"baseUrl": "https://x"}}}'},
            {},
            "'security.auth.baseUrl'",
        ),
        (
            {
                "/home/me/project/sub/.qwen/settings.json": (
                    '{"modelProviders": {"openai": [{"id": "m"}]}}'
                )
            },
            {},
            "'modelProviders'",
        ),
        (
            {"/elsewhere/settings.json": '{"env": {"OPENAI_BASE_URL": "https://x"}}'},
            {"QWEN_HOME": "/elsewhere"},
            "'env'",
        ),
        (
            {"/home/me/project/.qwen/.env": "OPENAI_BASE_URL=https://x"},
            {},
            "OPENAI_BASE_URL of a .env file",
        ),
        ({}, {"https_proxy": "http://proxy.example"}, "its proxy even for this machine"),
        ({"/home/me/.qwen/settings.json": '{"proxy": "http://proxy.example"}'}, {}, "'proxy'"),
        ({"/home/me/.env": "QWEN_HOME=/elsewhere"}, {}, "QWEN_HOME of a .env file"),
    ],
)
def test_qwen_that_may_call_another_address_is_left_as_it_is(
    files: dict[str, str], env: dict[str, str], words: str
) -> None:
    found = qwen_setup(files, **env)
    assert words in str(found.direct)
    assert (found.env, found.upstreams) == ((), ())


@pytest.mark.parametrize(
    "option",
    ["--openai-base-url=https://x", "--openai-base-url", "--auth-type", "--proxy=http://x"],
)
def test_a_command_of_qwen_that_names_an_address_is_left_as_it_is(option: str) -> None:
    assert re.fullmatch(str(qwen_setup().undone_by), option)
    assert not re.fullmatch(str(qwen_setup().undone_by), "--model")


def test_settings_of_qwen_that_are_broken_are_named() -> None:
    assert "/home/me/.qwen/settings.json" in str(
        all_setups(at({"/home/me/.qwen/settings.json": "{"}))["qwen"].direct
    )


# ---- files


def test_json_may_have_comments_and_last_commas() -> None:
    assert json_object('{"a": "// no, }", /* b */ "c": [1,2,],}', "x") == {
        "a": "// no, }",
        "c": [1, 2],
    }
    with pytest.raises(UnreadableError, match="x is not a JSON object"):
        json_object("[]", "x")


def test_an_env_file_has_quotes_comments_and_exports() -> None:
    text = b"A=1\nexport B = 'two words'\nC=\"#\" # comment\n# D=4\nE=five # comment\nF=\nG=a=b\n"
    assert dotenv(text) == {"A": "1", "B": "two words", "C": "#", "E": "five", "F": "", "G": "a=b"}


# ---- Copilot CLI


def copilot_setup(**env: str) -> Setup:
    return copilot.PROGRAM.setup(at(None, **env))


def test_copilot_is_led_to_a_provider_of_the_persons_own() -> None:
    found = copilot_setup(
        COPILOT_PROVIDER_BASE_URL=f"{CORP}/", COPILOT_PROVIDER_TRANSPORT="websockets"
    )
    assert found.upstreams == (TreeUpstream("copilot", CORP, "openai-chat"),)
    assert dict(found.env) == {"COPILOT_PROVIDER_BASE_URL": "{gateway}/copilot"}
    assert found.unset == ("COPILOT_PROVIDER_TRANSPORT",)
    assert "COPILOT_PROVIDER_BEARER_TOKEN" in found.keys


@pytest.mark.parametrize(
    ("env", "api"),
    [
        ({"COPILOT_PROVIDER_WIRE_API": "responses"}, "openai-responses"),
        ({"COPILOT_PROVIDER_TYPE": "openai"}, "openai-chat"),
        (
            {"COPILOT_PROVIDER_TYPE": "anthropic", "COPILOT_PROVIDER_WIRE_API": "responses"},
            "anthropic",
        ),
    ],
)
def test_the_kind_of_its_provider_says_which_api_copilot_uses(
    env: dict[str, str], api: str
) -> None:
    assert copilot_setup(COPILOT_PROVIDER_BASE_URL=CORP, **env).upstreams[0].api == api


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "GitHub's models"),
        (
            {"COPILOT_PROVIDER_BASE_URL": CORP, "COPILOT_PROVIDER_TYPE": "azure"},
            "COPILOT_PROVIDER_TYPE is 'azure'",
        ),
        (
            {"COPILOT_PROVIDER_BASE_URL": CORP, "COPILOT_PROVIDER_WIRE_API": "new"},
            "COPILOT_PROVIDER_WIRE_API is 'new'",
        ),
    ],
)
def test_copilot_with_models_that_the_gateway_cannot_serve_is_left_as_it_is(
    env: dict[str, str], words: str
) -> None:
    found = copilot_setup(**env)
    assert words in str(found.direct)
    assert (found.env, found.upstreams) == ((), ())
