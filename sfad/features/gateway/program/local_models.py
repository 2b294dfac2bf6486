"""Which upstreams serve a model of this machine or its network, which costs nothing.

A server counts as one if it is at a loopback or private address, and tells by an endpoint that only
its program has that it holds the model of the call itself. That an address is private says nothing:
proxies of paid models, such as LiteLLM, are there too, and have no such endpoint.
"""

import json
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2
import trio
from msgspec import Struct, field

from .egress_rules import is_private
from .upstreams import Upstream

FRESH = 60.0
"""Seconds for which an answer counts. Another server may take the port."""
PATIENCE = 2.0
"""Seconds that a server has to say what it is. While it thinks, the first call of a run waits."""
MOST_SAID = 1 << 20
"""Bytes of an answer. One that is longer says nothing."""
_ONCE = {"connection": "close"}
"""A server that has one connection at a time would answer the call itself only after this one."""
MOST_KNOWN = 64
"""Upstreams of which it is remembered. Trees name their own."""


class _Any(Container[str]):
    """The models of a server that has one, and answers with it whatever it is asked for."""

    def __contains__(self, name: object) -> bool:
        return True


_NONE: Container[str] = frozenset[str]()


class _Known(Struct):
    until: float = 0.0
    models: Container[str] = _NONE
    lock: trio.Lock = field(default_factory=trio.Lock)


class LocalModels:
    def __init__(self, client: httpx2.AsyncClient) -> None:
        """`client`: asks without a proxy."""
        self._client = client
        self._known: dict[str, _Known] = {}

    async def why_free(self, upstream: Upstream, model: str) -> Literal["local", "config"] | None:
        """Return why calls of a model cost nothing: it is local, or the operator says so; `None` if
        they cost."""
        if upstream.free != "auto":
            return "config" if upstream.free else None
        return "local" if await self._holds(upstream, model) else None

    async def _holds(self, upstream: Upstream, model: str) -> bool:
        """Return whether a server has a model itself."""
        known = self._known.pop(upstream.url, None) or _Known()
        self._known[upstream.url] = known
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        if trio.current_time() >= known.until:
            async with known.lock:
                if trio.current_time() >= known.until:
                    await self._ask(upstream, known)
        return model in known.models

    async def _ask(self, upstream: Upstream, known: _Known) -> None:
        """Ask a server by the endpoints of each program. One that is too busy to answer is what it
        was."""
        found, base = list[Container[str]](), upstream.url.removesuffix("/v1")
        with trio.move_on_after(PATIENCE) as waiting:
            if await _is_near(upstream):
                async with trio.open_nursery() as nursery:
                    for path, models_of in _ENDPOINTS.items():
                        nursery.start_soon(self._models_at, f"{base}{path}", models_of, found)
        if not (waiting.cancelled_caught and known.until):
            known.models = next((each for each in found if each is not _NONE), _NONE)
        known.until = trio.current_time() + FRESH

    async def _models_at(
        self,
        url: str,
        models_of: Callable[[Mapping[str, Any]], Container[str]],
        found: list[Container[str]],
    ) -> None:
        said = bytearray()
        with suppress(httpx2.HTTPError, httpx2.InvalidURL, ValueError, RecursionError):
            async with self._client.stream("GET", url, headers=_ONCE) as response:
                async for piece in response.aiter_bytes():
                    said += piece
                    if len(said) > MOST_SAID:
                        return
            answer = json.loads(said)
            if response.status_code == 200 and isinstance(answer, dict):
                found.append(models_of(answer))


async def _is_near(upstream: Upstream) -> bool:
    """Return whether all addresses of an upstream's host are of this machine or a private
    network."""
    parts = urlsplit(upstream.url)
    try:
        found = await trio.socket.getaddrinfo(parts.hostname or "", parts.port or 80)
        return bool(found) and all(is_private(ip_address(at[0])) for *_, at in found)
    except (OSError, ValueError):
        return False


# ---- What the programs say that hold models themselves


def _entries(said: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = said.get(key)
    return [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []


def _names(entries: list[dict[str, Any]], key: str) -> Container[str]:
    return frozenset(name for each in entries if isinstance(name := each.get(key), str)) or _NONE


def _ollama(said: Mapping[str, Any]) -> Container[str]:
    """Return the models whose weights it has; those of its cloud are `remote_host`'s."""
    held = [
        each
        for each in _entries(said, "models")
        if each.get("digest")
        and not (each.get("remote_host") or each.get("remote_model"))
        and isinstance(each.get("details"), dict)
    ]
    names = _names(held, "name")
    short = [str(each.get("name")).removesuffix(":latest") for each in held]
    return frozenset(short).union(names if isinstance(names, frozenset) else ()) or _NONE


def _llama_cpp(said: Mapping[str, Any]) -> Container[str]:
    is_one = isinstance(said.get("default_generation_settings"), dict) and said.get("model_path")
    return _Any() if is_one else _NONE


def _lm_studio(said: Mapping[str, Any]) -> Container[str]:
    held = [
        each
        for each in _entries(said, "data")
        if each.get("arch") and each.get("compatibility_type") in {"gguf", "mlx"}
    ]
    return _names(held, "id")


def _vllm(said: Mapping[str, Any]) -> Container[str]:
    held = [
        each
        for each in _entries(said, "data")
        if each.get("owned_by") == "vllm" and each.get("max_model_len")
    ]
    return _names(held, "id")


_ENDPOINTS: Mapping[str, Callable[[Mapping[str, Any]], Container[str]]] = {
    "/api/tags": _ollama,
    "/props": _llama_cpp,
    "/api/v0/models": _lm_studio,
    "/v1/models": _vllm,
}
"""Ollama: "List local models" of its API; llama.cpp: "GET /props" of its server; LM Studio: "GET
/api/v0/models" of its REST API; vLLM: `ModelCard` of its OpenAI-compatible server."""
