"""Verbs by which an agent tells its own use: `report`, `reserve`, `settle`."""

from collections.abc import Callable

from ....config import NAME_MAX
from ....core import events as e
from ....core.state.account import NOTHING, Use
from ....protocol.messages import Report, Reserve, Settle
from ....protocol.types import ErrorCode, RunId
from ....protocol.units import MOST_COUNTED, MOST_SPENT
from ..call import Call, answers
from ..lookup import bad_request

# ---- `report`: count what an agent says it has used. `reserve` and `settle` share its checks, and the wait for the price.


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


# ---- `reserve`: ask whether a run may make a call to a model, and reserve the most that the call may cost


@answers(Reserve)
def reserve(call: Call, request: Reserve) -> None:
    check_amounts(request)
    run = spender(call, request.run)

    def reserve_estimate() -> None:
        estimate = call.runtime.metering.report_pricing.reservation_of(run, request)
        call.ask(e.ReserveRequested, run, estimate)

    def unsure(why: str) -> None:
        call.fail(ErrorCode.UNAVAILABLE, f"nothing is reserved: the price of the call is not known now: {why}")

    once_priced(call, run, request.model, reserve_estimate, unsure)


# ---- `settle`: replace a reservation by what was used


@answers(Settle)
def settle(call: Call, request: Settle) -> None:
    check_amounts(request)

    def count(use: Use) -> None:
        call.ask(e.SettleRequested, request.reservation, use)

    found = call.runtime.machine.reservation(request.reservation)
    if found is None or not call.scope.knows(found[0].birth.uid, found[0].lineage_ids):
        count(NOTHING)  # the core says that there is no such reservation
        return
    run, reservation = found[0].id, found[1]
    call.resolve(run)
    pricing, model = call.runtime.metering.report_pricing, reservation.model if request.cost_usd is None else None
    # after a re-execution the daemon has not yet loaded the prices that the reservation was made with
    once_priced(call, run, model, lambda: count(pricing.use_of_settlement(run, reservation, request)))
