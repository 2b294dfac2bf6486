"""Verbs with one answer from what is known of runs: `list`, `info`, `calls`, `logs`, `text`,
`result`, `summary` and the like."""

import os
from datetime import datetime, timedelta
from functools import partial

import msgspec
import trio
from msgspec import Raw
from msgspec.structs import replace

from ....agents import named
from ....agents.text import FORM, Cursor, TextReader
from ....core.machine import Machine
from ....core.state.policy import MAX_LABELS
from ....core.state.quotas import QueuePlace
from ....core.state.run import Run
from ....host.clock import wall_clock
from ....protocol.errors import bad_request, check_most, unavailable, wrong_state
from ....protocol.framing import pack
from ....protocol.messages import (
    CallPage,
    Info,
    List,
    ListCalls,
    LogFiles,
    Logs,
    OutputPart,
    ReadOutput,
    Result,
    Summarise,
    Summarised,
    Text,
    TextPart,
    Transcript,
)
from ....protocol.types import RunId, RunInfo, Status
from ....runs.live import Live
from ....runs.showing import with_place
from ....storage.ledger.queries import Page
from ....storage.ledger.summary import page_of, summarise
from ....storage.output import holes
from ....storage.output.times import told
from ...loop.runtime import Runtime
from ..asker import Asker, answers, answers_about_run
from ..checks import MAX_SECONDS, check_filters
from ..connection import RunRow, RunRows
from ..results import MAX_LINES, NOT_KEPT, final_text, no_output
from ..results import result as result_of
from ..results import transcript as transcript_of

# ---- `list`: a page of runs


MAX_ROWS = 1000
"""Ended runs in one page: 25 ms where none is encoded yet. Clients ask for the next page."""


@answers(List)
def list_(asker: Asker, request: List) -> None:
    check_filters(request)
    check_most("statuses", len(request.status), MAX_LABELS)
    if request.before is not None and request.after is not None:
        raise bad_request("before and after lead two ways: leave one out")
    root = asker.find(request.root) if request.root is not None else None
    query = replace(request, id=0, root=None, rows=max(0, min(request.rows, MAX_ROWS)), limits=True)
    page, limits = Page(query, asker.scope, within=root), request.limits
    key = pack(query), page.scope, root, limits
    rows, more, queued = asker.services.looks.of(
        key, lambda: _look_at_page(asker.runtime, page, limits=limits)
    )
    asker.reply(RunRows(id=asker.id, runs=rows, next=more, queued=queued))


def _look_at_page(
    runtime: Runtime, page: Page, *, limits: bool
) -> tuple[list[Raw], RunId | None, int]:
    catalogue = runtime.catalogue
    footprints = (
        runtime.resources.launcher.footprints(catalogue.live_runs(page.scope))
        if page.query.live
        else {}
    )
    found = catalogue.select(page, footprints, limits=limits)
    # a session does not count itself among those that it may look after
    live = (
        [run for run in found.live if run.id != page.scope.run]
        if page.query.sessions
        else found.live
    )
    return found.rows(live), found.next, found.queued


# ---- `info`: one run, with its live processes and memory


@answers(Info)
def info(asker: Asker, request: Info) -> None:
    run = asker.find(request.run)
    row = asker.services.looks.of(run, lambda: Raw(pack(_look_at_run(asker.runtime, run))))
    asker.reply(RunRow(id=asker.id, run=row))


def _look_at_run(runtime: Runtime, run: RunId) -> RunInfo:
    catalogue, live = runtime.catalogue, runtime.catalogue.live.get(run)
    if live is None:
        info = catalogue.info(run)
        assert info is not None
    else:
        footprint = (
            runtime.resources.launcher.footprints([run]).get(run) if live.run.attempt else None
        )
        info, place = catalogue.shown(live, footprint), runtime.machine.slots.place_of(run)
        if place is not None:
            free_by = _free_by(runtime.machine, live.run, place)
            info = replace(info, holds=with_place(info.holds, place, free_by))
    made, refused = runtime.calls.count(run)
    if made or refused or info.by_gateway:
        last = runtime.calls.last_refusal(run) if refused else None
        info = replace(info, calls=made, calls_refused=refused, last_refusal=last)
    return catalogue.with_total(info)


