"""Anthropic Messages (https://platform.claude.com/docs/en/api/messages)."""

import re
from typing import Any

import msgspec

from .....agents import counters
from .....agents.lenient import LenientDecoder
from .....agents.line_meter import ANTHROPIC_FACTORS
from .....protocol.types import Tokens
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
    held,
    models_of_tools,
    most_fees,
    positive,
    tool_use,
    with_sentence,
    words,
)
from .holding import Holding, hold_anthropic
from .usage import Said, anthropic_usage

_ERRORS = {
    400: "invalid_request_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}
"""Types of errors by status (https://platform.claude.com/docs/en/api/errors); others are
`api_error`."""
_MIN_THINKING = 1024
"""Tokens: the API refuses a smaller thinking budget
(https://platform.claude.com/docs/en/build-with-claude/extended-thinking)."""

MAX_ADVISORS = 8
"""Models that are told of one reply. A request names one."""


class _AnthropicBlock(msgspec.Struct):
    type: str = ""
    name: Any = None
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    stop_reason: Any = None
    input: msgspec.Raw = msgspec.Raw(b"")


class _AnthropicMessage(msgspec.Struct):
    type: Any = None
    model: Any = None
    usage: Any = None
    stop_reason: Any = None
    content: list[_AnthropicBlock] = []
    error: Any = None


class _AnthropicEvent(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _AnthropicMessage | None = None
    content_block: _AnthropicBlock | None = None
    delta: _AnthropicBlock | None = None
    usage: Any = None
    error: Any = None


class _AnthropicApi(Api):
    name = "anthropic"
    calls = re.compile(r"/v1/messages\Z")
    free = re.compile(
        rf"{ANY_PREFIX}/(messages/count_tokens|messages/batches/[\w-]+/cancel|files)|/api/event_logging/[\w/]+|/api/claude_code/metrics"
    )
    factors = ANTHROPIC_FACTORS

    def path(self, path: str) -> str:
        # opencode takes the base URL to end in /v1
        # (https://github.com/anomalyco/opencode/issues/35005), Claude Code does not
        return f"/v1{path}" if path.startswith(("/messages", "/models")) else path

    def asked(self, path: re.Match[str], body: bytes) -> ModelCall:
        del path
        request = RequestFields(body)
        holding = Holding(body)
        hold_anthropic(holding, request.fields)
        return ModelCall(
            model=request.model(),
            max_output=request.count("max_tokens"),
            streams=request.flag("stream"),
            caches=holding.caches,
            tiers=request.words("speed", "inference_geo"),
            fees_usd=most_fees(ANTHROPIC_FEES, request.raw("tools")),
            others=models_of_tools(request.raw("tools")),
            **held(holding),
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

    def concluded(self, body: bytes, sentence: str) -> bytes:
        request = fields(body)
        messages = with_sentence(request.get("messages"), sentence, "text")
        return msgspec.json.encode(request | {"messages": messages})

    def refusal(self, message: str, retry_after: int | None = None, status: int = 400) -> bytes:
        kind = "rate_limit_error" if retry_after is not None else _ERRORS.get(status, "api_error")
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})

    def reply(self, *, streamed: bool) -> ReplyReader:
        return _AnthropicReader(streamed=streamed)


class _AnthropicReader(ReplyReader):
    def __init__(self, *, streamed: bool) -> None:
        super().__init__(streamed=streamed)
        self._usage: dict[str, Any] = {}
        self._lost: frozenset[str] = frozenset()
        self._calls: dict[int, OpenToolUse] = {}

    def event(self, data: bytes) -> None:
        event = _EVENT.decode(data)
        self.fail(event.error or (event.type == "error" and event.type))
        if event.type == "message_start" and event.message is not None:
            self.serve(event.message.model)
            self._count(event.message.usage)
        elif event.type == "message_delta":
            self._count(event.usage)
            self.told = isinstance(event.usage, dict)
            self.cut = event.delta is not None and event.delta.stop_reason == "max_tokens"
        elif event.type == "content_block_start" and event.content_block is not None:
            block = event.content_block
            # an empty block of text may be followed by an error alone
            self.begun |= block.type not in {"text", "thinking"}
            if block.type == "tool_use" and len(self._calls) < MAX_TOOL_USES:
                self._calls[event.index] = OpenToolUse(block.name)
        elif event.type == "content_block_delta" and event.delta is not None:
            delta = event.delta
            self.written += counters.size(delta.text, delta.thinking, delta.partial_json)
            if event.index in self._calls:
                self._calls[event.index].add(delta.partial_json)
        elif event.type == "content_block_stop" and event.index in self._calls:
            self.use(self._calls.pop(event.index).close())

    def document(self, data: bytes) -> None:
        message = _MESSAGE.decode(data)
        self.serve(message.model)
        self.fail(message.error or (message.type == "error" and message.type))
        self._count(message.usage)
        self.told = isinstance(message.usage, dict)
        self.cut = message.stop_reason == "max_tokens"
        for block in message.content:
            self.written += counters.size(block.text, block.thinking, block.input)
            if block.type == "tool_use":
                self.use(tool_use(block.name, bytes(block.input)))

    def _count(self, more: Any) -> None:
        """Later events repeat a figure only where it has changed. Some servers repeat one as 0."""
        if not isinstance(more, dict):
            return
        usage, own = self._usage, anthropic_usage(more)
        for name, told in more.items():
            if told is not None and (counters.number(told) or not counters.number(usage.get(name))):
                usage[name] = told
        said = own if usage == more else anthropic_usage(usage)
        self._lost |= own.lost
        absent = {"input_tokens"} if usage.get("input_tokens") is None else set()
        said = said._replace(lost=said.lost | self._lost | absent)
        self.tiers = words(
            speed=usage.get("speed"),
            inference_geo=usage.get("inference_geo"),
            service_tier=usage.get("service_tier"),
        )
        self.fees_usd = said.searches * ANTHROPIC_FEES["web_search"]
        self.take_usage(self._with_iterations(said, usage.get("iterations")))

    def _with_iterations(self, said: Said, iterations: Any) -> Said:
        """Return what was used with the times that a model ran for the request of which the usage
        of the whole says nothing: those that compacted the conversation
        (https://platform.claude.com/docs/en/build-with-claude/compaction), and those of an advisor,
        which is another model
        (https://platform.claude.com/docs/en/agents-and-tools/tool-use/advisor-tool)."""
        self.others = {}
        for each in iterations if isinstance(iterations, list) else ():
            kind = each.get("type") if isinstance(each, dict) else None
            more, least, lost = anthropic_usage(each)[:3]
            said = said._replace(lost=said.lost | lost)
            if kind == "compaction":
                said = said._replace(
                    tokens=counters.plus(said.tokens, more), sure=counters.plus(said.sure, least)
                )
            elif kind == "advisor_message" and len(self.others) < MAX_ADVISORS:
                model = counters.printable(each.get("model"), MODEL_MAX)
                said = said._replace(lost=said.lost if model else said.lost | {"model"})
                self.others[model] = counters.plus(self.others.get(model, Tokens()), more)
        return said


_EVENT = LenientDecoder(_AnthropicEvent)
_MESSAGE = LenientDecoder(_AnthropicMessage)
ANTHROPIC = _AnthropicApi()
