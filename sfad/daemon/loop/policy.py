"""The config that is in force, and the config in the core's terms."""

from collections.abc import Callable, Mapping
from typing import Any

from ... import config as configuration
from ...agents.registered import registered
from ...config import ConfigError, Loaded
from ...core.state.access import AccessRules
from ...core.state.limits import usual_action
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
from ...protocol.kinds import DEFAULT_KEYS
from ...protocol.known import CODING_AGENT
from ...protocol.messages import Change
from ...protocol.types import Limit, LimitKind

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


def policy_of(loaded: Loaded, *, everyone: bool) -> Policy:
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
        action = usual_action(kind, config.section("limits", LimitsConfig))
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


def nearing(config: configuration.Configuration) -> float:
    """Return the share of a limit from which on its use must be known."""
    return min([config.limits.nearing, *shares(config)])


def shares(config: configuration.Configuration) -> list[float]:
    """Return the shares of a run's limits at which features look at it."""
    keys = [feature.share.split(".") for feature in FEATURES.values() if feature.share]
    return [getattr(getattr(config, section), key) for section, key in keys]


ReadConfig = Callable[[], tuple[Loaded, list[Change]]]
"""Reads the config again, and returns what is in force then and what has changed. Raises
`ConfigError`."""


class InForce:
    def __init__(self, loaded: Loaded, read: ReadConfig) -> None:
        self._read = read
        self.rejected = loaded.rejected
        """Why the config files are not used as they are now; `None` if they are."""
        self._take(loaded)

    def _take(self, loaded: Loaded) -> None:
        self.config, self.settings, self.files = loaded.config, loaded.settings, loaded.files
        self.agents = registered(loaded.config, loaded.settings)

    def read_again(self) -> tuple[Loaded, list[Change]]:
        """Read the config files again. Return the config, and what has changed. Raises
        `ConfigError`, and then nothing has."""
        try:
            loaded, changed = self._read()
        except ConfigError as error:
            self.rejected = str(error)
            raise
        self.rejected = None
        self._take(loaded)
        return loaded, changed
