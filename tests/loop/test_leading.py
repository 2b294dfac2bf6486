"""Variables of a run."""

from __future__ import annotations

import pytest

from sfad.loop.leading import _exempt_from_proxies


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
