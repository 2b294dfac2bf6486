"""Where features take part in a daemon: what the heart gives to them, what they give to the heart,
and which of them are loaded.

No feature is imported here: the list is `sfad.features.listed`, and the module of a part is loaded
when a section of its config differs from the defaults, when one of its requests arrives, when a
request to start a run asks for it, or when the spool or a run of an earlier daemon has something
of it; at the start, if it has none of these. A feature that is not loaded costs a run nothing.

Features are asked in the order of their list. Those that decide about runs (`Feature.decides`) are
asked only about runs for which they do something.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, TypeVar

import trio
from msgspec import Struct, field

from ...config import Configuration
from ...core import events as e
from ...core.context import Context
from ...core.machine import Components, Machine
from ...core.state.access import Peer, Scope
from ...core.state.policy import Policy
from ...core.state.run import Run
from ...core.watching import NewWatcher, Watcher
from ...durable.maintenance import Kept
from ...durable.snapshots import Changes
from ...durable.spool import Spool
from ...feature import Feature
from ...host.counts import Values
from ...host.tasks import Background, keep_serving
from ...processes.contained_commands import ContainedCommands
from ...processes.credentials import Credentials
from ...processes.launcher import LaunchSpec, RunProcesses
from ...protocol.errors import bad_request, unavailable
from ...protocol.requests.base import Reply, Request
from ...protocol.requests.starting import OF_FEATURES, Spawn
from ...protocol.requests.windows import SharedWindows
from ...protocol.types import CallInfo, Isolation, RunId, RunInfo
from ...runs.catalogue import RunCatalogue
from ...runs.live import Live
from ...runs.live import Parts as DecidedParts
from ...start.prepared import Check, Prepared, Step, Surroundings
from ...storage.ledger import OpenedLedger
from ...usage.metering import Metering
from .announcing import Announcer
from .leading import MISSING, Leading
from .pending_requests import PendingRequests
from .policy import InForce
from .resources import Resources
from .storage_watch import StorageWatch

T = TypeVar("T")
Moment = TypeVar("Moment")


class Heart(Struct, frozen=True):
    """What a feature may use of a daemon."""

    resources: Resources
    machine: Machine
    catalogue: RunCatalogue
    announcer: Announcer
    storage: StorageWatch
    background: Background
    feed: e.Feed
    """Tells the core of an event, as `LimitsLearnt`."""
    in_force: InForce
    """The config."""
    began: float
    """When the daemon was started, on trio's clock."""
    connections: Callable[[], int]
    """Returns how many clients are connected."""
    commands: ContainedCommands
    """Executes commands that are not runs."""
    metering: Metering
    requests: PendingRequests
    """Asks the core, and waits for its answer."""
    record_call: Callable[[CallInfo, tuple[RunId, ...]], object]
    """Records a model call of the last run of a lineage."""
    call_settled: Callable[[], object]
    """Lets the ends of runs go on that have waited for what their model calls have used."""
    prepare: Callable[[Spawn, Peer, Credentials | None], Awaitable[tuple[Prepared, Surroundings]]]
    """Prepares a request as that of a run which executes here. Raises `Invalid`, `RequestError`,
    `OSError`."""
    processes: dict[RunId, RunProcesses]
    """Of live runs that execute on other machines, what takes commands about their processes in
    place of the launcher."""
    parts: Callable[[], "Parts"]
    """Returns the parts of features. One asks another by a moment that names both: commands
    which are executed for runs in sandboxes ask for `sandbox_of`."""

    def section(self, key: str, kind: type[T]) -> T:
        """Return a section of the config that is in force."""
        return self.in_force.config.section(key, kind)


class Carrier(Protocol):
    """Has runs carried out that have no process: they are agents within programs."""

    def begin(self, live: Live) -> None:
        """Begin a run: feed `LaunchSucceeded` or `LaunchFailed`, and have `Heart.processes` and
        the launcher know it."""

    def go_on(self, live: Live) -> None:
        """Go on with a run of an earlier daemon. The core does not know it yet."""

    def below(self, asker: Any, run: RunId) -> Peer:
        """Return who asks for a run that is to be below such a one (`Spawn.below`), given the
        `Asker`. Raise `RequestError`."""

    def is_caller(self, live: Live, inode: int | None) -> bool:
        """Return whether a socket is one of the program that carries a run out. Here such runs
        touch the gateway."""


