"""`logs`: a run's output files, opened for reading."""

from ...meters import named
from ...output.times import told
from ...protocol.messages import LogFiles, Logs
from ...protocol.types import RunInfo
from ..call import Call, answers_about_run
from ..checks import unavailable
from ..results import NOT_KEPT, no_output


@answers_about_run(Logs)
def logs(call: Call, request: Logs, run: RunInfo) -> None:
    runtime = call.runtime
    refusal = call.services.bounds.refusal(call.connection.groups, uncounted=2, unopened=2)
    if refusal is not None:
        raise unavailable(refusal)
    live = run.id in runtime.catalogue.live
    try:
        descriptors = runtime.output.open_for_reader(run.id, create=live)
    except NOT_KEPT as error:
        raise no_output(run, error) from None
    text = named(run.meter) is not None and _wants_text(call, request)
    kept = runtime.catalogue.kept(run.id)
    out, err = told(runtime.output, run, descriptors) if request.times else ([], [])
    reply = LogFiles(id=call.id, run=run.id, ended=not live, kept=kept, text=text, name=run.name, out_times=out, err_times=err)
    call.reply(reply, descriptors)


def _wants_text(call: Call, request: Logs) -> bool:
    caller = call.runtime.catalogue.live.get(call.peer.run) if call.peer.run is not None else None
    return request.form == "text" or (request.form == "auto" and caller is not None and caller.program is not None)
