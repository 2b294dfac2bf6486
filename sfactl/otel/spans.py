"""Runs and model calls as spans.

Ids are made from the run's, so that a child's span finds its parent's without a memory, and a span that is sent twice has the same
id. Names of attributes: https://opentelemetry.io/docs/specs/semconv/gen-ai/ (1.37), and `sfad.…` for what it has no name for.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from sfad import __version__
from sfad.protocol.redaction import redacted
from sfad.protocol.types import CallInfo, RunInfo
from sfad.protocol.types import Status as RunStatus

from ..output import plain

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
            {"service.name": "sfad", "service.version": __version__, "service.instance.id": state_dir, "host.name": host}
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
        error = call.refused or call.error or (f"HTTP {call.status}" if call.status is not None and call.status >= 400 else None)
        return self._span(
            f"{_operation(call)} {call.model}" if call.model is not None else f"POST {call.path or call.upstream}",
            self._context(run.root_id, f"{run.id}\0{call.time.timestamp()}\0{call.number}"),
            self._context(run.root_id, run.id),
            SpanKind.CLIENT,
            (call.time, call.time + timedelta(seconds=seconds)),
            _call_attributes(call),
            error=error if error is not None or call.state != "withdrawn" else "the caller hung up before the call was made",
        )

    def _context(self, root: str, name: str) -> SpanContext:
        return SpanContext(self._number(root, 16), self._number(f"{root}\0{name}", 8), is_remote=False, trace_flags=SAMPLED)

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
        known = {key: text(value) if isinstance(value, str) else value for key, value in attributes.items() if value is not None}
        return ReadableSpan(
            text(name), context, parent, self._resource, known, kind=kind, instrumentation_scope=SCOPE,
            status=Status(StatusCode.ERROR, text(error)) if error is not None else Status(),
            start_time=_nanoseconds(times[0]), end_time=max(_nanoseconds(times[0]), _nanoseconds(times[1])),
        )  # fmt: skip


def text(value: str) -> str:
    """Return a text as it may leave the machine: on one line, cut, without what looks like a secret."""
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
