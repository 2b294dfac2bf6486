"""The declaration."""

from typing import Annotated

from msgspec import Meta, Struct

from ...config_values import LISTEN
from ...core.state.access import Access
from ...feature import Feature, Section
from .messages import Metrics


class MetricsConfig(Struct, frozen=True, kw_only=True):
    listen: Annotated[str, Meta(extra=LISTEN)] | None = None
    """Where Prometheus reads them."""


FEATURE = Feature(
    sections=(Section("metrics", MetricsConfig),),
    verbs={Metrics: Access("admin", inside=False, narrowed_by=None, scope="none")},
    part="part",
)
