"""Verbs by which an agent tells its own use: `report`, `reserve`, `settle`."""

from collections.abc import Callable

from ....config_values import NAME_MAX
from ....core import events as e
from ....core.state.account import NOTHING, Use
from ....protocol.errors import bad_request
from ....protocol.messages import (
    Report,
    Reserve,
    Settle,
)
from ....protocol.texts.units import MOST_COUNTED, MOST_SPENT
from ....protocol.types import ErrorCode, RunId
from ..asker import Asker, answers

# ---- `report`: count what an agent says it has used. `reserve` and `settle` share its checks, and
# the wait for the price.


@answers(Report)
def report(asker: Asker, request: Report) -> None:
    check_amounts(request)
    run = spender(asker, request.run)

    def count() -> None:
        use = asker.runtime.metering.use_pricing.use_of_report(run, request)
        asker.ask(e.ReportRequested, run, use)

    # tokens were used whether or not their price can be found now
    once_priced(asker, run, request.model if request.cost_usd is None else None, count)


def spender(asker: Asker, run: str | None) -> RunId:
    """Return the run whose use is meant: the one that is named, else the one that the peer is
    in."""
    name = run if run is not None else asker.peer.run
    if name is None:
        raise bad_request(f"say which run to {asker.permission} for: this process is in no run")
    return asker.resolve(name).id


def once_priced(
    asker: Asker,
    run: RunId,
    model: str | None,
    then: Callable[[], None],
    unsure: Callable[[str], None] | None = None,
) -> None:
    """Call `then` once the price of the model is known, or known to be missing. `unsure` is called
    instead where the daemon cannot find out now."""
    is_wanted = asker.defer()

    def go_on(why: str | None = None) -> None:
        if not is_wanted():
            return
        if why is None or unsure is None:
            then()
        else:
            unsure(why)

    asker.runtime.metering.use_pricing.when_known(run, model, go_on, go_on)


def check_amounts(request: Report | Reserve | Settle) -> None:
    """Reject negative, NaN and huge amounts, and overlong names: a live run's account adds up the
    ones and keeps the others."""
    for field in request.__struct_fields__:
        value = getattr(request, field)
        if isinstance(value, str) and len(value) > NAME_MAX:
            raise bad_request(f"{field} has {len(value)} characters; at most {NAME_MAX}")
        most = MOST_SPENT if field == "cost_usd" else MOST_COUNTED
        if field != "id" and isinstance(value, int | float) and not 0 <= value <= most:
            raise bad_request(
                f"{field} = {value} is outside 0 to {most:.0f}; nothing was counted: check its unit"
            )
    if not isinstance(request, Reserve):
        _check_cached(
            request.input_tokens or 0, request.cached_tokens or 0, request.cache_write_tokens or 0
        )


def _check_cached(whole: int, cached: int, written: int) -> None:
    """Tokens from or to a cache are part of the input, so more of them than input would be priced
    twice."""
    if cached + written > whole:
        raise bad_request(
            f"cached_tokens = {cached} and cache_write_tokens = {written} are more "
            f"than input_tokens = {whole}, which they are part of; nothing was counted: "
            "add them to input_tokens",
        )


# ---- `reserve`: ask whether a run may make a call to a model, and reserve the most that the call
# may cost


@answers(Reserve)
def reserve(asker: Asker, request: Reserve) -> None:
    check_amounts(request)
    run = spender(asker, request.run)

    def reserve_estimate() -> None:
        estimate = asker.runtime.metering.use_pricing.reservation_of(run, request)
        asker.ask(e.ReserveRequested, run, estimate)

    def unsure(why: str) -> None:
        asker.fail(
            ErrorCode.UNAVAILABLE,
            f"nothing is reserved: the price of the call is not known now: {why}",
        )

    once_priced(asker, run, request.model, reserve_estimate, unsure)


# ---- `settle`: replace a reservation by what was used


@answers(Settle)
def settle(asker: Asker, request: Settle) -> None:
    check_amounts(request)

    def count(use: Use) -> None:
        asker.ask(e.SettleRequested, request.reservation, use)

    found = asker.runtime.machine.reservation(request.reservation)
    if found is None or not asker.scope.knows(found[0].birth.uid, found[0].lineage_ids):
        count(NOTHING)  # the core says that there is no such reservation
        return
    run, reservation = found[0].id, found[1]
    asker.resolve(run)
    pricing, model = (
        asker.runtime.metering.use_pricing,
        reservation.model if request.cost_usd is None else None,
    )
    # after a re-execution the daemon has not yet loaded the prices that the reservation was made
    # with
    once_priced(
        asker, run, model, lambda: count(pricing.use_of_settlement(run, reservation, request))
    )
