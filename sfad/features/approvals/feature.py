"""The declaration."""

from ...core.state.access import Access
from ...feature import Feature
from .messages import AnswerApproval, AskApproval

SAVED = "approvals/"
"""In the spool, before a run's id: what it asks for."""

FEATURE = Feature(
    verbs={
        AskApproval: Access(narrowed_by="report", said="'report'", scope="none"),
        AnswerApproval: Access(inside=False, narrowed_by=None),
    },
    saved=(SAVED,),
    part="part",
)
