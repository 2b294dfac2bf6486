"""Anthropic Messages (https://platform.claude.com/docs/en/api/messages)."""

import re
from typing import Any

import msgspec

from ...agents import counters
from ...agents.line_meter import ANTHROPIC_FACTORS
from ...protocol.types import Tokens
from .base import (
    ANTHROPIC_FEES,
    ANY_PREFIX,
    MAX_TOOL_USES,
    MODEL_MAX,
    Api,
    ModelCall,
    OpenToolUse,
    ReplyReader,
    RequestFields,
    encoded,
    fields,
    hides,
    models_of_tools,
    most_fees,
    positive,
    tool_use,
    words,
)

_FOR_AN_HOUR = re.compile(rb'"ttl"\s*:\s*"1h"')
"""The lifetime of a block in the cache, wherever it is: one in the input of a tool counts too."""
_MIN_THINKING = 1024
"""Tokens: the API refuses a smaller thinking budget
(https://platform.claude.com/docs/en/build-with-claude/extended-thinking)."""

MAX_ADVISORS = 8
"""Models that are told of one reply. A request names one."""


class _AnthropicCaches(msgspec.Struct):
    ephemeral_1h_input_tokens: Any = None


class _AnthropicTools(msgspec.Struct):
    web_search_requests: Any = None


class _AnthropicUsage(msgspec.Struct):
    input_tokens: Any = None
    output_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None
    cache_creation: _AnthropicCaches | None = None
    server_tool_use: _AnthropicTools | None = None
    speed: Any = None
    inference_geo: Any = None
    service_tier: Any = None
    iterations: list["_AnthropicIteration"] | None = None


class _AnthropicIteration(_AnthropicUsage):
    """One of the times that a model ran for a request. In the usage of the whole are neither those
    that compacted the conversation
    (https://platform.claude.com/docs/en/build-with-claude/compaction), nor those of an advisor,
    which is another model
    (https://platform.claude.com/docs/en/agents-and-tools/tool-use/advisor-tool)."""

    type: Any = None
    model: Any = None


class _AnthropicBlock(msgspec.Struct):
    type: str = ""
    name: Any = None
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    stop_reason: Any = None
    input: msgspec.Raw = msgspec.Raw(b"")


class _AnthropicMessage(msgspec.Struct):
    usage: _AnthropicUsage | None = None
    stop_reason: Any = None
    content: list[_AnthropicBlock] = []


class _AnthropicEvent(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _AnthropicMessage | None = None
    content_block: _AnthropicBlock | None = None
    delta: _AnthropicBlock | None = None
    usage: _AnthropicUsage | None = None


class _AnthropicApi(Api):
    name = "anthropic"
    calls = re.compile(r"/v1/messages\Z")
    free = re.compile(
        rf"{ANY_PREFIX}/(messages/count_tokens|messages/batches/[\w-]+/cancel|files)|/api/event_logging/[\w/]+|/api/claude_code/metrics"
    )
    references = re.compile(rb'"type"\s*:\s*"(url|file)"')
    factors = ANTHROPIC_FACTORS

    def path(self, path: str) -> str:
        # opencode takes the base URL to end in /v1
        # (https://github.com/anomalyco/opencode/issues/35005), Claude Code does not
        return f"/v1{path}" if path.startswith(("/messages", "/models")) else path

    def asked(self, path: re.Match[str], body: bytes) -> ModelCall:
        del path
        request, hidden = RequestFields(body), hides(body)
        return ModelCall(
            model=request.model(),
            max_output=request.count("max_tokens"),
            streams=request.flag("stream"),
            caches=hidden or b'"cache_control"' in body,
            refers=self.refers(body),
            tiers=request.words("speed", "inference_geo"),
            long_cache=hidden or _FOR_AN_HOUR.search(body) is not None,
            fees_usd=most_fees(ANTHROPIC_FEES, request.raw("tools")),
            others=models_of_tools(request.raw("tools")),
        )

    def lowered(self, body: bytes, tokens: int) -> bytes:
        request = fields(body)
        request["max_tokens"] = encoded(tokens)
        thinking = fields(request.get("thinking"))
        budget = positive(msgspec.json.decode(thinking.get("budget_tokens", b"0")))
        if budget is not None and budget > tokens - _MIN_THINKING:
            fits = tokens - _MIN_THINKING  # so that something is left for the answer
            thinking["budget_tokens"] = encoded(fits)
            request["thinking"] = encoded(
                thinking if fits >= _MIN_THINKING else {"type": "disabled"}
            )
        return msgspec.json.encode(request)

    def refusal(self, message: str, retry_after: int | None = None) -> bytes:
        kind = "invalid_request_error" if retry_after is None else "rate_limit_error"
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})

    def reply(self, *, streamed: bool) -> ReplyReader:
        return _AnthropicReader(streamed=streamed)


