"""OpenAI Chat Completions (https://platform.openai.com/docs/api-reference/chat)."""

import re
from typing import Any

import msgspec

from .....agents import counters
from .....agents.lenient import LenientDecoder, lenient
from .....agents.line_meter import OPENAI_FACTORS
from .base import (
    CHAT_SEARCH,
    IMAGE_OUTPUT,
    LEAST_SEARCH,
    MAX_FIELDS,
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
    pcm_tokens,
    with_sentence,
    words,
)
from .holding import Holding, hold_chat
from .responses import OPENAI_FREE, openai_refusal
from .usage import openai_usage


class _ChatFunction(msgspec.Struct):
    name: Any = None
    arguments: Any = None


class _ChatCall(msgspec.Struct):
    index: int = 0
    function: _ChatFunction = msgspec.field(default_factory=_ChatFunction)


class _ChatAudio(msgspec.Struct):
    data: Any = None
    transcript: Any = None


class _ChatSaid(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    """As some servers call it."""
    reasoning_details: Any = None
    """OpenRouter's, beside that (https://openrouter.ai/docs/use-cases/reasoning-tokens)."""
    annotations: list[Any] | None = None
    """What the answer cites."""
    refusal: Any = None
    tool_calls: list[_ChatCall] | None = None
    audio: _ChatAudio | None = None
    images: list[Any] | None = None
    """As OpenRouter has them."""


class _ChatChoice(msgspec.Struct):
    index: int = 0
    message: _ChatSaid | None = None
    delta: _ChatSaid | None = None
    finish_reason: Any = None
    usage: Any = None
    """Of a stream of Moonshot's (https://platform.moonshot.ai/docs/api/chat)."""
    error: Any = None
    """OpenRouter's (https://openrouter.ai/docs/api-reference/errors)."""


class _GroqPart(msgspec.Struct):
    usage: Any = None
    """Of a stream of Groq's (https://console.groq.com/docs/api-reference)."""


class _ChatCompletion(msgspec.Struct):
    model: Any = None
    choices: list[_ChatChoice] = []
    usage: Any = None
    x_groq: _GroqPart | None = None
    service_tier: Any = None
    search_results: Any = None
    """Perplexity's."""
    error: Any = None


_SEARCHES = re.compile(r"-search-(?:api|preview)|(?:^|/)sonar|:online$")
"""Models that search the web for each answer."""


class _ChatApi(Api):
    name = "openai-chat"
    calls = re.compile(r"(?:/openai/deployments/([^/]+))?/chat/completions\Z")
    """Azure names the model in the path
    (https://learn.microsoft.com/azure/ai-foundry/openai/reference)."""
    free = OPENAI_FREE
    factors = OPENAI_FACTORS
    maximum = "max_completion_tokens"
    """The field for a maximum output, where a request has none."""

    def at(self, host: str) -> Api:
        return _MISTRAL if host == "mistral.ai" or host.endswith(".mistral.ai") else self

    def asked(self, path: re.Match[str], body: bytes) -> ModelCall:
        request = RequestFields(body)
        model = request.model(path[1] and path[1][: MODEL_MAX + 1])
        holding = Holding(body, model)
        hold_chat(holding, request.fields)
        # servers differ in which of two names they know
        return ModelCall(
            model=model,
            max_output=max(
                request.count("max_completion_tokens") or 0, request.count("max_tokens") or 0
            )
            or None,
            choices=max(request.count("n") or 1, request.count("best_of") or 1),
            streams=request.flag("stream"),
            caches=True,
            tiers=request.words("service_tier"),
            fees_usd=CHAT_SEARCH
            if _SEARCHES.search(model)
            or request.raw("web_search_options") is not None
            or b'"web"' in bytes(request.raw("plugins") or b"")
            else 0.0,
            text_only=lenient(list[str], bytes(request.raw("modalities") or b""), None) == ["text"],
            **held(holding),
        )

    def lowered(self, body: bytes, tokens: int) -> bytes:
        request = fields(body)
        # the older name is the only one that some servers know, and newer models of OpenAI refuse
        # it
        names = [
            name
            for name in ("max_completion_tokens", "max_tokens")
            if bytes(request.get(name, b"null")) != b"null"
        ]
        return msgspec.json.encode(
            request | dict.fromkeys(names or [self.maximum], encoded(tokens))
        )

    def concluded(self, body: bytes, sentence: str) -> bytes:
        request = fields(body)
        messages = with_sentence(request.get("messages"), sentence, "text")
        return msgspec.json.encode(request | {"messages": messages})

    def completed(self, body: bytes) -> bytes:
        request = RequestFields(body)
        options = fields(request.raw("stream_options"))
        if not request.flag("stream") or bytes(options.get("include_usage", b"")) == b"true":
            return body
        return msgspec.json.encode(
            request.fields | {"stream_options": encoded(options | {"include_usage": True})}
        )

    def refusal(self, message: str, retry_after: int | None = None, status: int = 400) -> bytes:
        return openai_refusal(message, retry_after, status)

    def reply(self, *, streamed: bool) -> ReplyReader:
        return _ChatReader(streamed=streamed)


class _ChatReader(ReplyReader):
    def __init__(self, *, streamed: bool) -> None:
        super().__init__(streamed=streamed)
        self._calls: dict[tuple[int, int], OpenToolUse] = {}
        self._finished = False
        self._usage: dict[str, Any] = {}

    def event(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            return
        completion = _COMPLETION.decode(data)
        for choice in completion.choices:
            if choice.delta is not None:
                self._say(choice.index, choice.delta)
        if any(choice.finish_reason for choice in completion.choices):
            self._finish()
        self._count(completion)

    def document(self, data: bytes) -> None:
        completion = _COMPLETION.decode(data)
        for choice in completion.choices:
            if choice.message is not None:
                self._say(choice.index, choice.message, whole=True)
        self._finish()
        self._count(completion)

    def _say(self, choice: int, said: _ChatSaid, *, whole: bool = False) -> None:
        # some servers tell the same thinking in several fields
        thinking = (said.reasoning_content, said.reasoning, said.reasoning_details)
        self.written += max(counters.size(_text(each)) for each in thinking)
        self.written += counters.size(_text(said.content), said.refusal)
        self.begun |= bool(said.reasoning_details or said.tool_calls)
        if any(_cites(each) for each in said.annotations or ()):
            self._search(1)
        if said.audio is not None:
            self.written += counters.size(said.audio.transcript)
            self.shown("audio", pcm_tokens(said.audio.data))
        if said.images:
            self.shown("image", IMAGE_OUTPUT * len(said.images))
        for number, call in enumerate(said.tool_calls or ()):
            key = (choice, number if whole else call.index)  # only a stream numbers them
            if key not in self._calls and len(self._calls) >= MAX_TOOL_USES:
                continue
            open_ = self._calls.setdefault(key, OpenToolUse(None))
            open_.name = open_.name or call.function.name
            open_.add(call.function.arguments)
            self.written += counters.size(call.function.arguments)

    def _search(self, searches: int) -> None:
        self.fees_usd = max(self.fees_usd, searches * CHAT_SEARCH)
        self.unsure_fees_usd = self.fees_usd * (1 - LEAST_SEARCH / CHAT_SEARCH)

    def _finish(self) -> None:
        self._finished = True
        for call in self._calls.values():
            self.use(call.close())
        self._calls.clear()

    def _count(self, completion: _ChatCompletion) -> None:
        self.cut |= any(choice.finish_reason == "length" for choice in completion.choices)
        self.tiers = words(service_tier=completion.service_tier) or self.tiers
        self.serve(completion.model)
        if completion.search_results or _SEARCHES.search(self.model):
            self._search(1)
        for error in (completion.error, *(choice.error for choice in completion.choices)):
            self.fail(error)
        groq = completion.x_groq.usage if completion.x_groq is not None else None
        places = (completion.usage, groq, *(choice.usage for choice in completion.choices))
        usage = next((each for each in places if isinstance(each, dict) and each), None)
        if usage is not None and len(self._usage) <= MAX_FIELDS:
            # some repeat a part of it, or zeros, after its cost
            self._usage |= {
                name: told for name, told in usage.items() if told or name not in self._usage
            }
            said = openai_usage(self._usage)
            self._search(said.searches)
            self.take_usage(said)
        # some servers tell in each event what has come by then, and some before the last words
        self.told = bool(self._usage) and self._finished


def _text(content: Any) -> str:
    """Return the words of a content, which is a text, or parts of which some are thinking
    (https://docs.mistral.ai/capabilities/reasoning)."""
    if isinstance(content, dict):
        return "".join(_text(content.get(name)) for name in ("text", "thinking", "summary"))
    if isinstance(content, list):
        return "".join(map(_text, content))
    return content if isinstance(content, str) else ""


def _cites(annotation: Any) -> bool:
    return isinstance(annotation, dict) and annotation.get("type") == "url_citation"


class _MistralApi(_ChatApi):
    """Mistral answers 422 to fields that it does not know
    (https://github.com/openai/openai-agents-python/issues/442), and tells the usage of each
    stream."""

    maximum = "max_tokens"

    def completed(self, body: bytes) -> bytes:
        return body


_COMPLETION = LenientDecoder(_ChatCompletion)
CHAT, _MISTRAL = _ChatApi(), _MistralApi()
