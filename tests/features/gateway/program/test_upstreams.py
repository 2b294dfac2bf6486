"""Where calls go, and their heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfad.features.gateway.feature import GatewayConfig, UpstreamConfig
from sfad.features.gateway.program.upstreams import Route, Upstream, downward, route_of, upward


@pytest.mark.parametrize(
    ("api", "path", "name"),
    [
        ("openai-responses", "/responses", "openai-responses"),
        ("openai-responses", "/v1/chat/completions", "openai-chat"),
        ("openai-chat", "/responses/compact", "openai-responses"),
        ("anthropic", "/chat/completions", "anthropic"),
        ("gemini", "/v1beta/openai/chat/completions", "gemini"),
    ],
)
def test_the_path_decides_between_the_two_formats_of_openai(api: str, path: str, name: str) -> None:
    assert Upstream("up", "https://x", api).api_of(path).name == name


@pytest.mark.parametrize(("name", "built_in"), GatewayConfig().upstreams.items())
def test_built_in_upstreams(name: str, built_in: UpstreamConfig) -> None:
    upstream = Upstream(name, built_in.url, built_in.api)
    assert upstream.key() is None
    assert upstream.target("/x", "", keyed=False) == f"{built_in.url}/x"


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("", ""),
        ("alt=sse", "alt=sse"),
        ("key=k", ""),
        ("a=1&key=k&b=%20+&access_token=t", "a=1&b=%20+"),
        ("%6bey=k&KEY=x", "KEY=x"),
        ("key", ""),
        ("monkey=1", "monkey=1"),
    ],
)
def test_credentials_in_the_query_are_removed_where_the_operator_has_a_key(
    query: str, kept: str
) -> None:
    upstream = Upstream("up", "https://x/base", "gemini")
    assert (
        upstream.target("/y", query, keyed=True) == f"https://x/base/y{'?' if kept else ''}{kept}"
    )
    assert (
        upstream.target("/y", query, keyed=False)
        == f"https://x/base/y{'?' if query else ''}{query}"
    )


def test_a_key_is_read_again_for_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    upstream = Upstream("up", "https://x", "anthropic", key_file=str(file))
    with pytest.raises(LookupError, match="key does not exist"):
        upstream.key()
    for key in ("one", "two"):
        file.write_text(f"{key}\n")
        assert upstream.key() == key
    file.chmod(0o644)
    assert upstream.exposed() == str(file)
    file.chmod(0o600)
    assert upstream.exposed() is None
    for other in ("", "a key", "key\nkey", "\N{LATIN SMALL LETTER E WITH ACUTE}"):
        file.write_text(other)
        with pytest.raises(LookupError, match=r"holds no key") as raised:
            upstream.key()
        assert "key\n" not in str(raised.value)
    by_variable = Upstream("up", "https://x", "anthropic", key_env="KEY_OF_TEST")
    with pytest.raises(LookupError, match="environment has no KEY_OF_TEST"):
        by_variable.key()
    monkeypatch.setenv("KEY_OF_TEST", "three")
    assert by_variable.key() == "three"


def test_headers_about_one_connection_go_no_further() -> None:
    headers = [
        (b"Host", b"x"),
        (b"Connection", b"keep-alive, X-One"),
        (b"connection", b"x-two"),
        (b"X-One", b"1"),
        (b"X-Two", b"2"),
        (b"X-Three", b"3"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Content-Length", b"5"),
        (b"Upgrade", b"h2c"),
        (b"Proxy-Authorization", b"p"),
    ]
    assert upward(headers, None, "anthropic") == [(b"X-Three", b"3")]
    assert downward(headers) == [(b"Host", b"x"), (b"X-Three", b"3")], (
        "chunks count, and not a length beside them"
    )
    headers.remove((b"Transfer-Encoding", b"chunked"))
    assert downward(headers) == [(b"Host", b"x"), (b"X-Three", b"3"), (b"Content-Length", b"5")]


@pytest.mark.parametrize(
    ("target", "route"),
    [
        ("/anthropic/v1/messages", Route(None, "anthropic", "/v1/messages", "")),
        (
            "/anthropic/v1/messages?beta=true&x=/../",
            Route(None, "anthropic", "/v1/messages", "beta=true&x=/../"),
        ),
        ("/openai/", Route(None, "openai", "/", "")),
        ("/my%20own/x%2Fy", Route(None, "my own", "/x%2Fy", "")),
        ("/run/abc/gemini/v1beta/models/x:y", Route("abc", "gemini", "/v1beta/models/x:y", "")),
        ("/run/abc/gemini", Route(None, "run", "/abc/gemini", "")),
        ("//v1", Route(None, "", "/v1", "")),
        ("/anthropic", None),
        ("/", None),
        ("", None),
        ("*", None),
        ("/up/a/../b", None),
        ("/up/a/%2E%2e/b", None),
        ("/up/./b", None),
        ("/up/b%2f..%2fc", None),
        ("/up/v1/messages#/v1/models", None),
        ("/up/a?b#c", None),
    ],
)
def test_where_a_path_leads(target: str, route: Route | None) -> None:
    assert route_of(target) == route
