"""What a provider says that a call has used: its usage object, as tokens by kind. Pure: decoded
JSON in, `Said` out.

A field that is missing, null, negative or of another type loses that field only. One that is there
and cannot be read is noted: the figures are then a lower bound.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from .....agents import counters
from .....agents.counters import dollars, number
from .....protocol.types import Modality, Tokens

MODALITIES: tuple[Modality, ...] = get_args(Modality)

TICKS_PER_USD = 10_000_000_000
"""https://docs.x.ai/developers/cost-tracking"""


class Said(NamedTuple):
    tokens: Tokens
    sure: Tokens
    """What it is at least, where the object leaves that open."""
    lost: frozenset[str] = frozenset()
    """Fields that are there and could not be read."""
    cost_usd: float | None = None
    """The cost, where the provider says it itself."""
    lifetimes: bool = False
    """Whether it says how long the caches are kept that were written."""
    searches: int = 0
    """Searches of the web that the provider has made."""


_Parts = dict[Modality, int]
"""Tokens by modality."""


class _Fields(Struct):
    """The fields of a JSON object, and which of them could not be read."""

    of: Any
    lost: set[str] = field(default_factory=set)

    def get(self, name: str) -> Any:
        return self.of.get(name) if isinstance(self.of, dict) else None

    def count(self, *names: str) -> int:
        """Return the first of these that has a number above 0, else 0."""
        if isinstance(self.of, dict):
            for name in names:
                value = self.of.get(name)
                if value is None:  # as most are: each event of a stream is asked for some fifteen
                    continue
                found = number(value)
                if value != found:
                    self.lost.add(name)  # also a part of a token
                elif found:
                    return found
        return 0

    def inner(self, *names: str) -> "_Fields":
        """Return the first of these that is there. An empty list is what PHP writes for an empty
        object."""
        found = next((name for name in names if self.get(name) not in (None, [])), "")
        value = self.get(found)
        if value is not None and not isinstance(value, dict):
            self.lost.add(found)
        return _Fields(value, self.lost)

    def by_modality(self) -> _Parts:
        return {mode: count for mode in MODALITIES if (count := self.count(f"{mode}_tokens"))}

    def listed(self, *names: str) -> _Parts:
        """Return the tokens by modality as Gemini lists them. A document counts as text: both have
        one price."""
        found: _Parts = {}
        for name in names:
            value = self.get(name)
            if value is not None and not isinstance(value, list):
                self.lost.add(name)
            for each in value if isinstance(value, list) else ():
                part = _Fields(each, self.lost)
                mode, count = str(part.get("modality")).lower(), part.count("tokenCount")
                if mode in MODALITIES:
                    found[mode] = found.get(mode, 0) + count
                elif not isinstance(each, dict) or (count and mode not in {"text", "document"}):
                    self.lost.add(name)  # a modality that has come later may cost more
        return found

    def whole(self, name: str, take: Callable[[], _Parts]) -> _Parts | None:
        """Return the parts that a field tells; `None` if it is not there, or not all of it can be
        read."""
        if not self.get(name):
            return None
        before = set(self.lost)
        parts = take()
        return parts if self.lost == before else None


def openai_usage(usage: Any) -> Said:
    """Read the usage of Chat Completions or Responses, and of the servers that have their form:

    - DeepSeek says `prompt_cache_hit_tokens` (https://api-docs.deepseek.com/guides/kv_cache);
    - Moonshot and Together say `cached_tokens`, Mistral `num_cached_tokens`, beside the details;
    - LiteLLM, OpenRouter and Alibaba say what was written to a cache, by names of their own and
      Anthropic's (https://www.alibabacloud.com/help/en/model-studio/context-cache);
    - xAI counts reasoning beside `completion_tokens`, in `total_tokens`
      (https://docs.x.ai/docs/guides/reasoning), as Google does in its OpenAI form.
    """
    told = _Fields(usage)
    into = told.inner("prompt_tokens_details", "input_tokens_details", "prompt_token_details")
    out = told.inner("completion_tokens_details", "output_tokens_details")
    lives = into.inner("cache_creation_token_details", "cache_creation")
    lives = told.inner("cache_creation") if lives.of is None else lives
    output = told.count("completion_tokens", "output_tokens")
    total = told.count("prompt_tokens", "input_tokens")
    in_all = told.count("total_tokens")
    total = total or max(0, in_all - output)
    tokens, least = _with_caches(
        total=total,
        read=into.count("cached_tokens")
        or told.count(
            "cached_tokens", "prompt_cache_hit_tokens", "num_cached_tokens",
            "cache_read_input_tokens",
        ),
        written=into.count(
            "cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens"
        )
        or told.count("cache_write_tokens", "cache_creation_input_tokens"),
        output=output,
        in_all=in_all,
    )  # fmt: skip
    long = lives.count("ephemeral_1h_input_tokens")
    beside = max(0, in_all - tokens.input - output)
    reasoning = out.count("reasoning_tokens")
    if not in_all and reasoning > output:
        beside, reasoning = reasoning, 0  # it is not a part of the output; nothing confirms that
    tokens, least = _with_beside(tokens, least, beside, certain=beside == reasoning)
    said = _said(
        told,
        _long(tokens, long),
        _long(least, long),
        into.by_modality(),
        into.whole("cached_tokens_details", into.inner("cached_tokens_details").by_modality),
        out.by_modality(),
    )
    if told.get("cost_in_usd_ticks") is None:
        # Mistral prices audio by the second (https://mistral.ai/pricing), and xAI its own tools
        # (https://docs.x.ai/docs/models#tools-pricing), not by tokens
        told.lost |= {name for name in _BEYOND_TOKENS if told.count(name)}
    if tokens.input and not total:
        told.lost.add("prompt_tokens")  # what is beside the caches is not told
    # LiteLLM's, of what Anthropic and others tell
    searches = told.inner("server_tool_use").count("web_search_requests")
    cost = _said_cost(told)
    return said._replace(
        lost=frozenset(told.lost),
        cost_usd=cost,
        lifetimes=lives.of is not None,
        searches=searches,
    )


