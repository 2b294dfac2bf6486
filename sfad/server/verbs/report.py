"""`report`: count what an agent says it has used. `reserve` and `settle` share its checks, and the wait for the price."""

from collections.abc import Callable

from ...config import NAME_MAX
from ...core import events as e
from ...protocol.messages import Report, Reserve, Settle
from ...protocol.types import RunId
from ...protocol.units import MOST_COUNTED, MOST_SPENT
from ..call import Call, answers
from ..checks import bad_request


@answers(Report)
def report(call: Call, request: Report) -> None:
    check_amounts(request)
    run = spender(call, request.run)

    def count() -> None:
        use = call.runtime.metering.report_pricing.use_of_report(run, request)
        call.ask(e.ReportRequested, run, use)

    # tokens were used whether or not their price can be found now
    once_priced(call, run, request.model if request.cost_usd is None else None, count)


def spender(call: Call, run: str | None) -> RunId:
    """Return the run whose use is meant: the one that is named, else the one that the peer is in."""
    name = run if run is not None else call.peer.run
    if name is None:
        raise bad_request(f"say which run to {call.permission} for: this process is in no run")
    return call.resolve(name).id


def once_priced(
    call: Call, run: RunId, model: str | None, then: Callable[[], None], unsure: Callable[[str], None] | None = None
) -> None:
    """Call `then` once the price of the model is known, or known to be missing. `unsure` is called instead where the daemon cannot
    find out now."""
    is_wanted = call.defer()

    def go_on(why: str | None = None) -> None:
        if not is_wanted():
            return
        if why is None or unsure is None:
            then()
        else:
            unsure(why)

    call.runtime.metering.report_pricing.when_known(run, model, go_on, go_on)


def check_amounts(request: Report | Reserve | Settle) -> None:
    """Reject negative, NaN and huge amounts, and overlong names: a live run's account adds up the ones and keeps the others."""
    for field in request.__struct_fields__:
        value = getattr(request, field)
        if isinstance(value, str) and len(value) > NAME_MAX:
            raise bad_request(f"{field} has {len(value)} characters; at most {NAME_MAX}")
        most = MOST_SPENT if field == "cost_usd" else MOST_COUNTED
        if field != "id" and isinstance(value, int | float) and not 0 <= value <= most:
            raise bad_request(f"{field} = {value} is outside 0 to {most:.0f}; nothing was counted: check its unit")
    if not isinstance(request, Reserve):
        _check_cached(request.input_tokens or 0, request.cached_tokens or 0, request.cache_write_tokens or 0)


def _check_cached(whole: int, cached: int, written: int) -> None:
    """Tokens from or to a cache are part of the input, so more of them than input would be priced twice."""
    if cached + written > whole:
        raise bad_request(
            f"cached_tokens = {cached} and cache_write_tokens = {written} are more than input_tokens = {whole}, which they are "
            "part of; nothing was counted: add them to input_tokens",
        )
