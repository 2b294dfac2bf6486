"""What tokens cost, from the config's `[prices]` and the library genai-prices.

Only this module imports the library, and only when it is needed: `PriceLibrary.load` imports it in
a worker thread, because that takes some 200 ms and 30 MiB. Its data and its matching of names are
used, both offline; its updater of prices (`UpdatePrices`) is never started. The arithmetic is here,
because the library's takes 50 to 140 µs for each usage update (a test compares both for each
model), and so is the cache, because the library's caches have no bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from copy import copy
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, get_args
from urllib.parse import urlsplit

import trio
from msgspec import Struct
from msgspec.structs import replace

from ..config import Price
from ..config_values import NAME_MAX
from ..protocol.types import Modality, Tokens

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider, TieredPrices


MATCHES_KEPT = 256
"""Names whose price is remembered, including unknown names. A daemon sees a dozen; an agent can
invent any number."""

_LOCAL = frozenset(
    {"llamacpp", "lm_studio", "lmstudio", "local", "localhost", "ollama", "ollama_chat", "vllm"}
)
"""Providers that run on the user's own machine, so that the prices of other providers of the model
say nothing."""

_MAKERS = {
    "claude": "anthropic",
    "anthropic": "anthropic",
    "codex": "openai",
    "openai-responses": "openai",
    "openai-chat": "openai",
    "gemini": "google",
}
"""The library's ids of providers, by agent program and by API of the gateway."""

_SELLERS = {
    "amazon-bedrock": "aws",
    "https://api.together.ai": "together",
    "togetherai": "together",
    "novita-ai": "novita",
    "xai": "x-ai",
}
"""The library's ids of providers, by addresses and names that it does not know: an address of its
documentation (https://docs.together.ai/docs/inference/openai-compatibility), names of opencode
(https://models.dev) and LiteLLM (https://docs.litellm.ai/docs/providers)."""

LONG_CACHE = 2.0
"""What input costs that is written to a cache for an hour, by the price of input
(https://platform.claude.com/docs/en/build-with-claude/prompt-caching, "Pricing")."""

_INPUT_SHARE, _LONG_REQUEST = 10, 1_000_000
"""Tokens of input for a token of output, and of the input of one request, by which models are
compared. Agents read more than they write, and a model that speaks is dear only by its output."""

_PAST = {"openai": re.compile(r"o1(-.*)?|gpt-[34]([.-].*)?")}
"""Models that a provider has replaced long ago, by its id, because the library marks few of them as
deprecated. o1-pro costs ten times as much as the dearest that agents call now."""
_PRO = re.compile(r"(^|.*-)pro(-.*)?")
"""OpenAI has each of its dearest models under such a name only, so they say nothing of other
names."""

_LIKE_TEXT = {"anthropic", "aws", "azure", "google", "openai", "openrouter", "x-ai"}
"""Providers whose images and videos cost what text costs where they have no price of their own
(https://ai.google.dev/gemini-api/docs/pricing, "text / image / video";
https://platform.openai.com/docs/guides/images-vision, "Calculating costs";
https://platform.claude.com/docs/en/build-with-claude/vision)."""

_RETIRED = re.compile(r"grok-(code-fast|4-1-fast|4-fast|4-0709|4$|3).*")
_RETIRED_AS = "grok-4.3"
"""Models of xAI that another one answers for since May 2026
(https://docs.x.ai/docs/migration/may-15-retirement). Not all replies say so, so the dearer
counts."""

_FINE_TUNED: tuple[tuple[str, tuple[float, float, float]], ...] = (
    ("gpt-4.1-nano", (0.2, 0.05, 0.8)),
    ("gpt-4.1-mini", (0.8, 0.2, 3.2)),
    ("gpt-4.1", (3.0, 0.75, 12.0)),
    ("gpt-4o-mini", (0.3, 0.15, 1.2)),
    ("gpt-4o", (3.75, 1.875, 15.0)),
    ("gpt-3.5-turbo", (3.0, 3.0, 6.0)),
    ("o4-mini", (4.0, 1.0, 16.0)),
)
"""What models cost that were tuned from these, whose names begin with `ft:`: USD for a million
tokens of input, of input from a cache, and of output
(https://platform.openai.com/docs/pricing, "Fine-tuning")."""

