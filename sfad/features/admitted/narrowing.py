"""Limits that hold for a block of a program: a hand-off, a sample, a task."""

from msgspec.structs import replace

from ...core import commands as c
from ...core import events as e
from ...core.machine import Machine
from ...core.state.access import Peer
from ...core.state.money import to_usd
from ...daemon.loop.pending_requests import PendingRequests
from ...daemon.server.asker import Asker
from ...protocol.errors import bad_request
from ...protocol.kinds import COSTS
from ...protocol.types import Action, Limit, LimitKind, RunId
from ...runs.live import Live

KINDS = (LimitKind.TURNS, LimitKind.MESSAGES, LimitKind.TOKENS, LimitKind.COST)
"""Those of which a call can be refused before it is made."""
SOURCE = "a block of its program"


class Narrowing:
    def __init__(self, machine: Machine, requests: PendingRequests) -> None:
        self._machine, self._requests = machine, requests
        self._before: dict[RunId, list[list[Limit]]] = {}
        """What limits were before each block within which a run is now, the outermost first. What
        an earlier daemon has narrowed is not in it."""

    def ask(self, asker: Asker, live: Live, limits: list[Limit]) -> None:
        """Have the core narrow the limits of a run, or undo that, and answer. Raise
        `RequestError`."""
        run, before = live.run.id, list[Limit]()
        found = self._narrowed(live, limits, before) if limits else self._undone(live)

        def answered(answer: c.Answer) -> None:
            blocks = self._before.setdefault(run, [])
            if isinstance(answer, c.Changed) and limits:
                blocks.append(before)
            elif isinstance(answer, c.Changed) and blocks:
                blocks.pop()
            asker(answer)

        # its program may not raise limits, but have back what it had
        owner = Peer(uid=live.uid, user=live.run.user)
        self._requests.ask(
            answered, lambda token, now: e.LimitRequested(now, token, owner, run, tuple(found))
        )

    def _narrowed(self, live: Live, limits: list[Limit], before: list[Limit]) -> list[Limit]:
        """Return limits that count from what is used now. `before`: gets those that they
        replace."""
        own, found = live.run.limits, list[Limit]()
        for limit in limits:
            if limit.kind not in KINDS or limit.kind not in own:
                raise bad_request(
                    f"{limit.kind} cannot be narrowed for a block: choose one of "
                    f"{', '.join(KINDS)} of which run {live.run.id} has a limit"
                )
            used = live.run.account.used(limit.kind) or 0
            used = to_usd(int(used)) or 0.0 if limit.kind in COSTS else used
            present = own[limit.kind].limit
            threshold = min(used + limit.threshold, present.threshold)
            # the core adds who has changed it
            source = present.source.removesuffix(f" by user {live.run.user}")
            before.append(replace(present, source=source))
            narrowed = replace(limit, threshold=threshold, action=Action.REFUSE, source=SOURCE)
            found.append(narrowed)
        return found

    def _undone(self, live: Live) -> list[Limit]:
        run = live.run
        if blocks := self._before.get(run.id):
            return blocks[-1]
        first = {**self._machine.policy.defaults, **{x.kind: x for x in run.asked.terms.limits}}
        usual = run.asked.terms.on_limit or Action.TERMINATE
        found = [
            replace(first[kind], action=first[kind].action or usual)
            for kind, active in run.limits.items()
            if active.limit.source.startswith(SOURCE) and kind in first
        ]
        if not found:
            raise bad_request(f"no limit of run {run.id} is narrowed")
        return found

    def forget(self, run: RunId) -> None:
        self._before.pop(run, None)