_BEYOND_TOKENS = ("prompt_audio_seconds", "num_sources_used", "num_server_side_tools_used")
"""What costs money and is no token."""


def _with_caches(
    *, total: int, read: int, written: int, output: int, in_all: int
) -> tuple[Tokens, Tokens]:
    """Return the tokens of a server in OpenAI's form, and what they are at least. Some converters
    count caches beside the input, as Anthropic does, and some tell what was written as read, too.
    `in_all`: what the server says of input and output together."""
    inside = counters.tokens_in_all(total=total, read=read, written=written, output=output)
    if read + written <= total:
        if not in_all or in_all >= total + output:
            return inside, inside
        # less than its parts: one of them is too high
        return inside, counters.tokens_in_all(
            total=max(0, in_all - output),
            read=read,
            written=written,
            output=max(0, in_all - total),
        )
    if in_all and in_all == total + output:
        return counters.tokens_in_all(total=total, written=written, output=output), inside
    beside = counters.tokens(fresh=total, read=read, written=written, output=output)
    return beside, beside if in_all == beside.input + output else inside


def anthropic_usage(usage: Any) -> Said:
    """Read the usage of Messages (https://platform.claude.com/docs/en/api/messages)."""
    told = _Fields(usage)
    lives = told.inner("cache_creation")
    long = lives.count("ephemeral_1h_input_tokens")
    short = lives.count("ephemeral_5m_input_tokens")
    written = max(told.count("cache_creation_input_tokens"), long + short)
    sure = counters.tokens(
        fresh=told.count("input_tokens"),
        read=told.count("cache_read_input_tokens"),
        written=written,
        long=long,
        output=told.count("output_tokens"),
    )
    # beside those for an hour, the rest is for five minutes; beside these, nothing tells that
    rest = written - short if lives.get("ephemeral_5m_input_tokens") is not None else long
    tokens = replace(sure, long_write=rest) if long or short else sure
    searches = told.inner("server_tool_use").count("web_search_requests")
    cost = _said_cost(told)
    return Said(tokens, sure, frozenset(told.lost), cost, bool(long or short), searches)


def gemini_usage(usage: Any) -> Said:
    """Read a `UsageMetadata` (https://ai.google.dev/api/generate-content#UsageMetadata)."""
    told = _Fields(usage)
    total = told.count("promptTokenCount") + told.count("toolUsePromptTokenCount")
    output = told.count("candidatesTokenCount") + told.count("thoughtsTokenCount")
    tokens, least = _with_caches(
        total=total,
        read=told.count("cachedContentTokenCount"),
        written=0,
        output=output,
        in_all=told.count("totalTokenCount"),
    )
    beside = max(0, told.count("totalTokenCount") - tokens.input - output)
    beside = beside if total or output else 0
    tokens, least = _with_beside(tokens, least, beside, certain=False)
    said = _said(
        told,
        tokens,
        least,
        told.listed("promptTokensDetails", "toolUsePromptTokensDetails"),
        told.whole("cacheTokensDetails", lambda: told.listed("cacheTokensDetails")),
        told.listed("candidatesTokensDetails"),
    )
    return said._replace(lost=frozenset(told.lost))


