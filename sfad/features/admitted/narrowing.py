"""Limits that hold for a block of a program: a hand-off, a sample, a task."""

from msgspec.structs import replace

from ...core import events as e
from ...core.state.access import Peer
from ...core.state.money import to_usd
from ...daemon.server.asker import Asker
from ...protocol.errors import bad_request
from ...protocol.kinds import COSTS
from ...protocol.types import Action, Limit, LimitKind, RunId
from ...runs.live import Live

KINDS = (LimitKind.TURNS, LimitKind.MESSAGES, LimitKind.TOKENS, LimitKind.COST)
"""Those of which a call can be refused before it is made."""


class Narrowing:
    def __init__(self) -> None:
        self._before: dict[RunId, list[list[Limit]]] = {}
        """What limits were before each block within which a run is now, the outermost first."""

    def ask(self, asker: Asker, live: Live, limits: list[Limit]) -> None:
        """Have the core narrow the limits of a run, or undo that, and answer. Raise
        `RequestError`."""
        found = self._narrowed(live, limits) if limits else self._undone(live)
        # its program may not raise limits, but have back what it had
        owner = Peer(uid=live.uid, user=live.run.user)
        run = live.run.id
        asker.runtime.requests.ask(
            asker, lambda token, now: e.LimitRequested(now, token, owner, run, tuple(found))
        )

    def _narrowed(self, live: Live, limits: list[Limit]) -> list[Limit]:
        own, found, before = live.run.limits, list[Limit](), list[Limit]()
        for limit in limits:
            if limit.kind not in KINDS or limit.kind not in own:
                raise bad_request(
                    f"{limit.kind} cannot be narrowed for a block: choose one of "
                    f"{', '.join(KINDS)} of which run {live.run.id} has a limit"
                )
            used = live.run.account.used(limit.kind) or 0
            used = to_usd(int(used)) or 0.0 if limit.kind in COSTS else used
            threshold = min(used + limit.threshold, own[limit.kind].limit.threshold)
            before.append(own[limit.kind].limit)
            found.append(replace(limit, threshold=threshold, action=Action.REFUSE))
        self._before.setdefault(live.run.id, []).append(before)
        return found

    def _undone(self, live: Live) -> list[Limit]:
        blocks = self._before.get(live.run.id)
        if not blocks:
            raise bad_request(f"no limit of run {live.run.id} is narrowed")
        return blocks.pop()

    def forget(self, run: RunId) -> None:
        self._before.pop(run, None)
