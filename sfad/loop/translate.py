"""Translates requests and the config into the core's terms."""

from msgspec.structs import asdict

from .. import config as configuration
from ..core.access import AccessRules
from ..core.asked import Asked, SessionAsked
from ..core.naming import AGENT_PROGRAMS, derive_name
from ..core.policy import AlertPolicy, CallBounds, Policy, SessionPolicy
from ..protocol.kinds import DEFAULT_KEYS, KINDS
from ..protocol.known import ANY_PROGRAM, CODING_AGENT
from ..protocol.messages import Spawn
from ..protocol.types import Action, Bound, Limit, LimitKind


def asked_of(spawn: Spawn, client: int, session: SessionAsked | None = None, *, metered: bool = True) -> Asked:
    """Return the part of a client's request that the core decides about. `metered`: something beside the gateway tells its use."""
    argv = tuple(shown(word) for word in spawn.argv)
    derived = derive_name(argv)
    return Asked(
        argv=abridged(argv),
        cwd=shown(spawn.cwd),
        # derived from the whole command: a hash of its beginning would be the same for several agents
        name=spawn.name if spawn.name is not None else derived,
        kind=spawn.kind,
        identity=spawn.agent,
        agent_program=derived in AGENT_PROGRAMS,
        tells_each_call=spawn.meter == ANY_PROGRAM,
        type=spawn.run_type,
        limits=tuple(spawn.limits),
        on_limit=spawn.on_limit,
        max_depth=spawn.max_depth,
        max_descendants=spawn.max_descendants,
        attempts=spawn.attempts,
        retry_delay=spawn.retry_delay,
        grace=spawn.grace,
        tied_to=client if spawn.tied else None,
        detach=spawn.detach,
        leaf=spawn.leaf,
        interactive=spawn.stdin == "pipe",
        queue=spawn.queue,
        priority=spawn.priority,
        labels=spawn.labels,
        channel=spawn.channel,
        allow=frozenset(spawn.allow),
        deny=frozenset(spawn.deny),
        allowed_tools=tuple(spawn.allowed_tools),
        blocked_tools=tuple(spawn.blocked_tools),
        claim=spawn.claim,
        gated=bool(spawn.gateway) and spawn.direct is None,
        metered=metered,
        uncounted=None if metered else _uncounted(spawn),
        unnamed=spawn.automatic and spawn.name is None,
        models=tuple(spawn.allowed_models),
        nested=spawn.nested,
        session=session,
        inherits=spawn.stdio == "inherit",
        after=tuple(spawn.after),
        group=spawn.group,
    )


def _uncounted(spawn: Spawn) -> str | None:
    """Return why the gateway will not see what a run uses; `None` if it will."""
    if spawn.gateway:
        return spawn.direct
    return "it does not use the gateway, and no meter knows its program"


MAX_SHOWN = 4096
"""Characters of a command line that are kept for display. It may have megabytes, and a thousand runs are in memory."""


def abridged(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command line as it is displayed, cut with `…`."""
    kept: list[str] = []
    room = MAX_SHOWN
    for word in argv:
        if len(word) > room:
            kept.append(word[:room] + "…")
            break
        kept.append(word)
        room -= len(word) + 1
    return tuple(kept)


def shown(raw: bytes) -> str:
    """Return an operating-system string as text. Bytes that are not UTF-8 appear as `\\xNN`."""
    return raw.decode(errors="backslashreplace")


def policy_of(loaded: configuration.Loaded, *, everyone: bool) -> Policy:
    """Return the core's numbers, each bound with the file that set it. `everyone`: the daemon serves each user."""
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
        return Limit(kind=kind, threshold=float(threshold), action=action, source=origin(f"defaults.{key}"))

    # each key of these sections, but for `adaptive` and `agent_programs`, is a field of `Policy` with the same name
    numbers = asdict(config.guard) | asdict(config.limits) | asdict(config.stop) | asdict(config.quotas)
    del numbers["adaptive"], numbers["agent_programs"]
    for key in ("max_depth", "max_descendants"):
        numbers[key] = Bound(value=numbers[key], source=origin(f"guard.{key}"))
    return Policy(
        **numbers,
        enabled=config.enabled,
        defaults={kind: limit for kind in LimitKind if (limit := default(kind)) is not None},
        program_profile=config.defaults.program_profile == CODING_AGENT,
        call_wait=config.gateway.wait,
        models=config.gateway.models,
        bypass=config.gateway.bypass,
        calls_per_run=CallBounds(**asdict(config.gateway.per_run)),
        calls_per_user=CallBounds(**asdict(config.gateway.per_user)),
        budget_action=Action(config.budgets.action),
        sessions=_session_policy(config.sessions),
        access=AccessRules(all_users=everyone, admin_gid=config.access.admin_group),
        alerts=AlertPolicy(**asdict(config.alerts)),
        interrupted=frozenset(name for name, program in config.programs.items() if program.stop == "SIGINT-main"),
        groups={name: group.slots for name, group in config.groups.items()},
        retry_delay=config.attempts.delay,
        retry_delay_max=config.attempts.delay_max,
        files={key: file for key, file in source.items() if file != configuration.BUILT_IN},
        file=str(loaded.strongest or "the config"),
    )


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
