"""What replies tell of a subscription: headers of both providers, and what becomes of a call that
is refused for its windows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import trio

from sfad.agents.program import digest
from sfad.features.gateway.program.subscription_reading import login_of, place_of, seen_subscription
from sfad.features.gateway.program.upstreams import Upstream
from sfad.protocol.requests.gateway import SeeWindows
from sfad.protocol.requests.windows import SeenWindow
from tests.features.gateway.program.scripted import (
    Provider,
    ScriptedDaemon,
    house,
    post,
    reply,
    saying,
)
from tests.harness import until

UNIFIED = "anthropic-ratelimit-unified-"
ANTHROPIC = {
    f"{UNIFIED}status": "allowed_warning",
    f"{UNIFIED}representative-claim": "five_hour",
    f"{UNIFIED}reset": "1700003600",
    f"{UNIFIED}5h-utilization": "0.42",
    f"{UNIFIED}5h-reset": "1700003600",
    f"{UNIFIED}7d-utilization": "0.1",
    f"{UNIFIED}7d-reset": "1700400000",
    f"{UNIFIED}7d_opus-utilization": "0.7",
    f"{UNIFIED}overage-utilization": "0.0",
    "anthropic-organization-id": "11111111-2222-3333-4444-555555555555",
}
CODEX = {
    "x-codex-primary-used-percent": "42.5",
    "x-codex-primary-window-minutes": "300",
    "x-codex-primary-reset-at": "1700003600",
    "x-codex-secondary-used-percent": "7",
    "x-codex-secondary-window-minutes": "10080",
    "x-codex-secondary-reset-after-seconds": "100",
    "x-codex-plan-type": "plus",
}
NOW = 1_700_000_000.0


def anthropic(changes: dict[str, str], status: int = 200) -> SeeWindows | None:
    headers = {name: value for name, value in (ANTHROPIC | changes).items() if value}
    return seen_subscription("anthropic", "a1", "login", headers, status, b"", NOW)


def codex(
    changes: dict[str, str], error: dict[str, object] | None = None, status: int = 429
) -> SeeWindows | None:
    body = b"" if error is None else json.dumps({"error": error}).encode()
    return seen_subscription("openai", "a1", "login", CODEX | changes, status, body, NOW)


def test_windows_of_anthropic() -> None:
    seen = anthropic({})
    assert seen is not None
    assert (seen.status, seen.login, seen.time) == ("allowed_warning", "login", NOW)
    assert seen.organization == digest("11111111-2222-3333-4444-555555555555")
    assert {each.window: (each.used_ratio, each.resets_at) for each in seen.windows} == {
        "5h": (0.42, 1_700_003_600.0),
        "7d": (0.1, 1_700_400_000.0),
        "7d_opus": (0.7, None),
    }
    assert not any(each.rejected for each in seen.windows)


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({}, "5h"),
        ({f"{UNIFIED}representative-claim": "seven_day"}, "7d"),
        ({f"{UNIFIED}representative-claim": "seven_day_opus"}, "7d_opus"),
        (
            {f"{UNIFIED}representative-claim": "", f"{UNIFIED}7d_opus-utilization": "1.02"},
            "7d_opus",
        ),
        ({f"{UNIFIED}7d-status": "rejected"}, "7d"),
        (
            {
                f"{UNIFIED}representative-claim": "seven_day_overage_included",
                f"{UNIFIED}7d-status": "allowed",
                f"{UNIFIED}7d_oi-status": "rejected",
                f"{UNIFIED}7d_oi-utilization": "1.02",
            },
            "7d_oi",
        ),
    ],
)
def test_which_window_refuses(changes: dict[str, str], window: str) -> None:
    seen = anthropic({f"{UNIFIED}status": "rejected"} | changes, 429)
    assert seen is not None
    assert [each.window for each in seen.windows if each.rejected] == [window]
    assert all(each.resets_at is not None for each in seen.windows if each.rejected)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        pytest.param({f"{UNIFIED}status": "allowed"}, 429, id="a burst"),
        pytest.param({f"{UNIFIED}status": ""}, 429, id="nothing of windows is said"),
        pytest.param({f"{UNIFIED}representative-claim": ""}, 429, id="none is used up"),
        pytest.param({f"{UNIFIED}representative-claim": "overage"}, 429, id="out of credits"),
        pytest.param({f"{UNIFIED}5h-status": "allowed"}, 429, id="the claimed one is allowed"),
        pytest.param({f"{UNIFIED}5h-status": "allowed_warning"}, 429, id="allowed with a warning"),
        pytest.param({f"{UNIFIED}5h-status": "rejected"}, 200, id="paid by credits"),
        pytest.param({f"{UNIFIED}5h-status": "rejected"}, 529, id="overloaded"),
    ],
)
def test_no_window_of_anthropics_is_the_reason(changes: dict[str, str], status: int) -> None:
    seen = anthropic({f"{UNIFIED}status": "rejected"} | changes, status)
    assert seen is not None
    assert not [each.window for each in seen.windows if each.rejected]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        pytest.param({}, {"type": "rate_limit_exceeded"}, id="a burst"),
        pytest.param({}, {"type": "server_error", "code": "slow_down"}, id="an overload"),
        pytest.param({}, {"type": "usage_not_included"}, id="a plan without the feature"),
        pytest.param({}, None, id="no body"),
        pytest.param(
            {"x-codex-rate-limit-reached-type": "workspace_member_credits_depleted"},
            {"type": "usage_limit_reached"},
            id="out of credits",
        ),
        pytest.param(
            {
                "x-codex-active-limit": "codex_bengalfox",
                "x-codex-bengalfox-primary-used-percent": "100",
            },
            {"type": "usage_limit_reached"},
            id="a limit of one model",
        ),
        pytest.param(
            {},
            {"type": "usage_limit_reached", "resets_at": NOW + 30 * 86400},
            id="a limit of a workspace, which no window has",
        ),
    ],
)
def test_no_window_of_codex_is_the_reason(
    changes: dict[str, str], error: dict[str, object] | None
) -> None:
    seen = codex(changes, error)
    assert seen is not None
    assert (seen.status, [each.window for each in seen.windows if each.rejected]) == (None, [])
    assert {each.window: each.used_ratio for each in seen.windows} == {
        "primary": 0.425,
        "secondary": 0.07,
    }


@pytest.mark.parametrize(
    ("changes", "error", "window"),
    [
        ({}, {"type": "usage_limit_reached"}, "primary"),
        ({}, {"type": "usage_limit_reached", "resets_in_seconds": 110}, "secondary"),
        ({"x-codex-secondary-used-percent": "100"}, {"type": "rate_limit_exceeded"}, "secondary"),
        ({"x-codex-secondary-used-percent": "100"}, None, "secondary"),
        ({"x-codex-active-limit": "premium"}, {"type": "usage_limit_reached"}, "primary"),
    ],
)
def test_which_window_of_codex_refuses(
    changes: dict[str, str], error: dict[str, object] | None, window: str
) -> None:
    seen = codex(changes, error)
    assert seen is not None
    assert (seen.status, [each.window for each in seen.windows if each.rejected]) == (
        "rejected",
        [window],
    )


def test_a_refusal_without_windows_is_of_the_one_that_can_end_then() -> None:
    seen = seen_subscription(
        "openai", "a1", "login", {}, 429,
        b'{"error": {"type": "usage_limit_reached", "resets_in_seconds": 529498}}', NOW,
    )  # fmt: skip
    assert seen is not None
    assert seen.windows == [SeenWindow(window="secondary", resets_at=NOW + 529_498, rejected=True)]


def test_a_plan_with_one_window_has_no_other() -> None:
    alone = {
        "x-codex-primary-used-percent": "12",
        "x-codex-primary-window-minutes": "10080",
        "x-codex-secondary-used-percent": "0",
        "x-codex-secondary-window-minutes": "0",
        "x-codex-secondary-reset-after-seconds": "0",
        "x-codex-secondary-reset-at": "",
    }
    seen = seen_subscription("openai", "a1", "login", alone, 200, b"", NOW)
    assert seen is not None
    assert seen.windows == [SeenWindow(window="primary", used_ratio=0.12, seconds=604_800.0)]


def test_credits_and_banked_resets_of_codex() -> None:
    told = {
        "x-codex-credits-has-credits": "True",
        "x-codex-credits-unlimited": "False",
        "x-codex-credits-balance": "25.50",
        "x-codex-rate-limit-reset-credits-available-count": "2",
    }
    seen = codex(told, status=200)
    assert seen is not None
    assert (seen.credits, seen.on_credits, seen.banked_resets) == ("25.50", False, 2)
    seen = codex(told | {"x-codex-primary-used-percent": "100"}, status=200)
    assert seen is not None
    assert seen.on_credits, "a call is answered though the window is used up"
    seen = codex({}, status=200)
    assert seen is not None
    assert (seen.credits, seen.on_credits, seen.banked_resets) == (None, None, None)


def test_credits_of_anthropic() -> None:
    assert [
        seen and seen.on_credits
        for seen in (
            anthropic({f"{UNIFIED}overage-in-use": said}) for said in ("true", "false", "")
        )
    ] == [True, False, None]


def test_replies_of_an_api_key_tell_of_no_subscription() -> None:
    assert (
        seen_subscription(
            "anthropic",
            "a1",
            "login",
            {"anthropic-ratelimit-requests-remaining": "9"},
            200,
            b"",
            NOW,
        )
        is None
    )
    assert (
        seen_subscription(
            "openai", "a1", "login", {"x-ratelimit-remaining-requests": "9"}, 429, b"{}", NOW
        )
        is None
    )


@pytest.mark.parametrize("junk", ["", "-1", "nan", "inf", "1e400", "a lot", "0x10"])
def test_junk_is_not_a_ratio(junk: str) -> None:
    seen = anthropic({f"{UNIFIED}5h-utilization": junk or "?", f"{UNIFIED}5h-reset": junk})
    assert seen is not None
    window = next(each for each in seen.windows if each.window == "5h")
    assert (window.used_ratio, window.resets_at) == (None, None)


FAR = ["1e12", "1e300", "inf", "nan", "-1"]


@pytest.mark.parametrize("far", FAR)
def test_no_number_beyond_the_calendar_is_passed_on(far: str) -> None:
    """Each header by itself, because what one does not tell, another may."""
    seen = anthropic({f"{UNIFIED}5h-reset": far, f"{UNIFIED}reset": far, "retry-after": far})
    assert seen is not None
    assert [each.resets_at for each in seen.windows if each.window == "5h"] == [None]
    assert seen.retry_after is None
    names = ("primary-reset-at", "primary-reset-after-seconds", "primary-window-minutes")
    told = codex({f"x-codex-{name}": far for name in names}, status=200)
    assert told is not None
    (window,) = (each for each in told.windows if each.window == "primary")
    assert (window.resets_at, window.seconds) == (None, None)


@pytest.mark.parametrize("field", ["resets_at", "resets_in_seconds"])
@pytest.mark.parametrize("far", ["1e12", "1e300", "-1", '"soon"', "null"])
def test_no_refusal_tells_a_reset_beyond_the_calendar(field: str, far: str) -> None:
    body = f'{{"error": {{"type": "usage_limit_reached", "{field}": {far}}}}}'.encode()
    seen = seen_subscription("openai", "a1", "login", {}, 429, body, NOW)
    assert seen is not None
    assert [each.resets_at for each in seen.windows] == [None]


def test_windows_of_codex() -> None:
    seen = codex({}, status=200)
    assert seen is not None
    assert (seen.plan_type, seen.status, seen.organization) == ("plus", "allowed", None)
    assert seen.windows == [
        SeenWindow(window="primary", used_ratio=0.425, resets_at=1_700_003_600.0, seconds=18_000.0),
        SeenWindow(window="secondary", used_ratio=0.07, resets_at=NOW + 100, seconds=604_800.0),
    ]


def test_a_refusal_of_codex_without_headers() -> None:
    body = json.dumps(
        {"error": {"type": "usage_limit_reached", "plan_type": "plus", "resets_in_seconds": 60}}
    ).encode()
    seen = seen_subscription("openai", "a1", "login", {}, 429, body, NOW)
    assert seen is not None
    assert (seen.status, seen.plan_type) == ("rejected", "plus")
    assert seen.windows == [SeenWindow(window="primary", resets_at=NOW + 60, rejected=True)]


@pytest.mark.parametrize(
    "more", ['"resets_at": 1' + 400 * "0", '"resets_in_seconds": -1e300', '"x": ' + 60_000 * "["]
)
def test_junk_in_a_refusal_of_codex_is_no_reset(more: str) -> None:
    body = f'{{"error": {{"type": "usage_limit_reached", {more}}}}}'.encode()
    seen = seen_subscription(
        "openai", "a1", "login", {"x-codex-primary-used-percent": "100"}, 429, body, NOW
    )
    assert seen is not None
    assert seen.windows == [SeenWindow(window="primary", used_ratio=1.0, rejected=True)]


def test_names_are_short() -> None:
    seen = anthropic(
        {
            f"{UNIFIED}status": "x" * 9000,
            f"{UNIFIED}representative-claim": "five_hour_" + "x" * 9000,
        }
    )
    assert seen is not None
    assert len(seen.status or "") == 64
    seen = anthropic(
        {
            f"{UNIFIED}status": "rejected",
            f"{UNIFIED}representative-claim": "five_hour_" + "x" * 9000,
            f"{UNIFIED}7d_opus-utilization": "1.0",
        },
        429,
    )
    assert seen is not None
    assert [each.window for each in seen.windows if each.rejected] == ["7d_opus"]


def test_a_credential_is_told_as_a_short_hash() -> None:
    bearer, key = (
        login_of([(b"Authorization", b"Bearer sk-ant-oat-1")], None, ""),
        login_of([(b"x-api-key", b"sk-ant-2")], None, ""),
    )
    assert bearer == digest("sk-ant-oat-1")
    assert key == digest("sk-ant-2")
    assert login_of([(b"x-api-key", b"sk-ant-2")], "operators", "") == digest("operators")
    assert login_of([], None, "") == ""
    assert login_of([], None, "relay") == ""
    assert login_of([(b"x-api-key", b"sk-ant-2")], None, "relay") not in {key, ""}
    assert len(bearer) == 12


BODY = b'{"model":"claude-sonnet-4-5","max_tokens":5,"messages":[{"role":"user","content":"x"}]}'
REQUEST = (
    b"POST /up/v1/messages HTTP/1.1\r\nHost: x\r\nauthorization: "
    b"Bearer secret-token\r\nContent-Length: %d\r\n\r\n%b"
) % (len(BODY), BODY)
DONE = (
    b'{"type":"message","content":[],"stop_reason":"end_turn",'
    b'"usage":{"input_tokens":3,"output_tokens":1}}'
)


def raw(headers: dict[str, str]) -> list[bytes]:
    return [
        b"Content-Type: application/json",
        *(f"{name}: {value}".encode() for name, value in headers.items()),
    ]


def refusing(times: int) -> Provider:
    """Return a provider that refuses so many calls because of a window, and answers the next."""

    async def script(stream: trio.SocketStream, _: bytes) -> None:
        if len(provider.requests) <= times:
            rejected = ANTHROPIC | {f"{UNIFIED}status": "rejected"}
            await stream.send_all(
                reply(b'{"type":"error"}', *raw(rejected), status=b"429 Too Many Requests")
            )
        else:
            await stream.send_all(reply(DONE, *raw(ANTHROPIC)))

    provider = Provider(script)
    return provider


async def test_each_reply_is_told_before_its_call_has_ended() -> None:
    provider = refusing(0)
    async with house(provider) as found:
        answer = await found.ask(REQUEST)
        await until(lambda: bool(found.daemon.told))
    assert answer.status == 200
    assert [seen.status for seen in found.daemon.plans] == ["allowed_warning"]
    assert found.daemon.asked[0].login == digest(f"127.0.0.1:{found.direct} secret-token")
    assert not found.daemon.plans[0].keyed
    assert (
        b"secret-token"
        not in repr((found.daemon.asked, found.daemon.plans, found.daemon.told)).encode()
    )


async def test_a_call_that_waits_for_the_reset_is_made_again_and_its_agent_learns_nothing() -> None:
    provider = refusing(1)
    async with house(provider, daemon=ScriptedDaemon(holds_rejected=True)) as found:
        answer = await found.ask(REQUEST)
        await until(lambda: len(found.daemon.told) == 2)
    assert (answer.status, answer.body) == (200, DONE)
    assert [each.status for each in found.daemon.told] == [429, 200]
    assert [seen.status for seen in found.daemon.plans] == ["rejected", "allowed_warning"]
    assert provider.requests[0] == provider.requests[1], "as the agent has sent it"


async def test_a_call_that_does_not_wait_gets_the_refusal() -> None:
    async with house(refusing(1)) as found:
        assert (await found.ask(REQUEST)).status == 429


async def test_a_call_that_is_admitted_at_once_and_refused_again_is_not_made_for_ever() -> None:
    provider = refusing(100)
    async with house(provider, daemon=ScriptedDaemon(holds_rejected=True)) as found:
        assert (await found.ask(REQUEST)).status == 429
    assert len(provider.requests) == 2


@pytest.mark.parametrize(
    ("url", "named_by_tree", "place"),
    [
        ("https://api.anthropic.com", False, ""),
        ("https://api.anthropic.com/v1", True, ""),
        ("https://api.anthropic.com:443", True, ""),
        ("https://relay.example", False, "relay.example"),
        ("https://relay.example", True, None),
        ("http://api.anthropic.com", True, None),
        ("https://api.anthropic.com@relay.example", True, None),
        ("https://api.anthropic.com.relay.example", True, None),
        ("https://chatgpt.com/backend-api/codex", True, None),
    ],
)
def test_whose_windows_an_upstream_tells(url: str, named_by_tree: bool, place: str | None) -> None:
    upstream = Upstream("up", url, "anthropic")
    configured = [Upstream("other", "https://other.example", "anthropic")]
    if not named_by_tree:
        configured.append(upstream)
    assert place_of("anthropic", upstream, configured) == place


def test_a_tree_may_name_the_address_of_an_upstream_of_the_config() -> None:
    own = Upstream("ours", "https://relay.example", "anthropic")
    assert (
        place_of("anthropic", Upstream("anthropic", own.url, "anthropic"), [own]) == "relay.example"
    )


async def test_a_server_that_a_tree_names_is_not_believed() -> None:
    provider = refusing(1)
    daemon = ScriptedDaemon(holds_rejected=True)
    async with house(provider, daemon=daemon, upstreams={}) as found:
        url = f"http://127.0.0.1:{found.direct}"
        daemon.upstreams = {"up": Upstream("up", url, "anthropic", free=False)}
        assert (await found.ask(REQUEST)).status == 429
        await until(lambda: bool(daemon.told))
    assert (daemon.plans, daemon.asked[0].login) == ([], "")
    assert len(provider.requests) == 1, "its refusal is the agent's"


async def test_a_key_of_the_operators_is_told(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("of-the-operator")
    upstreams: dict[str, Upstream] = {}
    async with house(refusing(0), upstreams=upstreams) as found:
        url = f"http://127.0.0.1:{found.direct}"
        upstreams["up"] = Upstream("up", url, "anthropic", key_file=str(tmp_path / "key"))
        assert (await found.ask(REQUEST)).status == 200
        await until(lambda: bool(found.daemon.told))
    (seen,) = found.daemon.plans
    assert (seen.keyed, seen.login) == (True, digest(f"127.0.0.1:{found.direct} of-the-operator"))


async def test_the_account_that_a_request_of_codex_names_is_not_believed() -> None:
    provider = Provider(saying(reply(DONE, *raw(CODEX))))
    async with house(provider, api="openai-responses") as found:
        named = post("/up/responses", RESPONSE, "ChatGPT-Account-ID: a", "Authorization: Bearer b")
        assert (await found.ask(named)).status == 200
        await until(lambda: bool(found.daemon.told))
    (seen,) = found.daemon.plans
    assert (seen.organization, seen.login) == (None, digest(f"127.0.0.1:{found.direct} b"))


RESPONSE = b'{"model":"gpt-5","max_output_tokens":50,"input":"x"}'


def codex_asks(upstream: str) -> bytes:
    return post(f"/{upstream}/responses", RESPONSE, "Authorization: Bearer secret")


def answering(error: dict[str, object], *headers: bytes, changes: dict[str, str]) -> Provider:
    """Return a provider that refuses each call of Codex with this error, and tells of windows."""
    body = gzip.compress(json.dumps({"error": error}).encode())
    head = [*raw(CODEX | changes), b"Content-Encoding: gzip", *headers]
    return Provider(saying(reply(body, *head, status=b"429 Too Many Requests")))


async def test_a_burst_of_codex_is_the_agents_to_try_again() -> None:
    provider = answering({"type": "rate_limit_exceeded"}, changes={})
    daemon = ScriptedDaemon(holds_rejected=True)
    async with house(provider, api="openai-responses", daemon=daemon) as found:
        assert (await found.ask(codex_asks("up"))).status == 429
        assert [seen.status for seen in daemon.plans] == [None]
    assert len(provider.requests) == 1


async def test_a_compressed_refusal_of_codex_is_read() -> None:
    provider = answering({"type": "usage_limit_reached", "resets_in_seconds": 110}, changes={})
    daemon = ScriptedDaemon(holds_rejected=True)
    async with house(provider, api="openai-responses", daemon=daemon) as found:
        assert (await found.ask(codex_asks("up"))).status == 429
        assert [seen.status for seen in daemon.plans] == ["rejected", "rejected"]
        windows = [each.window for each in daemon.plans[0].windows if each.rejected]
    assert windows == ["secondary"], "by the reset that its body tells"
    assert len(provider.requests) == 2