_Tier = tuple[float, float, float, float]
"""USD for a million tokens of input, of input from a cache and into it, and of output."""

UNLISTED: dict[str, dict[int, _Tier]] = {
    "gpt-5.3-codex-spark": {0: (1.75, 0.175, 1.75, 14)},
    "gpt-daybreak-blue-latest": {0: (4, 0.4, 5, 20), 272_000: (8, 0.8, 10, 30)},
    "gpt-daybreak-red-latest": {0: (12.5, 1.25, 15.625, 75)},
    "qwen3-coder-plus": {
        0: (1, 0.2, 1.25, 5),
        32_000: (1.8, 0.36, 2.25, 9),
        128_000: (3, 0.6, 3.75, 15),
        256_000: (6, 1.2, 7.5, 60),
    },
    "qwen3-max": {
        0: (1.2, 0.24, 1.5, 6),
        32_000: (2.4, 0.48, 3, 12),
        128_000: (3, 0.6, 3.75, 15),
    },
    "qwen3-vl-plus": {
        0: (0.2, 0.04, 0.25, 1.6),
        32_000: (0.3, 0.06, 0.375, 2.4),
        128_000: (0.6, 0.12, 0.75, 4.8),
    },
    "qwen3.5-plus": {0: (0.4, 0.08, 0.5, 2.4), 256_000: (0.5, 0.1, 0.625, 3)},
    "qwen3.6-plus": {0: (0.5, 0.05, 0.625, 3), 256_000: (2, 0.2, 2.5, 6)},
    "qwen3.8-max": {0: (2, 0.25, 2.5, 6)},
}
"""Models that agent programs offer and the library does not know, or only as another provider sells
them for less: by the tokens of input above which a price counts for the whole request
(https://www.alibabacloud.com/help/en/model-studio/models, "International";
https://platform.openai.com/docs/pricing; both as https://models.dev has them). A date behind the
name is a version of the same price."""

_DATED = re.compile(r"(.+)-20\d\d-?\d\d-?\d\d")

_NEWEST = {
    "haiku": "haiku",
    "sonnet": "sonnet",
    "opus": "opus",
    "fable": "fable",
    "opusplan": "opus",
    "best": "fable",
}
"""Aliases of Claude Code (https://code.claude.com/docs/en/model-config): the newest of a family; of
two, the dearer."""
_ALIASES: dict[str | None, dict[str, str]] = {
    "claude": {"default": "opus"},
    "qwen": {"coder-model": "qwen3.6-plus", "vision-model": "qwen3.6-plus"},
    "gemini": {
        "auto": "gemini-pro-latest",
        "pro": "gemini-pro-latest",
        "flash": "gemini-flash-latest",
        "flash-lite": "gemini-3.5-flash-lite",
    },
    "aider": {
        "4o": "gpt-4o",
        "deepseek": "deepseek/deepseek-chat",
        "r1": "deepseek/deepseek-reasoner",
        "gemini": "gemini-pro-latest",
        "flash": "gemini-flash-latest",
    },
    None: {
        "coder-model": "qwen3.6-plus",
        "gemini-3-flash": "gemini-3-flash-preview",
        "gemini-3-pro": "gemini-3-pro-preview",
        "gemini-3.1-pro": "gemini-3.1-pro-preview",
    },
}
"""What other names of agent programs mean, by program (https://geminicli.com/docs/cli/model,
https://qwenlm.github.io/qwen-code-docs/en/users/configuration/auth,
https://aider.chat/docs/config/model-aliases.html)."""

_BEDROCK = re.compile(r"(?:[a-z-]+\.)?[a-z0-9]+\.[a-z]")
"""`anthropic.claude-…`, `us.anthropic.claude-…`: Amazon's names of other makers' models."""


