"""Where the key of the real Codex arrives: at the host that its settings name, through the gateway,
and at no other."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.real_agents.clis import CODEX
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk
from tests.real_agents.model import Model, serving
from tests.real_agents.test_gateway import CODEX_QUIET, GATEWAY, PRICES, SCRIPT

KEY = "key-of-codex"
API_KEY = json.dumps({"auth_mode": "apikey", "OPENAI_API_KEY": KEY})


def chatgpt_login() -> str:
    """Return an `auth.json` with a token that looks like one of ChatGPT and is valid for an
    hour."""
    claims = {
        "exp": int(time.time()) + 3600,
        "https://api.openai.com/auth": {"chatgpt_plan_type": "pro"},
    }
    parts = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
        for part in ({"alg": "none"}, claims)
    )
    tokens = {
        "id_token": ".".join([*parts, "c2ln"]),
        "access_token": KEY,
        "refresh_token": "r",
        "account_id": "an-account",
    }
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return json.dumps(
        {"auth_mode": "chatgpt", "OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": now}
    )


class Case(NamedTuple):
    """Settings of a person. `{own}` stands for the host that they name."""

    config: str
    auth: str | None = None
    profile: str = ""
    options: tuple[str, ...] = ()
    target: str = "/codex/v1/responses"


CORP = """[model_providers.corp]
name = "Corp"
base_url = "{own}/codex/v1"
env_key = "CORP_KEY"
"""
AZURE = """model_provider = "azure"
[model_providers.azure]
name = "Azure"
base_url = "{own}/codex/openai"
env_http_headers = {{api-key = "CORP_KEY"}}
query_params = {{api-version = "2026-01-01"}}
"""
CASES = {
    "address": Case('openai_base_url = "{own}/codex/v1"\n', API_KEY),
    "provider": Case('model_provider = "corp"\n' + CORP),
    "typed provider": Case(CORP, API_KEY, options=("-c", "model_provider=corp")),
    "profile": Case(
        "", API_KEY, profile='openai_base_url = "{own}/codex/v1"\n', options=("-p", "work")
    ),
    "azure": Case(AZURE, API_KEY, target="/codex/openai/responses?api-version=2026-01-01"),
    "chatgpt": Case('openai_base_url = "{own}/codex/v1"\n', chatgpt_login()),
}


@pytest.fixture
def hosts() -> Iterator[tuple[Model, Model]]:
    """Serve the provider of the config, and the person's own host."""
    with serving({"codex": SCRIPT}) as provider, serving({"codex": SCRIPT}) as own:
        yield provider, own


def desk_of(
    desk: MakeDesk,
    hosts: tuple[Model, Model],
    case: Case,
    containment: str = "auto",
    more: str = "",
) -> Desk:
    """Return a desk with these settings. `more`: of the upstream."""
    provider, own = hosts
    upstream = (
        "[gateway.upstreams.openai]\nurl = "
        f'"{provider.url}/codex/v1"\napi = "openai-responses"\n{more}'
    )
    at = desk(config=GATEWAY + PRICES + upstream, mode=containment)
    at.env.pop("OPENAI_BASE_URL", None)  # Qwen Code has it from the desk
    home = Path(at.env["CODEX_HOME"])
    tables = CODEX_QUIET.partition("\n")[2]
    (home / "config.toml").write_text(
        f"check_for_update_on_startup = false\n{case.config.format(own=own.url)}{tables}"
    )
    if case.profile:
        (home / "work.config.toml").write_text(case.profile.format(own=own.url))
    if case.auth is not None:
        (home / "auth.json").write_text(case.auth)
    at.env["CORP_KEY"] = KEY
    return at


def holds_key(model: Model) -> list[str]:
    """Return the targets of the requests that had the key."""
    return [
        seen.target for seen in model.seen if any(KEY in value for value in seen.headers.values())
    ]


def usage(at: Desk) -> list[dict[str, Any]]:
    """Return what each run of Codex has used, by what tells it."""
    return [
        at.json("info", run["id"])["usage_by_source"]
        for run in at.listed()
        if run["name"] == "codex"
    ]


@pytest.mark.parametrize("name", CASES)
def test_the_key_arrives_only_at_the_host_that_the_person_configured(
    desk: MakeDesk, hosts: tuple[Model, Model], name: str, containment: str
) -> None:
    provider, own = hosts
    at = desk_of(desk, hosts, CASES[name], containment)
    done = at.sfactl("run", "--", "codex", *CODEX.as_text[1:-1], *CASES[name].options, "go")
    assert done.returncode == 0, done.stdout + done.stderr
    assert holds_key(provider) == []
    assert holds_key(own).count(CASES[name].target) == 3
    (used,) = usage(at)
    assert (used["gateway"]["turns"], used["gateway"]["output_tokens"]) == (
        2,
        3 * CODEX.price.output,
    )
    if name == "chatgpt":
        assert {
            seen.headers.get("chatgpt-account-id")
            for seen in own.seen
            if KEY in seen.headers.get("authorization", "")
        } == {"an-account"}


