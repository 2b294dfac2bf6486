"""What a feature declares: data, which the heart reads before it loads anything of the feature.

A feature is a folder of `sfad.features`. Its module `feature` has a `FEATURE`. What the feature
does in a daemon is in other modules, which are loaded when its section of the config is set, when a
request asks for it, or when an earlier daemon has saved something of it (`daemon.loop.seam`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct, field

from .core.admission.guard import MayStart
from .core.state.access import Access
from .protocol.requests.base import Request


class Section(NamedTuple):
    """A section of the config: `[key]`. If the heart has it, the feature adds keys to it."""

    key: str
    kind: Any
    """Its type as a field of `config.Configuration` has it: a struct, whose own fields have
    defaults, or a dictionary of structs by the names that the operator chooses. Of a dictionary
    that the heart has, the structs' fields have defaults. A struct may have `EITHER`: pairs of its
    keys of which one may be set, and why in words; and one with such names `NAMES`: a regular
    expression for these, and what they may be in words."""
    check: Callable[[Any], Iterable[tuple[str, str]]] | None = None
    """Given the whole config, returns keys of this section that have a wrong value because of
    another section, and what is allowed in words."""
    array: bool = False
    """A dictionary that is an array of tables in a file, `[[key]]`, each with its `name`."""
    at_start: bool = False
    """A change takes effect at the next start of the daemon."""


class Feature(Struct, frozen=True, kw_only=True):
    """What a feature adds. It leaves out where it takes no part."""

    sections: tuple[Section, ...] = ()
    verbs: Mapping[type[Request], Access] = field(default_factory=dict)
    """Its requests, and who may send them. `--allow` and `--deny` do not name these."""
    may_start: tuple[MayStart, ...] = ()
    """Rules of the guard, which are pure. They are asked after its own ones, in this order. What a
    rule needs of the config is in `Question.policy.sections`."""
    decides: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Spawn` that it carries out, each one of `requests.starting.OF_FEATURES`, and their
    types. What it decides about a run is saved under the same name (`runs.live.Parts`), and
    begins as what was asked. It is only told of runs for which it does something."""
    sandboxes: bool = False
    """That is a sandbox: the run's main process keeps the command in it."""
    shows: Callable[[Any, Any], Mapping[str, Any]] | None = None
    """Returns fields of `RunInfo`, given what it has decided about a run, and the run
    (`runs.live.Live`)."""
    notes: Mapping[str, Callable[[Any, float], Mapping[str, Any]]] = field(default_factory=dict)
    """By the field of a run (`core.state.run.Run`) in which its half in the core has noted
    something: returns fields of `RunInfo`, given the run and the time on the core's clock."""
    channels: Mapping[str, str] = field(default_factory=dict)
    """Channels of runs that only its own processes may start, and what is started in these; and
    whose runs those are, in words."""
    variables: tuple[str, ...] = ()
    """Variables that it sets for runs. A run does not inherit them from another one."""
    saved: tuple[str, ...] = ()
    """How its keys in the spool begin."""
    watcher: str = ""
    """The module of its folder that has `watcher: core.watching.NewWatcher`, which is pure: what it
    looks at after events. It is loaded when there is something to look at."""
    barrier: str = ""
    """The module of its folder that has `barrier: core.machine.NewBarrier`, which is pure:
    what may hold model calls and roots. It is loaded when there is a model call. One feature
    may have it."""
    purses: str = ""
    """The module of its folder that has `purses: core.machine.NewPurses`, which is pure: what is
    charged beside the accounts of runs. It is made with the part. One feature may have it."""
    calls: str = ""
    """The module of its folder that has `calls: core.machine.NewCalls`, which is pure: what decides
    about model calls that are asked for before they are made. It is made with the part. One feature
    may have it."""
    leads: bool = False
    """Its part leads runs to their models (`Part.leading`). It is loaded at the start. One feature
    may do so."""
    correct: str = ""
    """The module of its folder that has `correct(config: Configuration, ledger: OpenedLedger,
    spool: Spool) -> list[str]`: brings the ledger in line with the spool, before it is started, and
    returns lines for the log. It is asked if its section of the config is set."""
    shares: bool = False
    """Its part tells the daemons of other machines something, and is told."""
    elsewhere: str = ""
    """The module of its folder that has `elsewhere: core.machine.NewElsewhere`, which is pure: what
    the core decides about runs that execute on other machines (`Spawn.placing`), and about those
    that were granted from there (`Spawn.grant`). Its part has them executed. One feature may have
    it."""
    alone: str = ""
    """With `elsewhere`: what is said to those who need another machine, while its section of the
    config is not set."""
    carrier: str = ""
    """The module of its folder that has `carrier(heart: Heart) -> daemon.loop.seam.Carrier`: has
    runs carried out that have no process (`Spawn.admit`). It is loaded with the first of them. One
    feature may have it."""
    beside: str = ""
    """How the name of a directory of its own ends, which begins with that of the state directory.
    Its part is loaded where that exists."""
    recorded: bool = False
    """The ledger's table `plans` is its own, and its part is loaded where that has rows."""
    share: str = ""
    """Its key that is a share of a run's limits, `SECTION.KEY`: what a run has used must be known
    exactly from there on, and its watcher is told of runs that are at another share than
    `limits.nearing`."""
    status: bool = False
    """Its part has fields of `status` whatever has happened so far."""
    check: str = ""
    """The module of its folder that has `check(config: Configuration) -> list[str]`: what `sfad
    check-config` finds wrong with the machine, where each value is allowed."""
    install: str = ""
    """The module of its folder that has `installer(where: str, node: str | None, *, user: bool,
    dry_run: bool) -> installing.service.Installer`: what `sfad install` does for it. One feature
    may have it."""
    doctor: str = ""
    """The module of its folder that has `findings() -> Iterator[tuple[str, str, str, str]]`: lines
    of `sfactl doctor`. Each is what is judged, `ok`, `warn` or `bad`, why, and how to fix it."""
    part: str = ""
    """The module of its folder that has `part(heart: Heart) -> Part`: what it does in a daemon. It
    is loaded at the start if the feature declares nothing that would load it later."""
