"""Export a span for each ended run and each of its calls of a model to `otel.endpoint`, until interrupted.

The daemon does this by itself where `otel.endpoint` is set. It needs the extra otel; docs/opentelemetry.md has the attributes.
"""

import os

from sfad.protocol.messages import Config, ConfigReply

from ..connection import connect
from ..exits import ExitCode, UsageError
from ..options import SOCKET, Parameter

PARAMETERS: tuple[Parameter, ...] = (SOCKET,)


def main(*, socket: str | None = None) -> int:
    try:
        from ..otel.exporter import export  # imports the SDK
    except ImportError as error:
        raise UsageError(
            f"spans need packages that are not installed ({error.name}); install sfad with its extra otel, as in: "
            "pip install '.[otel]' in the checkout"
        ) from None
    from ..otel.settings import settings_of

    with connect(socket) as client:
        found = client.call(Config(id=client.next_id()), ConfigReply).settings
        state_dir = client.welcome.state_dir
    export(socket, settings_of(found, os.environ), state_dir)
    return ExitCode.DONE
