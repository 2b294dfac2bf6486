"""OpenAI Responses (https://platform.openai.com/docs/api-reference/responses)."""

import re
from typing import Any

import msgspec

from .....agents import counters
from .....agents.lenient import LenientDecoder
from .....agents.line_meter import OPENAI_FACTORS
from .base import (
    ANY_PREFIX,
    OPENAI_FEES,
    Api,
    ModelCall,
    ReplyReader,
    RequestFields,
    encoded,
    fee_of_use,
    fields,
    held,
    most_fees,
    tool_use,
    with_sentence,
    words,
)
from .holding import Holding, hold_responses
from .usage import openai_usage


class _ResponsesPart(msgspec.Struct):
    text: Any = None


class _ResponsesAction(msgspec.Struct):
    type: Any = None


class _ResponsesItem(msgspec.Struct):
    type: str = ""
    status: Any = None
    name: Any = None
    arguments: Any = None
    input: Any = None
    action: msgspec.Raw = msgspec.Raw(b"")
    operation: msgspec.Raw = msgspec.Raw(b"")
    content: list[_ResponsesPart] | None = None


class _ResponsesIncomplete(msgspec.Struct):
    reason: Any = None


class _ResponsesResponse(msgspec.Struct):
    background: Any = None
    incomplete_details: _ResponsesIncomplete | None = None
    service_tier: Any = None
    model: Any = None
    error: Any = None
    usage: Any = None
    output: list[_ResponsesItem] = []


class _ResponsesEvent(msgspec.Struct):
    type: str = ""
    delta: Any = None
    item: _ResponsesItem | None = None
    response: _ResponsesResponse | None = None
    error: Any = None
    message: Any = None


_COMPACTED = 20_000
"""Tokens that a conversation is compacted to at most, a guess: the request takes no maximum."""
_CALLS = {
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "computer_call",
}
"""What the agent is to execute, and not OpenAI."""
_LOOKS = ("open_page", "find_in_page", "find")
"""Actions of a `web_search_call` that cost no search
(https://platform.openai.com/docs/guides/tools-web-search, "Output and citations")."""
_UNSURE_FEES = {"code_interpreter_call", "image_generation_call"}
"""Several calls may share a container, and most images cost less than the dearest."""


_UNREASONING = re.compile(r"gpt-4")
"""Models for which a search in preview costs more than another one."""


def openai_refusal(message: str, retry_after: int | None, status: int) -> bytes:
    """https://platform.openai.com/docs/guides/error-codes"""
    kind, code = "invalid_request_error", "refused_by_gateway"
    if retry_after is not None:
        kind, code = "requests", "rate_limit_exceeded"
    elif status >= 500:
        kind = code = "server_error"
    return msgspec.json.encode(
        {"error": {"message": message, "type": kind, "param": None, "code": code}}
    )


OPENAI_FREE = re.compile(
    rf"{ANY_PREFIX}/(responses/input_tokens|(responses|batches)/[\w-]+/cancel|moderations|files|uploads(/[\w-]+/(parts|complete|cancel))?"
    r"|conversations(/[\w-]+(/items)?)?)"
)


class _ResponsesApi(Api):
    name = "openai-responses"
    calls = re.compile(r"/responses(/compact)?\Z")
    free = OPENAI_FREE
    factors = OPENAI_FACTORS

    def asked(self, path: re.Match[str], body: bytes) -> ModelCall:
        request, compacts = RequestFields(body), path[1] is not None
        model = request.model()
        holding = Holding(body, model)
        hold_responses(holding, request.fields)
        return ModelCall(
            model=model,
            max_output=_COMPACTED if compacts else request.count("max_output_tokens"),
            fixed=compacts,
            streams=request.flag("stream"),
            caches=True,
            continues=request.raw("previous_response_id") is not None
            or request.raw("conversation") is not None,
            background=request.flag("background"),
            tiers=request.words("service_tier"),
            fees_usd=most_fees(OPENAI_FEES, request.raw("tools"), request.count("max_tool_calls")),
            **held(holding),
        )

    def lowered(self, body: bytes, tokens: int) -> bytes:
        return msgspec.json.encode(fields(body) | {"max_output_tokens": encoded(tokens)})

    def concluded(self, body: bytes, sentence: str) -> bytes:
        request = fields(body)
        given = bytes(request.get("input", b"[]"))
        if given.startswith(b'"'):
            said = encoded(f"{msgspec.json.decode(given)}\n\n{sentence}")
            return msgspec.json.encode(request | {"input": said})
        more = with_sentence(given, sentence, "input_text")
        return msgspec.json.encode(request | {"input": more})

    def refusal(self, message: str, retry_after: int | None = None, status: int = 400) -> bytes:
        return openai_refusal(message, retry_after, status)

    def reply(self, *, streamed: bool) -> ReplyReader:
        return _ResponsesReader(streamed=streamed)


class _ResponsesReader(ReplyReader):
    def event(self, data: bytes) -> None:
        event = _EVENT.decode(data)
        # the others tell of the whole response
        self.begun |= event.type.startswith("response.") and event.response is None
        if event.type == "error":
            self.fail(event.error or event.message or event.type)
        elif event.type.endswith(".delta"):
            self.written += counters.size(event.delta)
        elif event.type == "response.output_item.done" and event.item is not None:
            self._call(event.item)
        elif event.response is not None:
            self._count(event.response)

    def document(self, data: bytes) -> None:
        response = _RESPONSE.decode(data)
        self._count(response)
        for item in response.output:
            texts = [part.text for part in item.content or ()]
            self.written += counters.size(item.arguments, item.input, *texts)
            self._call(item)

    def _call(self, item: _ResponsesItem) -> None:
        fee = 0.0 if _is_look(item) else fee_of_use(OPENAI_FEES, item.type)
        unsure = fee if item.type in _UNSURE_FEES or item.status == "failed" else 0.0
        if fee and item.type == "web_search_call" and _UNREASONING.match(self.model):
            most = OPENAI_FEES["web_search_preview"]
            fee, unsure = most, most - fee  # the reply does not tell which it was
        self.fees_usd += fee
        self.unsure_fees_usd += unsure
        if item.type in _CALLS:
            told = next(
                (each for each in (item.arguments, item.input) if isinstance(each, str)), ""
            )
            name = item.name if item.name is not None else item.type
            self.use(
                tool_use(
                    name, told.encode(errors="replace") + bytes(item.action) + bytes(item.operation)
                )
            )

    def _count(self, response: _ResponsesResponse) -> None:
        incomplete = response.incomplete_details
        self.cut = incomplete is not None and incomplete.reason == "max_output_tokens"
        self.background = response.background is True
        if response.service_tier != "auto":  # which it is until that is decided
            self.tiers = words(service_tier=response.service_tier)
        self.serve(response.model)
        self.fail(response.error)
        if isinstance(response.usage, dict):  # null until the end
            self.take_usage(openai_usage(response.usage))
            self.told = True


def _is_look(item: _ResponsesItem) -> bool:
    action = bytes(item.action)
    return (
        item.type == "web_search_call"
        and action.startswith(b"{")
        and _ACTION.decode(action).type in _LOOKS
    )


_ACTION = LenientDecoder(_ResponsesAction)
_EVENT = LenientDecoder(_ResponsesEvent)
_RESPONSE = LenientDecoder(_ResponsesResponse)
RESPONSES = _ResponsesApi()
