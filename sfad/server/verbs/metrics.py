"""`metrics`: the daemon's figures, as Prometheus reads them."""

from ...protocol.messages import Metrics, MetricsText
from ..call import Call, answers


@answers(Metrics)
def metrics(call: Call, _request: Metrics) -> None:
    call.later(call.runtime.measuring.text, lambda text: MetricsText(id=call.id, text=text))