class OwnState(Struct, frozen=True):
    """What is saved of a feature, whose half in the core asks for that."""

    changes: Callable[[], Changes]
    saved: Callable[[], object] = lambda: None
    """What was returned is saved, or is going to be."""


class Sharing(Struct, frozen=True):
    """What a feature shares with the daemons of other machines."""

    shared: Callable[[], list[SharedWindows]]
    """Returns what they are told."""
    heard: Callable[[Iterable[SharedWindows]], object]
    """Takes what they know."""


Launch = Callable[[Live, LaunchSpec, list[int]], LaunchSpec]
"""Returns what a run is launched with, given that as the heart would launch it. To the list it adds
the descriptors that it opens: they are closed once the run is launched, or could not be. Raises
`OSError`."""

Answer = Callable[[Any, Any], Any]
"""Answers a request, as the functions that `server.asker.answers` registers: it takes an `Asker`
and the request."""


class Keeper:
    """The machine that the others ask where something is shared by all, as far as it is known. This
    one is that of a daemon that shares nothing; what knows others has its own."""

    enabled = False
    """Something is shared."""
    here = ""
    """The name of this machine."""
    interval = 60.0
    """Seconds after which it is asked again, whatever happens."""
    node: str | None = None
    """The name of the keeper."""
    trouble: str | None = None
    """Why it has not answered."""

    def __init__(self, alone: str) -> None:
        self.alone = alone
        """What is said to those who need another machine."""
        self.known = trio.Event()
        """Which machine it is, is known."""

    def check_here(self) -> str:
        """Return this machine, which is the keeper. Raise `RequestError` if it is not."""
        raise unavailable(self.alone)

    async def ask(self, _request: Request) -> Reply:
        """Ask it something. Raise `OSError`."""
        raise OSError(self.alone)


class Machines(Struct, frozen=True):
    """Other machines, on which runs are executed."""

    prepare: Check
    """Prepares a run that is to execute there. That daemon takes the steps which are left out here.
    Raises `RequestError` where that cannot be."""
    place: Callable[[Run], object]
    """Has a run executed there, or goes on with one that executes there."""
    answer: Callable[[Any, Request, RunInfo], bool]
    """Has a request answered where its run executes, given the `Asker`. Returns whether that is
    another machine, and the request such a one."""
    keeper: Keeper
    """Here budgets touch it."""


