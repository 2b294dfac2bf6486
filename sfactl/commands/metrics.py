from sfad.features.metrics.messages import Metrics, MetricsText

from .. import output
from ..app import app
from ..connecting.connection import call
from ..options.shared import Socket


@app.command()
def metrics(socket: Socket = None) -> None:
    """Print the daemon's metrics in the text format of Prometheus.

    docs/metrics.md describes each. `metrics.listen` in the config serves the same to a
    Prometheus server.
    """
    output.write(call(socket, Metrics(id=0), MetricsText).text.encode())
