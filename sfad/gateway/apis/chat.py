"""OpenAI Chat Completions (https://platform.openai.com/docs/api-reference/chat)."""

from typing import Any

import msgspec

from ...meters import counters
from .base import MODEL_MAX, Api, ModelCall, ReplyReader, changed, positive, tool_use
from .responses import OPENAI_FREE, OPENAI_UNGATED, openai_refusal


class _ChatRequest(msgspec.Struct):
    model: str
    max_completion_tokens: Any = None
    max_tokens: Any = None
    n: Any = 1
    stream: Any = False
    stream_options: Any = None


class _ChatDetails(msgspec.Struct):
    cached_tokens: Any = 0


class _ChatUsage(msgspec.Struct):
    prompt_tokens: Any = 0
    completion_tokens: Any = 0
    prompt_tokens_details: _ChatDetails | None = None


class _ChatFunction(msgspec.Struct):
    name: Any = None
    arguments: Any = None


class _ChatCall(msgspec.Struct):
    index: Any = 0
    function: _ChatFunction = msgspec.field(default_factory=_ChatFunction)


class _ChatSaid(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    tool_calls: list[_ChatCall] | None = None


class _ChatChoice(msgspec.Struct):
    index: Any = 0
    message: _ChatSaid | None = None
    delta: _ChatSaid | None = None
    finish_reason: Any = None


class _ChatCompletion(msgspec.Struct):
    choices: list[_ChatChoice] = []
    usage: _ChatUsage | None = None


class _ChatApi(Api):
    name = "openai-chat"
    variable = "OPENAI_BASE_URL"
    free = OPENAI_FREE
    ungated = OPENAI_UNGATED

    def call(self, path: str, body: bytes) -> ModelCall | None:
        if not path.endswith("/chat/completions"):
            return None
        request = msgspec.json.decode(body, type=_ChatRequest)
        return ModelCall(
            model=request.model[: MODEL_MAX + 1],
            max_output=positive(request.max_completion_tokens) or positive(request.max_tokens),
            choices=positive(request.n) or 1,
            streams=request.stream is True,
        )

    def lowered(self, body: bytes, tokens: int) -> bytes:
        def lower(request: dict[str, Any]) -> None:
            # the older name is the only one that some servers know, and newer models of OpenAI refuse it
            names = [name for name in ("max_completion_tokens", "max_tokens") if request.get(name) is not None]
            for name in names or ["max_completion_tokens"]:
                request[name] = tokens

        return changed(body, lower)

    def completed(self, body: bytes) -> bytes:
        request = msgspec.json.decode(body, type=_ChatRequest)
        options = request.stream_options if isinstance(request.stream_options, dict) else {}
        if request.stream is not True or options.get("include_usage") is True:
            return body
        return changed(body, lambda whole: whole.__setitem__("stream_options", options | {"include_usage": True}))

    def refusal(self, message: str) -> bytes:
        return openai_refusal(message)

    def reply(self, *, streamed: bool) -> ReplyReader:
        return _ChatReader(streamed=streamed)


class _ChatReader(ReplyReader):
    def __init__(self, *, streamed: bool) -> None:
        super().__init__(streamed=streamed)
        self._calls: dict[Any, tuple[Any, bytearray]] = {}

    def event(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            return
        completion = _COMPLETION.decode(data)
        for choice in completion.choices:
            if choice.delta is not None:
                self._say(choice.index, choice.delta)
        if any(choice.finish_reason for choice in completion.choices):
            self._finish()
        self._count(completion.usage)

    def document(self, data: bytes) -> None:
        completion = _COMPLETION.decode(data)
        for choice in completion.choices:
            if choice.message is not None:
                self._say(choice.index, choice.message, whole=True)
        self._finish()
        self._count(completion.usage)

    def _say(self, choice: Any, said: _ChatSaid, *, whole: bool = False) -> None:
        self.written += counters.size(said.content, said.reasoning_content)
        for number, call in enumerate(said.tool_calls or ()):
            # only a stream numbers them
            key = (choice, number if whole else call.index)
            name, arguments = self._calls.setdefault(key, (call.function.name, bytearray()))
            self._calls[key] = (name or call.function.name, arguments)
            if isinstance(call.function.arguments, str):
                self.written += counters.size(call.function.arguments)
                arguments += call.function.arguments.encode(errors="replace")

    def _finish(self) -> None:
        for name, arguments in self._calls.values():
            self.use(tool_use(name, bytes(arguments)))
        self._calls.clear()

    def _count(self, usage: _ChatUsage | None) -> None:
        if usage is not None:
            cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details is not None else 0
            self.tokens = counters.tokens_in_all(total=usage.prompt_tokens, read=cached, output=usage.completion_tokens)
            self.told = True


_COMPLETION = msgspec.json.Decoder(_ChatCompletion)
CHAT = _ChatApi()