class Cost(Struct, frozen=True):
    usd: float
    sure: float
    """What it is at least; below `usd` where a price stands in for another one."""


class PriceLibrary:
    def __init__(self) -> None:
        self.providers: _Providers | None = None
        self.failure: str | None = None
        """Why the library cannot be used, or how its last lookup failed."""
        self._lock = trio.Lock()

    @property
    def ready(self) -> bool:
        return self.providers is not None or self.failure is not None

    def failed(self, why: str) -> None:
        self.failure = why

    async def load(self) -> str | None:
        """Import the library, once, in a worker thread; callers that come meanwhile wait for the
        same import. Return why that failed.

        If the machine is short of something for a moment (descriptors, threads, memory), the next
        call tries again; if the library is not installed, it does not."""
        async with self._lock:
            now = None if self.ready else await self._import()
        return now or (self.failure if self.providers is None else None)

    async def _import(self) -> str | None:
        try:
            self.providers = await trio.to_thread.run_sync(_import_library)
        except (OSError, MemoryError, RuntimeError) as error:
            # RuntimeError: can't start new thread
            return f"the library genai-prices cannot be imported now: {error}"
        except ImportError as error:
            if isinstance(error.__cause__ or error.__context__, OSError):
                return f"the library genai-prices cannot be imported now: {error}"
            self.failure = f"the library genai-prices cannot be imported: {error}"
        except Exception as error:  # noqa: BLE001 — its import may raise anything, which is reported
            self.failure = (
                f"the library genai-prices cannot be imported: {type(error).__name__}: {error}"
            )
        return None


