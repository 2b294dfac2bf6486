"""Who may do what, whose runs a caller may know of, and which of them a request means."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from msgspec import Struct, field

from ...protocol.types import RunId

# ---- Who may do what, and whose runs a caller may know of
#
# `TABLE` has a row for each verb. `Scope` says which runs a caller sees; everything that looks runs
# up takes one.


class Access(Struct, frozen=True):
    """What a verb asks of the peer that uses it."""

    outside: Literal["anyone", "admin", "gateway"] = "anyone"
    """Of a peer outside any run. `anyone`: each user whom the daemon serves. `admin`: see
    `AccessRules.is_admin`; inside a run, the user has to be one too. `gateway`: the daemon's own
    gateway."""
    inside: bool = True
    """Whether a peer inside a run may use it. If not, a run would give itself more than it was
    given, or learn of runs that are not its own, or remove them."""
    leaf: bool = True
    """Whether a run may use it that was started with `--leaf`."""
    narrowed_by: str | None = ""
    """The verb that `--allow` and `--deny` name for it: itself where this is empty. `None`: they
    cannot take it away."""
    said: str = ""
    """The verbs that use it, for a message; itself where this is empty."""
    scope: Literal["one", "many", "none"] = "one"
    """Whether it is about one run, or several, in the caller's scope. `none`: about no run."""
    checked_later: bool = False
    """What answers it, or the core, checks that the peer may use it. Only of verbs of features."""


_ONE = Access()
_MANY = Access(scope="many")
_NO_RUN = Access(scope="none")
_FOR_PEOPLE = Access(inside=False, narrowed_by=None)

TABLE: Mapping[str, Access] = MappingProxyType({
    "agents": _NO_RUN,
    "approve": _FOR_PEOPLE,
    "calls": _ONE,
    # it tells of keys' places, and of other users' budgets
    "config": Access("admin", scope="none"),
    "deny": _FOR_PEOPLE,
    "events": _MANY,
    "hello": Access(narrowed_by=None, scope="none"),
    "info": _ONE,
    "limit": _ONE,
    "list": _MANY,
    "logs": _ONE,
    "pause": _ONE,
    "plans": _MANY,
    "prune": Access(inside=False, narrowed_by=None, scope="many"),
    "read_output": Access(narrowed_by="logs", said="'logs'"),
    "recall": Access(narrowed_by="info", said="'rerun' or 'continue'"),
    "reload": Access("admin", inside=False, narrowed_by=None, scope="none"),
    "report": _ONE,
    "reserve": _ONE,
    "result": _ONE,
    "resume": _ONE,
    # it asks for the verb that it selects runs for
    "select": Access(narrowed_by=None, scope="many"),
    "send": _ONE,
    "settle": _ONE,
    "signal": _ONE,
    "spawn": Access(leaf=False, scope="none"),
    "status": _MANY,
    "stop": _MANY,
    "summary": _MANY,
    "text": Access(narrowed_by="logs", said="'logs'"),
    "transcript": Access(narrowed_by="logs", said="'session log'"),
    "wait": _ONE,
    "watch": _ONE,
    "watch_runs": Access(narrowed_by="list", scope="many"),
})  # fmt: skip
"""By the tag of the request, but for the requests of features: see `AccessRules.features`."""

KEYS = "keys"
"""To type into a run's terminal: what requests of a feature need."""

VERBS = frozenset({KEYS, *(verb for verb, access in TABLE.items() if access.narrowed_by == "")})
"""What `--allow` and `--deny` can name."""

OUTSIDE = frozenset(verb for verb, access in TABLE.items() if not access.inside)
"""Verbs that no run may use."""


class Peer(Struct, frozen=True):
    """The process at the other end of a socket, as the kernel describes it. Nothing that the client
    says of itself is in here."""

    uid: int
    user: str
    owner: bool = True
    """Whether the peer has the operator's uid, or is root."""
    run: RunId | None = None
    unidentified: str = ""
    """Why the daemon could not find out which run the peer is in. Such a peer may do nothing: it
    could be inside any run."""
    gateway: bool = False
    """It is a gateway that the daemon has started."""
    gateway_uid: int | None = None
    """Of a gateway: the user whose runs alone it leads; `None`: it is the service's own."""
    gids: frozenset[int] = frozenset()
    """Its groups when it connected."""
    channel: str | None = None
    """That of the runs which it starts, where a feature has started the peer itself."""

    @property
    def who(self) -> str:
        """Name the peer in messages and events: `run a3`, or `user ann`."""
        if self.gateway:
            return "the gateway"
        return f"run {self.run}" if self.run is not None else f"user {self.user}"


class AccessRules(Struct, frozen=True):
    """`[access]` of the config."""

    all_users: bool = False
    """Whether the daemon serves each user, or only the operator, root and the admin group."""
    admin_gid: int | None = None
    """Members of this group may do with all runs what root may."""
    features: Mapping[str, Access] = field(default_factory=dict)
    """As `TABLE`, of the verbs of features."""

    def is_admin(self, peer: Peer) -> bool:
        """Return whether the peer's user may do everything with the runs of all users: the
        operator, root, the admin group."""
        return peer.owner or (self.admin_gid is not None and self.admin_gid in peer.gids)

    def serves(self, peer: Peer) -> bool:
        # the owner first: this is asked for each request
        return peer.owner or self.all_users or self.is_admin(peer)

    def scope(self, peer: Peer) -> "Scope":
        """Return the runs that the peer may know of."""
        return Scope(None if peer.owner or self.is_admin(peer) else peer.uid, peer.run)


OPERATOR_ONLY = AccessRules()


