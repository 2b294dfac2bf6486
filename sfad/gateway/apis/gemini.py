"""Gemini generateContent (https://ai.google.dev/api/generate-content)."""

import re
from typing import Any

import msgspec

from ...meters import counters
from .base import MODEL_MAX, Api, ModelCall, ReplyReader, changed, positive, tool_use

_CALL = re.compile(r"/models/([^/:]+):(streamGenerateContent|generateContent)$")


class _GeminiGeneration(msgspec.Struct):
    max_output: Any = msgspec.field(default=None, name="maxOutputTokens")
    candidates: Any = msgspec.field(default=1, name="candidateCount")


class _GeminiRequest(msgspec.Struct, rename="camel"):
    generation_config: _GeminiGeneration | None = None


class _GeminiUsage(msgspec.Struct, rename="camel"):
    prompt_token_count: Any = 0
    tool_use_prompt_token_count: Any = 0
    cached_content_token_count: Any = 0
    candidates_token_count: Any = 0
    thoughts_token_count: Any = 0


class _GeminiFunctionCall(msgspec.Struct):
    name: Any = None
    args: msgspec.Raw = msgspec.Raw(b"")


class _GeminiPart(msgspec.Struct, rename="camel"):
    text: Any = None
    function_call: _GeminiFunctionCall | None = None


class _GeminiContent(msgspec.Struct):
    parts: list[_GeminiPart] = []


class _GeminiCandidate(msgspec.Struct, rename="camel"):
    content: _GeminiContent | None = None
    finish_reason: Any = None


class _GeminiGenerated(msgspec.Struct, rename="camel"):
    candidates: list[_GeminiCandidate] = []
    usage_metadata: _GeminiUsage | None = None


class _GeminiApi(Api):
    name = "gemini"
    variable = "GOOGLE_GEMINI_BASE_URL"
    free = re.compile(r":(countTokens|computeTokens)$|/files\b|/v1(beta)?/models$")
    ungated = re.compile(r":(batch|async|embed|predict)|/cachedContents\b|/batches\b|/tunedModels\b|/interactions\b")

    def call(self, path: str, body: bytes) -> ModelCall | None:
        found = _CALL.search(path)
        if found is None:
            return None
        config = msgspec.json.decode(body, type=_GeminiRequest).generation_config or _GeminiGeneration()
        return ModelCall(
            model=found[1][: MODEL_MAX + 1],
            max_output=positive(config.max_output),
            choices=positive(config.candidates) or 1,
            streams=found[2].startswith("stream"),
        )

    def lowered(self, body: bytes, tokens: int) -> bytes:
        def lower(request: dict[str, Any]) -> None:
            config = request.get("generationConfig")
            config = dict(config) if isinstance(config, dict) else {}
            thinking = config.get("thinkingConfig")
            if isinstance(thinking, dict) and (positive(thinking.get("thinkingBudget")) or 0) > tokens // 2:
                config["thinkingConfig"] = thinking | {"thinkingBudget": tokens // 2}
            request["generationConfig"] = config | {"maxOutputTokens": tokens}

        return changed(body, lower)

    def refusal(self, message: str) -> bytes:
        return msgspec.json.encode({"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}})

    def reply(self, *, streamed: bool) -> ReplyReader:
        return _GeminiReader(streamed=streamed)


class _GeminiReader(ReplyReader):
    def event(self, data: bytes) -> None:
        self._take(_GENERATED.decode(data))

    def document(self, data: bytes) -> None:
        # a stream without alt=sse is one array
        for generated in _ARRAY.decode(data) if data.lstrip()[:1] == b"[" else [_GENERATED.decode(data)]:
            self._take(generated)
        self.told = self.tokens is not None

    def _take(self, generated: _GeminiGenerated) -> None:
        for candidate in generated.candidates:
            for part in candidate.content.parts if candidate.content is not None else ():
                self.written += counters.size(part.text)
                if part.function_call is not None:
                    self.written += counters.size(part.function_call.args)
                    self.use(tool_use(part.function_call.name, bytes(part.function_call.args)))
        usage = generated.usage_metadata
        if usage is not None:  # each event repeats it, with what has come by then
            self.tokens = counters.tokens_in_all(
                total=counters.number(usage.prompt_token_count) + counters.number(usage.tool_use_prompt_token_count),
                read=usage.cached_content_token_count,
                output=counters.number(usage.candidates_token_count) + counters.number(usage.thoughts_token_count),
            )
            self.told = any(candidate.finish_reason for candidate in generated.candidates)


_GENERATED = msgspec.json.Decoder(_GeminiGenerated)
_ARRAY = msgspec.json.Decoder(list[_GeminiGenerated])
GEMINI = _GeminiApi()
