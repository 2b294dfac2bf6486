"""Whether a run that the ledger may not know as it is now belongs to a page."""

from __future__ import annotations

from collections.abc import Sequence

from ..ledger.reader import Page
from ..protocol.types import RunId, RunInfo


def fits(page: Page, info: RunInfo, chain: Sequence[RunId]) -> bool:
    """Return whether the run with this chain fits the filters, and its peer may see it."""
    return page.admits(info) and (page.within is None or page.within in chain)
