"""`session_rights`: what the peer may do with sessions."""

from ...protocol.messages import SessionRights, SessionRules
from ..call import Call, answers


@answers(SessionRights, checked_later=True)
def session_rights(call: Call, _request: SessionRights) -> None:
    runtime = call.runtime
    rules, config = runtime.machine.policy.sessions, runtime.config.sessions
    refused = runtime.machine.refuse_sessions(call.peer)
    if refused is None and not rules.enabled:
        refused = f"sessions are off: set {runtime.machine.policy.where_set('sessions.enabled')} to true, then run: sfactl reload"
    call.reply(
        SessionRules(
            id=call.id,
            refused=refused,
            default_agent=config.default_agent,
            sync_timeout_s=config.sync_timeout_seconds,
            default_timeout_s=rules.default_time,
            max_timeout_s=rules.max_time,
            max_turns=rules.max_turns,
            default_tokens=rules.default_tokens,
            max_tokens=rules.max_tokens,
        )
    )