def _free_by(machine: Machine, run: Run, place: QueuePlace) -> datetime | None:
    """Return the first deadline of the trees that have a slot: by then one is free."""
    holding = [root for root in machine.tree.roots() if root.status is not Status.QUEUED]
    if place.key != "quotas.trees":
        holding = [root for root in holding if root.user == run.user]
    if place.key not in {"quotas.trees", "quotas.trees_per_user"}:
        holding = [
            root for root in holding if root.asked.queueing.group == run.asked.queueing.group
        ]
    first = min((root.deadline for root in holding if root.deadline is not None), default=None)
    if first is None:
        return None
    return wall_clock() + timedelta(seconds=first - trio.current_time())


# ---- `calls`: a page of a run's model calls


@answers_about_run(ListCalls)
def calls(asker: Asker, request: ListCalls, run: RunInfo) -> None:
    after = (request.after.timestamp() if request.after is not None else 0.0, request.after_number)
    found, more = asker.runtime.calls.page(run.id, after)
    live = asker.runtime.catalogue.live.get(run.id)
    uses = bool(live.parts.gateway) if live is not None else run.by_gateway
    asker.reply(
        CallPage(
            id=asker.id,
            run=run.id,
            calls=found,
            more=more,
            ended=live is None,
            gateway=uses,
            usage=run.usage if run.costs_more_than_calls else None,
        )
    )


# ---- `result`: a finished run's final answer, made safe for a language model


@answers_about_run(Result)
def result(asker: Asker, request: Result, run: RunInfo) -> None:
    if not run.status.terminal:
        raise wrong_state(f"run {run.id} is {run.status}; wait for its end, or read its logs")
    work = partial(result_of, asker.runtime.resources.output, run, request)
    asker.later(
        lambda: asker.runtime.background.walk(work, asker.connection.groups.all),
        lambda found: found,
    )


# ---- `transcript`: a run's events and output, made safe for a language model. It needs the
# permission for `logs`.


@answers_about_run(Transcript)
def transcript(asker: Asker, request: Transcript, run: RunInfo) -> None:
    if not 0 < request.tail <= MAX_LINES:
        raise bad_request(f"tail = {request.tail} is outside 1 to {MAX_LINES}")
    directory = asker.runtime.resources.ledger.file.directory
    work = partial(transcript_of, directory, asker.runtime.resources.output, run, request)
    asker.later(
        lambda: asker.runtime.background.walk(work, asker.connection.groups.all),
        lambda found: found,
    )


# ---- `logs`: a run's output files, opened for reading


@answers_about_run(Logs)
def logs(asker: Asker, request: Logs, run: RunInfo) -> None:
    runtime = asker.runtime
    refusal = asker.services.bounds.refusal(asker.connection.groups, uncounted=3, unopened=3)
    if refusal is not None:
        raise unavailable(refusal)
    live = run.id in runtime.catalogue.live
    try:
        descriptors = runtime.resources.output.open_all(run, create=live)
    except NOT_KEPT as error:
        raise no_output(run, error) from None
    caller = asker.peer.run
    text = named(run.meter) is not None and shows_text(
        request.form, runtime.catalogue.live.get(caller) if caller is not None else None
    )
    kept = runtime.catalogue.kept(run.id)
    out, err = told(runtime.resources.output, run, descriptors[:2]) if request.times else ([], [])
    reply = LogFiles(
        id=asker.id,
        run=run.id,
        ended=not live,
        kept=kept,
        descriptors=len(descriptors),
        text=text,
        terminal=len(descriptors) > 2,
        name=run.name,
        out_times=out,
        err_times=err,
    )
    asker.reply(reply, descriptors)


