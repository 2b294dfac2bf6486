"""The declaration."""

from typing import Annotated

from msgspec import Meta, Struct

from ...config_values import NAME_MAX, PATH, URL, VARIABLE
from ...feature import Feature, Section


class OtelConfig(Struct, frozen=True, kw_only=True):
    """Where spans of runs and calls go, by OTLP over HTTP."""

    endpoint: (
        Annotated[
            str, Meta(pattern=r"^https?://[^/?#@]+(/[^?#]*[^/?#])?$", max_length=1000, extra=URL)
        ]
        | None
    ) = None
    """The collector's base URL; `/v1/traces` follows."""
    headers_env: (
        Annotated[
            str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=NAME_MAX, extra=VARIABLE)
        ]
        | None
    ) = None
    """The daemon's variable with headers, such as a key, as `NAME=VALUE,NAME=VALUE`."""
    headers_file: Annotated[str, Meta(extra=PATH)] | None = None


FEATURE = Feature(
    sections=(
        Section(
            "otel",
            OtelConfig,
        ),
    ),
    part="part",
)