def _said_cost(told: _Fields) -> float | None:
    """Return the cost in USD that a provider or a router says itself, if it does.

    OpenRouter's credits are USD, and where it uses the caller's own key for a provider, that
    provider's bill comes on top (https://openrouter.ai/docs/use-cases/usage-accounting). Perplexity
    says an object (https://docs.perplexity.ai/guides/pricing), xAI ticks. Where a part is not said,
    the field `cost` is lost."""
    if isinstance(told.of, dict) and _COSTS.isdisjoint(told.of):
        return None  # as most do: each event of a stream is asked
    said = told.get("cost")
    said = said.get("total_cost") if isinstance(said, dict) else said
    cost, byok = _usd(said), told.get("is_byok")
    if cost is None and (ticks := told.count("cost_in_usd_ticks")):
        return ticks / TICKS_PER_USD
    if byok is False or (cost is None and byok is not True):
        return cost
    billed = told.inner("cost_details").get("upstream_inference_cost")
    upstream = _usd(billed)
    if (cost is None and said is not None) or (upstream is None and (byok or billed is not None)):
        told.lost.add("cost")
    if byok and upstream is None:
        return None  # the list price is nearer to the bill than the router's fee
    return (cost or 0.0) + (upstream or 0.0)


_COSTS = {"cost", "is_byok", "cost_in_usd_ticks"}


def _usd(said: Any) -> float | None:
    """Return an amount, which some routers say as a text."""
    return dollars(float(said) if isinstance(said, str) and _AMOUNT.fullmatch(said) else said)


_AMOUNT = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,20})?(?:[eE]-[0-9]{1,2})?")


def _long(tokens: Tokens, long: int) -> Tokens:
    return replace(tokens, long_write=min(long, tokens.cache_write))


_CACHES = {
    "prompt_tokens_details", "input_tokens_details", "prompt_token_details", "cached_tokens",
    "prompt_cache_hit_tokens", "num_cached_tokens", "cache_read_input_tokens",
    "cachedContentTokenCount",
}  # fmt: skip
"""Fields without which all input may have been read from a cache."""


def _said(
    told: _Fields,
    tokens: Tokens,
    sure: Tokens,
    inputs: _Parts,
    read: _Parts | None,
    outputs: _Parts,
) -> Said:
    """Return the tokens with their modalities. `sure`: what they are at least; `read`: those read
    from a cache; where that is not told, or is no part of the input, the text is taken to have been
    read first, which costs the most."""
    text = tokens.input - sum(inputs.values())
    if read is not None and not _is_part(read, tokens.cached, inputs, text):
        told.lost.add("cached_tokens")
        read = None
    if not tokens.cached and told.lost & _CACHES:
        sure = replace(sure, cached=sure.input - sure.cache_write)
    dear, cheap = max(0, tokens.cached - max(0, text)), sure.cached
    most, least = dict(read or {}), dict(read or {})
    for mode, count in inputs.items() if read is None else ():
        most[mode], least[mode] = min(dear, count), min(cheap, count)
        dear, cheap = dear - most[mode], cheap - least[mode]
    return Said(
        _with_modes(tokens, inputs, most, outputs),
        _with_modes(
            sure,
            inputs if text >= 0 else {},
            least,
            outputs if sum(outputs.values()) <= tokens.output else {},
        ),
    )


def _is_part(read: _Parts, cached: int, inputs: _Parts, text: int) -> bool:
    """Return whether the parts that were read from a cache are parts of the input, and what is left
    of the cache is text."""
    fits = all(count <= inputs.get(mode, 0) for mode, count in read.items())
    return fits and 0 <= cached - sum(read.values()) <= max(0, text)


def _with_modes(tokens: Tokens, inputs: _Parts, read: _Parts, outputs: _Parts) -> Tokens:
    modes = {
        mode: Tokens(
            input=inputs.get(mode, 0),
            output=outputs.get(mode, 0),
            cached=min(read.get(mode, 0), inputs.get(mode, 0)),
        )
        for mode in MODALITIES
        if mode in inputs or mode in outputs
    }
    return clipped(replace(tokens, modes=modes))


def clipped(tokens: Tokens) -> Tokens:
    """Return the tokens with modalities that are at most all of them."""
    left, modes = tokens, dict[Modality, Tokens]()
    for mode, part in tokens.modes.items():
        cached = min(part.cached, left.cached)
        whole = min(part.input, left.input - left.cached - left.cache_write + cached)
        modes[mode] = Tokens(
            input=whole, output=min(part.output, left.output), cached=min(cached, whole)
        )
        left = counters.minus(replace(left, modes={}), modes[mode])
    return replace(tokens, modes=modes)


def _with_beside(
    tokens: Tokens, sure: Tokens, beside: int, *, certain: bool
) -> tuple[Tokens, Tokens]:
    """Add tokens that are only in the total: they are output, as hidden thinking is."""
    charged = replace(tokens, output=tokens.output + beside)
    return charged, replace(sure, output=charged.output) if certain else sure