def test_without_an_address_the_key_goes_to_the_provider(
    desk: MakeDesk, hosts: tuple[Model, Model]
) -> None:
    provider, own = hosts
    at = desk_of(desk, hosts, Case("", API_KEY))
    done = at.sfactl("run", *CODEX.by_name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (len(holds_key(provider)), own.seen) == (3, [])


def test_a_child_with_a_login_of_its_own_is_left_and_said(
    desk: MakeDesk, hosts: tuple[Model, Model]
) -> None:
    """The root's address is that of another person's key."""
    provider, own = hosts
    at = desk_of(desk, hosts, Case("", API_KEY))
    other = Path(at.env["HOME"], "other")
    other.mkdir()
    (other / "config.toml").write_text(f'openai_base_url = "{own.url}/codex/v1"\n{CODEX_QUIET}')
    (other / "auth.json").write_text(API_KEY)
    done = at.sfactl("run", "--", "sh", "-c", f"CODEX_HOME={other} {' '.join(CODEX.as_text)}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/codex/v1/responses" in holds_key(own)
    assert provider.seen == []


def test_a_chatgpt_login_goes_to_its_own_backend(
    desk: MakeDesk, hosts: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test may reach it: the proxy of both is asked for it, and refuses."""
    provider, own = hosts
    with serving({}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        at = desk_of(desk, hosts, Case("", chatgpt_login()))
        at.env["HTTPS_PROXY"] = proxy.url
        done = at.sfactl("run", "--limit", "time=15", *CODEX.by_name)
        assert done.returncode != 0, done.stdout + done.stderr
        assert {seen.target for seen in proxy.seen} == {"chatgpt.com:443"}
    assert (provider.seen, own.seen) == ([], [])
    made = [
        json.loads(line)
        for line in at.sfactl("calls", "--json", at.listed()[0]["id"]).stdout.splitlines()
    ]
    assert {call["upstream"] for call in made} == {"codex-chatgpt.com/backend-api/codex"}


@pytest.mark.parametrize("form", ["name", "script", "resume"])
def test_each_way_to_start_codex_leads_to_the_same_host(
    desk: MakeDesk, hosts: tuple[Model, Model], form: str
) -> None:
    provider, own = hosts
    at = desk_of(desk, hosts, CASES["provider"])
    script = " ".join(CODEX.as_text)
    resume = f"{script} && codex exec {' '.join(CODEX.options)} resume --last more"
    words = {
        "name": CODEX.by_name,
        "script": ("--", "sh", "-c", script),
        "resume": ("--", "sh", "-c", resume),
    }[form]
    done = at.sfactl("run", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    replies = 4 if form == "resume" else 3
    assert (len(holds_key(own)), provider.seen) == (replies, [])
    assert sum(used["gateway"]["messages"] for used in usage(at)) == replies


def test_an_address_that_the_command_has_itself_is_left_and_said(
    desk: MakeDesk, hosts: tuple[Model, Model]
) -> None:
    provider, own = hosts
    at = desk_of(desk, hosts, Case("", API_KEY))
    typed = ("-c", f"openai_base_url={own.url}/codex/v1")
    done = at.sfactl("run", "--", "codex", *CODEX.as_text[1:-1], *typed, "go")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/codex/v1/responses" in holds_key(own)
    assert provider.seen == []
    (run,) = at.listed()
    assert "gateway" not in at.json("info", run["id"])["usage_by_source"]
    assert "without the gateway: Codex's command line has -c openai_base_url" in done.stderr


def test_a_key_that_a_provider_names_stays_where_the_gateway_has_one_for_openai(
    desk: MakeDesk, hosts: tuple[Model, Model], tmp_path: Path
) -> None:
    provider, own = hosts
    (tmp_path / "key").write_text("of-the-operator")
    case = Case('model_provider = "corp"\n' + CORP.replace("CORP_KEY", "OPENAI_API_KEY"))
    at = desk_of(desk, hosts, case, more=f'key_file = "{tmp_path / "key"}"\n')
    at.env["OPENAI_API_KEY"] = KEY
    done = at.sfactl("run", "--", "sh", "-c", " ".join(CODEX.as_text))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (len(holds_key(own)), provider.seen) == (3, [])


def test_a_variable_that_codex_ignores_leads_it_nowhere(
    desk: MakeDesk, hosts: tuple[Model, Model]
) -> None:
    provider, own = hosts
    at = desk_of(desk, hosts, Case("", API_KEY))
    done = at.sfactl(
        "run", "--", "sh", "-c", f"OPENAI_BASE_URL={own.url}/codex/v1 {' '.join(CODEX.as_text)}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (len(holds_key(provider)), own.seen) == (3, [])
    assert [each["gateway"]["turns"] for each in usage(at)] == [2]
