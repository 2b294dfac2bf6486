"""Steps of the heart in `prepare`: what is decided, chosen and filled in."""

from msgspec.structs import replace

from ..agents.program import is_session_id
from ..agents.registered import filled_in, resumed_command
from ..core.state.request import narrowed
from ..features.listed import FEATURES
from ..protocol.errors import bad_request, wrong_state
from ..protocol.known import TIME_SAID
from ..protocol.types import LimitKind
from .prepared import Prepared, Surroundings

CHANNELS = {
    channel: whose for feature in FEATURES.values() for channel, whose in feature.channels.items()
}
"""The channels of features, and whose runs have them, in words."""


def narrow_tools(p: Prepared, around: Surroundings) -> None:
    """Narrow the lists of tools by those of the peer's run. To detach is no way out of them."""
    caller = around.caller
    if caller is None or not any(caller.run.asked.terms.tools):
        return
    tools = narrowed(p.terms.tools, caller.run.asked.terms.tools, f"run {caller.run.id}")
    p.terms = replace(p.terms, allowed_tools=tools.allowed, blocked_tools=tools.blocked)


def forget_told_time(p: Prepared, around: Surroundings) -> None:
    """Drop a limit of time that a client has only because the daemon told its run, in the same
    variable, how much that run has. It would replace what an agent or a profile sets. What a person
    has set there for all runs below stays."""
    caller = around.caller
    said = caller.run.time_said if caller is not None else None
    if caller is None or said is None or said.source == TIME_SAID:
        return
    told = min(said.threshold, *(run.allowed_time for run in caller.run.lineage))
    limits = tuple(
        limit
        for limit in p.terms.limits
        if limit.kind is not LimitKind.TIME or limit.source != TIME_SAID or limit.threshold < told
    )
    p.terms = replace(p.terms, limits=limits)


def fill_in_agent(p: Prepared, around: Surroundings) -> None:
    """Replace the name of a registered agent by its command, with options for the tools that it may
    use."""
    if around.order.agent is None:
        return
    found = filled_in(
        around.order, around.agents(), p.terms.tools, p.terms.limits, p.gateway_address
    )
    p.identity = replace(
        p.identity, agent=found.agent, name=found.name, kind=found.kind, run_type=found.run_type
    )
    p.terms = replace(p.terms, limits=found.limits)
    p.output.meter, p.output.stdin = found.meter, found.stdin
    command = p.command
    command.argv, command.env, command.placeholders = found.argv, found.env, found.placeholders
    command.agent_session, command.resume_argv = found.agent_session, found.resume_argv


def resume_command(p: Prepared, around: Surroundings) -> None:
    """Replace the command of a run that continues a session by one that does so."""
    continues, session = around.order.continues, p.command.continued_session
    if continues is None or session is None:
        return
    if not is_session_id(session):
        raise wrong_state(
            f"run {continues.run} cannot be continued: {session[:80]!r} is not the id of a "
            "session. An id has at most 128 of A-Z a-z 0-9 _ - and does not begin with - or _"
        )
    terminal = p.output.stdio == "inherit" or p.parts.of("terminal") is not None
    argv = resumed_command(p.command, session, p.task, terminal=terminal)
    if argv is None:
        words = p.command.argv[:8]
        shown = " ".join(word.decode(errors="backslashreplace") for word in words)[:200]
        raise wrong_state(
            f"run {continues.run} cannot be continued: sfad knows no command that continues its "
            f"session {session}, or cannot tell which words of its command are its task: {shown}"
        )
    p.command.argv = argv


def keep_channel(p: Prepared, around: Surroundings) -> None:
    """Give runs that a feature's own process starts, and what is started in them, the channel of
    that feature. No other client may have its runs taken for such."""
    caller = around.caller
    if around.peer.channel is not None:
        p.identity = replace(p.identity, channel=around.peer.channel)
    elif caller is not None and caller.run.birth.channel in CHANNELS:
        p.identity = replace(p.identity, channel=caller.run.birth.channel)
    elif (channel := p.identity.channel) is not None and channel in CHANNELS:
        raise bad_request(f"the channel '{channel}' is that of {CHANNELS[channel]}; choose another")
