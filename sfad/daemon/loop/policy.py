"""The config in the core's terms."""

from ... import config as configuration
from ...core.state.access import AccessRules
from ...core.state.policy import CallPolicy, Policy, SessionPolicy
from ...features.listed import FEATURES
from ...protocol.encoding import tag
from ...protocol.kinds import DEFAULT_KEYS, KINDS
from ...protocol.known import CODING_AGENT
from ...protocol.types import Action, Bound, Limit, LimitKind

ACCESS = {
    tag(request): access
    for feature in FEATURES.values()
    for request, access in feature.verbs.items()
}
"""As `TABLE` of the core, of the verbs of features."""


def policy_of(loaded: configuration.Loaded, *, everyone: bool) -> Policy:
    """Return the core's numbers, each bound with the file that set it. `everyone`: the daemon
    serves each user."""
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

    # each key of the heart in these sections, but for `agent_programs` and `conclude_reserve`, is a
    # field of `Policy` with the same name
    numbers = {
        name: getattr(section, name)
        for section, kind in (
            (config.guard, configuration.GuardConfig),
            (config.limits, configuration.LimitsConfig),
            (config.stop, configuration.StopConfig),
            (config.quotas, configuration.QuotasConfig),
        )
        for name in kind.__struct_fields__
    }
    del numbers["agent_programs"], numbers["conclude_reserve"]
    for key in ("max_depth", "max_descendants"):
        numbers[key] = Bound(value=numbers[key], source=origin(f"guard.{key}"))
    return Policy(
        **numbers,
        watches_clocks=any(share != config.limits.nearing for share in shares(config)),
        enabled=config.enabled,
        defaults={kind: limit for kind in LimitKind if (limit := default(kind)) is not None},
        program_profile=config.defaults.program_profile == CODING_AGENT,
        calls=CallPolicy(wait=config.gateway.wait, conclude_reserve=config.limits.conclude_reserve),
        models=config.gateway.models,
        bypass=config.gateway.bypass,
        calls_per_run=config.gateway.per_run,
        calls_per_user=config.gateway.per_user,
        sessions=_session_policy(config.sessions),
        access=AccessRules(
            all_users=everyone, admin_gid=config.access.admin_group, features=ACCESS
        ),
        interrupted=frozenset(
            name for name, program in config.programs.items() if program.stop == "SIGINT-main"
        ),
        groups={name: group.slots for name, group in config.groups.items()},
        retry_delay=config.attempts.delay,
        retry_delay_max=config.attempts.delay_max,
        sections={key: config.section(key, kind) for key, kind, *_ in configuration.SECTIONS},
        files={key: file for key, file in source.items() if file != configuration.BUILT_IN},
        file=str(loaded.strongest or "the config"),
    )


def shares(config: configuration.Configuration) -> list[float]:
    """Return the shares of a run's limits at which features look at it."""
    keys = [feature.share.split(".") for feature in FEATURES.values() if feature.share]
    return [getattr(getattr(config, section), key) for section, key in keys]


def _session_policy(config: configuration.SessionsConfig) -> SessionPolicy:
    return SessionPolicy(
        enabled=config.enabled,
        default_time=config.default_timeout_minutes * 60,
        max_time=config.max_timeout_minutes * 60,
        per_user=config.max_concurrent_per_user,
        total=config.max_concurrent_global,
        max_turns=config.max_tool_calls_per_run,
        default_tokens=config.default_token_budget,
        max_tokens=config.max_token_budget,
        starts=config.spawn_rate_limit.max_requests,
        window=config.spawn_rate_limit.window_seconds,
    )
