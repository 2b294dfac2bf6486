"""Which runs a `stop` or `select` means: each that it names, and the live ones that its filters choose."""

from __future__ import annotations

from ..protocol.messages import Select, Stop
from ..protocol.types import RunId
from .call import Call
from .checks import MAX_CHOSEN, check_filters, check_most


def check_choice(request: Stop | Select) -> None:
    check_most("runs in one request", len(request.runs), MAX_CHOSEN)
    check_filters(request)


def sweeps(request: Stop | Select) -> bool:
    """Return whether the request chooses among the live runs."""
    return request.everything or request.name is not None or bool(request.labels)


def swept(call: Call, request: Stop | Select, verb: str) -> list[RunId]:
    """Return the live runs that the filters choose."""
    if not sweeps(request):
        return []
    return call.services.handles.sweep(verb, call.peer.run, name=request.name, labels=request.labels)
