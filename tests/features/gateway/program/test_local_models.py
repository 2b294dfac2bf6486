"""Which upstreams are local models, which are free: by what the programs say that hold them, and
not by where they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

import pytest
import trio

from sfad.features.gateway.program.egress_rules import is_private
from sfad.features.gateway.program.upstreams import Upstream
from tests.features.gateway.program.scripted import House, Provider, house, post, reply
from tests.harness import until

Said = Mapping[str, Any]
"""What a server answers, by path; 404 to all else."""

DIGEST = "a80c4f17acd55265feec403c7aef86be0c25983ab279d83f3bcd3abbcb5b8b72"
GGUF = {"format": "gguf", "family": "llama", "parameter_size": "3.2B"}
OLLAMA = {
    "/api/tags": {
        "models": [
            {"name": "llama3.2:latest", "digest": DIGEST, "details": GGUF},
            {"name": "qwen2.5-coder:7b", "digest": DIGEST, "details": GGUF},
            {
                "name": "gpt-oss:120b-cloud", "digest": DIGEST, "details": GGUF,
                "remote_model": "gpt-oss:120b", "remote_host": "https://ollama.com:443",
            },
        ]
    },
    "/v1/models": {"data": [{"id": "llama3.2:latest", "owned_by": "library"}]},
}  # fmt: skip
LLAMA_CPP = {
    "/props": {
        "default_generation_settings": {"n_ctx": 4096},
        "total_slots": 1,
        "model_path": "../models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf",
    },
    "/v1/models": {"data": [{"id": "../models/x.gguf", "owned_by": "llamacpp"}]},
}
LM_STUDIO = {
    "/api/v0/models": {
        "data": [
            {"id": "qwen2-vl-7b", "type": "vlm", "arch": "qwen2_vl", "compatibility_type": "mlx"}
        ]
    },
    "/v1/models": {"data": [{"id": "qwen2-vl-7b", "owned_by": "organization_owner"}]},
}
VLLM = {
    "/v1/models": {
        "data": [{"id": "Qwen/Qwen3-8B", "owned_by": "vllm", "root": "x", "max_model_len": 32768}]
    }
}
LITELLM = {
    "/v1/models": {
        "data": [
            {"id": name, "object": "model", "created": 1677610602, "owned_by": "openai"}
            for name in ("gpt-5", "claude-sonnet-4-5", "llama3.2")
        ]
    },
    "/health/liveliness": "I'm alive!",
}
OTHERS: dict[str, Said] = {
    "nothing": {},
    "lists": {"/api/tags": [], "/props": [], "/api/v0/models": [], "/v1/models": []},
    "junk": {
        "/api/tags": {"models": [1, {"name": 1, "digest": DIGEST, "details": GGUF}, {"name": "m"}]},
        "/props": {"default_generation_settings": {}},
        "/api/v0/models": {"data": {"id": "m"}},
        "/v1/models": {"data": [{"id": ["m"], "owned_by": "vllm", "max_model_len": 1}, None]},
    },
}


class Server(Provider):
    """A provider on loopback that says what it is, and answers calls."""

    def __init__(self, said: Said) -> None:
        super().__init__(self._answer)
        self.said = said
        self.asked: list[str] = []
        self.silent = False

    async def _answer(self, stream: trio.SocketStream, request: bytes) -> None:
        method, path, _ = request.decode("latin-1").split(" ", 2)
        self.asked.append(f"{method} {path}")
        if method == "GET" and self.silent:
            await trio.sleep_forever()
        if method == "POST":
            usage = {"prompt_tokens": 3, "completion_tokens": 1}
            body = {"choices": [{"message": {"content": "x"}}], "usage": usage}
            await stream.send_all(
                reply(json.dumps(body).encode(), b"Content-Type: application/json")
            )
        elif path in self.said:
            await stream.send_all(reply(json.dumps(self.said[path]).encode()))
        else:
            await stream.send_all(reply(b"not found", status=b"404 Not Found"))


def chat(model: str) -> bytes:
    said = {"model": model, "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    return post("/up/chat/completions", json.dumps(said).encode(), "Authorization: Bearer secret")


async def why_free(found: House, model: str) -> str | None:
    """Return why a call of a model is free. It is told at its beginning and at its end."""
    asked, told = len(found.daemon.asked), len(found.daemon.told)
    assert (await found.ask(chat(model))).status == 200
    await until(lambda: len(found.daemon.told) > told)
    assert found.daemon.told[told].free == found.daemon.asked[asked].free
    return found.daemon.asked[asked].free


@pytest.mark.parametrize(
    ("said", "model", "free"),
    [
        (OLLAMA, "llama3.2", True),
        (OLLAMA, "llama3.2:latest", True),
        (OLLAMA, "qwen2.5-coder:7b", True),
        (OLLAMA, "qwen2.5-coder", False),
        (OLLAMA, "gpt-oss:120b-cloud", False),
        (OLLAMA, "gpt-5", False),
        (LLAMA_CPP, "whatever", True),
        (LM_STUDIO, "qwen2-vl-7b", True),
        (LM_STUDIO, "another", False),
        (VLLM, "Qwen/Qwen3-8B", True),
        (VLLM, "gpt-5", False),
        (LITELLM, "gpt-5", False),
        (LITELLM, "llama3.2", False),
        (OTHERS["nothing"], "m", False),
        (OTHERS["lists"], "m", False),
        (OTHERS["junk"], "m", False),
    ],
)
async def test_a_model_is_local_if_its_server_says_that_it_holds_it(
    said: Said, model: str, free: bool
) -> None:
    async with house(Server(said), api="openai-chat", prefix="/v1", free="auto") as found:
        assert await why_free(found, model) == ("local" if free else None)


async def test_no_key_goes_to_a_server_that_is_asked_what_it_is_and_it_is_asked_once() -> None:
    server = Server(OLLAMA)
    async with house(server, api="openai-chat", prefix="/v1", free="auto") as found:
        assert [await why_free(found, model) for model in ("llama3.2", "gpt-5")] == ["local", None]
    questions = [each for each in server.requests if each.startswith(b"GET ")]
    assert sorted(each.split(b" ")[1] for each in questions) == [
        b"/api/tags",
        b"/api/v0/models",
        b"/props",
        b"/v1/models",
    ]
    assert b"secret" not in b"".join(questions)


async def test_a_server_that_is_too_busy_to_answer_is_what_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sfad.features.gateway.program.local_models.FRESH", 0.0)
    monkeypatch.setattr("sfad.features.gateway.program.local_models.PATIENCE", 0.3)
    server = Server(OLLAMA)
    async with house(server, api="openai-chat", prefix="/v1", free="auto") as found:
        assert await why_free(found, "llama3.2") == "local"
        server.silent = True
        assert await why_free(found, "llama3.2") == "local"
        server.silent, server.said = False, LITELLM
        assert await why_free(found, "llama3.2") is None


@pytest.mark.parametrize(("free", "why"), [(True, "config"), (False, None)])
async def test_the_operators_word_counts_more(free: bool, why: str | None) -> None:
    server = Server(OLLAMA)
    upstreams: dict[str, Upstream] = {}
    async with house(server, upstreams=upstreams) as found:
        url = f"http://127.0.0.1:{found.direct}/v1"
        upstreams["up"] = Upstream("up", url, "openai-chat", free=free)
        assert await why_free(found, "llama3.2") == why
    assert not [each for each in server.asked if each.startswith("GET")]


async def test_requests_beside_calls_pass_to_an_upstream_that_is_free() -> None:
    server = Server(OLLAMA)
    upstreams: dict[str, Upstream] = {}
    async with house(server, upstreams=upstreams) as found:
        url = f"http://127.0.0.1:{found.direct}/v1"
        asked = post("/up/embeddings", b'{"model": "m", "input": "x"}')
        upstreams["up"] = Upstream("up", url, "openai-chat", free=True)
        assert (await found.ask(asked)).status == 200
        upstreams["up"] = Upstream("up", url, "openai-chat")
        assert (await found.ask(asked)).status == 400


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("192.168.1.5", True),
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("fd00::5", True),
        ("169.254.169.254", False),
        ("8.8.8.8", False),
        ("2606:4700::1", False),
    ],
)
def test_what_is_a_private_address(address: str, private: bool) -> None:
    assert is_private(ip_address(address)) is private
