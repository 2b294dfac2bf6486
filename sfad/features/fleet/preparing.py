"""What is decided about runs that are sent to other nodes, or come from them: steps of
`Starting.prepare`."""

import os
from collections.abc import Awaitable

from msgspec.structs import replace

from ...core.state.policy import Invalid
from ...protocol.errors import bad_request, check_most, unavailable, wrong_state
from ...protocol.types import Ship
from ...start.prepared import Prepared, Surroundings
from .awaited import AwaitedRuns
from .feature import SHIP
from .files.packing import why_unsafe
from .files.sending import NOT_HERE, Shipping
from .node import NOT_JOINED, Fleet


class Preparing:
    def __init__(self, fleet: Fleet, shipping: Shipping, awaited: AwaitedRuns) -> None:
        self._fleet = fleet
        self._shipping = shipping
        self._awaited = awaited

    def elsewhere(self, p: Prepared, around: Surroundings) -> None:
        """Refuse what cannot go to another node, and note from which node its files come. What a
        run above has decided about the gateway holds there, too."""
        order, caller = around.order, around.caller
        if not self._fleet.enabled:
            raise unavailable(f"{NOT_JOINED}, or leave out --fleet and --on")
        if order.stdio != "files" or order.stdin == "descriptor":
            raise Invalid(
                "a run with --fleet reads no stdin of this machine, "
                "and writes to files of its node: leave out --stdio"
            )
        if order.detach:
            raise Invalid(
                "--detach and --fleet exclude each other: "
                "a run of another node is a child, or a root that no run started"
            )
        decided = caller.parts.gateway if caller is not None else None
        if caller is not None and order.gateway not in {None, decided} and decided is not None:
            raise Invalid(
                f"what run {caller.run.id} has decided about the gateway holds for what it starts"
            )
        p.parts.gateway = order.gateway if order.gateway is not None else decided
        if order.ship is not None:
            self._check_files(order.ship, around)
            p.parts.decide(SHIP, replace(order.ship, node=self._fleet.node))

    def look(self, p: Prepared, around: Surroundings) -> Awaitable[None] | None:
        """Have a run of another node work in a copy of the files that were sent with it, and one
        that waits for runs of other nodes wait only for what there is."""
        self._look_for_files(p, around)
        if any(after.elsewhere for after in around.order.after):
            return self._awaited.check(p, around)
        return None

    def _look_for_files(self, p: Prepared, around: Surroundings) -> None:
        ship = around.order.ship
        if ship is None:
            return
        if around.order.grant is None and ship.node != self._fleet.node:
            raise bad_request(
                "--ship sends files to the node where a run is placed: "
                "add --fleet or --on, or leave out --ship"
            )
        self._check_files(ship, around)
        p.command.cwd = self._shipping.directory(around.peer.uid, ship)

    def _check_files(self, ship: Ship, around: Surroundings) -> None:
        if (
            ship.within and why_unsafe(os.fsdecode(ship.within)) is not None
        ) or not ship.directory.startswith(b"/"):
            raise bad_request(
                f"the run cannot work in {ship.within[:80]!r} of {ship.directory[:80]!r}"
            )
        if not ship.author.isprintable():
            raise bad_request(f"a control character in the author of commits: {ship.author[:80]!r}")
        if not self._shipping.files.is_whole(around.peer.uid, ship.archive):
            raise wrong_state(NOT_HERE.format(os.fsdecode(ship.directory)))

    def check(self, p: Prepared, _: Surroundings) -> None:
        """Bound what is kept of the files, and refuse NUL in what the kernel takes."""
        ship: Ship = p.parts.of(SHIP)
        for word in (ship.directory, ship.within):
            if b"\0" in word:
                raise bad_request(f"a NUL byte in the directory of --ship: {word[:80]!r}")
        check_most("bytes of the directory of --ship", len(ship.directory), 4096)
        check_most("characters of the author of commits", len(ship.author), 256)
