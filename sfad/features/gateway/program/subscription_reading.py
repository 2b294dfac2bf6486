"""What calls and their replies tell of a subscription: whose it is, and how much of its windows is
used.

Credentials and organizations become short hashes here, and go no further. No request is made to
learn more.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from ....agents.program import digest
from ....protocol.known import LENGTHS, WINDOW_HOSTS
from ....protocol.requests.gateway import SeeWindows
from ....protocol.requests.windows import Provider, SeenWindow
from .upstreams import RawHeaders, Upstream

MOST_READ = 64 << 10
"""Bytes of the body of a refusal that are looked at."""

_UNIFIED = "anthropic-ratelimit-unified-"
_NAME = re.compile(r"[a-z0-9_]{1,40}")
_UTILIZATION = re.compile(rf"{_UNIFIED}({_NAME.pattern})-utilization")
_CLAIMS = {"five_hour": "5h", "seven_day": "7d"}
"""Windows by the names that `representative-claim` has for them; `seven_day_opus` is `7d_opus`."""
_CLAIMED_SHORTER = {"overage_included": "oi"}
"""What follows these names, where the window's own name has another word."""
_NO_WINDOW = "overage"
_MOST_NUMBER = 1e12
_MOST_WORD = 64
"""Characters of the name of a status or plan."""
_CODEX = "x-codex-"
_MAIN_LIMIT = "codex"
"""The limit of Codex whose windows a subscription has. Some models have another one beside it."""
_BANKED = "rate-limit-reset-credits-available"
_SAME = 60.0
"""Seconds between two words about one reset."""


def place_of(provider: Provider, upstream: Upstream, configured: Iterable[Upstream]) -> str | None:
    """Return where the accounts are that an upstream tells of: empty for the provider's own host,
    else the server, which may be behind several upstreams. `None` if it is not believed: only the
    operator, and no tree, may name another one that tells of somebody's windows."""
    parts = urlsplit(upstream.url)
    if parts.scheme == "https" and parts.hostname in WINDOW_HOSTS[provider]:
        return ""
    known = any(each.url == upstream.url for each in configured)
    return parts.netloc.rpartition("@")[2].lower() if known else None


def login_of(headers: RawHeaders, key: str | None, place: str) -> str:
    """Return a hash of the credential of a call: the operator's key, else the caller's; empty if it
    has none. `place`: as `place_of` tells it."""
    found = {name.lower(): value for name, value in headers}
    credential = found.get(b"authorization", b"").partition(b" ")[2] or found.get(b"x-api-key", b"")
    return _hash(key if key is not None else credential.strip().decode("latin-1"), place)


def _hash(text: str, place: str) -> str:
    return digest(f"{place} {text}" if place else text) if text else ""


def seen_subscription(
    provider: Provider,
    run: str,
    login: str,
    reply: Mapping[str, str],
    status: int,
    body: bytes,
    time: float,
    place: str = "",
) -> SeeWindows | None:
    """Return what a reply tells of a subscription's windows, or `None` if it tells nothing.
    `body`: of a refusal, as far as it was read. `time`: Unix time of the reply. `place`: as
    `place_of` tells it.

    Whose account it is, the reply says, or the credential that the provider has taken: what else
    the request says, its agent may have made up."""
    found = (
        _anthropic(reply, status)
        if provider == "anthropic"
        else _codex(reply, status, _usage_limit(body) if status == 429 else None, time)
    )
    organization = reply.get("anthropic-organization-id", "") if provider == "anthropic" else ""
    if found is None or not (login or organization):
        return None
    found.run, found.time, found.login = run, time, login
    found.organization = _hash(organization, place) or None
    if "retry-after" in reply:
        found.retry_after = _number(reply["retry-after"])
    return found


def _told(
    provider: Provider, windows: list[SeenWindow], status: str | None, plan_type: str | None = None
) -> SeeWindows:
    status, plan_type = status and status[:_MOST_WORD], plan_type and plan_type[:_MOST_WORD]
    return SeeWindows(
        id=0, run="", provider=provider, time=0.0, login="", status=status, plan_type=plan_type,
        windows=windows
    )  # fmt: skip


