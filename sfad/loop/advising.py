"""Advice about limits: `sfactl recommend`, and `limits.adaptive`, which follows it (SPEC section 3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from ..core import events as e
from ..core.limits import PROFILED, advice_key
from ..core.policy import Policy
from ..host.threads import in_thread
from ..ledger.advice import learn
from ..ledger.errors import LedgerError
from ..protocol.advice import Advice
from ..protocol.types import LimitKind

LEARN_AGAIN = 20
"""Ended runs of a type or name after which it is learnt anew."""

KEYS_KEPT = 1000
"""Types and names that something is known about. Past that all is forgotten and learnt again as it is asked for."""


class Adviser:
    """Asks the ledger in a worker thread, so the event loop never waits for a walk over its rows.

    `feed` takes what was learnt to the core, while `adaptive` is on. Admission reads memory only (SPEC section 2), so the
    first run of a type starts with the limits that it has without advice.
    """

    def __init__(self, directory: Path, feed: Callable[[e.Event], None], trouble: Callable[[str], None]) -> None:
        self.adaptive = False
        self._policy = Policy()
        self._directory = directory
        self._feed = feed
        self._trouble = trouble
        self._ended: dict[str, int] = {}
        self._one_at_a_time = trio.CapacityLimiter(1)
        """A hundred who ask at once are answered one after the other; each walk keeps a CPU busy."""
        self._nursery: trio.Nursery

    def configure(self, *, adaptive: bool, policy: Policy) -> None:
        """Follow a new config. What was learnt is learnt again, because the ranges in `policy` may have changed."""
        self.adaptive, self._policy = adaptive, policy
        self._ended.clear()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Learns, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def advise(self, run_type: str | None, name: str | None) -> list[Advice]:
        """Advice of each kind. Raises `LedgerError`, `OSError`."""
        look = partial(learn, self._directory, type=run_type, name=name, policy=self._policy)
        async with self._one_at_a_time:
            return await in_thread(look)

    def noticed(self, run_type: str | None, name: str) -> None:
        """A run of this type, or without one of this name, was admitted or has ended."""
        if not self.adaptive:
            return
        key = advice_key(run_type, name)
        seen = self._ended.get(key)
        if len(self._ended) >= KEYS_KEPT:
            self._ended.clear()
        self._ended[key] = 0 if seen is None else seen + 1
        if seen is None or seen + 1 >= LEARN_AGAIN:
            self._ended[key] = 0
            self._nursery.start_soon(self._learn, key, run_type, None if run_type is not None else name)

    async def _learn(self, key: str, run_type: str | None, name: str | None) -> None:
        try:
            advice = await self.advise(run_type, name)
        except (LedgerError, OSError) as error:
            self._trouble(f"nothing was learnt for limits.adaptive: {error}")
            return
        if not self.adaptive:
            return
        thresholds = {LimitKind(one.kind): one.suggested for one in advice if one.kind in PROFILED and one.suggested is not None}
        self._feed(e.AdviceLearned(trio.current_time(), key, thresholds))
