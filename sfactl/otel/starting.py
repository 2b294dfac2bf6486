"""Starts the exporter: finds out where spans go, and from which daemon."""

import os

from sfad.protocol.requests.daemon import Config, ConfigReply

from ..connecting.connection import connect
from ..exits import ExtraMissing


def start(socket: str | None) -> None:
    """Export until the process ends. Raise `Quit`."""
    try:
        from .exporter import export, settings_of  # imports the SDK
    except ImportError:
        raise ExtraMissing("otel", "otel") from None
    with connect(socket) as client:
        found = client.call(Config(id=client.next_id()), ConfigReply).settings
        state_dir = client.welcome.state_dir
    export(socket, settings_of(found, os.environ), state_dir)