class Prices:
    """Prices of models: `own`, by model name, before the library's. Immutable, so that a run keeps
    those with which it began."""

    def __init__(
        self, own: Mapping[str, Price] | None = None, library: PriceLibrary | None = None
    ) -> None:
        self.library = library or PriceLibrary()
        self._own = dict(own or {})
        self._seller = ""
        self._match = lru_cache(MATCHES_KEPT)(self._search)
        self._stand_in = lru_cache(MATCHES_KEPT)(self._search_dearest)

    def at(self, provider: str) -> Prices:
        """Return the same prices, but before other list prices those of a provider: the URL of its
        API, or its name. One that the library does not know changes nothing."""
        providers = self.library.providers
        seller = providers.seller(provider) if providers is not None and provider else ""
        if seller == self._seller:
            return self
        found = copy(self)  # with the same caches
        found._seller = seller
        return found

    def with_free(self, *models: str) -> Prices:
        """Return the same prices, but that these models cost nothing."""
        nothing = Price(input_mtok=0, output_mtok=0)
        return Prices({**self._own, **dict.fromkeys(models, nothing)}, self.library)

    def cost(self, model: str, tokens: Tokens, *, request_input: int | None = None) -> float | None:
        """Return USD for `tokens` of a model, as `price`."""
        found = self.price(model, tokens, request_input=request_input)
        return None if found is None else found.usd

    def price(self, model: str, tokens: Tokens, *, request_input: int | None = None) -> Cost | None:
        """Return what `tokens` of a model cost, or `None` if its price is not known: its name is
        unknown, or the library is not loaded. Never raises. Fees for requests and searches are not
        included.

        A modality without a price costs the dearest rate of its model, or of that modality at its
        provider.

        All tokens of some models cost more if the request has much input (mostly above 200 000
        tokens). So `tokens` are those of one request; for a sum over several requests,
        `request_input` is the input of one of them."""
        found = self._found(model)
        if found is None:
            return None
        size = tokens.input if request_input is None else request_input
        try:
            return _total(tokens, found.rates(size))
        except OverflowError:  # no float holds so many tokens
            return None

    def output_million(self, model: str, request_input: int, *, text_only: bool) -> float | None:
        """Return USD for a million tokens of output, of the dearest modality that a model may
        answer with; `None` as in `cost`. `request_input`: as in `cost`."""
        text = Tokens(output=1_000_000)
        found = self._found(model)
        if found is None:
            return None
        rates = found.rates(request_input)
        made = [
            replace(text, modes={mode: text})
            for mode in get_args(Modality)
            if f"output_{mode}" in rates.of and not text_only
        ]
        costs = [cost.usd for tokens in (text, *made) if (cost := _total(tokens, rates))]
        return max(costs, default=None)

    def owns(self, model: str) -> bool:
        """Return whether the config says the price of a model."""
        return any(name in self._own for name in _spellings(model))

    def knows(self, model: str) -> bool:
        """Return whether a model has a price under this name."""
        return self.price(model, Tokens()) is not None

    def source(self, model: str) -> str:
        """Return where the price of a model is from: its name, and behind it ` at PROVIDER` if not
        the provider that the name tells counts, but that of `at`."""
        found, named = self._found(model), self.at("")._found(model)
        if found is None or (named is not None and named.seller == found.seller):
            return model
        return f"{model} at {found.seller}"

    def charged_as(self, model: str, hint: str | None = None) -> str:
        """Return the name at whose price a model counts: its own; without a price, what its program
        means by it, else the dearest known model of its provider. `hint` tells the provider of a
        name that does not: an agent program, or an API of the gateway.

        Without the library, for a local model and for no name that is its own name, which has no
        price."""
        if not model or self.library.providers is None or self.knows(model):
            return model
        return self._stand_in(model[:NAME_MAX], hint, self.library.providers) or model

    def _search_dearest(self, model: str, hint: str | None, providers: _Providers) -> str | None:
        try:
            names = [name.lower() for name in _spellings(model)]
            meant = providers.meant(names[-1], hint)
            return meant or providers.dearest(names, _MAKERS.get(hint or ""))
        except Exception as error:  # noqa: BLE001 — as in `_search`
            self.library.failed(
                f"the library genai-prices failed on {model!r}: {type(error).__name__}: {error}"
            )
            return None

    def _found(self, model: str) -> _Match | None:
        if len(model) > NAME_MAX or not model.isprintable():
            return None
        return self._match(model, self._seller, self.library.providers)

    def _search(self, model: str, seller: str, providers: _Providers | None) -> _Match | None:
        names = list(dict.fromkeys(_spellings(model)))
        for name in names:
            if name in self._own:
                return _Match(_fixed(self._own[name]))
        if providers is None:
            return None
        try:
            return providers.find([name.lower() for name in names], seller)
        except Exception as error:  # noqa: BLE001 — a fault of the library must not reach the event loop
            self.library.failed(
                f"the library genai-prices failed on {model!r}: {type(error).__name__}: {error}"
            )
            return None


class _Rates(Struct, frozen=True):
    """USD per million tokens, by the library's names without `_mtok`."""

    of: Mapping[str, float]
    like_text: bool = False
    """Whether images and videos without a rate cost what text costs."""
    dearest: Callable[[], Mapping[str, float]] = dict
    """Returns the dearest rates of each kind at the provider."""
    least: Mapping[str, float] | None = None
    """What the rates are at least; `None`: they are sure."""

    def text(self) -> tuple[float | None, ...]:
        """Return the rates of input, from a cache, into it, into it for an hour, and of output."""
        into = self.of.get("input")
        write = self.of.get("cache_write", into)
        long = None if write is None else max(write, LONG_CACHE * (into or 0.0))
        return (
            into,
            self.of.get("cache_read", into),
            write,
            self.of.get("cache_write_1h", long),
            self.of.get("output"),
        )

    def mode(self, mode: Modality, *, sure: bool) -> tuple[float | None, ...]:
        """Return the same of a modality. `sure`: what they are at least."""
        into, read, write, long, out = self.text()
        own = self.of.get(f"input_{mode}")
        if own is not None:
            cached = self.of.get(f"cache_{mode}_read", (read or 0.0) if sure else own)
            into, read, write, long = own, cached, own, own
        elif not (self.like_text and mode in {"image", "video"}) and not sure:
            into = read = write = long = self._stand_in(f"input_{mode}")
        if f"output_{mode}" in self.of or not sure:
            out = self.of.get(f"output_{mode}") or self._stand_in(f"output_{mode}")
        return into, read, write, long, out

    def _stand_in(self, kind: str) -> float:
        return max([*self.of.values(), self.dearest().get(kind, 0.0)], default=0.0)


