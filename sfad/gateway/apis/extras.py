"""What a call costs beyond its tokens: the providers' own tools."""

from collections.abc import Mapping
from typing import Any

import msgspec

MOST_USES = 10
"""Uses of the provider's tools in one call, where the request says no maximum. A guess."""

ANTHROPIC_FEES = {"web_search": 0.01}
OPENAI_FEES = {"web_search": 0.01, "file_search": 0.0025, "code_interpreter": 0.03, "image_generation": 0.25}
"""USD for a use (https://platform.claude.com/docs/en/about-claude/pricing, https://openai.com/api/pricing): of a container for the
smallest, of an image for the dearest."""
GEMINI_SEARCH, GEMINI_QUERY = 0.035, 0.014
"""USD for a grounded reply of Gemini 2, for a query of Gemini 3 (https://ai.google.dev/gemini-api/docs/pricing). The free ones of
each day are taken to be used up."""


class _ServerTool(msgspec.Struct):
    type: str | None = None
    model: str | None = None
    max_uses: int | None = None


_TOOLS = msgspec.json.Decoder(list[_ServerTool])


def words(**told: Any) -> dict[str, str]:
    """Return the fields that have a word."""
    return {name: word for name, word in told.items() if isinstance(word, str)}


def most_fees(fees: Mapping[str, float], tools: msgspec.Raw | None, uses: int | None = None) -> float:
    """Return what the provider's tools in a request may cost. `uses`: how often it may use all of them. Raises `ValueError`."""
    offered = _TOOLS.decode(tools or b"[]")
    return max((_fee(fees, tool.type) * _number(tool.max_uses, _number(uses, MOST_USES)) for tool in offered), default=0.0)


def models_of_tools(tools: msgspec.Raw | None) -> tuple[str, ...]:
    """Return the models that tools in a request name, such as that of an advisor. Raises `ValueError`."""
    return tuple(dict.fromkeys(tool.model for tool in _TOOLS.decode(tools or b"[]") if tool.model is not None))


def fee_of_use(fees: Mapping[str, float], kind: str) -> float:
    """Return what an item of a reply costs, such as a `web_search_call`."""
    return fees.get(kind.removesuffix("_call"), 0.0)


def _fee(fees: Mapping[str, float], kind: Any) -> float:
    # `web_search_20250305`, `web_search_preview`
    return max((fee for name, fee in fees.items() if isinstance(kind, str) and kind.startswith(name)), default=0.0)


def _number(value: Any, default: int) -> int:
    return min(value, 1000) if type(value) is int and value >= 0 else default
