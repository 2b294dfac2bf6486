"""Starts the exporter: finds out where spans go, and from which daemon."""

import os

from sfad.protocol.requests.daemon import Config, ConfigReply

from ..connecting.connection import connect
from ..exits import UsageError


def start(socket: str | None) -> None:
    """Export until the process ends. Raise `Quit`."""
    try:
        from .exporter import export, settings_of  # imports the SDK
    except ImportError as error:
        raise UsageError(
            f"spans need packages that are not installed ({error.name}); "
            "install sfad with its extra otel, as in: pip install '.[otel]' in the checkout"
        ) from None
    with connect(socket) as client:
        found = client.call(Config(id=client.next_id()), ConfigReply).settings
        state_dir = client.welcome.state_dir
    export(socket, settings_of(found, os.environ), state_dir)