class Part(Struct, kw_only=True):
    """What a feature does in a daemon. It leaves out where it takes no part."""

    verbs: Mapping[type[Request], Answer] = field(default_factory=dict)
    """Answers the requests that the feature has declared."""
    begin: Callable[[], object] | None = None
    """The runs of an earlier daemon are adopted. Before that it may start no process. It is called
    at once in a part that is loaded later."""
    serve: Callable[[], Awaitable[None]] | None = None
    """Goes on by itself until it is cancelled. It begins after `begin`."""
    loaded: Callable[[], object] | None = None
    """It is there: what its half in the core asks for reaches it. Runs of an earlier daemon may not
    be adopted yet."""
    reconfigure: Callable[[], object] | None = None
    """The config was read again."""
    emptied: Callable[[Run], Callable[[], Awaitable[None]] | None] | None = None
    """Returns what is waited for, some seconds at most, when no process of a run and of those below
    it is left, before that counts; `None` if nothing."""
    admitted: Callable[[Run], object] | None = None
    """A run was admitted."""
    changed: Callable[[Collection[Run]], object] | None = None
    """These runs have changed."""
    machines: Machines | None = None
    """Has runs executed on other machines."""
    leading: Leading | None = None
    """Leads runs to their models."""
    shared_changed: Callable[[], object] | None = None
    """What features share has changed."""
    launch: Launch | None = None
    """It changes what a run is launched with. Its gateway changes the environment after that. A
    part may set this or take it back while the daemon goes on. The `argv` of a stage
    (`core.state.request.Stage`) is empty, and the feature of that fills it in."""
    last_lines: Callable[[Live], tuple[str, ...]] | None = None
    """Returns what a stage of the feature, which has just ended or takes too long, has said
    last."""
    launch_routed: Launch | None = None
    """The same, for runs that use the gateway and whose tree has agent programs in its PATH. It is
    asked if there is no `launch`. Here stand-ins for programs touch the gateway: it routes what
    these start, so that its runs find some which no person has installed."""
    instead_of_run: Callable[[int, Surroundings], Reply | None] | None = None
    """Returns the reply to a client that is to do something itself in place of a run, given the id
    of its `spawn`. Raises `Invalid`, `OSError`."""
    saves: Callable[[Live], Changes] | None = None
    """Returns what is saved in the spool together with a run that was admitted."""
    never_admitted: Callable[[RunId], object] | None = None
    """A run is not admitted after all, because that could not be recorded."""
    stopped: Callable[[RunId], object] | None = None
    """A client asks to stop this run, which it has named and which may have ended."""
    ended: Callable[[Run], object] | None = None
    """A run has ended."""
    recorded: Callable[[RunInfo], object] | None = None
    """The end of a run is on record, or will be when the ledger can be written."""
    told: Callable[[object], object] | None = None
    """Takes what its half in the core tells (`core.commands.Tell`)."""
    state: OwnState | None = None
    sharing: Sharing | None = None
    """What it shares with the daemons of other machines."""
    kept: Kept | None = None
    """Deletes what the feature keeps of ended runs, when their output is deleted."""
    status: Callable[[Peer, Scope], Mapping[str, object]] | None = None
    """Returns fields of `status` for a peer, who may know of the runs in this scope."""
    measured: Callable[[], Values] | None = None
    """Returns metrics of its own, which `features.metrics.table` has listed."""
    notice: Callable[[], str] | None = None
    """Returns what the administrator of the service should see at once; empty if nothing."""
    is_own: Callable[[int], bool] | None = None
    """Returns whether a process is the feature's: a child of the daemon that is in no run."""
    peer: Callable[[Peer], Peer] | None = None
    """Returns who a peer is that may be a command which the feature executes."""
    look: Step | None = None
    """A step of `Starting.prepare` before anything is decided. It may wait."""
    decide: Check | None = None
    """A step of `Starting.prepare`, once the command is known and routed."""
    check: Check | None = None
    """Raises `RequestError` for a request to start a run that asks something impossible."""
    inherited: Callable[[Prepared], Mapping[str, Any]] | None = None
    """Returns fields of `Spawn` with which a run below another is started again as a root, where it
    is to have what it had from the run above."""
    again: Callable[[Spawn, RunInfo], Spawn] | None = None
    """Returns what a run was started with as it is asked for again."""
    sandbox_of: Callable[[Isolation], list[bytes]] | None = None
    """Returns `LaunchSpec.sandbox` of a command for a run with this isolation. Raises `OSError`.
    Here what executes such commands touches isolation."""
    finish: Callable[[], Awaitable[None]] | None = None
    """The daemon ends, and all its runs have ended. Waits for what has to be done before that."""
    rest: Callable[[], Awaitable[None]] | None = None
    """The daemon is about to be re-executed. Starts no more, and ends what runs."""
    go_on: Callable[[], object] | None = None
    """Undoes `rest`: the daemon was not re-executed. A part that was loaded meanwhile, and so has
    not begun, is told this instead."""


