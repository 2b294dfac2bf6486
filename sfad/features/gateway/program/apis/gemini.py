"""Gemini generateContent (https://ai.google.dev/api/generate-content)."""

import re
from typing import Any

import msgspec

from .....agents import counters
from .....agents.lenient import LenientDecoder, lenient
from .....agents.line_meter import GEMINI_FACTORS
from .base import (
    ANY_PREFIX,
    GEMINI_MAPS,
    GEMINI_QUERY,
    GEMINI_SEARCH,
    IMAGE_OUTPUT,
    MODEL_MAX,
    MOST_USES,
    Api,
    ModelCall,
    ReplyReader,
    RequestFields,
    encoded,
    held,
    items,
    pcm_tokens,
    positive,
    tool_use,
    words,
)
from .holding import Holding, hold_gemini
from .usage import gemini_usage


class _GeminiFunctionCall(msgspec.Struct):
    name: Any = None
    args: msgspec.Raw = msgspec.Raw(b"")


class _GeminiBlob(msgspec.Struct, rename="camel"):
    mime_type: Any = None
    data: Any = None


class _GeminiCode(msgspec.Struct):
    code: Any = None


class _GeminiPart(msgspec.Struct, rename="camel"):
    text: Any = None
    executable_code: _GeminiCode | None = None
    thought_signature: Any = None
    function_call: _GeminiFunctionCall | None = None
    inline_data: _GeminiBlob | None = None


class _GeminiContent(msgspec.Struct):
    parts: list[_GeminiPart] = []


class _GeminiGrounding(msgspec.Struct, rename="camel"):
    web_search_queries: list[Any] | None = None
    image_search_queries: list[Any] | None = None
    grounding_chunks: list[dict[str, msgspec.Raw]] | None = None


class _GeminiCandidate(msgspec.Struct, rename="camel"):
    grounding_metadata: _GeminiGrounding | None = None
    content: _GeminiContent | None = None
    finish_reason: Any = None


class _GeminiGenerated(msgspec.Struct, rename="camel"):
    candidates: list[_GeminiCandidate] = []
    usage_metadata: Any = None
    model_version: Any = None
    error: Any = None


class _Spelled(RequestFields):
    """The fields of a message. Google takes each name in camelCase and in snake_case
    (https://protobuf.dev/programming-guides/json/), and a number as a string too."""

    def raw(self, name: str) -> msgspec.Raw | None:
        return super().raw(self._spelling(name))

    def inner(self, name: str) -> "_Spelled":
        """Return the fields of a message in this one."""
        return _Spelled(bytes(self.raw(name) or b"{}"))

    def count(self, name: str) -> int | None:
        value = self._value(name)
        return (
            positive(int(value))
            if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value)
            else super().count(name)
        )

    def put(self, name: str, value: msgspec.Raw) -> None:
        self.fields[self._spelling(name)] = value

    def _spelling(self, name: str) -> str:
        snake = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
        if snake != name and snake in self.fields and name in self.fields:
            raise ValueError(f"its fields '{name}' and '{snake}' are the same")
        return snake if snake in self.fields else name


