"""Export a span for each ended run and each of its model calls to `otel.endpoint`, until interrupted.

The daemon does this by itself where `otel.endpoint` is set. It needs the extra otel; docs/metrics.md has the attributes.
"""

from ..exits import ExitCode
from ..options import SOCKET, Parameter
from ..otel.starting import start

PARAMETERS: tuple[Parameter, ...] = (SOCKET,)


def main(*, socket: str | None = None) -> int:
    start(socket)
    return ExitCode.DONE
