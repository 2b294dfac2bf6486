"""The declaration."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ...config_values import Form
from ...feature import Feature, Section
from ...protocol.texts.destinations import FORMS, destination
from ...protocol.types import Isolation

ISOLATION = "isolation"
"""What it decides about a run."""


def _check_hosts(hosts: tuple[str, ...]) -> None:
    for each in hosts:
        destination(each)


_PATHS = {"form": Form("a list of absolute paths, or of paths that begin with ~/")}
_HOSTS = {"form": Form(f"a list of hosts, each as {FORMS}", _check_hosts)}


class IsolationConfig(Struct, frozen=True, kw_only=True):
    default: Literal["off", "on", "net"] = "off"
    """The least isolation of every run."""
    writable: tuple[Annotated[str, Meta(pattern=r"^(/|~/)", extra=_PATHS)], ...] = ()
    """Where each isolated run may write, beside its working directory."""
    readable: tuple[Annotated[str, Meta(pattern=r"^(/|~/)", extra=_PATHS)], ...] = ()
    """What each isolated run may read, beside programs and what it may write."""
    egress: Annotated[tuple[str, ...], Meta(extra=_HOSTS)] = ()
    """What each run with a network of its own reaches through the gateway, beside its model."""


def _shown(isolation: Isolation, live: Any) -> Mapping[str, Any]:
    gateway = live.parts.gateway
    return {
        "isolation": "on" if isolation.network else "net" if gateway else "offline",
        "egress": tuple(isolation.egress) if gateway else (),
    }


FEATURE = Feature(
    sections=(Section("isolation", IsolationConfig),),
    decides={ISOLATION: Isolation},
    sandboxes=True,
    shows=_shown,
    doctor="doctor",
    part="part",
)
