"""What the gateway does for a model call, in calls of Python, which the load of the machine does
not touch: the next feature must not make each call slower unseen."""

from __future__ import annotations

import pytest

from tests.bench import gateway

MOST = 1700
"""A little more than what a call costs today, of which three fifths are trio's, h11's and
httpcore2's (Python 3.11; later ones have no calls for comprehensions). Raise it only with a
reason."""
FEW, MANY = 10, 40


@pytest.mark.rest("it starts a daemon and a gateway twice, and counts what they do")
def test_a_model_call_costs_so_many_calls_at_most() -> None:
    with gateway.provider() as url:
        few, many = (gateway.python_calls(url, calls)[0] for calls in (FEW, MANY))
    assert many - few <= MOST * (MANY - FEW), f"{(many - few) / (MANY - FEW):.0f} calls"
