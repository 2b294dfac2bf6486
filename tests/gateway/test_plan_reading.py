"""What replies tell of a subscription: headers of both providers, and what becomes of a call that
is refused for its windows."""

from __future__ import annotations

import json

import pytest
import trio

from sfad.agents.program import digest
from sfad.gateway.plan_reading import login_of, seen_plan
from sfad.protocol.requests.gateway import SeePlan
from sfad.protocol.requests.plans import SeenWindow
from tests.gateway.scripted import Provider, ScriptedDaemon, house, reply
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


def anthropic(changes: dict[str, str], status: int = 200) -> SeePlan | None:
    headers = {name: value for name, value in (ANTHROPIC | changes).items() if value}
    return seen_plan("anthropic", "a1", "login", [], headers, status, b"", NOW)


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
        ({f"{UNIFIED}representative-claim": ""}, "7d_opus"),
        ({f"{UNIFIED}7d-status": "rejected"}, "7d"),
    ],
)
def test_which_window_refuses(changes: dict[str, str], window: str) -> None:
    seen = anthropic({f"{UNIFIED}status": "rejected"} | changes, 429)
    assert seen is not None
    assert [each.window for each in seen.windows if each.rejected] == [window]
    assert all(each.resets_at is not None for each in seen.windows if each.rejected)


def test_replies_of_an_api_key_tell_of_no_subscription() -> None:
    assert (
        seen_plan(
            "anthropic",
            "a1",
            "login",
            [],
            {"anthropic-ratelimit-requests-remaining": "9"},
            200,
            b"",
            NOW,
        )
        is None
    )
    assert (
        seen_plan(
            "openai", "a1", "login", [], {"x-ratelimit-remaining-requests": "9"}, 429, b"{}", NOW
        )
        is None
    )


@pytest.mark.parametrize("junk", ["", "-1", "nan", "inf", "1e400", "a lot", "0x10"])
def test_junk_is_not_a_ratio(junk: str) -> None:
    seen = anthropic({f"{UNIFIED}5h-utilization": junk or "?", f"{UNIFIED}5h-reset": junk})
    assert seen is not None
    window = next(each for each in seen.windows if each.window == "5h")
    assert (window.used_ratio, window.resets_at) == (None, None)


def test_windows_of_codex() -> None:
    asked = [(b"ChatGPT-Account-ID", b"acc")]
    seen = seen_plan("openai", "a1", "login", asked, CODEX, 200, b"", NOW)
    assert seen is not None
    assert (seen.plan_type, seen.status, seen.organization) == ("plus", "allowed", digest("acc"))
    assert seen.windows == [
        SeenWindow(window="primary", used_ratio=0.425, resets_at=1_700_003_600.0, seconds=18_000.0),
        SeenWindow(window="secondary", used_ratio=0.07, resets_at=NOW + 100, seconds=604_800.0),
    ]


def test_a_refusal_of_codex_without_headers() -> None:
    body = json.dumps(
        {"error": {"type": "usage_limit_reached", "plan_type": "plus", "resets_in_seconds": 60}}
    ).encode()
    seen = seen_plan("openai", "a1", "login", [], {}, 429, body, NOW)
    assert seen is not None
    assert (seen.status, seen.plan_type) == ("rejected", "plus")
    assert seen.windows == [SeenWindow(window="primary", resets_at=NOW + 60, rejected=True)]


@pytest.mark.parametrize(
    "more", ['"resets_at": 1' + 400 * "0", '"resets_in_seconds": -1e300', '"x": ' + 60_000 * "["]
)
def test_junk_in_a_refusal_of_codex_is_no_reset(more: str) -> None:
    body = f'{{"error": {{"type": "usage_limit_reached", {more}}}}}'.encode()
    seen = seen_plan(
        "openai", "a1", "login", [], {"x-codex-primary-used-percent": "100"}, 429, body, NOW
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
        },
        429,
    )
    assert seen is not None
    assert [each.window for each in seen.windows if each.rejected] == ["7d_opus"]


def test_a_credential_is_told_as_a_short_hash() -> None:
    bearer, key = (
        login_of([(b"Authorization", b"Bearer sk-ant-oat-1")], None),
        login_of([(b"x-api-key", b"sk-ant-2")], None),
    )
    assert bearer == digest("sk-ant-oat-1")
    assert key == digest("sk-ant-2")
    assert login_of([(b"x-api-key", b"sk-ant-2")], "operators") == digest("operators")
    assert login_of([], None) == ""
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
    assert found.daemon.asked[0].login == digest("secret-token")
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
