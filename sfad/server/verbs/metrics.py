"""`metrics`: the daemon's figures, as Prometheus reads them."""

from functools import partial

from ...loop.measuring import measured
from ...observe.metrics import Values
from ...protocol.messages import Metrics, MetricsText
from ..call import Call, answers


@answers(Metrics)
def metrics(call: Call, _request: Metrics) -> None:
    values = measured(call.runtime, len(call.services.connections))
    call.later(lambda: call.runtime.background.walk(partial(_text, values)), lambda text: MetricsText(id=call.id, text=text))


def _text(values: Values) -> str:
    from ...observe.exposition import text_of  # prometheus_client takes 3 MiB, which a daemon without metrics need not have

    return text_of(values)
