"""Follows the ends of runs, and hands their spans to a collector.

A run is exported when it has ended, with its calls. The position is saved once the collector has
taken everything up to an end, so that no end is left out, whatever dies; after a kill in between,
the same spans with the same ids are sent once more. Nothing is held for a collector that does not
answer: the daemon's ledger has it.
"""

import fcntl
import logging
import os
import re
import resource
import socket as sockets
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from sfad import __version__
from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.daemon import Setting
from sfad.protocol.requests.following import EventPush
from sfad.protocol.requests.listing import Info
from sfad.protocol.requests.records import CallPage, EventPage, Events, ListCalls
from sfad.protocol.texts.redaction import redacted
from sfad.protocol.types import ENDED, CallInfo, ErrorCode, RunInfo
from sfad.protocol.types import Status as RunStatus

from .. import output
from ..connecting.bounded import bounded
from ..connecting.connection import Client, DaemonError, Unreachable, check, connect
from ..exits import ExitCode, Quit, UsageError
from ..output import plain

# ---- Runs and model calls as spans
#
# Ids are made from the run's, so that a child's span finds its parent's without a memory, and a
# span that is sent twice has the same id. Names of attributes:
# https://opentelemetry.io/docs/specs/semconv/gen-ai/ (1.37), and `sfad.…` for what it has no name
# for.

MAX_TEXT = 1024
"""Characters of an attribute."""
PROVIDERS = {"anthropic": "anthropic", "openai": "openai", "gemini": "gcp.gemini"}
"""`gen_ai.provider.name` of the built-in upstreams."""
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
SCOPE = InstrumentationScope("sfad", __version__)


class Spans:
    """Makes the spans of one daemon's runs."""

    def __init__(self, host: str, state_dir: str) -> None:
        self._daemon = f"{host}\0{state_dir}"
        self._resource = Resource.create(
            {
                "service.name": "sfad",
                "service.version": __version__,
                "service.instance.id": state_dir,
                "host.name": host,
            }
        )

    def of_run(self, run: RunInfo) -> ReadableSpan:
        """Return the span of a run that has ended."""
        end = run.ended_at or run.created_at
        failed = run.status is not RunStatus.COMPLETED
        reason = run.reason.message if run.reason is not None else run.status
        return self._span(
            f"invoke_agent {run.name}",
            self._context(run.root_id, run.id),
            self._context(run.root_id, run.parent_id) if run.parent_id is not None else None,
            SpanKind.INTERNAL,
            (run.created_at, end),
            _run_attributes(run),
            error=reason if failed else None,
        )

    def of_call(self, run: RunInfo, call: CallInfo) -> ReadableSpan:
        """Return the span of a call that has ended or was not made."""
        seconds = (call.waited_s or 0.0) + (call.elapsed_s or 0.0)
        error = (
            call.refused
            or call.error
            or (f"HTTP {call.status}" if call.status is not None and call.status >= 400 else None)
        )
        return self._span(
            f"{_operation(call)} {call.model}"
            if call.model is not None
            else f"POST {call.path or call.upstream}",
            self._context(run.root_id, f"{run.id}\0{call.time.timestamp()}\0{call.number}"),
            self._context(run.root_id, run.id),
            SpanKind.CLIENT,
            (call.time, call.time + timedelta(seconds=seconds)),
            _call_attributes(call),
            error=error
            if error is not None or call.state != "withdrawn"
            else "the caller hung up before the call was made",
        )

    def _context(self, root: str, name: str) -> SpanContext:
        return SpanContext(
            self._number(root, 16),
            self._number(f"{root}\0{name}", 8),
            is_remote=False,
            trace_flags=SAMPLED,
        )

    def _number(self, text: str, size: int) -> int:
        digest = blake2b(f"{self._daemon}\0{text}".encode(), digest_size=size).digest()
        return int.from_bytes(digest) or 1  # 0 is no valid id

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        times: tuple[datetime, datetime],
        attributes: Mapping[str, Any],
        *,
        error: str | None,
    ) -> ReadableSpan:
        known = {
            key: text(value) if isinstance(value, str) else value
            for key, value in attributes.items()
            if value is not None
        }
        return ReadableSpan(
            text(name), context, parent, self._resource, known, kind=kind,
            instrumentation_scope=SCOPE,
            status=Status(StatusCode.ERROR, text(error)) if error is not None else Status(),
            start_time=_nanoseconds(times[0]),
            end_time=max(_nanoseconds(times[0]), _nanoseconds(times[1])),
        )  # fmt: skip


