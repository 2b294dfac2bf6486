"""`text`: the next part of the text in the events of a run's stdout. It needs the permission for `logs`."""

import os
from functools import partial

import msgspec
from msgspec.structs import replace

from ...meters import named
from ...meters.text import FORM, Cursor, TextReader
from ...output import holes
from ...protocol.messages import Text, TextPart
from ...protocol.types import RunInfo
from ..call import Call, answers_about_run
from ..checks import bad_request, wrong_state
from ..results import NOT_KEPT, final_text, no_output


@answers_about_run(Text)
def text(call: Call, request: Text, run: RunInfo) -> None:
    program = named(run.meter)
    if program is None:
        raise wrong_state(f"run {run.id} has no meter that knows its events; read its logs")
    cursor = _cursor(request.cursor)
    ended = run.status.terminal
    try:
        with call.runtime.output.stdout(run.id) as descriptor:
            size = os.fstat(descriptor).st_size
            shown = TextReader(program, cursor, partial(holes.read, descriptor), size).step(ended=ended)
    except NOT_KEPT as error:
        raise no_output(run, error) from None
    part = TextPart(
        id=call.id,
        run=run.id,
        text=b"" if request.final else bytes(shown.text),
        cursor=msgspec.msgpack.encode(cursor),
        tools=shown.tools,
        notes=shown.notes,
        more=shown.more,
        ended=ended,
    )
    if request.final and ended and not shown.more:
        work = partial(final_text, call.runtime.output, run, program)
        call.later(lambda: call.runtime.background.walk(work, call.connection.groups.all), lambda found: replace(part, text=found))
    else:
        call.reply(part)


def _cursor(data: bytes) -> Cursor:
    try:
        cursor = msgspec.msgpack.decode(data, type=Cursor) if data else Cursor()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"this daemon did not make the cursor: {error}") from error
    if cursor.form != FORM:
        raise bad_request(f"the cursor has form {cursor.form}, this daemon uses form {FORM}")
    return cursor
