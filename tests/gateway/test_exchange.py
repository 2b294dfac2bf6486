"""Where the path of a request leads. Exchanges themselves are tested with the proxy."""

from __future__ import annotations

import pytest

from sfad.gateway.exchange import Route, route_of


@pytest.mark.parametrize(
    ("target", "route"),
    [
        ("/anthropic/v1/messages", Route(None, "anthropic", "/v1/messages", "")),
        ("/anthropic/v1/messages?beta=true&x=/../", Route(None, "anthropic", "/v1/messages", "beta=true&x=/../")),
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
