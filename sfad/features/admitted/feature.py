"""The declaration."""

from ...core.state.access import Access
from ...feature import Feature
from ...protocol.types import Admitted
from .messages import EndAgent, LocateAgent, NarrowAgent

ADMIT = "admit"
"""What it decides about a run."""

_BY_ITS_PROGRAM = Access(narrowed_by=None)
"""The part looks at the process that asks."""

FEATURE = Feature(
    verbs={
        EndAgent: _BY_ITS_PROGRAM,
        LocateAgent: _BY_ITS_PROGRAM,
        NarrowAgent: _BY_ITS_PROGRAM,
    },
    decides={ADMIT: Admitted},
    carrier="programs",
    part="part",
)
