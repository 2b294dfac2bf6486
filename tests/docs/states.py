"""The table of states as a diagram."""

from __future__ import annotations

from sfad.core.state.run import TRANSITIONS
from sfad.protocol.types import ENDED, Status


def mermaid() -> str:
    """Return the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> accepted"]
    lines += [f"    {old} --> {new}" for old, news in TRANSITIONS.items() for new in sorted(news)]
    lines += [f"    {status} --> [*]" for status in sorted(ENDED)]
    lines += [f"    [*] --> {status}" for status in Status if status.rejected]
    return "\n".join(lines) + "\n"
