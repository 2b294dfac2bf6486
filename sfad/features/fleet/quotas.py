"""Quotas of trees that the fleet shares (`fleet.share_quotas`): asks the keeper for what trees wait
for here, gives back what nothing needs, and answers other nodes on the keeper itself.

Without the keeper this node uses what it has, then lets trees wait."""

import math
import time
from collections.abc import Collection

import msgspec
import trio

from ...core import events as e
from ...core.state.quotas import ALL_USERS, NO_PART, PER_USER, Part, Quota, Wants
from ...core.state.run import Run
from ...daemon.loop.seam import Heart, Keeper
from ...daemon.server.asker import Asker
from ...daemon.server.checks import MAX_CHOSEN
from ...protocol.errors import check_most
from ...protocol.requests.base import Reply
from .feature import FleetConfig
from .messages import AskSlots, GivenSlots, SlotsGiven, SlotsWanted
from .slots import Holder, SlotBook

FRESH = 1.0
"""Seconds for which it is believed that a tree waits elsewhere. After that the keeper is asked
before a slot is given back for it."""
HOLD = 5.0
"""Seconds for which a node keeps slots that nothing needs: often another tree follows."""
WAIT = 5.0
"""Seconds for which the keeper lets a node wait that lacks some."""
AGAIN, AGAIN_MAX = 0.2, 10.0
"""Seconds until a keeper that has not answered is asked again: doubled each time."""
PARTS, GIVEN = "fleet_slots", "fleet_slots_given/"
"""The keys in the spool: what this node may use; and what it has given as the keeper, with the node
behind it."""
SavedGiven = list[tuple[str, str, int, int]]
"""See `SlotBook.known_of`."""
_UNKNOWN = "it is not known yet which node keeps the quotas (sfactl fleet status)"


