"""`unasked_call`: record a request that costs money and about which the gateway decided by itself."""

from datetime import UTC, datetime

from ...core.calls import MAX_WORDS, rounded
from ...protocol.messages import Done, UnaskedCall
from ...protocol.types import CallInfo
from ..call import Call, answers


@answers(UnaskedCall)
def unasked_call(call: Call, request: UnaskedCall) -> None:
    live = call.runtime.catalogue.live.get(request.run)
    if live is not None:
        info = CallInfo(
            time=datetime.fromtimestamp(request.time, UTC),
            run_id=request.run,
            number=request.number,
            state="ended" if request.refused is None else "refused",
            upstream=request.upstream,
            model=None,
            status=request.status,
            refused=request.refused,
            error=request.error[:MAX_WORDS] if request.error is not None else None,
            first_byte_s=rounded(request.first_byte_s),
            elapsed_s=rounded(request.seconds),
            path=request.path,
        )
        call.runtime.saver.record_call(info, live.lineage_ids)
    call.reply(Done(id=request.id))
