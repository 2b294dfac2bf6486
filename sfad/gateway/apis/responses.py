"""OpenAI Responses (https://platform.openai.com/docs/api-reference/responses)."""

import re
from typing import Any

import msgspec

from ...meters import counters
from .base import MODEL_MAX, Api, ModelCall, ReplyReader, changed, positive, tool_use


class _ResponsesRequest(msgspec.Struct):
    model: str
    max_output_tokens: Any = None
    stream: Any = False


class _ResponsesDetails(msgspec.Struct):
    cached_tokens: Any = 0


class _ResponsesUsage(msgspec.Struct):
    input_tokens: Any = 0
    output_tokens: Any = 0
    input_tokens_details: _ResponsesDetails | None = None


class _ResponsesPart(msgspec.Struct):
    text: Any = None


class _ResponsesItem(msgspec.Struct):
    type: str = ""
    name: Any = None
    arguments: Any = None
    input: Any = None
    content: list[_ResponsesPart] | None = None


class _ResponsesResponse(msgspec.Struct):
    usage: _ResponsesUsage | None = None
    output: list[_ResponsesItem] = []


class _ResponsesEvent(msgspec.Struct):
    type: str = ""
    delta: Any = None
    item: _ResponsesItem | None = None
    response: _ResponsesResponse | None = None


_COMPACTED = 20_000
"""Tokens that a conversation is compacted to at most, a guess: the request takes no maximum."""
_CALLS = {"function_call", "custom_tool_call"}
_ENDS = {"response.completed", "response.incomplete", "response.failed"}


def openai_refusal(message: str) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": "limit_exceeded"}
    return msgspec.json.encode({"error": error})


OPENAI_FREE = re.compile(r"/models$|/models/[^/]+$|/input_tokens$|/moderations$|/cancel$|/conversations\b|/vector_stores\b")
OPENAI_UNGATED = re.compile(
    r"/(completions|embeddings|batches|videos|assistants|threads|realtime|evals)\b|/images/|/audio/|/fine_tuning/|/containers\b"
)


class _ResponsesApi(Api):
    name = "openai-responses"
    variable = "OPENAI_BASE_URL"
    free = OPENAI_FREE
    ungated = OPENAI_UNGATED

    def call(self, path: str, body: bytes) -> ModelCall | None:
        if not path.endswith(("/responses", "/responses/compact")):
            return None
        request = msgspec.json.decode(body, type=_ResponsesRequest)
        compacts = path.endswith("/compact")
        return ModelCall(
            model=request.model[: MODEL_MAX + 1],
            max_output=_COMPACTED if compacts else positive(request.max_output_tokens),
            fixed=compacts,
            streams=request.stream is True,
        )

    def lowered(self, body: bytes, tokens: int) -> bytes:
        return changed(body, lambda request: request.__setitem__("max_output_tokens", tokens))

    def refusal(self, message: str) -> bytes:
        return openai_refusal(message)

    def reply(self, *, streamed: bool) -> ReplyReader:
        return _ResponsesReader(streamed=streamed)


class _ResponsesReader(ReplyReader):
    def event(self, data: bytes) -> None:
        event = _EVENT.decode(data)
        if event.type.endswith(".delta"):
            self.written += counters.size(event.delta)
        elif event.type == "response.output_item.done" and event.item is not None:
            self._call(event.item)
        elif event.type in _ENDS and event.response is not None:
            self._count(event.response.usage)

    def document(self, data: bytes) -> None:
        response = _RESPONSE.decode(data)
        self._count(response.usage)
        for item in response.output:
            texts = [part.text for part in item.content or ()]
            self.written += counters.size(item.arguments, item.input, *texts)
            self._call(item)

    def _call(self, item: _ResponsesItem) -> None:
        if item.type in _CALLS:
            arguments = item.arguments if item.arguments is not None else item.input
            self.use(tool_use(item.name, str(arguments).encode(errors="replace")))

    def _count(self, usage: _ResponsesUsage | None) -> None:
        if usage is not None:
            cached = usage.input_tokens_details.cached_tokens if usage.input_tokens_details is not None else 0
            self.tokens = counters.tokens_in_all(total=usage.input_tokens, read=cached, output=usage.output_tokens)
            self.told = True


_EVENT = msgspec.json.Decoder(_ResponsesEvent)
_RESPONSE = msgspec.json.Decoder(_ResponsesResponse)
RESPONSES = _ResponsesApi()
