"""Checks of fields that several kinds of request have."""

from collections.abc import Iterable
from signal import Signals

from ...core.state.access import values_of
from ...core.state.policy import MAX_LABELS
from ...protocol.errors import bad_request, check_most
from ...protocol.messages import List, Select, Stop, Summarise, WatchRuns

MAX_SECONDS = 36_525 * 86_400.0
"""A hundred years: further back than that nothing was recorded, and beyond some 8 000 years there
is no `datetime`."""

MAX_CHOSEN = 1024
"""Runs named in one request; each is looked up."""

CHANGES = ("stop", "pause", "resume", "limit", "approve", "deny")
"""Verbs with which a member of the admin group means only runs of their own, where they name
none."""


def check_signal(number: int, allowed: Iterable[int]) -> None:
    if number not in allowed:
        names = (
            ", ".join(sorted(Signals(n).name for n in allowed))
            if len(list(allowed)) < 16
            else "1 to 64"
        )
        raise bad_request(f"signal {number} cannot be sent here; allowed: {names}")


def check_filters(request: Stop | Select | List | Summarise | WatchRuns) -> None:
    check_most("names", len(values_of(request.name or ())), MAX_CHOSEN)
    if isinstance(request, List):
        for what, wanted in (
            ("types", request.run_type),
            ("channels", request.channel),
            ("models", request.model),
        ):
            check_most(what, len(values_of(wanted or ())), MAX_LABELS)
    # a key without a value fits no run, and is still a condition in the query
    check_most(
        "labels",
        sum(max(1, len(values_of(value))) for value in request.labels.values()),
        MAX_LABELS,
    )
