"""What the config may say of the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfad.config import ConfigError, load
from tests.test_config import write


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[gateway.upstreams.a]\nurl = 'https://x/'\napi = 'gemini'",
            (
                "gateway.upstreams.a.url = 'https://x/': "
                "allowed is a URL that begins with http:// or https://"
            ),
        ),
        *(
            (
                f"[gateway.upstreams.a]\napi = 'gemini'\nurl = '{url}'",
                f"gateway.upstreams.a.url = '{shown}': allowed is a URL that",
            )
            for url, shown in (
                ("http://[::1", "http://[::1"),
                ("http://[x]", "http://[x]"),
                ("http://a:99999", "http://a:99999"),
                ("http://a:0/v1", "http://a:0/v1"),
                ("http://a b", "http://a b"),
                ("http://a/b c", "http://a/b c"),
                ("http://:80", "http://:80"),
                ("http://u:p@w@a", "http://…@a"),
            )
        ),
        (
            "[gateway.upstreams.a]\nurl = 'https://x'\napi = 'gemini'\nkey_env = 'sk-1'",
            "gateway.upstreams.a.key_env = '…': allowed is",
        ),
        (
            "[gateway.upstreams.'a/b']\nurl = 'https://x'\napi = 'gemini'",
            'gateway.upstreams."a/b": an upstream\'s name has only',
        ),
        (
            "[gateway.upstreams.run]\nurl = 'https://x'\napi = 'gemini'",
            "gateway.upstreams.run: an upstream's name has only",
        ),
        (
            "[gateway]\nmodels = ['']",
            "gateway.models = ['']: allowed is a list of names in which * stands",
        ),
        ("[gateway.upstreams.a]\nurl = 'https://x'", "gateway.upstreams.a.api is missing"),
        (
            (
                "[gateway.upstreams.a]\nurl = 'https://x'\napi = 'gemini'\nkey_env = "
                "'K'\nkey_file = '/k'"
            ),
            "gateway.upstreams.a.key_file = '/k': allowed is \"off\" beside key_env (",
        ),
    ],
)
def test_errors_name_file_key_value_and_what_is_allowed(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = write(tmp_path / "sfad.toml", text)
    with pytest.raises(ConfigError) as error:
        load([path])
    assert str(error.value).startswith(f"{path}: {expected}")


def test_what_an_upstream_must_have(tmp_path: Path) -> None:
    own = "[gateway.upstreams.own]\nurl = 'https://own.example'\napi = 'openai-chat'"
    system = write(tmp_path / "system.toml", own)
    missing = write(tmp_path / "missing.toml", "[gateway.upstreams.other]\napi = 'gemini'")
    with pytest.raises(
        ConfigError, match=r"missing\.toml: gateway\.upstreams\.other\.url is missing"
    ):
        load([system, missing])
