"""Where features take part in a daemon: what the heart gives to them, what they give to the heart,
and which of them are loaded.

No feature is imported here: the list is `sfad.features.listed`, and the module of a part is loaded
when a section of its config differs from the defaults, or when one of its requests arrives.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

import trio
from msgspec import Struct

from ...config import Configuration
from ...core import events as e
from ...core.machine import Machine
from ...core.state.run import Run
from ...feature import Feature
from ...host.tasks import Background, keep_serving
from ...protocol.requests.base import Request
from ...runs.catalogue import RunCatalogue
from .announcing import Announcer
from .resources import Resources
from .saving import StorageWatch

T = TypeVar("T", bound=Struct)


@dataclass(frozen=True, slots=True)
class Heart:
    """What a feature may use of a daemon."""

    resources: Resources
    machine: Machine
    catalogue: RunCatalogue
    announcer: Announcer
    storage: StorageWatch
    background: Background
    feed: e.Feed
    """Tells the core of an event, as `LimitsLearnt`."""
    config: Callable[[], Configuration]
    """Returns the config that is in force."""
    began: float
    """When the daemon was started, on trio's clock."""
    connections: Callable[[], int]
    """Returns how many clients are connected."""

    def section(self, key: str, kind: type[T]) -> T:
        """Return a section of the config that is in force."""
        return self.config().section(key, kind)


Answer = Callable[[Any, Any], Any]
"""Answers a request, as the functions that `server.asker.answers` registers: it takes an `Asker`
and the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a feature does in a daemon. It leaves out where it takes no part."""

    verbs: Mapping[type[Request], Answer] = field(default_factory=dict)
    """Answers the requests that the feature has declared."""
    serve: Callable[[], Awaitable[None]] | None = None
    """Goes on by itself until it is cancelled. It begins once the runs of an earlier daemon are
    adopted."""
    reconfigure: Callable[[], object] | None = None
    """The config was read again."""
    admitted: Callable[[Run], object] | None = None
    """A run was admitted."""
    ended: Callable[[Run], object] | None = None
    """A run has ended."""
    status: Callable[[], Mapping[str, object]] | None = None
    """Returns fields of `status`, for the operator."""
    is_own: Callable[[int], bool] | None = None
    """Returns whether a process is the feature's: a child of the daemon that is in no run."""


class Parts:
    """The parts that are loaded."""

    def __init__(self, features: Mapping[str, Feature], heart: Heart) -> None:
        self._heart = heart
        self._features = {name: each for name, each in features.items() if each.part}
        self._owners = {kind: name for name, each in features.items() for kind in each.verbs}
        self._loaded: dict[str, Part] = {}
        self.admitted: list[Callable[[Run], object]] = []
        """What is told of each run that is admitted; `ended`: of each that has ended."""
        self.ended: list[Callable[[Run], object]] = []
        self._nursery: trio.Nursery | None = None

    def follow(self) -> None:
        """Load the parts that the config calls for, and tell those that are loaded of it."""
        loaded, config = list(self._loaded.values()), self._heart.config()
        for name, feature in self._features.items():
            if any(config.section(key, kind) != kind() for key, kind, _ in feature.sections):
                self._part(name)
        for part in loaded:
            if part.reconfigure is not None:
                part.reconfigure()

    def answer(self, kind: type[Request]) -> Answer | None:
        """Return what answers a request of a feature; `None` if it is of none."""
        owner = self._owners.get(kind)
        return self._part(owner).verbs[kind] if owner is not None else None

    def status(self) -> dict[str, Any]:
        return {
            name: value
            for part in self._loaded.values()
            if part.status is not None
            for name, value in part.status().items()
        }

    def is_own(self, pid: int) -> bool:
        """Return whether a process is one of a feature."""
        return any(part.is_own(pid) for part in self._loaded.values() if part.is_own is not None)

    async def serve(self) -> None:
        """Run what goes on by itself, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            for part in self._loaded.values():
                self._begin(part)
            await trio.sleep_forever()

    def _part(self, name: str) -> Part:
        if name not in self._loaded:
            module = f"sfad.features.{name}.{self._features[name].part}"
            self._loaded[name] = part = import_module(module).part(self._heart)
            self.admitted += [part.admitted] if part.admitted is not None else []
            self.ended += [part.ended] if part.ended is not None else []
            self._begin(part)
        return self._loaded[name]

    def _begin(self, part: Part) -> None:
        if self._nursery is not None and part.serve is not None:
            self._nursery.start_soon(
                keep_serving, part.serve, self._heart.resources.log.internal_error
            )