class _AnthropicReader(ReplyReader):
    def __init__(self, *, streamed: bool) -> None:
        super().__init__(streamed=streamed)
        self._usage = _AnthropicUsage()
        self._calls: dict[int, OpenToolUse] = {}

    def event(self, data: bytes) -> None:
        event = _EVENT.decode(data)
        if event.type == "message_start" and event.message is not None:
            self._count(event.message.usage)
        elif event.type == "message_delta":
            self._count(event.usage)
            self.told = event.usage is not None
            self.cut = event.delta is not None and event.delta.stop_reason == "max_tokens"
        elif event.type == "content_block_start" and event.content_block is not None:
            if event.content_block.type == "tool_use" and len(self._calls) < MAX_TOOL_USES:
                self._calls[event.index] = OpenToolUse(event.content_block.name)
        elif event.type == "content_block_delta" and event.delta is not None:
            delta = event.delta
            self.written += counters.size(delta.text, delta.thinking, delta.partial_json)
            if event.index in self._calls:
                self._calls[event.index].add(delta.partial_json)
        elif event.type == "content_block_stop" and event.index in self._calls:
            self.use(self._calls.pop(event.index).close())

    def document(self, data: bytes) -> None:
        message = _MESSAGE.decode(data)
        self._count(message.usage)
        self.told = message.usage is not None
        self.cut = message.stop_reason == "max_tokens"
        for block in message.content:
            self.written += counters.size(block.text, block.thinking, block.input)
            if block.type == "tool_use":
                self.use(tool_use(block.name, bytes(block.input)))

    def _count(self, more: _AnthropicUsage | None) -> None:
        """Later events repeat a figure only where it has changed."""
        if more is None:
            return
        usage = self._usage
        for name in _AnthropicUsage.__struct_fields__:
            if (told := getattr(more, name)) is not None:
                setattr(usage, name, told)
        self.tokens = _tokens(usage)
        self.tiers = words(
            speed=usage.speed, inference_geo=usage.inference_geo, service_tier=usage.service_tier
        )
        if usage.cache_creation is not None:
            self.long_cached = counters.number(usage.cache_creation.ephemeral_1h_input_tokens)
        if usage.server_tool_use is not None:
            self.fees_usd = (
                counters.number(usage.server_tool_use.web_search_requests)
                * ANTHROPIC_FEES["web_search"]
            )
        self.others = {}
        for iteration in usage.iterations or ():
            if iteration.type == "compaction":
                self.tokens = counters.plus(self.tokens, _tokens(iteration))
            elif iteration.type == "advisor_message" and len(self.others) < MAX_ADVISORS:
                model = counters.printable(iteration.model, MODEL_MAX)
                self.others[model] = counters.plus(
                    self.others.get(model, Tokens()), _tokens(iteration)
                )


def _tokens(usage: _AnthropicUsage) -> Tokens:
    return counters.tokens(
        fresh=usage.input_tokens,
        read=usage.cache_read_input_tokens,
        written=usage.cache_creation_input_tokens,
        output=usage.output_tokens,
    )


_EVENT = msgspec.json.Decoder(_AnthropicEvent)
_MESSAGE = msgspec.json.Decoder(_AnthropicMessage)
ANTHROPIC = _AnthropicApi()
