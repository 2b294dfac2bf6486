"""The declaration."""

from msgspec import Struct

from ...core.state.access import Access
from ...feature import Feature, Section
from .messages import Recommend


class AdviceConfig(Struct, frozen=True, kw_only=True):
    adaptive: bool = False
    """What is learnt of a user's type, or name, are the limits of the next runs."""


FEATURE = Feature(
    sections=(Section("limits", AdviceConfig),),
    verbs={Recommend: Access(inside=False, narrowed_by=None, scope="many")},
    part="part",
)