class Scope(Struct, frozen=True):
    """The runs that a caller may see and act on.

    Each list, feed and lookup takes one without a default, so that mypy finds the caller that has
    forgotten it."""

    uid: int | None
    """Only runs of this user; of all users, if it is `None`."""
    run: RunId | None
    """Of a caller inside a run: only this run and its descendants, whatever the uid."""

    def admits(self, uid: int | None, lineage: Sequence[RunId]) -> bool:
        """Decide about the run at the end of `lineage` (ids, root first), or about the daemon
        itself: no `uid`, no lineage."""
        if self.run is not None:
            return self.run in lineage
        return self.uid is None or self.uid == uid

    def knows(self, uid: int | None, lineage: Sequence[RunId]) -> bool:
        """Return whether the caller may be told that there is such a run. One inside a run is told
        of its user's other runs, by their exact ids, that it may not use them."""
        return self.uid is None or self.uid == uid or self.admits(uid, lineage)


EVERYTHING = Scope(uid=None, run=None)
"""What the daemon itself sees, and a reader of its files."""


def unknown_run(handle: str) -> str:
    """Return what a caller is told of a run that does not exist, and of another user's run."""
    return f"no run has the id or the name '{handle[:80]}'; 'sfactl list' shows them"


class Permissions(Struct, frozen=True, gc=False):
    """What peers inside a run may do. Children inherit these permissions and can only narrow
    them."""

    verbs: frozenset[str] = VERBS
    leaf: bool = False
    sessions: bool = False
    """Start sessions and stop them: for the main agent, which is a root but no session, and for
    whom it grants that."""
    session: bool = False
    """Of a session. It is a leaf unless it was started with `--nested`."""

    def narrowed(
        self,
        *,
        allow: frozenset[str],
        deny: frozenset[str],
        leaf: bool,
        sessions: bool,
        session: bool,
    ) -> "Permissions":
        """Return the permissions of a child that is started with `--allow`, `--deny` and `--leaf`.
        `sessions`: it is a main agent, or was started with `--nested`. `session`: it is one."""
        verbs = self.verbs & allow if allow else self.verbs
        return Permissions(
            verbs - deny if deny else verbs, leaf, self.sessions and sessions, session
        )


FULL = Permissions(sessions=True)


def why_verb_refused(
    peer: Peer, verb: str, permissions: Permissions, rules: AccessRules
) -> str | None:
    """Return why the peer may not use this verb at all, or `None`. `permissions` are those of the
    run that it is in."""
    access = TABLE.get(verb) or rules.features[verb]
    if peer.unidentified:
        return f"the calling process could not be identified: {peer.unidentified}"
    # it reads what agents send, so it gets no other rights, whatever its user may do
    if peer.gateway:
        return (
            None
            if access.outside == "gateway" or verb == "hello"
            else f"the gateway may not '{verb}'"
        )
    if not rules.serves(peer):
        return f"this daemon serves another user; {peer.user} (uid {peer.uid}) may not use it"
    if access.outside == "gateway" and not peer.gateway:
        return f"only the daemon's own gateway may '{verb}'"
    if access.outside == "admin" and not rules.is_admin(peer):
        return (
            f"user {peer.user} may not '{verb}': "
            "only root, the daemon's own user and members of access.admin_group may"
        )
    return None if peer.run is None else _why_refused_inside(peer.run, verb, access, permissions)


def _why_refused_inside(
    run: RunId, verb: str, access: Access, permissions: Permissions
) -> str | None:
    if not access.inside:
        return f"run {run} may not '{verb}': only a caller outside any run may"
    if access.narrowed_by is not None and (access.narrowed_by or verb) not in permissions.verbs:
        return (
            f"run {run} was started without permission for '{access.narrowed_by or verb}' "
            "(--allow / --deny)"
        )
    if not access.leaf and permissions.leaf:
        how = (
            "is a session that was started without --nested"
            if permissions.session
            else "was started with --leaf"
        )
        return f"run {run} {how} and may not start others"
    return None


def why_sessions_refused(peer: Peer, permissions: Permissions, rules: AccessRules) -> str | None:
    """Return why the peer may neither start sessions nor stop them, or `None`."""
    refused = why_verb_refused(peer, "spawn", permissions, rules)
    if refused is None and peer.run is not None and not permissions.sessions:
        return (
            f"run {peer.run} is a subagent: sessions are for the main agent, "
            "and for runs that it started with --nested"
        )
    return refused


def why_target_refused(
    peer: Peer, verb: str, lineage: Sequence[RunId], rules: AccessRules
) -> str | None:
    """Return why the peer may not use `verb` on the run at the end of `lineage` (ids, root first),
    or `None`.

    A peer inside a run may use verbs on this run and its descendants only, whatever its uid."""
    if peer.run is None or peer.run in lineage:
        return None
    said = (TABLE.get(verb) or rules.features[verb]).said or f"'{verb}'"
    return (
        f"run {peer.run} may not use {said} on run {lineage[-1]}: "
        f"it is not in the subtree of {peer.run}"
    )


# ---- Which runs a request for names and labels means, in each verb that takes `--name` and
# `--label`


def values_of(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """The values that one key may have: a request names one, or several of which either will do."""
    return (wanted,) if isinstance(wanted, str) else tuple(wanted)


def means(
    name: str | Sequence[str] | None,
    wanted: Mapping[str, str | Sequence[str]],
    run_name: str,
    labels: Mapping[str, str],
) -> bool:
    """Return whether a request for one of these names, and for these labels, means a run with this
    name and these labels."""
    named = name is None or run_name in values_of(name)
    return named and all(labels.get(key) in values_of(value) for key, value in wanted.items())