def _truth(text: str | None) -> bool | None:
    word = (text or "").strip().lower()
    return word in {"true", "1"} if word in {"true", "1", "false", "0"} else None


# ---- Anthropic's subscriptions


def _anthropic(reply: Mapping[str, str], code: int) -> SeeWindows | None:
    status = reply.get(f"{_UNIFIED}status")
    names = [
        found[1]
        for name in reply
        if (found := _UTILIZATION.fullmatch(name)) and found[1] != _NO_WINDOW
    ]
    if status is None and not names:
        return None
    # a call that is paid by credits is answered, with the status "rejected"
    rejected = _rejected(reply, names) if status == "rejected" and code == 429 else None
    reset = _number(reply.get(f"{_UNIFIED}reset"))
    windows = [
        SeenWindow(
            window=name,
            used_ratio=_ratio(reply.get(f"{_UNIFIED}{name}-utilization")),
            resets_at=_number(reply.get(f"{_UNIFIED}{name}-reset"))
            or (reset if name == rejected else None),
            rejected=name == rejected,
        )
        for name in dict.fromkeys([*names, *([rejected] if rejected else [])])
    ]
    told = _told("anthropic", windows, status)
    told.on_credits = _truth(reply.get(f"{_UNIFIED}{_NO_WINDOW}-in-use"))
    return told


def _rejected(reply: Mapping[str, str], names: list[str]) -> str | None:
    """Return the window because of which a call was refused: one that says so, else the one that
    the reply is about, else one that is used up. `None`: no window is the reason, as when
    credits have run out, or the plan lacks the model."""

    def said(name: str) -> str:
        return reply.get(f"{_UNIFIED}{name}-status", "")

    def used(name: str) -> float:
        return _ratio(reply.get(f"{_UNIFIED}{name}-utilization")) or 0.0

    claimed = _claimed(reply.get(f"{_UNIFIED}representative-claim", ""))
    likely = sorted(names, key=lambda name: (name == claimed, used(name)), reverse=True)
    if claimed is not None and claimed not in names:
        likely.insert(0, claimed)
    told = next((name for name in likely if said(name) == "rejected"), None)
    return told or next(
        (
            name
            for name in likely
            if not said(name).startswith("allowed") and (name == claimed or used(name) >= 1)
        ),
        None,
    )


def _claimed(claim: str) -> str | None:
    """Return the window that a reply is about, by the name that Anthropic has for it there."""
    for long, short in _CLAIMS.items():
        if claim == long:
            return short
        if claim.startswith(f"{long}_") and _NAME.fullmatch(claim):
            word = claim.removeprefix(f"{long}_")
            return f"{short}_{_CLAIMED_SHORTER.get(word, word)}"
    return None


# ---- OpenAI's subscriptions, as Codex uses them


def _codex(
    reply: Mapping[str, str], code: int, refusal: dict[str, Any] | None, time: float
) -> SeeWindows | None:
    """Return what a reply tells. `refusal`: its error, if that says that a limit is reached."""
    told = [_codex_window(reply, name, time) for name in ("primary", "secondary")]
    windows = [window for window in told if window is not None]
    if not windows and refusal is None:
        return None
    plan_type = (refusal or {}).get("plan_type") or reply.get(f"{_CODEX}plan-type")
    status = None
    if code == 429:
        rejected = _used_up(reply, windows, refusal, time)
        if rejected is not None:
            windows = [each for each in windows if each.window != rejected.window] + [rejected]
            status = "rejected"
    elif code < 400:
        status = "allowed"
    if not windows:
        return None
    found = _told("openai", windows, status, plan_type if isinstance(plan_type, str) else None)
    has_credits = _truth(reply.get(f"{_CODEX}credits-has-credits"))
    unlimited = _truth(reply.get(f"{_CODEX}credits-unlimited"))
    if unlimited or has_credits is not None:
        balance = reply.get(f"{_CODEX}credits-balance", "").strip()[:_MOST_WORD]
        found.credits = "unlimited" if unlimited else balance if has_credits else "0"
        is_full = any((each.used_ratio or 0.0) >= 1 for each in windows)
        found.on_credits = bool(unlimited or has_credits) and is_full and code < 400
    banked = _number(reply.get(f"{_CODEX}{_BANKED}-count") or reply.get(f"{_CODEX}{_BANKED}"))
    found.banked_resets = None if banked is None else int(banked)
    return found


