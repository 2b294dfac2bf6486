"""The declaration."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ...core.state.access import KEYS, Access
from ...feature import Feature, Section
from ...protocol.types import Terminal
from .messages import Keys, TellWaiting

TERMINAL = "terminal"
"""What it decides about a run."""
SAVED = "waiting/"
"""In the spool, before a run's id: that it waits for a person."""


class AgentTerminal(Struct, frozen=True, kw_only=True):
    terminal: bool = False
    """Each run has a terminal of its own (docs/terminals.md)."""


AgentTerminals = dict[str, AgentTerminal]
"""By the names of agents."""


def _shown(_terminal: Terminal, _live: Any) -> Mapping[str, Any]:
    return {"terminal": True}


FEATURE = Feature(
    sections=(Section("agents", AgentTerminals),),
    verbs={
        Keys: Access(narrowed_by=KEYS),
        TellWaiting: Access(narrowed_by="report", said="'report'"),
    },
    saved=(SAVED,),
    decides={TERMINAL: Terminal},
    shows=_shown,
    part="part",
)
