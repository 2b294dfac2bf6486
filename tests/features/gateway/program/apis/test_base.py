"""What is true of each API: any split of a reply, truncation, garbage, and lies."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sfad.features.gateway.program.apis import APIS, ReplyReader, base
from sfad.features.gateway.program.apis.base import MAX_TOOL_USES, MODEL_MAX, positive
from sfad.protocol.texts.units import MOST_COUNTED
from tests.features.gateway.program.apis.samples import SAMPLES, Sample, read
from tests.features.gateway.program.test_sse import split
from tests.tiers import examples
from tests.together import together

NAMES = list(SAMPLES)
STREAMS = [name for name in SAMPLES if SAMPLES[name].streamed]


def check(reader: ReplyReader) -> None:
    """Check what is true whatever was read."""
    used = reader.tokens
    if used is not None:
        counts = [used.input, used.output, used.cached, used.cache_write]
        assert all(type(count) is int and 0 <= count <= 10**15 for count in counts)
        assert used.cached + used.cache_write <= used.input
    assert len(reader.tools) <= MAX_TOOL_USES
    assert all(
        re.fullmatch("[0-9a-f]{16}", tool.digest) and len(tool.name) <= MODEL_MAX
        for tool in reader.tools
    )
    assert reader.written >= 0
    json.dumps([tool.name for tool in reader.tools]).encode()


def check_sample(reader: ReplyReader, sample: Sample) -> None:
    check(reader)
    assert (reader.tokens, reader.told, reader.unknown) == (sample.tokens, True, False)
    assert tuple(tool.name for tool in reader.tools) == sample.tools
    assert reader.written == sample.written or not sample.streamed


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_in_one_piece_and_byte_by_byte(name: str) -> None:
    sample = SAMPLES[name]
    for pieces in ([sample.body], [bytes([byte]) for byte in sample.body]):
        check_sample(read(sample.api, *pieces, streamed=sample.streamed), sample)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(at=st.lists(st.integers(0, 5000), max_size=10))
def test_a_reply_at_any_split(name: str, at: list[int]) -> None:
    sample = SAMPLES[name]
    check_sample(read(sample.api, *split(sample.body, at), streamed=sample.streamed), sample)


@pytest.mark.parametrize("name", NAMES)
def test_equal_calls_of_tools_have_equal_digests(name: str) -> None:
    tools = read(SAMPLES[name].api, SAMPLES[name].body, streamed=SAMPLES[name].streamed).tools
    other = read(
        SAMPLES[name].api,
        re.sub(rb"\bls\b", b"rm", SAMPLES[name].body),
        streamed=SAMPLES[name].streamed,
    ).tools
    assert tools[0].digest != other[0].digest
    assert (
        tools == read(SAMPLES[name].api, SAMPLES[name].body, streamed=SAMPLES[name].streamed).tools
    )


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(part=st.floats(0, 0.999))
def test_a_reply_that_breaks_off(name: str, part: float) -> None:
    """A stream costs what came, or what was told before. Of one document, all may have been
    generated."""
    sample = SAMPLES[name]
    reader = read(
        sample.api,
        sample.body[: int(part * len(sample.body))],
        streamed=sample.streamed,
        whole=False,
    )
    check(reader)
    assert reader.unknown is not sample.streamed
    assert reader.written <= sample.written or not sample.streamed
    assert not reader.told or (reader.tokens is not None and reader.tokens.output >= 1)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("streamed", [True, False])
@given(data=st.lists(st.binary(max_size=300), max_size=5))
def test_garbage(api: str, streamed: bool, data: list[bytes]) -> None:
    reader = read(
        api, *(b"data: " + each + b"\n\n" if streamed else each for each in data), streamed=streamed
    )
    check(reader)
    assert not reader.told


VALUES: list[Any] = [
    None,
    True,
    -1,
    0.5,
    1e300,
    10**30,
    2**63,
    "x",
    "12",
    [],
    [1],
    {},
    {"a": 1},
    "\ud800",
    "x" * 10_000,
    10**10,
]


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=examples(50))
@given(data=st.data())
def test_values_of_other_types_and_lies(name: str, data: st.DataObject) -> None:
    """Any value of the reply may be something else."""
    sample = SAMPLES[name]
    text = sample.body.decode()
    found = list(re.finditer(r'(?<=: )(-?\d+|null|true|false|"[^"]*"|\{\}|\[\])', text))
    one = data.draw(st.sampled_from(found))
    value = json.dumps(data.draw(st.sampled_from(VALUES)))
    check(
        read(
            sample.api,
            (text[: one.start()] + value + text[one.end() :]).encode(),
            streamed=sample.streamed,
        )
    )


@together("name", NAMES)
@together("lie", [-1, -(10**18), "many", 1e300, 10**30, None, [], 2**64])
def test_usage_that_is_no_number_counts_as_none(name: str, lie: Any) -> None:
    body = re.sub(
        rb"(?i)(tokens?(?:_?count)?\": )\d+",
        lambda found: found[1] + json.dumps(lie).encode(),
        SAMPLES[name].body,
    )
    reader = read(SAMPLES[name].api, body, streamed=SAMPLES[name].streamed)
    check(reader)
    assert reader.tokens is None or (reader.tokens.input, reader.tokens.output) == (0, 0)


@pytest.mark.parametrize("name", STREAMS)
def test_events_of_an_unknown_form_are_skipped(name: str) -> None:
    sample = SAMPLES[name]
    odd = [
        b"{",
        b"[]",
        b"null",
        b"5",
        b'"x"',
        b'{"type": 5}',
        b"\xff",
        b"[" * 100_000,
        b'{"type": "new.event", "x": {"y": [1]}}',
    ]
    noise = b"".join(b"data: " + each + b"\n\n" for each in odd)
    check_sample(read(sample.api, noise + sample.body.replace(b"\n\n", b"\n\n" + noise)), sample)


@pytest.mark.parametrize("name", [name for name in NAMES if not SAMPLES[name].streamed])
def test_a_reply_that_is_too_long_is_unknown(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(base, "MAX_REPLY", 100)
    reader = read(SAMPLES[name].api, SAMPLES[name].body, streamed=False)
    assert (reader.told, reader.unknown, reader.tokens) == (False, True, None)


@pytest.mark.parametrize("api", APIS)
def test_a_whole_reply_that_does_not_tell_its_use_is_estimated(api: str) -> None:
    sample = next(each for each in SAMPLES.values() if each.api == api and not each.streamed)
    document = json.loads(sample.body)
    for each in document if isinstance(document, list) else [document]:
        each.pop("usage", None)
        each.pop("usageMetadata", None)
    reader = read(api, json.dumps(document).encode(), streamed=False)
    assert (reader.tokens, reader.told, reader.unknown) == (None, False, False)
    assert reader.written > 0


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1),
        (1.5, 1),
        (10**30, MOST_COUNTED),
        (1e300, MOST_COUNTED),
        (0, None),
        (-1, None),
        (True, None),
        ("5", None),
        (None, None),
    ],
)
def test_a_number_of_tokens_in_a_request(value: Any, number: int | None) -> None:
    assert positive(value) == number


UNCLEAR: list[tuple[str, str]] = [
    ("openai-chat", '{"model": "m", "n": "8"}'),
    ("openai-chat", '{"model": "m", "n": 1, "n": 8}'),
    ("openai-chat", '{"model": "m", "max_tokens": "100000"}'),
    ("openai-chat", '{"model": "m", "max_tokens": 1, "m\\u0061x_tokens": 100000}'),
    ("openai-chat", '{"max_tokens": 12, "model": "m", "x": {"y": 1}, "max_tokens": 1}'),
    ("openai-chat", '{"model": "m", "max_tokens": true}'),
    ("openai-chat", '{"model": "m", "stream": "true"}'),
    ("openai-responses", '{"model": "m", "max_output_tokens": [5]}'),
    ("openai-responses", '{"model": "cheap", "model": "dear"}'),
    ("openai-responses", '{"model": "m", "tools": {"type": "web_search"}}'),
    ("openai-responses", '{"model": "m", "service_tier": ["priority"]}'),
    ("anthropic", '{"model": "m", "max_tokens": 1.5}'),
    ("anthropic", '{"model": "m", "tools": [5, {"type": "web_search_20250305"}]}'),
    ("anthropic", '{"model": "m", "tools": [{"type": "web_search_20250305", "max_uses": "1000"}]}'),
    ("gemini", '{"generationConfig": {"maxOutputTokens": 1, "max_output_tokens": 100000}}'),
    (
        "gemini",
        (
            '{"generationConfig": {"maxOutputTokens": 1}, "generation_config": {"maxOutputTokens": '
            "100000}}"
        ),
    ),
    ("gemini", '{"generationConfig": {"maxOutputTokens": 1, "maxOutputTokens": 100000}}'),
    ("gemini", '{"generationConfig": {"maxOutputTokens": "1e5"}}'),
    ("gemini", '{"generationConfig": [1]}'),
    ("gemini", '{"serviceTier": 2}'),
]
CALL_PATHS = {
    "anthropic": "/v1/messages",
    "openai-responses": "/responses",
    "openai-chat": "/chat/completions",
    "gemini": "/v1beta/models/m:generateContent",
}


@together(("api", "body"), UNCLEAR)
def test_a_request_that_a_provider_may_read_differently_is_refused(api: str, body: str) -> None:
    with pytest.raises(ValueError, match=r"is expected|[Ee]xpected|is there twice|are the same"):
        APIS[api].call(CALL_PATHS[api], body.encode())


def test_the_larger_of_two_maxima_counts() -> None:
    for first, second in ((5, 9), (9, 5)):
        call = APIS["openai-chat"].call(
            "/chat/completions",
            json.dumps(
                {"model": "m", "max_tokens": first, "max_completion_tokens": second}
            ).encode(),
        )
        assert call is not None
        assert call.max_output == 9


@given(
    st.dictionaries(
        st.text(max_size=5), st.recursive(st.integers() | st.text(), st.lists, max_leaves=5)
    ),
    st.integers(0, 3),
)
@settings(max_examples=examples(30))
def test_fields_that_are_there_once_are_read(document: dict[str, Any], indent: int) -> None:
    raw = json.dumps(document, indent=indent or None, ensure_ascii=False).encode(errors="replace")
    assume(b"\\" not in raw and b"?" not in raw)
    assert {
        name: json.loads(bytes(value)) for name, value in base.fields_once(raw).items()
    } == document


@given(
    st.dictionaries(
        st.sampled_from("abc"), st.sampled_from(["1", "12", '"x,"', '{"a":1}', '"a":1']), min_size=1
    ),
    st.data(),
)
def test_a_field_that_is_there_twice_never_passes(
    document: dict[str, str], data: st.DataObject
) -> None:
    pairs = [f'"{name}":{value}' for name, value in document.items() if not value.startswith('"a"')]
    assume(pairs)
    pairs.insert(
        data.draw(st.integers(0, len(pairs))),
        data.draw(st.sampled_from(pairs)).split(":")[0] + ":1",
    )
    with pytest.raises(ValueError, match="twice"):
        base.fields_once(("{" + ",".join(pairs) + "}").encode())


# ---- which paths are what

FREE, CALL, UNGATED = "free", "call", "ungated"
MODEL = b'{"model": "m", "max_tokens": 5}'
FORM = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--x--'
UPLOAD = b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nThis model is great\r\n--x--'
PATHS: list[tuple[str, str, str, bytes, str]] = [
    # Claude Code, the SDKs, and opencode, which leaves out /v1
    ("anthropic", "POST", "/v1/messages", MODEL, CALL),
    ("anthropic", "POST", "/messages", MODEL, CALL),
    ("anthropic", "POST", "/v1/messages/count_tokens", MODEL, FREE),
    ("anthropic", "POST", "/messages/count_tokens", MODEL, FREE),
    ("anthropic", "GET", "/v1/models/claude-x", b"", FREE),
    ("anthropic", "HEAD", "/api/hello", b"", FREE),
    ("anthropic", "POST", "/api/event_logging/batch", b'{"events": [{"model": "m"}]}', FREE),
    ("anthropic", "POST", "/v1/files", UPLOAD, FREE),
    ("anthropic", "POST", "/v1/messages/batches", b'{"requests": []}', UNGATED),
    ("anthropic", "POST", "/v1/messages/batches/b/cancel", b"", FREE),
    ("anthropic", "GET", "/v1/messages/batches/b/results", b"", FREE),
    ("anthropic", "POST", "/v1/complete", b"{}", UNGATED),
    ("anthropic", "POST", "/v1/sessions", b'{"agent": "a"}', UNGATED),
    ("anthropic", "POST", "/v1/sessions/s/events", b'{"events": []}', UNGATED),
    ("anthropic", "POST", "/v1/messages/", MODEL, UNGATED),
    ("anthropic", "POST", "/v1/newer", MODEL, UNGATED),
    ("anthropic", "PUT", "/v1/messages", MODEL, UNGATED),
    ("anthropic", "POST", "/v1/messages/batches/", b"", UNGATED),
    ("anthropic", "POST", "/v1//messages", b"\xff", UNGATED),
    ("anthropic", "POST", "/v1/messages\n", MODEL, UNGATED),
    ("anthropic", "POST", "/v1/messages?/messages/count_tokens", MODEL, UNGATED),
    ("anthropic", "POST", "/v1/messages;/files", MODEL, UNGATED),
    ("openai-responses", "POST", "/batches/", b"{}", UNGATED),
    ("openai-responses", "POST", "/realtime/client_secrets", b"{}", UNGATED),
    ("openai-responses", "POST", "/newer", b"\xff\xfe", UNGATED),
    ("gemini", "POST", "/v1alpha/auth_tokens", b"{}", UNGATED),
    ("gemini", "POST", "/v1beta/dynamic/d:generateContent", b"{}", UNGATED),
    # Codex and the SDKs
    ("openai-responses", "POST", "/responses", MODEL, CALL),
    ("openai-responses", "POST", "/v1/responses", MODEL, CALL),
    ("openai-responses", "POST", "/responses/compact", MODEL, CALL),
    ("openai-responses", "POST", "/responses/input_tokens", MODEL, FREE),
    ("openai-responses", "POST", "/responses/r/cancel", b"", FREE),
    ("openai-responses", "GET", "/responses/r", b"", FREE),
    ("openai-responses", "GET", "/models", b"", FREE),
    ("openai-responses", "POST", "/memories/trace_summarize", MODEL, UNGATED),
    ("openai-responses", "POST", "/completions", MODEL, UNGATED),
    ("openai-responses", "POST", "/embeddings", MODEL, UNGATED),
    ("openai-responses", "POST", "/images/generations", b'{"prompt": "x"}', UNGATED),
    ("openai-responses", "POST", "/audio/transcriptions", FORM, UNGATED),
    ("openai-responses", "POST", "/newer", FORM, UNGATED),
    ("openai-responses", "POST", "/batches", b"{}", UNGATED),
    ("openai-responses", "POST", "/realtime/calls", b"", UNGATED),
    ("openai-responses", "POST", "/threads/t/runs", b"{}", UNGATED),
    ("openai-responses", "POST", "/vector_stores/v/search", b"{}", UNGATED),
    ("openai-responses", "POST", "/moderations", MODEL, FREE),
    ("openai-responses", "POST", "/conversations", b"{}", FREE),
    ("openai-responses", "POST", "/files", UPLOAD, FREE),
    ("openai-chat", "POST", "/chat/completions", MODEL, CALL),
    ("openai-chat", "POST", "/v1/chat/completions", MODEL, CALL),
    ("openai-chat", "DELETE", "/chat/completions/c", b"", FREE),
    # Gemini CLI and the SDKs
    ("gemini", "POST", "/v1beta/models/gemini-x:generateContent", b"{}", CALL),
    ("gemini", "POST", "/v1beta/models/gemini-x:streamGenerateContent", b"{}", CALL),
    ("gemini", "POST", "/v1/publishers/google/models/gemini-x:generateContent", b"{}", CALL),
    ("gemini", "POST", "/v1beta/models/gemini-x:countTokens", b"{}", FREE),
    ("gemini", "GET", "/v1beta/models", b"", FREE),
    ("gemini", "POST", "/upload/v1beta/files", UPLOAD, FREE),
    ("gemini", "POST", "/v1beta/models/gemini-x:embedContent", b"{}", UNGATED),
    ("gemini", "POST", "/v1beta/models/gemini-x:batchEmbedContents", b"{}", UNGATED),
    ("gemini", "POST", "/v1beta/models/gemini-x:batchGenerateContent", b"{}", UNGATED),
    ("gemini", "POST", "/v1beta/models/imagen:predict", b"{}", UNGATED),
    ("gemini", "POST", "/v1beta/models/veo:predictLongRunning", b"{}", UNGATED),
    ("gemini", "POST", "/v1beta/models/aqa:generateAnswer", b"{}", UNGATED),
    ("gemini", "POST", "/v1beta/tunedModels/t:generateContent", b"{}", UNGATED),
    ("gemini", "POST", "/v1beta/cachedContents", b"{}", UNGATED),
    ("gemini", "POST", "/v1beta/interactions", b"{}", UNGATED),
    ("gemini", "POST", "/v1beta/openai/chat/completions", MODEL, UNGATED),
]


@together(("name", "method", "path", "body", "kind"), PATHS)
def test_what_a_request_is(name: str, method: str, path: str, body: bytes, kind: str) -> None:
    api = APIS[name]
    path = api.path(path)
    call = api.call(path, body) if method == "POST" else None
    assert (CALL if call is not None else FREE if api.is_free(method, path) else UNGATED) == kind


@pytest.mark.parametrize("api", APIS)
def test_a_refusal_is_told_whatever_its_words(api: str) -> None:
    words = 'limit "cost" of run r1\n→ raise it'
    assert words in json.dumps(json.loads(APIS[api].refusal(words)), ensure_ascii=False).replace(
        '\\"', '"'
    ).replace("\\n", "\n")


def test_a_rate_is_refused_as_the_provider_would() -> None:
    told = {name: json.loads(api.refusal("later", 7))["error"] for name, api in APIS.items()}
    assert told["anthropic"]["type"] == "rate_limit_error"
    assert told["openai-responses"]["code"] == told["openai-chat"]["code"] == "rate_limit_exceeded"
    assert (told["gemini"]["code"], told["gemini"]["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert told["gemini"]["details"][0]["retryDelay"] == "7s"


ODD = (
    b'{"z": 1.0, "model": "m", "big": 123456789012345678901234567890, "text": "\\u00e9\\/", "a" : '
    b'[ 1,2 ], "stream": true}'
)


@pytest.mark.parametrize("api", APIS)
def test_a_change_leaves_all_other_values_byte_by_byte(api: str) -> None:
    lowered = APIS[api].lowered(APIS[api].completed(ODD), 5000)
    for part in (b"1.0", b"123456789012345678901234567890", b'"\\u00e9\\/"', b"[ 1,2 ]"):
        assert part in lowered
    assert list(json.loads(lowered))[:6] == ["z", "model", "big", "text", "a", "stream"]