def text(value: str) -> str:
    """Return a text as it may leave the machine: on one line, cut, without what looks like a
    secret."""
    return plain(redacted(value[: 4 * MAX_TEXT]))[:MAX_TEXT]


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000


def _operation(call: CallInfo) -> str:
    return "generate_content" if call.upstream == "gemini" else "chat"


def _run_attributes(run: RunInfo) -> dict[str, Any]:
    usage = run.usage
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": run.name,
        "gen_ai.agent.id": run.id,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "error.type": None if run.status is RunStatus.COMPLETED else str(run.status),
        "process.exit.code": run.exit_code,
        "enduser.id": run.user,
        "sfad.run.id": run.id,
        "sfad.run.root_id": run.root_id,
        "sfad.run.status": str(run.status),
        "sfad.run.type": run.type,
        "sfad.run.channel": run.channel,
        "sfad.run.depth": run.depth,
        "sfad.run.attempts": run.attempts,
        "sfad.run.reason": run.reason.kind if run.reason is not None else None,
        "sfad.run.limit": run.reason.limit_kind if run.reason is not None else None,
        "sfad.run.elapsed_s": usage.elapsed_s,
        "sfad.usage.turns": usage.turns,
        "sfad.usage.cost_usd": usage.cost_usd,
        "sfad.usage.partial": usage.partial or None,
        "sfad.usage.at_most": usage.at_most or None,
    }


def _call_attributes(call: CallInfo) -> dict[str, Any]:
    known = {
        "gen_ai.provider.name": PROVIDERS.get(call.upstream, call.upstream),
        "http.response.status_code": call.status,
        "sfad.run.id": call.run_id,
        "sfad.call.state": call.state,
        "sfad.call.waited_s": call.waited_s,
        "sfad.call.first_byte_s": call.first_byte_s,
        "sfad.call.cost_usd": call.cost_usd,
        "sfad.call.clamped_to": call.clamped_to,
        "sfad.call.tools": call.tools or None,
        "error.type": _error_type(call),
    }
    if call.model is None:
        return known
    return known | {
        "gen_ai.operation.name": _operation(call),
        "gen_ai.request.model": call.model,
        "gen_ai.response.model": call.served,
        "gen_ai.usage.input_tokens": call.input_tokens,
        "gen_ai.usage.output_tokens": call.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": call.cache_write_tokens,
    }


def _error_type(call: CallInfo) -> str | None:
    if call.state in {"refused", "withdrawn"}:
        return call.state
    if call.status is not None and call.status >= 400:
        return str(call.status)
    return "_OTHER" if call.error is not None else None


# ---- The number of the last event whose run was exported, in the daemon's state directory


FILE = "otel.json"
LOCK = "otel.lock"
LOCK_WAIT = 2.0
"""Seconds: the exporter of a daemon that has just been replaced is about to end."""