def _used_up(
    reply: Mapping[str, str],
    windows: list[SeenWindow],
    refusal: dict[str, Any] | None,
    time: float,
) -> SeenWindow | None:
    """Return the window because of which a call was refused; `None` if none is the reason, as in a
    burst or an overload, where a plan lacks the model, or credits have run out."""
    active = reply.get(f"{_CODEX}active-limit", "").strip().lower().replace("_", "-")
    if active != _MAIN_LIMIT and f"x-{active}-primary-used-percent" in reply:
        return None  # another limit is reached, which only some models have
    resets_at = _reset_of(refusal or {}, time)

    def is_about(window: SeenWindow) -> bool:
        return resets_at is not None and abs((window.resets_at or 0.0) - resets_at) <= _SAME

    def used(window: SeenWindow) -> float:
        return window.used_ratio or 0.0

    likely = max(
        windows,
        key=lambda each: (used(each) >= 1, is_about(each), used(each)),
        default=_window_until(resets_at, time),
    )
    reached = reply.get(f"{_CODEX}rate-limit-reached-type", "").lower()
    is_reached = refusal is not None and "credits" not in reached
    is_told = not windows or resets_at is None or is_about(likely)
    if used(likely) < 1 and not (is_reached and is_told):
        return None
    return SeenWindow(
        window=likely.window, used_ratio=likely.used_ratio, seconds=likely.seconds,
        resets_at=resets_at if resets_at is not None else likely.resets_at, rejected=True,
    )  # fmt: skip


def _window_until(resets_at: float | None, time: float) -> SeenWindow:
    """Return the window that a refusal without windows is about: the shorter that can end then."""
    is_short = resets_at is None or resets_at - time <= LENGTHS["primary"] + _SAME
    return SeenWindow(window="primary" if is_short else "secondary")


def _codex_window(reply: Mapping[str, str], name: str, time: float) -> SeenWindow | None:
    percent = _number(reply.get(f"{_CODEX}{name}-used-percent"))
    minutes = _number(reply.get(f"{_CODEX}{name}-window-minutes"))
    after = _number(reply.get(f"{_CODEX}{name}-reset-after-seconds"))
    at = _number(reply.get(f"{_CODEX}{name}-reset-at"))
    # a plan with one window says 0 of everything for the other
    if percent is None or not (percent or minutes or at):
        return None
    return SeenWindow(
        window=name,
        used_ratio=round(min(percent, 1000.0) / 100, 6),
        resets_at=at or (time + after if after is not None else None),
        seconds=minutes * 60 if minutes else None,
    )


def _usage_limit(body: bytes) -> dict[str, Any] | None:
    """Return the error of a refusal that Codex takes for a used-up window."""
    with suppress(ValueError, RecursionError):
        said = json.loads(body)
        error = said.get("error") if isinstance(said, dict) else None
        return (
            error
            if isinstance(error, dict) and error.get("type") == "usage_limit_reached"
            else None
        )
    return None


def _reset_of(refusal: Mapping[str, Any], time: float) -> float | None:
    at, after = refusal.get("resets_at"), refusal.get("resets_in_seconds")
    if _is_number(at):
        return float(at)
    return time + after if _is_number(after) else None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and 0 <= value < _MOST_NUMBER


def _number(text: str | None) -> float | None:
    """Return a number that is not negative, as a header has it; `None` for anything else."""
    with suppress(ValueError):
        number = float(text) if text is not None else -1.0
        return number if _is_number(number) else None
    return None


def _ratio(text: str | None) -> float | None:
    number = _number(text)
    return None if number is None else round(min(number, 10.0), 6)