class SharedQuotas:
    def __init__(self, config: FleetConfig, keeper: Keeper, heart: Heart) -> None:
        self._shares = config.share_quotas and keeper.enabled
        self._keeper = keeper
        self._machine, self._feed = heart.machine, heart.feed
        self._values, self._log = heart.resources.spool.values, heart.resources.log
        self._parts: dict[Quota, Part] = {}
        self._idle: dict[Quota, float] = {}
        """Since when nothing needs what this node has left of a quota."""
        self._unheard: set[Quota] = set()
        """Quotas of which this node has given some back, and the keeper has not answered so far."""
        self._told_at = -math.inf
        """When the keeper has told last what waits elsewhere."""
        self._number = 0
        self._trouble = ""
        self._changed = trio.Event()
        self._book = SlotBook(self._most)
        self._freed = trio.Event()
        """Something has changed of what the keeper knows."""

    def loaded(self) -> None:
        """Tell the core what an earlier daemon had: before runs are adopted."""
        if not self._shares:
            return
        saved = self._values.decoded(PARTS, list[tuple[str, str, int]]) or []
        self._parts = {(key, user): Part(slots) for key, user, slots in saved}
        self._unheard = set(self._parts)
        for place in [key for key in self._values.items if key.startswith(GIVEN)]:
            for key, user, number, has in self._values.decoded(place, SavedGiven) or []:
                self._book.put((key, user), place.removeprefix(GIVEN), Holder(number, has))
        self._tell(_UNKNOWN if self._keeper.node is None else "")

    def changed(self, runs: Collection[Run]) -> None:
        if self._shares and any(run.parent is None for run in runs):
            self._changed.set()

    # ---- a node

    async def serve(self) -> None:
        """Ask the keeper whenever something is needed, or is not needed any more."""
        if not self._shares:
            await trio.sleep_forever()
        await self._keeper.known.wait()
        if self._trouble == _UNKNOWN:
            self._tell("")
        pause = AGAIN
        while True:
            wanted = self._wanted()
            if not wanted:
                with trio.move_on_at(min(self._idle.values(), default=trio.current_time()) + HOLD):
                    await self._changed.wait()
                self._changed = trio.Event()
                continue
            try:
                await self._ask(wanted)
                pause = AGAIN
            except OSError as error:
                self._unanswered(str(error))
                await trio.sleep(pause)
                pause = min(2 * pause, AGAIN_MAX)

    def _wanted(self) -> list[SlotsWanted]:
        """Return what to ask the keeper for; empty if nothing."""
        now, wants = trio.current_time(), self._machine.slots.wants()
        is_fresh, found, idle = self._is_fresh, [], {}
        for quota in wants.keys() | self._parts.keys() | self._unheard:
            use, part = wants.get(quota, Wants(0)), self._parts.get(quota, NO_PART)
            free = max(0, part.slots - use.used)
            needs = max(0, use.needs - free)
            comes_first = part.rival is None or (use.needs and use.priority >= part.rival)
            if free and not use.needs:
                idle[quota] = self._idle.get(quota, now)
            kept = min(free, use.needs) if comes_first else 0
            held = part.rival is None and not use.needs and now - idle.get(quota, now) < HOLD
            if held or not (comes_first or is_fresh):
                kept = free
            has = use.used + kept
            moves = has != part.slots or quota in self._unheard
            if needs or moves or (free and not comes_first):
                priority = use.priority if quota != ALL_USERS else 0
                asked = use.needs - kept if needs or not comes_first else 0
                found.append(
                    SlotsWanted(
                        key=quota[0], user=quota[1], has=has, needs=max(0, asked),
                        priority=priority, rival=part.rival,
                    )
                )  # fmt: skip
        self._idle = idle
        return sorted(found, key=lambda each: (each.key, each.user))

    @property
    def _is_fresh(self) -> bool:
        return trio.current_time() - self._told_at < FRESH

    async def _ask(self, wanted: list[SlotsWanted]) -> None:
        """Ask the keeper, until it answers or something else is wanted. Raise `OSError`."""
        lower = {
            (each.key, each.user): Part(each.has, each.rival)
            for each in wanted
            if each.has < self._parts.get((each.key, each.user), NO_PART).slots
        }
        if lower:  # before it is told
            self._parts |= lower
            self._unheard |= lower.keys()
            self._tell(self._trouble)
        self._number = max(self._number + 1, int(time.time() * 1_000_000))
        doubts = not self._is_fresh and any(each.rival is not None for each in wanted)
        wait = 0.0 if doubts else WAIT
        request = AskSlots(
            id=1, node=self._keeper.here, number=self._number, wanted=wanted, wait=wait
        )
        answer: Reply | None = None
        failed: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_changed, wanted, nursery.cancel_scope)
            try:
                answer = await self._keeper.ask(request)
            except OSError as error:
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        if isinstance(answer, GivenSlots):
            self._take(answer.given)
        elif answer is not None:
            raise OSError(getattr(answer, "message", "it does not know the request"))

    async def _until_changed(self, wanted: list[SlotsWanted], scope: trio.CancelScope) -> None:
        before = _needs(wanted)
        while _needs(self._wanted()) == before:
            await self._changed.wait()
            self._changed = trio.Event()
        scope.cancel()

    def _take(self, given: Collection[SlotsGiven]) -> None:
        self._told_at, before = trio.current_time(), dict(self._parts)
        for each in given:
            quota = each.key, each.user
            self._unheard.discard(quota)
            if each.has or each.rival is not None:
                self._parts[quota] = Part(each.has, each.rival)
            else:
                self._parts.pop(quota, None)
        if before != self._parts or self._trouble:
            self._tell("")

    def _tell(self, trouble: str) -> None:
        """Save what this node may use, and tell the core."""
        self._trouble = trouble
        saved = [(*quota, part.slots) for quota, part in sorted(self._parts.items())]
        self._values.write_soon({PARTS: msgspec.msgpack.encode(saved)})
        self._feed(e.QuotasShared(trio.current_time(), dict(self._parts), trouble))

    def _unanswered(self, why: str) -> None:
        """Go on with what this node has: nothing is known of other nodes."""
        why = f"node {self._keeper.node}, which keeps the quotas, does not answer: {why}"
        if self._trouble != why:
            self._log.warning(why)
            self._parts = {quota: Part(part.slots) for quota, part in self._parts.items()}
            self._tell(why)

    # ---- the keeper

    def _most(self, quota: Quota) -> int | None:
        policy, (key, _) = self._machine.policy, quota
        if quota == ALL_USERS:
            return policy.quotas.trees
        if key == PER_USER:
            return policy.quotas.trees_per_user
        return policy.groups.get(key.removeprefix("groups.").removesuffix(".slots"))

    async def answer(self, asker: Asker, request: AskSlots) -> None:
        """Give a node its parts; if it lacks some, once there is more, or after a while."""
        self._keeper.check_here()
        check_most("quotas in one request", len(request.wanted), MAX_CHOSEN)
        await asker.aside()
        until, given = trio.current_time() + min(request.wait, WAIT), []
        while not asker.connection.closed:
            given = self._given(request)
            news = any(
                one.has > asked.has or one.rival != asked.rival
                for one, asked in zip(given, request.wanted, strict=True)
            )
            lacks = any(each.needs for each in request.wanted)
            if news or not lacks or trio.current_time() >= until:
                break
            with trio.move_on_at(until):
                await self._freed.wait()
        if asker.still_wanted():
            asker.reply(GivenSlots(id=asker.id, given=given))

    def _given(self, request: AskSlots) -> list[SlotsGiven]:
        at = trio.current_time()
        given, changed = self._book.give(request.node, request.number, request.wanted, at)
        if changed:
            saved = self._book.known_of(request.node)
            self._values.write_soon({GIVEN + request.node: msgspec.msgpack.encode(saved)})
            self._wake()
        return given

    def _wake(self) -> None:
        """Have those look again that wait for more."""
        self._freed.set()
        self._freed = trio.Event()

    def forget(self, node: str) -> None:
        """Give others what a node had that will not come back."""
        if self._book.forget(node):
            self._values.write_soon({GIVEN + node: None})
            self._wake()


def _needs(wanted: list[SlotsWanted]) -> list[tuple[str, str, int, int, int]]:
    return [(each.key, each.user, each.has, each.needs, each.priority) for each in wanted]
