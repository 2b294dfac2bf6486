"""Who may do what."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..protocol.messages import REQUESTS, tag
from ..protocol.types import RunId

VERBS = frozenset(tag(kind) for kind in REQUESTS if kind.access == "permission")
"""What `--allow` and `--deny` can name."""

OUTSIDE = frozenset(tag(kind) for kind in REQUESTS if kind.access == "outside")
"""Verbs that no run may use."""

GATEWAY = frozenset(tag(kind) for kind in REQUESTS if kind.access == "gateway")
"""Verbs of the daemon's own gateway."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a socket, as the kernel describes it. Nothing that the client says of itself is in here."""

    uid: int
    user: str
    owner: bool = True
    """Whether the peer has the operator's uid, or is root. Inside a run it may still act on its own subtree only."""
    run: RunId | None = None
    unplaced: str = ""
    """Why the daemon could not find out which run the peer is in. Such a peer may do nothing: it could be inside any run."""
    gateway: bool = False
    """It is the daemon's own gateway."""

    @property
    def who(self) -> str:
        """Name the peer in messages and events: `run a3`, or `user ann`."""
        if self.gateway:
            return "the gateway"
        return f"run {self.run}" if self.run is not None else f"user {self.user}"


@dataclass(frozen=True, slots=True)
class Permissions:
    """What peers inside a run may do. Children inherit these permissions and can only narrow them."""

    verbs: frozenset[str] = VERBS
    leaf: bool = False
    sessions: bool = False
    """Start sessions and stop them: for the main agent, which is a root but no session, and for whom it grants that."""
    session: bool = False
    """Of a session. It is a leaf unless it was started with `--nested`."""

    def narrowed(self, *, allow: frozenset[str], deny: frozenset[str], leaf: bool, sessions: bool, session: bool) -> "Permissions":
        """Return the permissions of a child that is started with `--allow`, `--deny` and `--leaf`. `sessions`: it is a main agent,
        or was started with `--nested`. `session`: it is one."""
        verbs = (self.verbs & allow if allow else self.verbs) - deny
        return Permissions(verbs, leaf, self.sessions and sessions, session)


FULL = Permissions(sessions=True)


def refuse_verb(peer: Peer, verb: str, permissions: Permissions) -> str | None:
    """Return why the peer may not use this verb at all, or `None`. `permissions` are those of the run that it is in."""
    if peer.unplaced:
        return f"the calling process could not be placed: {peer.unplaced}"
    if not peer.owner:
        return f"this daemon serves another user; {peer.user} (uid {peer.uid}) may not use it"
    if verb in GATEWAY and not peer.gateway:
        return f"only the daemon's own gateway may '{verb}'"
    if peer.run is None:
        return None
    if verb in OUTSIDE:
        return f"run {peer.run} may not '{verb}': only a caller outside any run may"
    if verb not in permissions.verbs:
        return f"run {peer.run} was started without permission for '{verb}' (--allow / --deny)"
    if verb == "spawn" and permissions.leaf:
        how = "is a session that was started without --nested" if permissions.session else "was started with --leaf"
        return f"run {peer.run} {how} and may not start others"
    return None


def refuse_sessions(peer: Peer, permissions: Permissions) -> str | None:
    """Return why the peer may neither start sessions nor stop them, or `None`."""
    refused = refuse_verb(peer, "spawn", permissions)
    if refused is None and peer.run is not None and not permissions.sessions:
        return f"run {peer.run} is a subagent: sessions are for the main agent, and for runs that it started with --nested"
    return refused


def refuse_target(peer: Peer, verb: str, lineage: Sequence[RunId]) -> str | None:
    """Return why the peer may not use `verb` on the run at the end of `lineage` (ids, root first), or `None`.

    A peer inside a run may use verbs on this run and its descendants only, whatever its uid."""
    if peer.run is None or peer.run in lineage:
        return None
    return f"run {peer.run} may not use '{verb}' on run {lineage[-1]}: it is not in the subtree of {peer.run}"
