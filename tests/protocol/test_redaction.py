"""Secrets do not leave in texts: by name, by prefix, in nested objects; and no text can make the
search slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.protocol.texts.redaction import DEPTH, redacted, redacted_end, redacted_object
from tests.together import together

HIDDEN = {
    "claude --token abcdef -x": "claude --token *** -x",
    "sfactl --api-key=12345": "sfactl --api-key=***",
    "curl -H 'Authorization: Bearer abc.def'": "curl -H 'Authorization: Bearer ***'",
    "curl -u me:hunter2 host": "curl -u me:*** host",
    "Proxy-Authorization: Basic abcdefgh=": "Proxy-Authorization: Basic ***",
    "git clone https://me:hunter2@host/x": "git clone https://me:***@host/x",
    "GET /v1?key=12345&model=m": "GET /v1?key=***&model=m",
    "OPENAI_API_KEY=12345 run": "OPENAI_API_KEY=*** run",
    "PGPASSWORD='my own' psql": "PGPASSWORD='***' psql",
    '{"password": "two words", "n": 1}': '{"password": "***", "n": 1}',
    'echo "{\\"password\\":\\"hunter2\\"}"': 'echo "{\\"password\\":\\"***\\"}"',
    "Cookie: session=abcdef": "Cookie: ***",
    "with sk-ant-api03-abcdefghijklmnop.": "with ***",
    "ghp_0123456789abcdefghij": "***",
    "(xoxb-12345678-abc)": "(***)",
    "AKIAIOSFODNN7EXAMPLE": "***",
    "AIzaSyA0123456789abcdefghijklmnopqrstuv": "***",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc": "***",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----": (
        "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----"
    ),
}

HARMLESS = (
    "--max-tokens 5000",
    "limit tokens: 5 of 3",
    "--token-file /run/token",
    "http://localhost:80/path?email=a@b.c",
    "risk-management-for-the-whole-team",
    "author: bob",
    "monkey=3",
    "secrets.token_hex(3)",
    "the API answered 401 six times",
)


@together("text", HIDDEN)
def test_a_secret_is_hidden_and_nothing_else(text: str) -> None:
    assert redacted(text) == HIDDEN[text]


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_stays(text: str) -> None:
    assert redacted(text) == text


_PIECES = (
    "token",
    "API_KEY=",
    "--password",
    "=",
    ": ",
    '"',
    "'",
    "\\",
    "://",
    "@",
    "/",
    "-u ",
    "sk-",
    "eyJ",
    ".",
    "Bearer",
)
_SECRETIVE = st.lists(
    st.sampled_from(
        (*_PIECES, " ", "ghp_", "AKIA", "a1b2c3d4e5f6a7b8", "-----BEGIN PRIVATE KEY-----")
    )
).map("".join)


@given(st.text() | _SECRETIVE)
def test_it_is_idempotent_and_never_longer(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once
    assert len(once) <= len(text)


@pytest.mark.rest("at scale")
@pytest.mark.parametrize(
    "piece", ["a-", "token ", 'token="\\"', "://a:", "-a", "eyJaaaaaa", "://password=a/b,"]
)
def test_a_megabyte_made_to_be_slow(piece: str) -> None:
    """A search that is not linear would not end within the test's time limit."""
    assert len(redacted(piece * (1_000_000 // len(piece)))) <= 1_000_000


def test_nested_objects() -> None:
    event = {
        "password": "two words", "tokens": 5, "api_key": None,
        "argv": ["claude", "--token", "abc", "--key", "-v", "PWD=hunter2"],
        "more": ({"message": "with sk-abcdefghijklmnop"},),
    }  # fmt: skip
    assert redacted_object(event) == {
        "password": "***", "tokens": 5, "api_key": None,
        "argv": ["claude", "--token", "***", "--key", "-v", "PWD=***"],
        "more": [{"message": "with ***"}],
    }  # fmt: skip


def test_an_object_deeper_than_what_is_looked_at_is_hidden() -> None:
    deep: object = "sk-abcdefghijklmnop"
    for _ in range(DEPTH * 100):
        deep = [deep]
    assert "sk-" not in repr(redacted_object(deep))


def test_the_end_of_a_text_is_redacted_with_what_comes_before() -> None:
    secret = "correcthorsebattery" * 5
    for most in range(1, 150):
        assert "battery" not in redacted_end(f"first line\nAPI_KEY={secret} and more", most)
    assert redacted_end("0123456789", 4) == "6789"
