"""The part in a daemon: `start_session`, and what the peer may do with sessions,
`session_rights`."""

from functools import partial

from ...core.state.request import SessionAsked
from ...daemon.loop.seam import Heart, Part
from ...daemon.server.asker import Asker
from ...daemon.server.verbs.starting import spawn
from ...protocol.errors import bad_request, check_limits, check_most
from ...protocol.messages import Continuation, Spawn
from .feature import SECTION, SessionsConfig
from .messages import SessionRights, SessionRules, StartSession


def part(heart: Heart) -> Part:
    return Part(
        verbs={
            StartSession: partial(start_session, heart),
            SessionRights: partial(session_rights, heart),
        }
    )


# ---- `start_session`: start a registered agent with a task, under `[sessions]`. The guard decides
# whether the peer may.


MAX_TEXT = 120_000
"""Bytes of a task or of instructions. execve(2) takes an argument of 128 KiB at most, with what the
command adds to it."""


async def start_session(heart: Heart, asker: Asker, request: StartSession) -> None:
    texts = {
        "task": request.task,
        "model": request.model,
        "provider": request.provider,
        "instructions": request.instructions,
    }
    given = {name: text for name, text in texts.items() if text is not None}
    for name, text in given.items():
        check_most(f"bytes of {name}", len(text.encode()), MAX_TEXT)
        if "\0" in text:
            raise bad_request(f"a NUL character in {name}")
    if not request.task.strip():
        raise bad_request("the task is blank; say what to do")
    limits = check_limits(request.limits)
    if request.continues is not None:
        await spawn(asker, _spawn(request, None, {}), SessionAsked(limits))
        return
    in_force = heart.in_force
    agent = request.agent or in_force.config.section(SECTION, SessionsConfig).default_agent
    if agent is None:
        key = heart.machine.policy.where_set("sessions.default_agent")
        raise bad_request(
            f"no agent was named, and {key} is not set; choose one: {', '.join(in_force.agents)}"
        )
    if agent not in in_force.agents:
        raise bad_request(
            f"there is no agent {agent[:64]!r}; choose from: {', '.join(in_force.agents)}"
        )
    await spawn(asker, _spawn(request, agent, given), SessionAsked(limits))


def _spawn(request: StartSession, agent: str | None, placeholders: dict[str, str]) -> Spawn:
    return Spawn(
        id=request.id,
        argv=[],
        cwd=request.cwd,
        env=request.env,
        umask=request.umask,
        agent=agent,
        placeholders=placeholders,
        name=request.name,
        on_limit=request.on_limit,
        leaf=not request.nested,
        nested=request.nested,
        worktree=request.worktree,
        check=request.check,
        labels=request.labels,
        channel=request.channel,
        allowed_tools=request.allowed_tools,
        blocked_tools=request.blocked_tools,
        claim=request.claim,
        key=request.key,
        continues=Continuation(run=request.continues, task=request.task)
        if request.continues is not None
        else None,
    )


# ---- `session_rights`: what the peer may do with sessions


def session_rights(heart: Heart, asker: Asker, _request: SessionRights) -> None:
    rules = heart.machine.policy.sessions
    config = heart.in_force.config.section(SECTION, SessionsConfig)
    refused = heart.machine.why_sessions_refused(asker.peer)
    if refused is None and not rules.enabled:
        refused = (
            f"sessions are off: set {heart.machine.policy.where_set('sessions.enabled')} to "
            "true, then run: sfactl reload"
        )
    asker.reply(
        SessionRules(
            id=asker.id,
            refused=refused,
            default_agent=config.default_agent,
            sync_timeout_s=config.sync_timeout_seconds,
            default_timeout_s=rules.default_time,
            max_timeout_s=rules.max_time,
            max_turns=rules.max_tool_calls_per_run,
            default_tokens=rules.default_token_budget,
            max_tokens=rules.max_token_budget,
        )
    )
