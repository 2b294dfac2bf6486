"""`start_session`: start a registered agent with a task, under `[sessions]`. The guard decides whether the peer may."""

import time

from ...core.asked import SessionAsked
from ...protocol.messages import Spawn, StartSession
from ..call import Call, answers
from ..checks import bad_request, check_limits, check_most
from .spawn import start

MAX_TEXT = 120_000
"""Bytes of a task or of instructions. execve(2) takes an argument of 128 KiB at most, with what the command adds to it."""


@answers(StartSession, checked_later=True)
def start_session(call: Call, request: StartSession) -> None:
    runtime = call.runtime
    texts = {"task": request.task, "model": request.model, "provider": request.provider, "instructions": request.instructions}
    given = {name: text for name, text in texts.items() if text is not None}
    for name, text in given.items():
        check_most(f"bytes of {name}", len(text.encode()), MAX_TEXT)
        if "\0" in text:
            raise bad_request(f"a NUL character in {name}")
    if not request.task.strip():
        raise bad_request("the task is blank; say what to do")
    limits = check_limits(request.limits)
    agent = request.agent or runtime.config.sessions.default_agent
    if agent is None:
        key = runtime.machine.policy.where_set("sessions.default_agent")
        raise bad_request(f"no agent was named, and {key} is not set; choose one: {', '.join(runtime.agents)}")
    if agent not in runtime.agents:
        raise bad_request(f"there is no agent {agent[:64]!r}; choose from: {', '.join(runtime.agents)}")
    start(call, _spawn(request, agent, given), SessionAsked(limits, time.time()))


def _spawn(request: StartSession, agent: str, placeholders: dict[str, str]) -> Spawn:
    return Spawn(
        id=request.id,
        argv=[],
        cwd=request.cwd,
        env=request.env,
        umask=request.umask,
        agent=agent,
        placeholders=placeholders,
        name=request.name,
        leaf=not request.nested,
        nested=request.nested,
        labels=request.labels,
        channel=request.channel,
        allowed_tools=request.allowed_tools,
        blocked_tools=request.blocked_tools,
        claim=request.claim,
        key=request.key,
    )
