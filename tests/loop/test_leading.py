"""Variables of a run."""

from __future__ import annotations

import pytest

from sfad.loop.leading import _exempt_from_proxies, _merged


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
    new = _exempt_from_proxies(env)
    values = dict(item.split(b"=", 1) for item in new)
    assert values[b"NO_PROXY"] == told
    assert values.get(b"no_proxy", told) == told
    assert len(values) == len(new)
    assert [item for item in new if not item.lower().startswith(b"no_proxy=")] == [
        item for item in env if not item.lower().startswith(b"no_proxy=")
    ]
    assert _exempt_from_proxies(new) == new


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ([b"A=b"], [b"A=b", b'V={"url": "http://g/x"}']),
        ([b'V={"url": "mine", "more": 1, // mine\n}', b"A=b"], [b"A=b", b'V={"url": "http://g/x", "more": 1}']),
        ([b"V=not JSON"], [b"V=not JSON"]),
    ],
)
def test_an_object_is_merged_into_what_a_program_is_given(env: list[bytes], told: list[bytes]) -> None:
    """A child's own settings, or the server of `--mcp`, are in the same variable."""
    assert _merged(env, [("V", '{"url": "{gateway}/x"}')], "http://g") == told
