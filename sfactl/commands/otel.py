from ..app import app
from ..options.shared import Socket


@app.command()
def otel(socket: Socket = None) -> None:
    """Export a span for each ended run and each of its model calls to `otel.endpoint`, until
    interrupted.

    The daemon does this by itself where `otel.endpoint` is set. It needs the extra otel;
    docs/metrics.md has the attributes.
    """
    from ..otel.starting import start  # an extra

    start(socket)
