"""Limits that past runs suggest: for `sfactl recommend`, and for `limits.adaptive`, which applies
them."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path

import trio

from ...core import events as e
from ...core.state.access import Scope
from ...core.state.limits import PROFILED, advice_key
from ...core.state.policy import Policy
from ...host.tasks import Background, FairLock, in_thread
from ...protocol.requests.advice import Advice
from ...protocol.types import LimitKind
from ...storage.ledger.database import LedgerError
from ...storage.ledger.summary import learn

LEARN_AGAIN = 20
"""Ended runs of a user's type or name after which its limits are learnt again."""

KEYS_KEPT = 1000
"""Types and names of users that are kept. When there are more, all are forgotten, and learnt again
when one is used."""


class Adviser:
    """Reads the ledger in a thread, so that the loop does not wait for it.

    While `limits.adaptive` is on, the core is told what was learnt. An admission does not wait for
    that, so the first run of a type starts without advice."""

    def __init__(
        self, directory: Path, background: Background, feed: e.Feed, trouble: Callable[[str], None]
    ) -> None:
        self.adaptive = False
        self._policy = Policy()
        self._directory = directory
        self._background = background
        self._feed = feed
        self._trouble = trouble
        self._ended: dict[str, int] = {}
        self._fair = FairLock()
        """Each walk over the ledger keeps a CPU busy."""

    def configure(self, *, adaptive: bool, policy: Policy) -> None:
        """Follow a new config. Everything is learnt again, because the ranges in `policy` may have
        changed."""
        self.adaptive, self._policy = adaptive, policy
        self._ended.clear()

    async def advise(
        self, scope: Scope, run_type: str | None, name: str | None, asker: Sequence[Hashable] = ()
    ) -> list[Advice]:
        """Return advice for each kind, from the runs in the scope. `asker`: see `FairLock`. Raises
        `LedgerError`, `OSError`."""
        look = partial(learn, self._directory, scope, type=run_type, name=name, policy=self._policy)
        async with self._fair.turn(asker):
            return await in_thread(look)

    def noticed(self, uid: int, run_type: str | None, name: str) -> None:
        """A run of a user was admitted or has ended. It is one of its type, or of its name if it
        has no type."""
        if not self.adaptive:
            return
        key = advice_key(uid, run_type, name)
        seen = self._ended.get(key)
        if len(self._ended) >= KEYS_KEPT:
            self._ended.clear()
        self._ended[key] = 0 if seen is None else seen + 1
        if seen is None or seen + 1 >= LEARN_AGAIN:
            self._ended[key] = 0
            self._background.start_soon(
                self._learn, key, uid, run_type, None if run_type is not None else name
            )

    async def _learn(self, key: str, uid: int, run_type: str | None, name: str | None) -> None:
        try:
            advice = await self.advise(Scope(uid=uid, run=None), run_type, name, (uid,))
        except (LedgerError, OSError) as error:
            self._trouble(f"nothing was learnt for limits.adaptive: {error}")
            return
        if not self.adaptive:
            return
        thresholds = {
            LimitKind(one.kind): one.suggested
            for one in advice
            if one.kind in PROFILED and one.suggested is not None
        }
        self._feed(e.AdviceLearned(trio.current_time(), key, thresholds))