_Priced = Callable[[int], _Rates]
"""Takes the input tokens of a request; returns the rates of a model now."""


class _Match(Struct, frozen=True):
    rates: _Priced
    seller: str = ""
    """The library's id of the provider whose price it is; empty for prices of ours."""


def _fixed(price: Price) -> _Priced:
    rates = {
        "input": price.input_mtok,
        "output": price.output_mtok,
        "cache_read": price.cached_mtok,
        "cache_write": price.cache_write_mtok,
    }
    found = _Rates({name: rate for name, rate in rates.items() if rate is not None})
    return lambda _request: found


def _listed(model: ModelInfo, provider: Provider) -> _Priced:
    like_text, dearest = provider.id in _LIKE_TEXT, partial(_dearest_kinds, provider)
    return lambda request: _Rates(_rates_of(model, request), like_text, dearest)


def _rates_of(model: ModelInfo, request: int) -> dict[str, float]:
    listed = vars(model.get_prices(datetime.now(UTC)))
    return {
        name.removesuffix("_mtok"): rate
        for name, price in listed.items()
        if name.endswith("_mtok") and (rate := _rate(price, request)) is not None
    }


def _dearest_kinds(provider: Provider) -> dict[str, float]:
    """Return the dearest rate of each kind that is not text, of all models of a provider."""
    found: dict[str, float] = {}
    for model in provider.models:
        for name, rate in _rates_of(model, 0).items():
            if name.startswith(("input_", "output_")):
                found[name] = max(rate, found.get(name, 0.0))
    return found


def _dearer(one: _Priced, other: _Priced) -> _Priced:
    """Return the higher of both rates of each kind; `one` is what they are at least."""

    def now(request: int) -> _Rates:
        least, more = one(request), other(request)
        names = least.of.keys() | more.of.keys()
        most = {name: max(least.of.get(name, 0.0), more.of.get(name, 0.0)) for name in names}
        return _Rates(most, least.like_text, least.dearest, least.of)

    return now


def _rate(price: Decimal | TieredPrices | None, request: int) -> float | None:
    if price is None or isinstance(price, Decimal):
        return None if price is None else float(price)
    # the tiers ascend, and the highest tier that is reached applies to all tokens
    reached = [tier.price for tier in price.tiers if request > tier.start]
    return float(reached[-1] if reached else price.base)


def _total(tokens: Tokens, rates: _Rates) -> Cost | None:
    if "input" not in rates.of and "output" not in rates.of:
        return None
    most = _sum(tokens, rates, sure=False)
    if most is None:
        return None
    sure = rates if rates.least is None else _Rates(rates.least, rates.like_text)
    # nearly all calls are of text whose price is known
    least = _sum(tokens, sure, sure=True) if tokens.modes or rates.least is not None else most
    return Cost(most, min(most, least or 0.0))


def _sum(tokens: Tokens, rates: _Rates, *, sure: bool) -> float | None:
    text, total = tokens, 0.0
    for mode, part in tokens.modes.items():
        cost = _part(part, rates.mode(mode, sure=sure))
        if cost is None:
            return None
        text = _less(text, part)
        total += cost
    cost = _part(text, rates.text())
    return None if cost is None else total + cost


def _less(text: Tokens, part: Tokens) -> Tokens:
    return replace(
        text,
        input=text.input - part.input,
        output=text.output - part.output,
        cached=text.cached - part.cached,
        cache_write=text.cache_write - part.cache_write,
        long_write=text.long_write - part.long_write,
    )


