"""`admit_call`: ask whether a call of a model may be made, and reserve what it may cost."""

from fnmatch import fnmatchcase

from ...core import events as e
from ...protocol.messages import AdmitCall
from ...protocol.types import ErrorCode
from ..call import Call, answers
from .report import once_priced


@answers(AdmitCall)
def admit_call(call: Call, request: AdmitCall) -> None:
    runtime = call.runtime
    if request.run not in runtime.catalogue.live:
        call.fail(ErrorCode.WRONG_STATE, f"run {request.run} has ended")
        return
    models = runtime.config.gateway.models
    if models and not any(fnmatchcase(request.model, pattern) for pattern in models):
        allowed = ", ".join(models)
        call.fail(ErrorCode.NOT_PERMITTED, f"the model '{request.model}' is not one of gateway.models: {allowed}")
        return
    least = request.max_output if request.fixed else min(runtime.config.gateway.min_output, request.max_output)

    def ask() -> None:
        if call.connection.closed:  # while the price was looked up
            call.end()
            return
        cost, price = runtime.metering.reports.price_of_call(request)
        runtime.requests.ask(
            call,
            lambda token, now: e.CallAsked(
                now, token, request.run, request.model, request.input_tokens, cost, price, request.max_output, least,
                request.choices,
            ),
        )  # fmt: skip

    def unsure(why: str) -> None:
        call.fail(ErrorCode.UNAVAILABLE, f"the price of the call is not known now: {why}")

    once_priced(call, request.run, request.model, ask, unsure)