def shows_text(form: str | None, caller: Live | None) -> bool:
    """Return whether a client in a run shows the text of an agent, and not its events."""
    return form == "text" or (form == "auto" and caller is not None and caller.program is not None)


# ---- `read_output`: a piece of a run's output. It needs the permission for `logs`.


PIECE = 128 * 1024
"""Bytes of one answer."""


@answers_about_run(ReadOutput)
def read_output(asker: Asker, request: ReadOutput, run: RunInfo) -> None:
    runtime = asker.runtime
    ended = run.id not in runtime.catalogue.live
    try:
        descriptors = runtime.resources.output.open_for_reader(run.id, create=not ended)
    except NOT_KEPT as error:
        raise no_output(run, error) from None
    try:
        descriptor = descriptors[request.stream == "stderr"]
        size = os.fstat(descriptor).st_size
        wanted = max(0, size + request.offset) if request.offset < 0 else request.offset
        found = holes.data_from(descriptor, wanted) if wanted < size else None
        offset = found if found is not None else max(wanted, size) if wanted < size else wanted
        data = os.pread(descriptor, PIECE, offset) if offset < size else b""
    finally:
        for each in descriptors:
            os.close(each)
    asker.reply(
        OutputPart(
            id=asker.id, data=data, offset=offset, ended=ended and offset + len(data) >= size
        )
    )


# ---- `text`: the next part of the text in the events of a run's stdout. It needs the permission
# for `logs`.


@answers_about_run(Text)
def text(asker: Asker, request: Text, run: RunInfo) -> None:
    program = named(run.meter)
    if program is None:
        raise wrong_state(f"run {run.id} has no meter that knows its events; read its logs")
    cursor = _cursor(request.cursor)
    ended = run.status.terminal
    try:
        with asker.runtime.resources.output.stdout(run.id) as descriptor:
            size = os.fstat(descriptor).st_size
            shown = TextReader(program, cursor, partial(holes.read, descriptor), size).step(
                ended=ended
            )
    except NOT_KEPT as error:
        raise no_output(run, error) from None
    part = TextPart(
        id=asker.id,
        run=run.id,
        text=b"" if request.final else bytes(shown.text),
        cursor=msgspec.msgpack.encode(cursor),
        tools=shown.tools,
        notes=shown.notes,
        more=shown.more,
        ended=ended,
    )
    if request.final and ended and not shown.more:
        work = partial(final_text, asker.runtime.resources.output, run, program)
        asker.later(
            lambda: asker.runtime.background.walk(work, asker.connection.groups.all),
            lambda found: replace(part, text=found),
        )
    else:
        asker.reply(part)


def _cursor(data: bytes) -> Cursor:
    try:
        cursor = msgspec.msgpack.decode(data, type=Cursor) if data else Cursor()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"this daemon did not make the cursor: {error}") from error
    if cursor.form != FORM:
        raise bad_request(f"the cursor has form {cursor.form}, this daemon uses form {FORM}")
    return cursor


# ---- `summary`: how the runs created since a time have ended, and what they used


@answers(Summarise)
def summary(asker: Asker, request: Summarise) -> None:
    check_filters(request)
    # also false for a NaN
    if not (abs(request.since) <= MAX_SECONDS and abs(request.until or 0.0) <= MAX_SECONDS):
        raise bad_request(
            f"since and until must be Unix seconds, at most {MAX_SECONDS:.0f} from 1970"
        )
    page = page_of(request, asker.scope)
    unwritten = asker.runtime.catalogue.unwritten(page)
    work = partial(
        summarise, asker.runtime.resources.ledger.file.directory, page, request, unwritten
    )
    asker.later(
        lambda: asker.runtime.background.walk(work, asker.connection.groups.all),
        lambda found: Summarised(id=asker.id, summary=found),
    )