def _part(tokens: Tokens, rates: tuple[float | None, ...]) -> float | None:
    cached, written = max(0, tokens.cached), max(0, tokens.cache_write)
    long = min(max(0, tokens.long_write), written)
    fresh = max(0, tokens.input - cached - written)
    counts = (fresh, cached, written - long, long, max(0, tokens.output))
    parts = tuple(zip(counts, rates, strict=True))
    if any(count and rate is None for count, rate in parts):
        return None
    return sum(count * (rate or 0.0) for count, rate in parts) / 1_000_000


def _spellings(model: str) -> Iterator[str]:
    """Yield the names to look up, the most exact first: as it is, without the provider in front,
    the last part of a path; each also without the brackets that Claude Code appends (`[1m]`), and
    with the hyphens of Anthropic where Copilot CLI and OpenRouter have dots."""
    for name in (model, model.partition("/")[2], model.rpartition("/")[2]):
        if name:
            yield name
        if name.startswith("claude-") and "." in name:
            yield name.replace(".", "-")
        if name.endswith("]") and (plain := name[: max(0, name.rfind("["))]):
            yield plain


class _Providers:
    """The library's providers. Created in the worker thread, read in the event loop."""

    def __init__(
        self, providers: list[Provider], by_id: Callable[[list[Provider], str], Provider | None]
    ) -> None:
        self._providers = providers
        self._by_id = by_id
        self._bedrock = by_id(providers, "aws")
        self._apis = [(re.compile(each.api_pattern), each.id) for each in providers]

    def seller(self, told: str) -> str:
        """Return the id of the provider with this name, or with its API at this URL; empty if it is
        not known. A part of a name says nothing: people name their proxies themselves."""
        if "://" not in told:
            name = _SELLERS.get(told.lower(), told.lower())
            return next((each.id for each in self._providers if each.id == name), "")
        try:
            parts = urlsplit(told)
        except ValueError:
            return ""
        origin = f"{parts.scheme}://{(parts.hostname or '').removesuffix('.')}"
        if origin in _SELLERS:
            return _SELLERS[origin]
        url = f"{origin}{parts.path}"
        return next((provider for api, provider in self._apis if _is_below(url, api)), "")

    def find(self, names: list[str], seller: str = "") -> _Match | None:
        """Return the price of the first of these spellings, in lower case, that a provider knows:
        the seller, else those that the name tells."""
        if names and names[0].partition("/")[0] in _LOCAL:
            return None
        return self._sold_by(seller, names) or self._named(names)

    def _sold_by(self, seller: str, names: list[str]) -> _Match | None:
        provider = self._by_id(self._providers, seller) if seller else None
        if provider is None or any(name.startswith("ft:") for name in names):
            return None
        for name in names:
            # without what the library takes from other providers: the name tells these, too
            model = provider.find_model(name)
            if model is not None and _rates_of(model, 0).keys() & {"input", "output"}:
                return self._priced(model, provider)
        return None

    def _named(self, names: list[str]) -> _Match | None:
        for name in names:
            if name.startswith("ft:"):
                tuned = _fine_tuned(name)
                return None if tuned is None else _Match(tuned)
            if (tiers := _unlisted(name)) is not None:
                return _Match(_tiered(tiers))
            for provider, rest in (*self._candidates(name), *self._resellers(name)):
                if (model := provider.find_model(rest, all_providers=self._providers)) is not None:
                    return self._priced(model, provider)
        return None

    def _priced(self, model: ModelInfo, provider: Provider) -> _Match:
        listed = _listed(model, provider)
        if provider.id == "x-ai" and _RETIRED.fullmatch(model.id) is not None:
            now = provider.find_model(_RETIRED_AS, all_providers=self._providers)
            listed = listed if now is None else _dearer(listed, _listed(now, provider))
        return _Match(listed, provider.id)

    def meant(self, name: str, hint: str | None) -> str | None:
        """Return the model that an agent program means by an alias; `None` if it is none."""
        name = _ALIASES.get(hint, {}).get(name) or _ALIASES[None].get(name, name)
        if name not in _NEWEST:
            return name if self.find([name]) is not None else None
        anthropic = self._by_id(self._providers, "anthropic")
        pattern = re.compile(rf"claude-{_NEWEST[name]}-(\d+)(?:-(\d+))?")
        found = [
            (int(match[1]), int(match[2] or 0), model.id)
            for model in (anthropic.models if anthropic is not None else ())
            if (match := pattern.fullmatch(model.id)) is not None
        ]
        return f"anthropic/{max(found)[2]}" if found else None

    def dearest(self, names: list[str], maker: str | None) -> str | None:
        """Return the dearest model, with its provider in front: of the provider that these
        spellings tell, else of `maker`, else of the makers of the known programs. `None` for a
        local model."""
        if names and names[0].partition("/")[0] in _LOCAL:
            return None
        told = next((provider for name in names for provider, _ in self._candidates(name)), None)
        given = self._by_id(self._providers, maker) if maker is not None else None
        makers = (
            [told or given]
            if told or given
            else [self._by_id(self._providers, each) for each in set(_MAKERS.values())]
        )
        pro = any(_PRO.fullmatch(name) for name in names)
        rates = (
            (_own_rates(provider, pro=pro), provider.id)
            for provider in makers
            if provider is not None
        )
        found = max(
            ((rate, name, maker) for of_one, maker in rates for name, rate in of_one.items()),
            default=None,
        )
        return None if found is None else f"{found[2]}/{found[1]}"

    def _candidates(self, name: str) -> Iterator[tuple[Provider, str]]:
        """Yield providers that may sell the model, and their name for it: the one named in front,
        its maker, Amazon."""
        head, slash, rest = name.partition("/")
        named = self._by_id(self._providers, _SELLERS.get(head, head)) if slash and rest else None
        if named is not None:
            yield named, rest
        if name.startswith("glm-") and (zai := self._by_id(self._providers, "zai")) is not None:
            yield zai, name  # the library knows its older models by name only, at another provider
        for provider in self._providers:
            if provider.model_match is not None and provider.model_match.is_match(name):
                yield provider, name
                break
        if self._bedrock is not None and _BEDROCK.match(name):
            yield self._bedrock, name

    def _resellers(self, name: str) -> Iterator[tuple[Provider, str]]:
        """Yield who sells a model of a maker whose own prices the library has not."""
        if "/" not in name and name.startswith("qwen"):
            name = f"qwen/{name}"
        openrouter = self._by_id(self._providers, "openrouter")
        if "/" in name and openrouter is not None:
            yield openrouter, name


