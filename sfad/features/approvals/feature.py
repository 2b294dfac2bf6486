"""The declaration."""

from ...core.state.access import Access
from ...feature import Feature
from .messages import AnswerApproval, AskApproval

FEATURE = Feature(
    verbs={
        AskApproval: Access(narrowed_by="report", said="'report'", scope="none"),
        AnswerApproval: Access(inside=False, narrowed_by=None),
    },
    part="part",
)
