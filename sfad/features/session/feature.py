"""The declaration."""

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta, Struct

from ...config_values import AGENT
from ...core.state.access import Access
from ...feature import Feature, Section
from ...protocol.known import AGENTS
from .messages import SessionRights, StartSession

SECTION = "sessions"


class SessionsConfig(Struct, frozen=True, kw_only=True):
    """Beside the heart's keys, which are terms of sessions."""

    sync_timeout_seconds: Annotated[float, Meta(ge=1, le=86400)] = 120.0
    default_agent: Annotated[str, Meta(max_length=64, extra=AGENT)] | None = None


def _check(config: Any) -> Iterator[tuple[str, str]]:
    agent, known = config.sessions.default_agent, dict.fromkeys([*config.agents, *AGENTS])
    if agent is not None and agent not in known:
        yield "default_agent", f"one of {', '.join(known)}"


FEATURE = Feature(
    sections=(Section(SECTION, SessionsConfig, check=_check),),
    verbs={
        # the core decides, and records what it refuses
        StartSession: Access(leaf=False, narrowed_by="spawn", scope="none", checked_later=True),
        SessionRights: Access(narrowed_by=None, scope="none", checked_later=True),
    },
    part="part",
)