def _is_below(url: str, api: re.Pattern[str]) -> bool:
    """Return whether a URL is below that of an API. Most of the library's patterns have no end, and
    would find `api.x.ai` in `api.x.ai.example`."""
    found = api.match(url)
    return found is not None and (found[0][-1] in "./" or url[found.end() :][:1] in {"", "/"})


def _fine_tuned(name: str) -> _Priced | None:
    base = name.removeprefix("ft:").partition(":")[0]
    for known, (into, cached, out) in _FINE_TUNED:
        if base.startswith(known):
            rates = _Rates({"input": into, "cache_read": cached, "output": out}, like_text=True)
            return lambda _request: rates
    return None


def _unlisted(name: str) -> dict[int, _Tier] | None:
    dated = _DATED.fullmatch(name)
    return UNLISTED.get(dated[1] if dated is not None else name)


def _tiered(tiers: dict[int, _Tier]) -> _Priced:
    def now(request: int) -> _Rates:
        into, cached, written, out = tiers[
            max(start for start in tiers if request > start or not start)
        ]
        rates = {"input": into, "cache_read": cached, "cache_write": written, "output": out}
        return _Rates(rates, like_text=True)

    return now


def _own_rates(provider: Provider, *, pro: bool) -> dict[str, float]:
    """Return what a provider's models cost, to compare them: of those that it makes itself if it
    makes any, and still sells. `pro`: see `_PRO`."""
    made = [
        model
        for model in provider.models
        if provider.model_match is not None and provider.model_match.is_match(model.id)
    ]
    current = [model for model in made or provider.models if not _is_past(provider, model, pro=pro)]
    listed = {
        model.id: _rates_of(model, _LONG_REQUEST) for model in current or made or provider.models
    }
    return {
        name: _INPUT_SHARE * rates.get("input", 0.0) + rates.get("output", 0.0)
        for name, rates in listed.items()
    }


