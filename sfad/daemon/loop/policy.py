"""The config in the core's terms."""

from collections.abc import Mapping
from typing import Any

from ... import config as configuration
from ...core.state.access import AccessRules
from ...core.state.policy import (
    AttemptsConfig,
    GuardConfig,
    LimitsConfig,
    Policy,
    QuotasConfig,
    SessionsConfig,
    StopConfig,
)
from ...features.listed import FEATURES
from ...protocol.framing import tag
from ...protocol.kinds import DEFAULT_KEYS, KINDS
from ...protocol.known import CODING_AGENT
from ...protocol.types import Action, Limit, LimitKind

ACCESS = {
    tag(request): access
    for feature in FEATURES.values()
    for request, access in feature.verbs.items()
}
"""As `TABLE` of the core, of the verbs of features."""


_KEPT: Mapping[str, Any] = {
    "guard": GuardConfig,
    "limits": LimitsConfig,
    "stop": StopConfig,
    "quotas": QuotasConfig,
    "attempts": AttemptsConfig,
    "sessions": SessionsConfig,
}
"""Sections that the core decides by, without the keys that features add to them."""


def policy_of(loaded: configuration.Loaded, *, everyone: bool) -> Policy:
    """Return what the core decides by. `everyone`: the daemon serves each user."""
    config = loaded.config
    source = {setting.key: setting.source for setting in loaded.settings}

    def origin(key: str) -> str:
        return "default" if source[key] == configuration.BUILT_IN else f"{key} in {source[key]}"

    def default(kind: LimitKind) -> Limit | None:
        key = DEFAULT_KEYS[kind]
        threshold = getattr(config.defaults, key, None)
        if threshold is None:
            return None
        action = Action.TERMINATE if KINDS[kind].acts else Action.WARN
        return Limit(
            kind=kind, threshold=float(threshold), action=action, source=origin(f"defaults.{key}")
        )

    return Policy(
        **{key: config.section(key, kind) for key, kind in _KEPT.items()},
        watches_clocks=any(share != config.limits.nearing for share in shares(config)),
        enabled=config.enabled,
        defaults={kind: limit for kind in LimitKind if (limit := default(kind)) is not None},
        program_profile=config.defaults.program_profile == CODING_AGENT,
        bypass=config.gateway.bypass,
        access=AccessRules(
            all_users=everyone, admin_gid=config.access.admin_group, features=ACCESS
        ),
        interrupted=frozenset(
            name for name, program in config.programs.items() if program.stop == "SIGINT-main"
        ),
        groups={name: group.slots for name, group in config.groups.items()},
        sections={key: config.section(key, kind) for key, kind, *_ in configuration.SECTIONS},
        files={key: file for key, file in source.items() if file != configuration.BUILT_IN},
        file=str(loaded.strongest or "the config"),
    )


def shares(config: configuration.Configuration) -> list[float]:
    """Return the shares of a run's limits at which features look at it."""
    keys = [feature.share.split(".") for feature in FEATURES.values() if feature.share]
    return [getattr(getattr(config, section), key) for section, key in keys]