class Position:
    """Locked for as long as this process lives, so that no two exporters send the same spans."""

    def __init__(self, state_dir: Path) -> None:
        """Raise `Quit` if another exporter has it, or it cannot be used."""
        self._path = state_dir / FILE
        try:
            self._lock = os.open(state_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._take(state_dir)
            self.after = self._read()
        except OSError as error:
            why = f"{error.strerror}; only the daemon's user can export its spans"
            raise Quit(ExitCode.NOT_PERMITTED, f"{self._path} cannot be used: {why}") from None

    def _take(self, state_dir: Path) -> None:
        give_up = time.monotonic() + LOCK_WAIT
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > give_up:
                    message = (
                        f"another exporter works for the daemon in {state_dir}; "
                        "'sfactl status' shows the daemon's own"
                    )
                    raise Quit(ExitCode.UNAVAILABLE, message) from None
            time.sleep(0.05)

    def _read(self) -> int | None:
        try:
            after = msgspec.json.decode(self._path.read_bytes(), type=dict[str, int]).get(
                "after", -1
            )
        except (FileNotFoundError, msgspec.DecodeError, UnicodeError, RecursionError):
            return None  # as at the first start: what ended before is not exported
        return after if after >= 0 else None

    def reached(self, number: int) -> None:
        """Save that the ends up to this event are exported. Raises `OSError`."""
        new = self._path.with_suffix(".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode({"after": number}))
        new.replace(self._path)
        self.after = number

    def close(self) -> None:
        os.close(self._lock)


# ---- Where spans go, and with which headers. Keys come from the environment or a file, and are in
# no command line and no
# message.


PATH = "/v1/traces"
"""Below the endpoint (OTLP specification, "OTLP/HTTP Request")."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")
MAX_HEADERS = 64 * 1024


class Settings(NamedTuple):
    url: str
    headers: dict[str, str]


def settings_of(found: Sequence[Setting], env: Mapping[str, str]) -> Settings:
    """Return what the daemon's config says. Raise `UsageError`."""
    values = {setting.key: setting.value for setting in found}
    endpoint = values.get("otel.endpoint")
    if endpoint is None:
        raise UsageError(
            "otel.endpoint is not set in the daemon's config; "
            "set it to the collector's URL, then run 'sfactl reload'"
        )
    source, text = _headers_text(
        values.get("otel.headers_env"), values.get("otel.headers_file"), env
    )
    return Settings(f"{endpoint}{PATH}", parse_headers(source, text))


def _headers_text(
    variable: str | None, file: str | None, env: Mapping[str, str]
) -> tuple[str, str]:
    if file is not None:
        try:
            with Path(file).open(encoding="utf-8", errors="replace") as opened:
                return file, opened.read(MAX_HEADERS)
        except OSError as error:
            raise UsageError(
                f"otel.headers_file: {file} cannot be read: {error.strerror}"
            ) from None
    if variable is not None and variable not in env:
        raise UsageError(
            f"otel.headers_env: the environment has no {variable}: "
            "set it for the daemon, and restart that"
        )
    return variable or "", env[variable] if variable is not None else ""


def parse_headers(source: str, text: str) -> dict[str, str]:
    """Return the headers in `NAME=VALUE,NAME=VALUE`, or one on each line. Values may be
    percent-encoded, as the specification of OTLP exporters says. Raise `UsageError`, which shows no
    value."""
    headers = {}
    for number, part in enumerate(filter(None, map(str.strip, re.split(r"[,\n]", text))), 1):
        name, equals, value = part.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not (equals and _HEADER.fullmatch(name) and _VALUE.fullmatch(value)):
            raise UsageError(
                f"{source}: header {number} is not of the form NAME=VALUE in printable ASCII"
            )
        headers[name.lower()] = value
    return headers


# ---- Follows the ends of runs


ENDS = sorted(f"run_{status}" for status in ENDED)
BATCH = 256
"""Spans in one request, and ends in one page."""
GATHER = 0.5
"""Seconds after an end in which others are waited for, so that a burst of runs makes few
requests."""
TIMEOUT = 10.0
"""Seconds until the SDK tries no more, and for each read from the collector."""
WHOLE = 30.0
"""Seconds for one request: a collector that sends a byte now and then must not stop the export for
ever."""
PAUSE, PAUSE_MAX = 1.0, 60.0
"""Seconds until a collector or daemon that did not answer is tried again: doubled each time."""
BAD_DATA = {400, 413}
"""Answers after which the same spans must not be sent again (OTLP specification, "Failures")."""
MEMORY = 1 << 30
"""Bytes of address space: a collector may send a reply without end."""


class NotTaken(Exception):
    """The collector has not taken spans."""


class _LastWords(logging.Handler):
    """Keeps what the SDK has logged last: why an export failed."""

    def __init__(self) -> None:
        super().__init__()
        self.message = "no reason is given"

    def emit(self, record: logging.LogRecord) -> None:
        self.message = text(record.getMessage())


class Exporter:
    def __init__(
        self, flag: str | None, settings: Settings, position: Position, state_dir: str
    ) -> None:
        """`flag`: the socket, as in `connect`."""
        self._flag = flag
        self._url = settings.url
        self._position = position
        self._spans = Spans(sockets.gethostname(), state_dir)
        self._why = _LastWords()
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self._why)
        logger.propagate = False
        session = requests.Session()
        # a redirection would take the headers, and the key in them, to another host
        session.max_redirects = 0
        session.hooks["response"].append(self._answered)
        self._status = 0
        """Of the collector's last answer."""
        self._collector = OTLPSpanExporter(
            settings.url, headers=settings.headers, timeout=TIMEOUT, session=session
        )

    def run(self) -> None:
        """Export until the process ends. Raise `Quit` if the daemon does not let this client read
        events."""
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        output.note(f"exporting spans to {self._url}")
        pause, failing = PAUSE, False
        while True:
            try:
                if self._export_new():
                    if failing:
                        output.note(f"exporting spans to {self._url} again")
                    pause, failing = PAUSE, False
                else:
                    self._wait()
                    time.sleep(GATHER)
                continue
            except NotTaken as error:
                output.note(
                    f"cannot export spans to {self._url}: {error}; trying again"
                ) if not failing else None
                failing = True
            except Unreachable as error:
                if error.kind in {"denied", "untrusted"}:
                    raise
            except DaemonError as error:
                if error.error is not ErrorCode.UNAVAILABLE:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX)

    def _export_new(self) -> bool:
        """Export a page of ends after the position. Return whether there may be more."""
        with connect(self._flag) as client:
            if self._position.after is None:  # the first start: only what ends from now on
                self._position.reached(
                    client.call(Events(id=client.next_id(), rows=1), EventPage).reached
                )
            after = self._position.after
            request = Events(id=client.next_id(), after=after, rows=BATCH, types=ENDS)
            page = client.call(request, EventPage)
            batch: list[ReadableSpan] = []
            for run in dict.fromkeys(
                event.run_id for event in page.events if event.run_id is not None
            ):
                for span in self._of(client, run):
                    batch.append(span)
                    if len(batch) == BATCH:
                        self._send(batch)
                        batch = []
            self._send(batch)
        if page.reached != after:
            self._position.reached(page.reached)
        return bool(page.events) or page.more

    def _of(self, client: Client, run: str) -> Iterator[ReadableSpan]:
        try:
            info = client.call(Info(id=client.next_id(), run=run), RunReply).run
        except DaemonError as error:
            if error.error is ErrorCode.NO_SUCH_RUN:  # pruned
                return
            raise
        if info.id != run or info.status not in ENDED:
            return
        yield from self._calls(client, info)
        yield self._spans.of_run(info)

    def _calls(self, client: Client, run: RunInfo) -> Iterator[ReadableSpan]:
        request = ListCalls(id=client.next_id(), run=run.id)
        while True:
            page = client.call(request, CallPage)
            for call in page.calls:
                if call.state not in {"waiting", "under_way"}:
                    yield self._spans.of_call(run, call)
            if not page.more:
                return
            last = page.calls[-1]
            request = ListCalls(
                id=client.next_id(), run=run.id, after=last.time, after_number=last.number
            )

    def _send(self, batch: list[ReadableSpan]) -> None:
        if not batch:
            return
        self._status = 0
        try:
            late = TimeoutError(f"no whole answer within {WHOLE:g} s")
            with bounded(WHOLE, late):
                result = self._collector.export(batch)
        except (requests.RequestException, OSError, MemoryError) as error:
            raise NotTaken(text(str(error) or type(error).__name__)) from None
        if result is SpanExportResult.SUCCESS:
            return
        if self._status not in BAD_DATA:
            raise NotTaken(self._why.message)
        if len(batch) == 1:  # it must not keep all later ones from the collector
            output.note(
                f"{self._url} refuses the span '{batch[0].name}', "
                f"which is left out: {self._why.message}"
            )
            return
        half = len(batch) // 2
        self._send(batch[:half])
        self._send(batch[half:])

    def _answered(self, response: requests.Response, *_args: object, **_more: object) -> None:
        self._status = response.status_code

    def _wait(self) -> None:
        """Return once a run has ended after the position. Raise what `connect` raises."""
        with connect(self._flag) as client:
            client.send(
                Events(
                    id=client.next_id(), after=self._position.after, rows=1, types=ENDS, follow=True
                )
            )
            while True:
                for answer in client.arrived():
                    check(answer.reply)
                    if isinstance(answer.reply, EventPush) or (
                        isinstance(answer.reply, EventPage)
                        and (answer.reply.events or answer.reply.more)
                    ):
                        return


def export(flag: str | None, settings: Settings, state_dir: str) -> None:
    """Export the spans of the daemon at `flag` until the process ends. Raise `Quit`."""
    position = Position(Path(state_dir))
    try:
        Exporter(flag, settings, position, state_dir).run()
    finally:
        position.close()
