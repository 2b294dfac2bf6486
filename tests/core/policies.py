"""Policies by the names of keys, without their sections."""

from __future__ import annotations

from typing import Any

from msgspec import structs
from msgspec.structs import replace

from sfad.core.state.policy import Policy

SECTIONS = ("guard", "limits", "stop", "quotas", "attempts")


def changed(policy: Policy, **numbers: Any) -> Policy:
    """Return the policy with other values of these keys, as `trees=1`, and of its own fields, as
    `groups={}`."""
    sections: dict[str, Any] = {}
    for name in SECTIONS:
        section = getattr(policy, name)
        own = {key: numbers.pop(key) for key in section.__struct_fields__ if key in numbers}
        if own:
            sections[name] = structs.replace(section, **own)
    return replace(policy, **sections, **numbers)


def policy(**numbers: Any) -> Policy:
    """Return a policy with these keys and fields."""
    return changed(Policy(), **numbers)
