"""What calls and their replies tell of a subscription: whose it is, and how much of its windows is
used.

Credentials and organizations become short hashes here, and go no further. No request is made to
learn more.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeGuard

from ..agents.program import digest
from ..protocol.requests.gateway import SeePlan
from ..protocol.requests.plans import Provider, SeenWindow
from .upstreams import RawHeaders

MOST_READ = 64 << 10
"""Bytes of the body of a refusal that are looked at."""

_UNIFIED = "anthropic-ratelimit-unified-"
_NAME = re.compile(r"[a-z0-9_]{1,40}")
_UTILIZATION = re.compile(rf"{_UNIFIED}({_NAME.pattern})-utilization")
_CLAIMS = {"five_hour": "5h", "seven_day": "7d"}
"""Windows by the names that `representative-claim` has for them; `seven_day_opus` is `7d_opus`."""
_NO_WINDOW = "overage"
_MOST_NUMBER = 1e12
_MOST_WORD = 64
"""Characters of the name of a status or plan."""
_CODEX = "x-codex-"


def login_of(headers: RawHeaders, key: str | None) -> str:
    """Return a hash of the credential of a call: the operator's key, else the caller's; empty if it
    has none."""
    if key is not None:
        return digest(key)
    found = {name.lower(): value for name, value in headers}
    credential = found.get(b"authorization", b"").partition(b" ")[2] or found.get(b"x-api-key", b"")
    return digest(credential.strip().decode("latin-1")) if credential.strip() else ""


def seen_plan(
    provider: Provider,
    run: str,
    login: str,
    asked: RawHeaders,
    reply: Mapping[str, str],
    status: int,
    body: bytes,
    time: float,
) -> SeePlan | None:
    """Return what a reply tells of a subscription's windows, or `None` if it tells nothing.
    `asked`: the headers of the call; `body`: of a refusal, as far as it was read. `time`: Unix time
    of the reply."""
    found = _anthropic(reply) if provider == "anthropic" else _codex(reply, status, body, time)
    if found is None:
        return None
    organization = (
        reply.get("anthropic-organization-id", "")
        if provider == "anthropic"
        else _account_id(asked)
    )
    if not (login or organization):
        return None
    found.run, found.time, found.login = run, time, login
    found.organization = digest(organization) if organization else None
    if "retry-after" in reply:
        found.retry_after = _number(reply["retry-after"])
    return found


def _account_id(asked: RawHeaders) -> str:
    """Return the account that Codex names with each call: its token changes every few days."""
    return next(
        (value.decode("latin-1") for name, value in asked if name.lower() == b"chatgpt-account-id"),
        "",
    )


def _plan(
    provider: Provider, windows: list[SeenWindow], status: str | None, plan_type: str | None = None
) -> SeePlan:
    status, plan_type = status and status[:_MOST_WORD], plan_type and plan_type[:_MOST_WORD]
    return SeePlan(
        id=0, run="", provider=provider, time=0.0, login="", status=status, plan_type=plan_type,
        windows=windows
    )  # fmt: skip


def _anthropic(reply: Mapping[str, str]) -> SeePlan | None:
    status = reply.get(f"{_UNIFIED}status")
    names = [
        found[1]
        for name in reply
        if (found := _UTILIZATION.fullmatch(name)) and found[1] != _NO_WINDOW
    ]
    if status is None and not names:
        return None
    rejected = _rejected(reply, names) if status == "rejected" else ()
    reset = _number(reply.get(f"{_UNIFIED}reset"))
    windows = [
        SeenWindow(
            window=name,
            used_ratio=_ratio(reply.get(f"{_UNIFIED}{name}-utilization")),
            resets_at=_number(reply.get(f"{_UNIFIED}{name}-reset"))
            or (reset if name in rejected else None),
            rejected=name in rejected,
        )
        for name in dict.fromkeys([*names, *rejected])
    ]
    return _plan("anthropic", windows, status)


def _rejected(reply: Mapping[str, str], names: list[str]) -> list[str]:
    """Return the windows because of which calls are refused: those that say so, else the one that
    the reply is about, else the fullest."""
    own = [name for name in names if reply.get(f"{_UNIFIED}{name}-status") == "rejected"]
    if own:
        return own
    claim = reply.get(f"{_UNIFIED}representative-claim", "")
    for long, short in _CLAIMS.items():
        if claim == long or (claim.startswith(f"{long}_") and _NAME.fullmatch(claim)):
            return [f"{short}{claim.removeprefix(long)}"]
    fullest = max(
        names, key=lambda name: _ratio(reply[f"{_UNIFIED}{name}-utilization"]) or 0.0, default="5h"
    )
    return [fullest]


def _codex(reply: Mapping[str, str], status: int, body: bytes, time: float) -> SeePlan | None:
    windows = [
        window
        for name in ("primary", "secondary")
        if (window := _codex_window(reply, name, time)) is not None
    ]
    refusal = _usage_limit(body) if status == 429 else None
    if status == 429 and (windows or refusal is not None):
        resets_at = _reset_of(refusal or {}, time)
        fullest = max(
            windows,
            key=lambda window: window.used_ratio or 0.0,
            default=SeenWindow(window="primary"),
        )
        others = [window for window in windows if window is not fullest]
        windows = [*others, SeenWindow(
            window=fullest.window, used_ratio=fullest.used_ratio,
            resets_at=resets_at or fullest.resets_at, seconds=fullest.seconds, rejected=True,
        )]  # fmt: skip
        plan_type = (refusal or {}).get("plan_type")
        return _plan(
            "openai", windows, "rejected", plan_type if isinstance(plan_type, str) else None
        )
    return _plan("openai", windows, "allowed", reply.get(f"{_CODEX}plan-type")) if windows else None


def _codex_window(reply: Mapping[str, str], name: str, time: float) -> SeenWindow | None:
    percent = _number(reply.get(f"{_CODEX}{name}-used-percent"))
    if percent is None:
        return None
    minutes = _number(reply.get(f"{_CODEX}{name}-window-minutes"))
    after = _number(reply.get(f"{_CODEX}{name}-reset-after-seconds"))
    return SeenWindow(
        window=name,
        used_ratio=round(min(percent, 1000.0) / 100, 6),
        resets_at=_number(reply.get(f"{_CODEX}{name}-reset-at"))
        or (time + after if after is not None else None),
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
