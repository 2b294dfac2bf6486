"""What a request holds, by the form of its API."""

from __future__ import annotations

import json
import struct
import time
from base64 import b64encode
from typing import Any

import pytest

from sfad.features.gateway.program.apis import APIS, ModelCall
from sfad.features.gateway.program.apis.base import MOST_NAMED
from sfad.features.gateway.program.apis.holding import IMAGE_TOKENS
from tests.tiers import first
from tests.together import together

from .test_extras import PATHS

PNG = b64encode(b"\x89PNG\r\n\x1a\n" + bytes(3_000_000)).decode()
SIZE = len(PNG)


def wav(seconds: int, rate: int = 48_000) -> str:
    head = struct.pack("<4sI8sIHHIIHH", b"RIFF", 36, b"WAVEfmt ", 16, 1, 1, rate // 2, rate, 2, 16)
    return b64encode(head + bytes(seconds * rate - len(head))).decode()


MP3 = b64encode(b"ID3" + bytes(239_997)).decode()
"""A minute at 32 kbit/s, if it was one."""


def asked(api: str, **body: Any) -> ModelCall:
    call = APIS[api].call(PATHS[api], json.dumps({"model": "m"} | body).encode())
    assert call is not None
    return call


def user(part: Any, api: str) -> dict[str, Any]:
    """Return a request with one part."""
    match api:
        case "gemini":
            return {"contents": [{"role": "user", "parts": [part]}]}
        case "openai-responses":
            return {"input": [{"role": "user", "content": [part]}]}
    return {"messages": [{"role": "user", "content": [part]}]}


def source(data: str, kind: str = "base64", media: str = "image/png") -> dict[str, Any]:
    return {"type": kind, "media_type": media, "data": data}


IMAGE = {"type": "image", "source": source(PNG)}
IMAGES: list[tuple[str, Any]] = [
    ("anthropic", IMAGE),
    ("anthropic", {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}),
    (
        "anthropic",
        {"type": "document", "source": {"type": "content", "content": [IMAGE]}},
    ),
    ("openai-chat", {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}),
    ("openai-responses", {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}),
    ("gemini", {"inlineData": {"mimeType": "image/png", "data": PNG}}),
    ("gemini", {"inline_data": {"mime_type": "image/heic", "data": PNG}}),
    (
        "gemini",
        {
            "functionResponse": {
                "name": "f",
                "parts": [{"inlineData": {"mimeType": "image/png", "data": PNG}}],
            }
        },
    ),
]


@pytest.mark.parametrize(("api", "part"), IMAGES)
def test_an_image_counts_the_same_whatever_its_bytes(api: str, part: Any) -> None:
    call = asked(api, **user(part, api))
    assert IMAGE_TOKENS < call.tokens < IMAGE_TOKENS + 200
    assert call.tokens < call.most_tokens < IMAGE_TOKENS + 500
    assert (call.media, call.refers) == ({"image": IMAGE_TOKENS}, False)


def test_the_screenshot_of_a_computer_is_an_image() -> None:
    output = {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PNG}"}
    item = {"type": "computer_call_output", "call_id": "c", "output": output}
    assert asked("openai-responses", input=[item]).media == {"image": IMAGE_TOKENS}


URL = f"data:image/png;base64,{PNG}"
TEXTS: list[tuple[str, Any]] = [
    ("anthropic", {"type": "text", "text": PNG, "data": PNG}),
    ("anthropic", {"type": "text", "text": "x", "source": source(PNG)}),
    ("anthropic", {"type": "tool_use", "name": "t", "input": {"data": PNG}}),
    ("anthropic", {"type": "tool_use", "name": "t", "input": IMAGE}),
    ("anthropic", {"type": "tool_use", "name": "t", "input": {}, "content": [IMAGE]}),
    ("anthropic", {"type": "tool_result", "content": json.dumps([IMAGE])}),
    ("anthropic", {"type": "document", "source": source(PNG, "text", "text/plain")}),
    ("anthropic", {"type": "document", "source": source(PNG, "base64", "application/pdf")}),
    ("anthropic", {"type": "image", "source": [5, PNG]}),
    ("openai-chat", {"type": "text", "text": URL, "url": URL}),
    ("openai-chat", {"type": "text", "text": "x", "image_url": {"url": URL}}),
    ("openai-chat", {"type": "image_url", "image_url": {"url": f"data:text/plain,{PNG}"}}),
    ("openai-responses", {"type": "input_text", "text": URL, "image_url": URL}),
    ("openai-responses", {"type": "output_text", "text": URL}),
    ("gemini", {"text": PNG, "inlineData": {"mimeType": "text/plain", "data": PNG}}),
    (
        "gemini",
        {
            "functionCall": {
                "name": "f",
                "args": {"inlineData": {"mimeType": "image/png", "data": PNG}},
            }
        },
    ),
    (
        "gemini",
        {
            "functionResponse": {
                "name": "f",
                "response": {"inlineData": {"mimeType": "image/png", "data": PNG}},
            }
        },
    ),
]


@pytest.mark.parametrize(
    ("api", "part"), TEXTS, ids=[f"{api} {n}" for n, (api, _) in enumerate(TEXTS)]
)
def test_a_text_that_begins_like_an_image_is_text(api: str, part: Any) -> None:
    """16 calls of 1 USD each passed a limit of 1 USD seven at a time."""
    call = asked(api, **user(part, api))
    assert call.most_tokens > SIZE
    assert not call.media


def test_a_function_of_the_agents_is_text() -> None:
    items = [
        {"type": "function_call", "name": "f", "arguments": URL, "image_url": URL},
        {"type": "function_call_output", "output": URL},
    ]
    call = asked("openai-responses", input=items)
    assert call.most_tokens > 3 * SIZE
    assert not call.media


AUDIO: list[tuple[str, Any, tuple[int, int]]] = [
    (
        "openai-chat",
        {"type": "input_audio", "input_audio": {"data": MP3, "format": "mp3"}},
        (1921, 10_241),
    ),
    (
        "openai-chat",
        {"type": "input_audio", "input_audio": {"data": wav(60), "format": "wav"}},
        (1921, 1921),
    ),
    (
        "openai-responses",
        {"type": "input_audio", "input_audio": {"data": MP3, "format": "mp3"}},
        (1921, 10_241),
    ),
    ("gemini", {"inlineData": {"mimeType": "audio/mp3", "data": MP3}}, (1921, 10_241)),
]


@pytest.mark.parametrize(("api", "part", "tokens"), AUDIO)
def test_audio_counts_by_its_seconds(api: str, part: Any, tokens: tuple[int, int]) -> None:
    call = asked(api, **user(part, api))
    assert (call.media, call.most_media) == ({"audio": tokens[0]}, {"audio": tokens[1]})
    assert call.most_tokens < 300


def test_a_header_of_audio_that_lies_is_bounded() -> None:
    head = struct.pack("<4sI8sIHHIIHH", b"RIFF", 36, b"WAVEfmt ", 16, 1, 1, 2**31, 9, 2, 16)
    data = b64encode(head + bytes(239_956)).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    call = asked("openai-chat", **user(part, "openai-chat"))
    assert call.media["audio"] >= 32 * 240_000 // 600_000


def test_video() -> None:
    part = {"inlineData": {"mimeType": "video/mp4", "data": MP3}}
    assert asked("gemini", **user(part, "gemini")).media == {"video": 1 + 300 * 240_000 // 60_000}


NAMED: list[tuple[str, Any]] = [
    ("anthropic", {"type": "document", "source": {"type": "url", "url": "https://x"}}),
    ("anthropic", {"type": "image", "source": {"type": "file", "file_id": "f"}}),
    ("anthropic", {"type": "container_upload", "file_id": "f"}),
    ("openai-responses", {"type": "input_file", "file_id": "f"}),
    ("openai-responses", {"type": "input_file", "file_url": "https://x"}),
    ("openai-responses", {"type": "input_image", "file_id": "f"}),
    ("openai-responses", {"type": "input_image", "image_url": "https://x"}),
    ("openai-chat", {"type": "image_url", "image_url": {"url": "https://x"}}),
    ("openai-chat", {"type": "file", "file": {"file_id": "f"}}),
    ("gemini", {"fileData": {"fileUri": "https://x"}}),
    ("gemini", {"file_data": {"file_uri": "https://x", "mime_type": "image/png"}}),
]


@pytest.mark.parametrize(("api", "part"), NAMED, ids=str)
def test_a_file_that_is_only_named_may_have_any_size(api: str, part: Any) -> None:
    assert asked(api, **user(part, api)).refers
    told = json.dumps(part)
    text = {"text": told} if api == "gemini" else {"type": "text", "text": told}
    assert not asked(api, **user(text, api)).refers, "a text that speaks of one"


def test_what_is_named_in_other_places() -> None:
    assert asked("openai-responses", input=[{"type": "item_reference", "id": "i"}]).refers
    assert asked("openai-responses", prompt={"id": "p"}).refers
    assert not asked("openai-responses", prompt=None).refers
    audio = {"fileData": {"fileUri": "https://x", "mimeType": "audio/mp3"}}
    call = asked("gemini", **user(audio, "gemini"))
    assert (call.refers, call.most_media) == (False, {"audio": MOST_NAMED})
    said = {"role": "assistant", "audio": {"id": "a"}}
    assert asked("openai-chat", messages=[said]).most_media == {"audio": MOST_NAMED}


MARK = {"type": "ephemeral", "ttl": "1h"}
SHORT = {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("body", "caches", "long"),
    [
        ({"tools": [{"name": "t", "cache_control": MARK}]}, True, True),
        ({"system": [{"type": "text", "text": "x", "cache_control": SHORT}]}, True, False),
        (
            {"messages": [{"content": [{"type": "text", "text": "x", "cache_control": MARK}]}]},
            True,
            True,
        ),
        (
            {
                "messages": [
                    {
                        "content": [
                            {
                                "type": "tool_result",
                                "content": [{"text": "x", "cache_control": MARK}],
                            }
                        ]
                    }
                ]
            },
            True,
            True,
        ),
        ({"cache_control": MARK}, True, True),
        ({"cache_control": None, "messages": 5, "x": "1h"}, False, False),
        (
            {"messages": [{"content": [{"type": "tool_use", "input": {"cache_control": MARK}}]}]},
            False,
            False,
        ),
        ({"messages": [{"content": json.dumps(MARK)}]}, False, False),
    ],
)
def test_what_is_to_be_kept_in_a_cache_is_known_by_its_marks(
    body: dict[str, Any], caches: bool, long: bool
) -> None:
    call = asked("anthropic", **body)
    assert (call.caches, call.long_cache) == (caches, long)


def test_a_mark_that_is_escaped_is_a_mark() -> None:
    body = b'{"model": "m", "c\\u0061che_control": {"type": "ephemeral", "ttl": "1h"}}'
    with pytest.raises(ValueError, match="escaped"):
        APIS["anthropic"].call(PATHS["anthropic"], body)
    inner = b'{"model": "m", "system": [{"c\\u0061che_control": {"ttl": "\\u0031h"}}]}'
    call = APIS["anthropic"].call(PATHS["anthropic"], inner)
    assert call is not None
    assert call.long_cache


def test_a_mark_in_chat_is_read() -> None:
    part = {"type": "text", "text": "x", "cache_control": MARK}
    assert asked("openai-chat", **user(part, "openai-chat")).long_cache


@together("api", APIS)
@together("value", [None, 5, "x", [], [5], [[]], [{}], {}, [{"content": 5, "parts": 5}]])
def test_other_forms_are_text(api: str, value: Any) -> None:
    name = {"gemini": "contents", "openai-responses": "input"}.get(api, "messages")
    call = asked(api, **{name: value})
    assert (call.media, call.refers) == ({}, False)


@first(1)
@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "gemini", "openai-responses"])
def test_ten_megabytes_are_read_at_once(api: str) -> None:
    """The body of a long conversation takes some 20 ms."""
    text = {"text": "word " * 200, "type": "text"}
    name = {"gemini": "parts"}.get(api, "content")
    messages = [{"role": "user", name: [text] * 10} for _ in range(1000)]
    field = {"gemini": "contents", "openai-responses": "input"}.get(api, "messages")
    body = json.dumps({"model": "m", field: messages}).encode()
    assert len(body) > 10_000_000
    began = time.process_time()
    APIS[api].call(PATHS[api], body)
    assert time.process_time() - began < 0.5