_ERRORS = {403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
"""https://ai.google.dev/gemini-api/docs/troubleshooting"""


class _GeminiApi(Api):
    name = "gemini"
    calls = re.compile(r"/models/([^/:]+):(streamGenerateContent|generateContent)\Z")
    free = re.compile(rf"{ANY_PREFIX}/(models/[\w.-]+:(countTokens|computeTokens)|files)")
    factors = GEMINI_FACTORS

    def asked(self, path: re.Match[str], body: bytes) -> ModelCall:
        request = _Spelled(body)
        config = request.inner("generationConfig")
        model, holding = path[1][: MODEL_MAX + 1], Holding(body)
        hold_gemini(holding, request.fields)
        return ModelCall(
            model=model,
            max_output=config.count("maxOutputTokens"),
            choices=config.count("candidateCount") or 1,
            streams=path[2].startswith("stream"),
            continues=request.raw("cachedContent") is not None,
            tiers=words(serviceTier=_tier(request.word("serviceTier"))),
            fees_usd=_most_fees(_names(request.raw("tools"))),
            text_only=lenient(list[str], bytes(config.raw("responseModalities") or b""), None)
            == ["TEXT"],
            **held(holding),
        )

    def lowered(self, body: bytes, tokens: int) -> bytes:
        request = _Spelled(body)
        config = request.inner("generationConfig")
        thinking = config.inner("thinkingConfig")
        if (thinking.count("thinkingBudget") or 0) > tokens // 2:
            thinking.put("thinkingBudget", encoded(tokens // 2))
            config.put("thinkingConfig", encoded(thinking.fields))
        config.put("maxOutputTokens", encoded(tokens))
        request.put("generationConfig", encoded(config.fields))
        return msgspec.json.encode(request.fields)

    def concluded(self, body: bytes, sentence: str) -> bytes:
        request = _Spelled(body)
        # of its own, because one with the results of tools takes nothing else
        said = {"role": "user", "parts": [{"text": sentence}]}
        request.put("contents", encoded([*items(request.raw("contents")), said]))
        return msgspec.json.encode(request.fields)

    def refusal(self, message: str, retry_after: int | None = None, status: int = 400) -> bytes:
        if retry_after is None:
            kind = _ERRORS.get(status, "INVALID_ARGUMENT" if status < 500 else "UNAVAILABLE")
            return msgspec.json.encode(
                {"error": {"code": status, "message": message, "status": kind}}
            )
        wait = {
            "@type": "type.googleapis.com/google.rpc.RetryInfo",
            "retryDelay": f"{retry_after}s",
        }
        error = {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": [wait]}
        return msgspec.json.encode({"error": error})

    def reply(self, *, streamed: bool) -> ReplyReader:
        return _GeminiReader(streamed=streamed)


_SEARCHES = {"googleSearch", "google_search", "googleSearchRetrieval", "google_search_retrieval"}


_MAPS = {"googleMaps", "google_maps"}


def _most_fees(tools: set[str]) -> float:
    searches = MOST_USES * GEMINI_QUERY if tools & _SEARCHES else 0.0
    return searches + (GEMINI_MAPS if tools & _MAPS else 0.0)


def _names(tools: bytes | None) -> set[str]:
    """Return the names of the tools that a request offers."""
    offered = lenient(list[dict[str, msgspec.Raw]], bytes(tools or b""), [])
    return {name for tool in offered for name in tool}


def _tier(told: Any) -> str | None:
    """Return the tier of a request or reply: `priority`, also where it is written as in the
    protocol."""
    return told.removeprefix("SERVICE_TIER_").lower() if isinstance(told, str) else None


_TRAFFIC = {
    "ON_DEMAND": "standard",
    "ON_DEMAND_PRIORITY": "priority",
    "ON_DEMAND_FLEX": "flex",
}
"""Tiers as Vertex AI tells them
(https://docs.cloud.google.com/vertex-ai/generative-ai/docs/priority-paygo)."""


def _fees(told: _GeminiGrounding) -> float:
    """Return what the searches of a reply cost at most."""
    queries = len([*(told.web_search_queries or ()), *(told.image_search_queries or ())])
    maps = any("maps" in chunk for chunk in told.grounding_chunks or ())
    searches = max(GEMINI_SEARCH, queries * GEMINI_QUERY) if queries else 0.0
    return searches + (GEMINI_MAPS if maps else 0.0)


class _GeminiReader(ReplyReader):
    def __init__(self, *, streamed: bool) -> None:
        super().__init__(streamed=streamed)
        self._finished = False
        self._usage: dict[str, Any] = {}

    def event(self, data: bytes) -> None:
        self._take(_GENERATED.decode(data))

    def document(self, data: bytes) -> None:
        # a stream without alt=sse is one array
        for generated in (
            [_GENERATED.decode(bytes(raw)) for raw in _ARRAY.decode(data)]
            if data.lstrip()[:1] == b"["
            else [_GENERATED.decode(data)]
        ):
            self._take(generated)
        self.told = self.tokens is not None

    def _take(self, generated: _GeminiGenerated) -> None:
        for candidate in generated.candidates:
            for part in candidate.content.parts if candidate.content is not None else ():
                code = part.executable_code.code if part.executable_code is not None else None
                self.written += counters.size(part.text, code)
                self.begun |= part.thought_signature is not None
                if part.inline_data is not None:
                    self._show(part.inline_data)
                if part.function_call is not None:
                    self.written += counters.size(part.function_call.args)
                    self.use(tool_use(part.function_call.name, bytes(part.function_call.args)))
            if candidate.grounding_metadata is not None:
                fees = _fees(candidate.grounding_metadata)
                self.fees_usd = self.unsure_fees_usd = max(self.fees_usd, fees)
        self.cut |= any(
            candidate.finish_reason == "MAX_TOKENS" for candidate in generated.candidates
        )
        self._finished |= any(candidate.finish_reason for candidate in generated.candidates)
        self.serve(generated.model_version)
        self.fail(generated.error)
        usage = generated.usage_metadata
        if isinstance(usage, dict):  # each event repeats it, with what has come by then
            self._usage |= {name: told for name, told in usage.items() if told is not None}
            self.take_usage(gemini_usage(self._usage))
            traffic = _TRAFFIC.get(str(self._usage.get("trafficType")))
            self.tiers = words(serviceTier=_tier(self._usage.get("serviceTier")) or traffic)
            self.told = self._finished

    def _show(self, blob: _GeminiBlob) -> None:
        kind = str(blob.mime_type).partition("/")[0]
        if kind == "audio":
            self.shown("audio", pcm_tokens(blob.data))
        elif kind == "image":
            self.shown("image", IMAGE_OUTPUT)


_GENERATED = LenientDecoder(_GeminiGenerated)
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
GEMINI = _GeminiApi()
