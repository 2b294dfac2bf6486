"""Who may do what (SPEC section 7). Pure: a peer and a chain in, a reason or `None` out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..protocol.messages import REQUESTS, tag
from ..protocol.types import RunId

VERBS = frozenset(tag(kind) for kind in REQUESTS if kind.access == "permission")
"""What `--allow` and `--deny` can name."""

OUTSIDE = frozenset(tag(kind) for kind in REQUESTS if kind.access == "outside")
"""Verbs that no run may use."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who asks, as the kernel tells it. Nothing a client says of itself is in here."""

    uid: int
    user: str
    owner: bool = True
    """May act for the person whose daemon this is: the same uid, or root. Inside a run that person's own power ends at its
    subtree all the same."""
    run: RunId | None = None
    """The run the peer's process is in."""
    unplaced: str = ""
    """Why the peer could not be placed; such a peer is refused everything (the guard fails closed)."""

    @property
    def who(self) -> str:
        """The peer in messages and events: `run a3`, or `user ann`."""
        return f"run {self.run}" if self.run is not None else f"user {self.user}"


@dataclass(frozen=True, slots=True)
class Permissions:
    """What peers inside a run may do. Children inherit it and can only narrow it."""

    verbs: frozenset[str] = VERBS
    leaf: bool = False

    def narrowed(self, *, allow: frozenset[str], deny: frozenset[str], leaf: bool) -> Permissions:
        """These permissions for a child that was started with `--allow`, `--deny` and `--leaf`."""
        verbs = (self.verbs & allow if allow else self.verbs) - deny
        return Permissions(verbs, leaf)


FULL = Permissions()


def refuse_verb(peer: Peer, verb: str, held: Permissions) -> str | None:
    """Why the peer may not use this verb at all, or `None`. `held` are the permissions of the run it is in."""
    if peer.unplaced:
        return f"the calling process could not be placed: {peer.unplaced}"
    if not peer.owner:
        return f"this daemon serves another user; {peer.user} (uid {peer.uid}) has no part in it"
    if peer.run is None:
        return None
    if verb in OUTSIDE:
        return f"run {peer.run} may not '{verb}': only a caller outside any run may"
    if verb not in held.verbs:
        return f"run {peer.run} was started without permission for '{verb}' (--allow / --deny)"
    if verb == "spawn" and held.leaf:
        return f"run {peer.run} was started with --leaf and may not start others"
    return None


def refuse_target(peer: Peer, verb: str, chain: Sequence[RunId]) -> str | None:
    """Why the peer may not use `verb` on the run at the end of `chain` (ids, root first), or `None`.

    A peer inside a run reads and steers its own subtree, itself included. Ancestors, siblings and other trees are not its
    business, whatever its uid.
    """
    if peer.run is None or peer.run in chain:
        return None
    return f"run {peer.run} may not use '{verb}' on run {chain[-1]}: it is not in the subtree of {peer.run}"
