"""Anthropic Messages (https://platform.claude.com/docs/en/api/messages)."""

import re
from typing import Any

import msgspec

from ...meters import counters
from .base import MODEL_MAX, Api, ModelCall, ReplyReader, changed, positive, tool_use

_MIN_THINKING = 1024
"""Tokens: the API refuses a smaller thinking budget (https://platform.claude.com/docs/en/build-with-claude/extended-thinking)."""


class _AnthropicRequest(msgspec.Struct):
    model: str
    max_tokens: Any = None
    stream: Any = False


class _AnthropicUsage(msgspec.Struct):
    input_tokens: Any = None
    output_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None


class _AnthropicBlock(msgspec.Struct):
    type: str = ""
    name: Any = None
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    input: msgspec.Raw = msgspec.Raw(b"")


class _AnthropicMessage(msgspec.Struct):
    usage: _AnthropicUsage | None = None
    content: list[_AnthropicBlock] = []


class _AnthropicEvent(msgspec.Struct):
    type: str = ""
    index: Any = None
    message: _AnthropicMessage | None = None
    content_block: _AnthropicBlock | None = None
    delta: _AnthropicBlock | None = None
    usage: _AnthropicUsage | None = None


class _AnthropicApi(Api):
    name = "anthropic"
    variable = "ANTHROPIC_BASE_URL"
    free = re.compile(r"/count_tokens$|/v1/models\b")
    ungated = re.compile(r"/v1/messages/batches$|/v1/complete$")

    def call(self, path: str, body: bytes) -> ModelCall | None:
        if not path.endswith("/v1/messages"):
            return None
        request = msgspec.json.decode(body, type=_AnthropicRequest)
        return ModelCall(
            model=request.model[: MODEL_MAX + 1],
            max_output=positive(request.max_tokens),
            streams=request.stream is True,
            caches=b'"cache_control"' in body,
        )

    def lowered(self, body: bytes, tokens: int) -> bytes:
        def lower(request: dict[str, Any]) -> None:
            request["max_tokens"] = tokens
            thinking = request.get("thinking")
            if isinstance(thinking, dict) and (positive(thinking.get("budget_tokens")) or 0) >= tokens - _MIN_THINKING:
                fits = tokens - _MIN_THINKING  # so that something is left for the answer
                request["thinking"] = thinking | {"budget_tokens": fits} if fits >= _MIN_THINKING else {"type": "disabled"}

        return changed(body, lower)

    def refusal(self, message: str) -> bytes:
        return msgspec.json.encode({"type": "error", "error": {"type": "invalid_request_error", "message": message}})

    def reply(self, *, streamed: bool) -> ReplyReader:
        return _AnthropicReader(streamed=streamed)


class _AnthropicReader(ReplyReader):
    def __init__(self, *, streamed: bool) -> None:
        super().__init__(streamed=streamed)
        self._usage = _AnthropicUsage()
        self._calls: dict[Any, tuple[Any, bytearray]] = {}

    def event(self, data: bytes) -> None:
        event = _EVENT.decode(data)
        if event.type == "message_start" and event.message is not None:
            self._count(event.message.usage)
        elif event.type == "message_delta":
            self._count(event.usage)
            self.told = event.usage is not None
        elif event.type == "content_block_start" and event.content_block is not None:
            if event.content_block.type == "tool_use":
                self._calls[event.index] = (event.content_block.name, bytearray())
        elif event.type == "content_block_delta" and event.delta is not None:
            delta = event.delta
            self.written += counters.size(delta.text, delta.thinking, delta.partial_json)
            if isinstance(delta.partial_json, str) and event.index in self._calls:
                self._calls[event.index][1].extend(delta.partial_json.encode(errors="replace"))
        elif event.type == "content_block_stop" and event.index in self._calls:
            name, arguments = self._calls.pop(event.index)
            self.use(tool_use(name, bytes(arguments)))

    def document(self, data: bytes) -> None:
        message = _MESSAGE.decode(data)
        self._count(message.usage)
        self.told = message.usage is not None
        for block in message.content:
            self.written += counters.size(block.text, block.thinking, block.input)
            if block.type == "tool_use":
                self.use(tool_use(block.name, bytes(block.input)))

    def _count(self, usage: _AnthropicUsage | None) -> None:
        """Later events repeat a figure only where it has changed."""
        if usage is None:
            return
        for name in _AnthropicUsage.__struct_fields__:
            if (told := getattr(usage, name)) is not None:
                setattr(self._usage, name, told)
        known = self._usage
        self.tokens = counters.tokens(
            fresh=known.input_tokens,
            read=known.cache_read_input_tokens,
            written=known.cache_creation_input_tokens,
            output=known.output_tokens,
        )


_EVENT = msgspec.json.Decoder(_AnthropicEvent)
_MESSAGE = msgspec.json.Decoder(_AnthropicMessage)
ANTHROPIC = _AnthropicApi()
