"""What faster and slower tiers of a provider multiply its prices by."""

import re
from collections.abc import Iterable, Mapping

Factors = Mapping[str, tuple[tuple[str, float], ...]]
"""By the word of a tier: what it multiplies all prices by, for models whose names have the pattern. The first one counts."""

ANTHROPIC_FACTORS: Factors = {"fast": (("opus-4-[67]", 6.0), ("", 2.0)), "us": (("", 1.1),), "batch": (("", 0.5),)}
"""https://platform.claude.com/docs/en/build-with-claude/fast-mode, and `inference_geo` and batches of
https://platform.claude.com/docs/en/about-claude/pricing. The tier `priority` has no list price: it is agreed on by contract."""
OPENAI_FACTORS: Factors = dict.fromkeys(("priority", "fast"), ((r"gpt-5\.5", 2.5), ("", 2.0))) | {"flex": (("", 0.5),)}
"""https://openai.com/api-fast-mode/; some models cost 1.7 times. `flex` has the prices of batches, which are half."""
GEMINI_FACTORS: Factors = {"priority": (("", 2.0),), "flex": (("", 0.5),)}
"""https://ai.google.dev/gemini-api/docs/priority-inference: 1.75 to 2 times; flex-inference: half."""


def factor_of(factors: Factors, model: str, tiers: Iterable[str]) -> float:
    """Return what the tiers multiply the price of a model by."""
    found = 1.0
    for tier in tiers:
        found *= next((factor for pattern, factor in factors.get(tier, ()) if re.search(pattern, model)), 1.0)
    return found
