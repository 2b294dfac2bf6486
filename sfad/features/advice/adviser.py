"""Learns about limits while `limits.adaptive` is on, and has new runs follow it."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import trio

from ...core import events as e
from ...core.state.access import Scope
from ...core.state.limits import PROFILED
from ...core.state.run import Run
from ...daemon.loop.seam import Heart
from ...host.tasks import FairLock, in_thread
from ...protocol.types import Limit, LimitKind
from ...storage.ledger.database import LedgerError
from .feature import AdviceConfig
from .learning import learn
from .messages import Advice

LEARN_AGAIN = 20
"""Ended runs of a user's type or name after which its limits are learnt again."""

KEYS_KEPT = 1000
"""Types and names of users that are kept: an agent can invent any number of names. When there are
more, all are forgotten, and learnt again when one is used."""

Key = tuple[int, str | None, str | None]
"""Whose runs, and their type, or their name if they have no type.

What a user's runs use must not move the limits of another user, who may call other things by the
same name."""

Thresholds = Mapping[LimitKind, float]


def key_of(uid: int, run_type: str | None, name: str | None) -> Key:
    return uid, run_type, name if run_type is None else None


def learnt(
    known: Mapping[Key, Thresholds], uid: int, run_type: str | None, name: str | None
) -> Iterator[Limit]:
    """Yield the limits that are known of a run: `Learnt` of the core."""
    for kind, threshold in known.get(key_of(uid, run_type, name), {}).items():
        yield Limit(kind=kind, threshold=threshold, source="limits.adaptive")


class Adviser:
    """Reads the ledger in a thread, so that the loop does not wait for it.

    While `limits.adaptive` is on, the core is told what was learnt. An admission does not wait for
    that, so the first run of a type starts without advice."""

    def __init__(self, heart: Heart) -> None:
        self._heart = heart
        self._directory = Path(heart.resources.state_dir)
        self._fair = FairLock()
        """Each walk over the ledger keeps a CPU busy."""
        self._ended: dict[Key, int] = {}
        self.reconfigure()

    def reconfigure(self) -> None:
        """Follow a new config. Everything is learnt again, because the ranges may have changed, and
        the core has forgotten it."""
        self._adaptive = self._heart.section("limits", AdviceConfig).adaptive
        self._known: dict[Key, Thresholds] = {}
        self._ended.clear()

    async def advise(
        self, scope: Scope, run_type: str | None, name: str | None, asker: Sequence[Hashable] = ()
    ) -> list[Advice]:
        """Return advice for each kind, from the runs in the scope. `asker`: see `FairLock`. Raises
        `LedgerError`, `OSError`."""
        policy = self._heart.machine.policy
        look = partial(learn, self._directory, scope, type=run_type, name=name, policy=policy)
        async with self._fair.turn(asker):
            return await in_thread(look)

    def noticed(self, run: Run) -> None:
        """A run was admitted or has ended."""
        if not self._adaptive:
            return
        key = key_of(run.birth.uid, run.asked.identity.run_type, run.name)
        seen = self._ended.get(key)
        if len(self._ended) >= KEYS_KEPT:
            self._ended.clear()
        self._ended[key] = 0 if seen is None else seen + 1
        if seen is None or seen + 1 >= LEARN_AGAIN:
            self._ended[key] = 0
            self._heart.background.start_soon(self._learn, key)

    async def _learn(self, key: Key) -> None:
        uid, run_type, name = key
        try:
            advice = await self.advise(Scope(uid=uid, run=None), run_type, name, (uid,))
        except (LedgerError, OSError) as error:
            self._heart.resources.log.warning(f"nothing was learnt for limits.adaptive: {error}")
            return
        if not self._adaptive:
            return
        known = self._known if len(self._known) < KEYS_KEPT else {}
        thresholds = {
            LimitKind(one.kind): one.suggested
            for one in advice
            if one.kind in PROFILED and one.suggested is not None
        }
        self._known = {**known, key: thresholds}
        self._heart.feed(
            e.LimitsLearnt(trio.current_time(), "advice", partial(learnt, self._known))
        )