class Parts:
    """The parts that are loaded."""

    def __init__(self, features: Mapping[str, Feature], heart: Heart) -> None:
        self._heart = heart
        self._features = {name: each for name, each in features.items() if each.part}
        self._owners = {kind: name for name, each in features.items() for kind in each.verbs}
        self._deciders = {asked: name for name, each in features.items() for asked in each.decides}
        """By the fields of `Spawn` that they carry out."""
        self._loaded: dict[str, Part] = {}
        self._of_all: set[str] = set()
        """Those whose section of the config is set: they may decide about any run."""
        self._carrier: Carrier | None = None
        self._placer = next((name for name, each in features.items() if each.elsewhere), None)
        """Which has runs executed on other machines."""
        self.alone = features[self._placer].alone if self._placer else MISSING.format("placing")
        """What is said to those who need another machine where none is known."""
        self._leader = next((name for name, each in features.items() if each.leads), None)
        """Which leads runs to their models."""
        self.changed: list[Callable[[Collection[Run]], object]] = []
        self.admitted: list[Callable[[Run], object]] = []
        """What is told of each run that is admitted; the others as the fields of `Part`."""
        self.saves: list[Callable[[Live], Changes]] = []
        self.never_admitted: list[Callable[[RunId], object]] = []
        self.stopped: list[Callable[[RunId], object]] = []
        self.empties: list[Callable[[Run], Callable[[], Awaitable[None]] | None]] = []
        self.ended: list[Callable[[Run], object]] = []
        self.recorded: list[Callable[[RunInfo], object]] = []
        self.version = 0
        """It changes with the config, and with each part that is loaded."""
        self._goes = False
        """Parts may start processes: it has begun, and does not rest."""
        self._nursery: trio.Nursery | None = None

    def reconfigure(self) -> None:
        """Tell the parts that are loaded that the config was read again, and follow it."""
        loaded = list(self._loaded.values())
        self.follow()
        for part in loaded:
            if part.reconfigure is not None:
                part.reconfigure()

    def follow(self) -> None:
        """Load the parts that the config or the spool calls for."""
        config = self._heart.in_force.config
        self.version += 1
        self._of_all = {
            name
            for name, each in self._features.items()
            if any(config.is_set(section) for section in each.sections)
        }
        for name, feature in self._features.items():
            later = feature.sections or feature.verbs or feature.decides or feature.saved
            if not later or name in self._of_all or self._has_kept(feature):
                self._part(name)

    def _has_kept(self, feature: Feature) -> bool:
        resources = self._heart.resources
        if feature.beside and Path(f"{resources.state_dir}{feature.beside}").exists():
            return True
        if feature.saved and any(
            key.startswith(feature.saved) for key in resources.spool.values.items
        ):
            return True
        try:
            return feature.recorded and bool(resources.ledger.records.plans())
        except sqlite3.Error:
            return True  # it says so

    def answer(self, kind: type[Request]) -> Answer | None:
        """Return what answers a request of a feature; `None` if it is of none."""
        owner = self._owners.get(kind)
        return self._part(owner).verbs[kind] if owner is not None else None

    def adopt(self, live: Live) -> None:
        """Load the parts of features that do something for a run of an earlier daemon, or have
        paused it."""
        if live.run.no_money is not None:
            for name, each in self._features.items():
                if each.purses:
                    self._part(name)
        for decided_as, name in self._deciders.items():
            if live.parts.of(decided_as) is not None:
                self._part(name)
        if live.run.remote is not None or live.run.lease is not None:
            self._machines()
        if live.run.asked.in_program and live.run.attempt:
            self.carrier().go_on(live)

    def _does(self, name: str, run: DecidedParts, above: Live | None = None) -> bool:
        """Return whether a feature does something for a run or for the one above it, or decides
        about none."""
        decides = self._features[name].decides
        return (
            not decides
            or any(run.of(each) is not None for each in decides)
            or (above is not None and any(above.parts.of(each) is not None for each in decides))
        )

    def decides_about(self, order: Spawn) -> bool:
        """Return whether a feature takes part in what is decided about a root that is asked for
        so."""
        return any(getattr(order, asked) is not None for asked in OF_FEATURES) or any(
            (part.look or part.decide or part.check)
            and (name in self._of_all or not self._features[name].decides)
            for name, part in self._loaded.items()
        )

    def _may_decide(self, name: str, p: Prepared, around: Surroundings) -> bool:
        return name in self._of_all or self._does(name, p.parts, around.caller)

    def launch(self, live: Live, spec: LaunchSpec, opened: list[int]) -> LaunchSpec:
        """As `Launch`."""
        for name, part in self._loaded.items():
            launch = part.launch
            if launch is None and part.launch_routed is not None and live.parts.gateway:
                root = self._heart.catalogue.live[live.run.root.id]
                launch = part.launch_routed if root.setups.programs else None
            if launch is not None and self._does(name, live.parts):
                spec = launch(live, spec, opened)
        return spec

    def carrier(self) -> Carrier:
        """Return what carries out runs that have no process. Raise `RequestError`."""
        if self._carrier is None:
            found = ((name, each) for name, each in self._features.items() if each.carrier)
            name, feature = next(found, (None, None))
            if name is None or feature is None:
                raise bad_request(MISSING.format("below"))
            module = import_module(f"sfad.features.{name}.{feature.carrier}")
            carrier: Carrier = module.carrier(self._heart)
            self._carrier = carrier
        return self._carrier

    def _machines(self) -> Machines | None:
        """Return what has runs executed on other machines."""
        return self._part(self._placer).machines if self._placer is not None else None

    def last_lines(self, run: Run) -> tuple[str, ...]:
        """Return what the stage of a run has said last."""
        live = self._heart.catalogue.live[run.id]
        return next(
            (
                part.last_lines(live)
                for name, part in self._loaded.items()
                if part.last_lines is not None and self._does(name, live.parts)
            ),
            (),
        )

    def place(self, run: Run) -> None:
        """Have a run executed on another machine, or go on with one that executes there."""
        machines = self._machines()
        assert machines is not None
        machines.place(run)

    def answer_there(self, asker: Any, request: Request, run: RunInfo) -> bool:
        """Have a request answered where its run executes. Return whether that is another machine,
        and the request such a one."""
        machines = self._machines()
        return machines is not None and machines.answer(asker, request, run)

    def leading(self) -> Leading:
        """Return what leads runs to their models."""
        leading = self._part(self._leader).leading if self._leader is not None else None
        return leading or Leading()

    def keeper(self) -> Keeper:
        """Return what is known of the keeper."""
        sections = self._features[self._placer].sections if self._placer is not None else ()
        is_set = any(map(self._heart.in_force.config.is_set, sections))
        machines = self._machines() if is_set else None
        return machines.keeper if machines is not None else Keeper(self.alone)

    def kept(self) -> list[Kept]:
        """Return what deletes what features keep of ended runs."""
        return [part.kept for part in self._loaded.values() if part.kept is not None]

    def sandbox_of(self, isolation: Isolation) -> list[bytes]:
        """Return `LaunchSpec.sandbox` of a command for a run with this isolation. Raise
        `OSError`."""
        for name, feature in self._features.items():
            if feature.sandboxes and (sandbox_of := self._part(name).sandbox_of) is not None:
                return sandbox_of(isolation)
        raise OSError("this sfad has no feature that makes a sandbox")

    def instead_of_run(self, request_id: int, around: Surroundings) -> Reply | None:
        """Return the reply to a client inside a run that is to start no other one."""
        for part in self._loaded.values():
            if part.instead_of_run is not None:
                reply = part.instead_of_run(request_id, around)
                if reply is not None:
                    return reply
        return None

    def told(self, feature: str, what: object) -> None:
        """Tell a part what its half in the core has decided."""
        told = self._part(feature).told
        assert told is not None
        told(what)

    def state(self, feature: str) -> Changes:
        """Return what is saved of a feature."""
        state = self._part(feature).state
        return state.changes() if state is not None else {}

    def state_saved(self, feature: str) -> None:
        part = self._part(feature)
        if part.state is not None:
            part.state.saved()
        if self._features[feature].shares:
            for each in self._loaded.values():
                if each.shared_changed is not None:
                    each.shared_changed()

    def shared(self) -> list[SharedWindows]:
        """Return what the daemons of other machines are told."""
        parts = [part.sharing for part in self._loaded.values() if part.sharing is not None]
        return [each for sharing in parts for each in sharing.shared()]

    def heard(self, shared: Sequence[SharedWindows]) -> None:
        """Take what other daemons know."""
        for name, feature in self._features.items():
            if feature.shares and shared and (sharing := self._part(name).sharing) is not None:
                sharing.heard(shared)

    def notices(self) -> list[str]:
        """Return what the administrator of the service should see at once."""
        return [
            words
            for part in self._loaded.values()
            if part.notice is not None and (words := part.notice())
        ]

    def status(self, peer: Peer, scope: Scope) -> dict[str, Any]:
        """Return fields of `status`."""
        for name, feature in self._features.items():
            if feature.status:
                self._part(name)
        return {
            name: value
            for part in self._loaded.values()
            if part.status is not None
            for name, value in part.status(peer, scope).items()
        }

    def measured(self) -> Values:
        """Return metrics of features."""
        parts = [part.measured for part in self._loaded.values() if part.measured is not None]
        return {name: values for measured in parts for name, values in measured().items()}

    def is_own(self, pid: int) -> bool:
        """Return whether a process is one of a feature."""
        return any(part.is_own(pid) for part in self._loaded.values() if part.is_own is not None)

    def peer(self, peer: Peer) -> Peer:
        """Return who a peer is that may be a command of a feature."""
        for part in self._loaded.values():
            if part.peer is not None:
                peer = part.peer(peer)
        return peer

    # ---- Steps and a check of `Starting.prepare`

    def load(self, _: Prepared, around: Surroundings) -> None:
        """Load what the request asks for. Refuse what only a feature could do that is not there."""
        self._load(around.order)

    def _load(self, order: Spawn) -> None:
        for asked in OF_FEATURES:
            if getattr(order, asked) is not None:
                if asked not in self._deciders:
                    raise bad_request(MISSING.format(asked))
                self._part(self._deciders[asked])
        for asked in ("placing", "grant"):
            if getattr(order, asked) is not None and self._machines() is None:
                raise bad_request(MISSING.format(asked))

    def prepare_elsewhere(self, p: Prepared, around: Surroundings) -> None:
        """Prepare a run that is to execute on another machine."""
        machines = self._machines()
        assert machines is not None
        machines.prepare(p, around)

    def look(self, p: Prepared, around: Surroundings) -> Awaitable[None] | None:
        """Have features look at what they decide by."""
        looks = [
            part.look
            for name, part in self._loaded.items()
            if part.look is not None and self._may_decide(name, p, around)
        ]
        return _look(looks, p, around) if looks else None

    def decide(self, p: Prepared, around: Surroundings) -> None:
        for name, part in self._loaded.items():
            if part.decide is not None and self._may_decide(name, p, around):
                part.decide(p, around)

    def check(self, p: Prepared, around: Surroundings) -> None:
        """Refuse what features refuse."""
        for name, part in self._loaded.items():
            if part.check is not None and self._does(name, p.parts):
                part.check(p, around)

    def again(self, kept: Spawn, run: RunInfo) -> Spawn:
        """Return what a run was started with as it is asked for again."""
        self._load(kept)
        for name, part in self._loaded.items():
            asked = any(getattr(kept, each) is not None for each in self._features[name].decides)
            if part.again is not None and (asked or name in self._of_all):
                kept = part.again(kept, run)
        return kept

    def inherited(self, p: Prepared) -> dict[str, Any]:
        """Return fields of `Spawn` for a run below another that is started again as a root."""
        return {
            field: value
            for name, part in self._loaded.items()
            if part.inherited is not None and self._does(name, p.parts)
            for field, value in part.inherited(p).items()
        }

    def begin(self) -> None:
        self._goes = True
        for part in self._loaded.values():
            if part.begin is not None:
                part.begin()

    async def serve(self) -> None:
        """Run what goes on by itself, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            for part in self._loaded.values():
                self._serve(part)
            await trio.sleep_forever()

    async def finish(self) -> None:
        for part in list(self._loaded.values()):
            if part.finish is not None:
                await part.finish()

    async def rest(self) -> None:
        self._goes = False
        for part in list(self._loaded.values()):
            if part.rest is not None:
                await part.rest()

    def go_on(self) -> None:
        self._goes = True
        for part in self._loaded.values():
            if part.go_on is not None:
                part.go_on()

    def _part(self, name: str) -> Part:
        if name not in self._loaded:
            module = f"sfad.features.{name}.{self._features[name].part}"
            part = import_module(module).part(self._heart)
            self.version += 1
            loaded = self._loaded | {name: part}
            self._loaded = {each: loaded[each] for each in self._features if each in loaded}
            self.changed += _given(part.changed)
            self.admitted += _given(part.admitted)
            self.saves += _given(part.saves)
            self.never_admitted += _given(part.never_admitted)
            self.stopped += _given(part.stopped)
            self.ended += _given(part.ended)
            self.empties += _given(part.emptied)
            self.recorded += _given(part.recorded)
            if part.loaded is not None:
                part.loaded()
            if self._goes and part.begin is not None:
                part.begin()
            self._serve(part)
        return self._loaded[name]

    def _serve(self, part: Part) -> None:
        if self._nursery is not None and part.serve is not None:
            self._nursery.start_soon(
                keep_serving, part.serve, self._heart.resources.log.internal_error
            )


async def _look(looks: Sequence[Step], p: Prepared, around: Surroundings) -> None:
    for look in looks:
        if (waits := look(p, around)) is not None:
            await waits


def _half(name: str, module: str, feature: Feature) -> ModuleType | None:
    """Load the module of a feature's half in the core, and that of its part, which saves what it
    keeps; `None` if there are too few descriptors for that now."""
    try:
        import_module(f"sfad.features.{name}.{feature.part}")
        return import_module(f"sfad.features.{name}.{module}")
    except (OSError, ImportError):
        return None


def watchers_of(features: Mapping[str, Feature]) -> dict[str, NewWatcher]:
    """Return how the halves of features in the core are made, each when it is needed."""

    def make(name: str, feature: Feature, context: Context) -> Watcher | None:
        half = _half(name, feature.watcher, feature)
        return half.watcher(context) if half is not None else None

    return {name: partial(make, name, each) for name, each in features.items() if each.watcher}


def half_of(
    features: Mapping[str, Feature], kind: Literal["barrier", "purses", "elsewhere", "calls"]
) -> Callable[[Components], Any] | None:
    """The same of the one that may hold calls and roots, that charges, that decides about runs on
    other machines, or about model calls."""

    def make(name: str, feature: Feature, components: Components) -> Any:
        half = _half(name, getattr(feature, kind), feature)
        return getattr(half, kind)(components) if half is not None else None

    found = (partial(make, name, each) for name, each in features.items() if getattr(each, kind))
    return next(found, None)


def new_machine(features: Mapping[str, Feature], policy: Policy, resources: Resources) -> Machine:
    return Machine(
        policy,
        next_number=resources.ledger.next_number,
        # the clock has gone on since an earlier daemon named its reservations, so these are new
        reservations=int(1000 * trio.current_time()),
        may_start=[rule for feature in features.values() for rule in feature.may_start],
        watchers=watchers_of(features),
        barrier=half_of(features, "barrier"),
        purses=half_of(features, "purses"),
        elsewhere=half_of(features, "elsewhere"),
        calls=half_of(features, "calls"),
    )


def corrected(
    features: Mapping[str, Feature], config: Configuration, ledger: OpenedLedger, spool: Spool
) -> list[str]:
    """Have features bring the ledger in line with the spool. Return lines for the log."""
    modules = [
        import_module(f"sfad.features.{name}.{each.correct}")
        for name, each in features.items()
        if each.correct and any(map(config.is_set, each.sections))
    ]
    return [note for module in modules for note in module.correct(config, ledger, spool)]


def _given(moment: Moment | None) -> list[Moment]:
    return [] if moment is None else [moment]
