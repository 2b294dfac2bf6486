"""`admit_call`: ask whether a call of a model may be made, and reserve what it may cost."""

from msgspec.structs import replace

from ...core import events as e
from ...core.calls import MAX_WORDS
from ...host.clock import wall_clock
from ...protocol.messages import AdmitCall
from ...protocol.types import CallInfo, ErrorCode
from ..call import Call, answers
from .report import once_priced

MAX_MODEL = 200
"""Characters of a model's name that are recorded. An agent may send 64 MiB of them."""


@answers(AdmitCall)
def admit_call(call: Call, request: AdmitCall) -> None:
    runtime = call.runtime
    live = runtime.catalogue.live.get(request.run)
    if live is None:
        call.fail(ErrorCode.WRONG_STATE, f"run {request.run} has ended")
        return
    gateway = call.peer.gateway_of
    if not runtime.gateways.may_ask(gateway, live, runtime.catalogue.live[live.run.root.id].setups, request.upstream):
        call.fail(ErrorCode.NOT_PERMITTED, f"calls of run {request.run} to upstream '{request.upstream}' are another gateway's")
        return
    lineage = live.lineage_ids
    info = CallInfo(
        time=wall_clock(),
        run_id=request.run,
        number=0,
        state="waiting",
        upstream=request.upstream,
        model=request.model[:MAX_MODEL],
        streamed=request.streamed,
    )

    def refuse(code: ErrorCode, why: str) -> None:
        call.fail(code, why)
        refused = replace(info, number=runtime.machine.next_number(), state="refused", refused=why[:MAX_WORDS], waited_s=0.0)
        runtime.saver.record_call(refused, lineage)

    least = request.max_output if request.fixed else min(runtime.config.gateway.min_output, request.max_output)

    def ask() -> None:
        if call.connection.closed:  # while the price was looked up
            call.end()
            return
        price = runtime.metering.report_pricing.price_of_call(request)
        asked = replace(info, estimated=price.estimated)
        runtime.requests.ask(
            call,
            lambda token, now: e.CallAsked(
                now, token, request.run, request.model, request.input_tokens, price.input, price.output, request.max_output,
                least, asked, request.choices, request.more_input, price.more_input, tuple(request.others),
                gateway,
            ),
        )  # fmt: skip

    def unsure(why: str) -> None:
        refuse(ErrorCode.UNAVAILABLE, f"the price of the call is not known now: {why}")

    once_priced(call, request.run, request.model, ask, unsure)
