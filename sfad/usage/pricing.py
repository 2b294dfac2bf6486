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
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING

import trio

from ..config import NAME_MAX, Price
from ..protocol.types import Tokens

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

_BEDROCK = re.compile(r"(?:[a-z-]+\.)?[a-z0-9]+\.[a-z]")
"""`anthropic.claude-…`, `us.anthropic.claude-…`: Amazon's names of other makers' models."""


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
        self._match = lru_cache(MATCHES_KEPT)(self._search)
        self._stand_in = lru_cache(MATCHES_KEPT)(self._search_dearest)

    def with_free(self, *models: str) -> Prices:
        """Return the same prices, but that these models cost nothing."""
        nothing = Price(input_mtok=0, output_mtok=0)
        return Prices({**self._own, **dict.fromkeys(models, nothing)}, self.library)

    def cost(self, model: str, tokens: Tokens, *, request_input: int | None = None) -> float | None:
        """Return USD for `tokens` of a model, or `None` if its price is not known: its name is
        unknown, or the library is not loaded. Never raises. Fees for requests and searches are not
        included.

        All tokens of some models cost more if the request has much input (mostly above 200 000
        tokens). So `tokens` are those of one request; for a sum over several requests,
        `request_input` is the input of one of them."""
        if len(model) > NAME_MAX or not model.isprintable():
            return None
        found = self._match(model, self.library.providers)
        if found is None:
            return None
        try:
            return _total(tokens, found(tokens.input if request_input is None else request_input))
        except OverflowError:  # no float holds so many tokens
            return None

    def charged_as(self, model: str, hint: str | None = None) -> str:
        """Return the name at whose price a model counts: its own; without a price, the dearest
        known model of its provider. `hint` tells the provider of a name that does not: an agent
        program, or an API of the gateway.

        Without the library, for a local model and for no name that is its own name, which has no
        price."""
        if not model or self.library.providers is None or self.cost(model, Tokens()) is not None:
            return model
        return self._stand_in(model[:NAME_MAX], hint, self.library.providers) or model

    def _search_dearest(self, model: str, hint: str | None, providers: _Providers) -> str | None:
        try:
            return providers.dearest(
                [name.lower() for name in _spellings(model)], _MAKERS.get(hint or "")
            )
        except Exception as error:  # noqa: BLE001 — as in `_search`
            self.library.failed(
                f"the library genai-prices failed on {model!r}: {type(error).__name__}: {error}"
            )
            return None

    def _search(self, model: str, providers: _Providers | None) -> _Priced | None:
        names = list(dict.fromkeys(_spellings(model)))
        for name in names:
            if name in self._own:
                return _fixed(self._own[name])
        try:
            return None if providers is None else providers.find([name.lower() for name in names])
        except Exception as error:  # noqa: BLE001 — a fault of the library must not reach the event loop
            self.library.failed(
                f"the library genai-prices failed on {model!r}: {type(error).__name__}: {error}"
            )
            return None


@dataclass(frozen=True, slots=True)
class _Rates:
    """USD per million tokens; `None` where there is no price."""

    input: float | None
    output: float | None
    cached: float | None
    cache_write: float | None


_Priced = Callable[[int], _Rates]
"""Takes the input tokens of a request; returns the rates of a model now."""


def _fixed(price: Price) -> _Priced:
    rates = _Rates(price.input_mtok, price.output_mtok, price.cached_mtok, price.cache_write_mtok)
    return lambda _request: rates


def _listed(model: ModelInfo) -> _Priced:
    def now(request: int) -> _Rates:
        prices = vars(model.get_prices(datetime.now(UTC)))
        names = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
        return _Rates(*(_rate(prices.get(name), request) for name in names))

    return now


def _rate(price: Decimal | TieredPrices | None, request: int) -> float | None:
    if price is None or isinstance(price, Decimal):
        return None if price is None else float(price)
    # the tiers ascend, and the highest tier that is reached applies to all tokens
    reached = [tier.price for tier in price.tiers if request > tier.start]
    return float(reached[-1] if reached else price.base)


def _total(tokens: Tokens, rates: _Rates) -> float | None:
    if rates.input is None and rates.output is None:
        return None
    cached, written = max(0, tokens.cached), max(0, tokens.cache_write)
    long = min(max(0, tokens.long_write), written)
    write = rates.input if rates.cache_write is None else rates.cache_write
    parts = (
        (max(0, tokens.input - cached - written), rates.input),
        (cached, rates.input if rates.cached is None else rates.cached),
        (written - long, write),
        (long, None if write is None else max(write, LONG_CACHE * (rates.input or 0.0))),
        (max(0, tokens.output), rates.output),
    )
    if any(count and rate is None for count, rate in parts):
        return None
    return sum(count * (rate or 0.0) for count, rate in parts) / 1_000_000


def _spellings(model: str) -> Iterator[str]:
    """Yield the names to look up, the most exact first: as it is, without the provider in front,
    the last part of a path; each also without the brackets that Claude Code appends (`[1m]`)."""
    for name in (model, model.partition("/")[2], model.rpartition("/")[2]):
        if name:
            yield name
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

    def find(self, names: list[str]) -> _Priced | None:
        """Return the price of the first of these spellings, in lower case, that a provider
        knows."""
        if names and names[0].partition("/")[0] in _LOCAL:
            return None
        for name in names:
            for provider, rest in self._candidates(name):
                if (model := provider.find_model(rest, all_providers=self._providers)) is not None:
                    return _listed(model)
        return None

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
        if slash and rest and (named := self._by_id(self._providers, head)) is not None:
            yield named, rest
        for provider in self._providers:
            if provider.model_match is not None and provider.model_match.is_match(name):
                yield provider, name
                break
        if self._bedrock is not None and _BEDROCK.match(name):
            yield self._bedrock, name


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
        model.id: _listed(model)(_LONG_REQUEST) for model in current or made or provider.models
    }
    return {
        name: _INPUT_SHARE * (rates.input or 0.0) + (rates.output or 0.0)
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
