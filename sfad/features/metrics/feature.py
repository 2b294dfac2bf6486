"""The declaration."""

import re
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from ...config_values import Form
from ...core.state.access import Access
from ...feature import Feature, Section
from .messages import Metrics

MAX_PORT = 65535


def listen_address(text: str) -> Path | tuple[str, int]:
    """Return the path of a Unix socket, or a loopback address and its port. Raises `ValueError`.

    Other addresses are refused: what is served has no password."""
    scheme, _, path = text.partition(":")
    if scheme == "unix" and Path(path).is_absolute() and "\0" not in path:
        return Path(path)
    host, _, port = text.rpartition(":")
    if (
        host not in {"127.0.0.1", "[::1]"}
        or not re.fullmatch(r"[1-9][0-9]{0,4}", port, re.ASCII)
        or int(port) > MAX_PORT
    ):
        raise ValueError(text)
    return host.strip("[]"), int(port)


_LISTEN = {"form": Form('"127.0.0.1:PORT", "[::1]:PORT" or "unix:/PATH"', listen_address)}


class MetricsConfig(Struct, frozen=True, kw_only=True):
    listen: Annotated[str, Meta(extra=_LISTEN)] | None = None
    """Where Prometheus reads them."""


FEATURE = Feature(
    sections=(Section("metrics", MetricsConfig),),
    verbs={Metrics: Access("admin", inside=False, narrowed_by=None, scope="none")},
    part="part",
)