def _is_past(provider: Provider, model: ModelInfo, *, pro: bool) -> bool:
    past = _PAST.get(provider.id)
    if model.deprecated or (past is not None and past.fullmatch(model.id)):
        return True
    return provider.id == "openai" and not pro and bool(_PRO.fullmatch(model.id))


def _import_library() -> _Providers:
    from genai_prices.data import providers
    from genai_prices.data_snapshot import find_provider_by_id

    return _Providers(providers, find_provider_by_id)


# ---- Loads the price library when it is needed, and has a run wait for it


LOAD_AGAIN, LOAD_AGAIN_MAX = 1.0, 60.0
"""Seconds between two tries to import the price list while the machine is short of something:
doubled each time."""

PRICES_WAIT = 10.0
"""Seconds that the end of a run waits at most for the price list, which takes 0.2 s to load on an
idle machine."""


class PriceList:
    """`loaded()` is called when more prices may be known; `trouble(message)` when the library
    cannot be loaded."""

    def __init__(
        self,
        own: Mapping[str, Price],
        *,
        loaded: Callable[[], None],
        trouble: Callable[[str], None],
    ) -> None:
        self._loaded = loaded
        self._trouble = trouble
        self._library = PriceLibrary()
        self.current = Prices(own, self._library)
        """The prices of runs that begin now. A run keeps those with which it began."""
        self._loading = False
        self._to_start, self._started = trio.open_memory_channel[Callable[[], Awaitable[None]]](
            math.inf
        )

    @property
    def ready(self) -> bool:
        """Whether the library is loaded, or known not to be there."""
        return self._library.ready

    def reconfigure(self, own: Mapping[str, Price]) -> None:
        self.current = Prices(own, self._library)

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            async for task in self._started:
                nursery.start_soon(task)

    def load_soon(self) -> None:
        """Load the library in the background, with as many tries as it takes."""
        if not self.ready and not self._loading:
            self._loading = True
            self._to_start.send_nowait(self._load)

    async def load_for_an_end(self) -> None:
        """Try to load the library, for at most `PRICES_WAIT`. The end of a run does not wait
        longer."""
        with trio.move_on_after(PRICES_WAIT):
            await self._try()
        self._loaded()

    def when_known(
        self,
        prices: Prices,
        model: str | None,
        then: Callable[[], None],
        unsure: Callable[[str], None],
    ) -> None:
        """Call `then` when the price of a model is known, or known to be unknown: now, unless the
        library must be loaded first. Call `unsure` with the reason if the library cannot be loaded
        now."""

        async def wait() -> None:
            failure = await self._try()
            if failure is None or self.ready:
                then()
            else:
                unsure(failure)

        if model is None or self.ready or prices.cost(model, Tokens()) is not None:
            then()
        else:
            self._to_start.send_nowait(wait)

    async def _load(self) -> None:
        pause = LOAD_AGAIN
        try:
            while await self._try() is not None and not self.ready:
                await trio.sleep(pause)
                pause = min(2 * pause, LOAD_AGAIN_MAX)
        finally:
            self._loading = False
        self._loaded()

    async def _try(self) -> str | None:
        failure = await self._library.load()
        if failure is not None:
            self._trouble(f"{failure}; costs are computed from the config's [prices] alone")
        return failure
