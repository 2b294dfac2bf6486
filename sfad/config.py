"""Layered TOML: built-in values, the system's file, the user's file, key by key.

A misspelt key or a value outside its range is an error that names the file, the key and what is allowed: a limit that
somebody believes to be set must not be silently absent. Every key here is read by something.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from .core.limits import check
from .core.naming import NAME
from .core.policy import Invalid, Policy
from .protocol.known import METERS, PROGRAMS
from .protocol.limits import parse_limit
from .protocol.messages import Setting
from .protocol.units import (
    COUNT_FORMS,
    DURATION_FORMS,
    SIZE_FORMS,
    format_duration,
    format_size,
    parse_count,
    parse_duration,
    parse_size,
)

BUILT_IN = "built-in"
"""The source of a value that no file sets."""

OFF = "off"
"""Written for a limit that is not to hold, where its value may be `None`."""

MAX_FILE = 1 << 20
"""Bytes of a config file: a file that never ends must not keep the daemon reading."""

NAME_MAX = 256
"""Characters in a name that is free to choose (a model, a user, a team): more is a mistake, and lookups by it stay cheap."""

_DURATION = {"unit": "duration"}
_SIZE = {"unit": "size"}
_COUNT = {"unit": "count"}
_PATH = {"unit": "path"}
_TEXT = {"unit": "text"}
_COMMAND = {"unit": "command"}
_LIMITS = {"unit": "limits"}

_PARSERS: dict[str, Callable[[Any], float]] = {"duration": parse_duration, "size": parse_size, "count": parse_count}


class ConfigError(Exception):
    """A config file cannot be used. The message names the file, the key, the value and what is allowed."""


class Guard(Struct, frozen=True, kw_only=True):
    """How deep and how wide a tree may grow (SPEC section 2)."""

    max_depth: Annotated[int, Meta(ge=1, le=1000)] = 5
    max_descendants: Annotated[int, Meta(ge=1, le=1_000_000)] = 64
    depth_ceiling: Annotated[int, Meta(ge=1, le=1000)] = 32
    """What a flag or the environment may ask for at a root; `descendants_ceiling` likewise."""
    descendants_ceiling: Annotated[int, Meta(ge=1, le=1_000_000)] = 1024
    allow_detach: bool = False
    """Whether a run may start new roots."""


class Defaults(Struct, frozen=True, kw_only=True):
    """What a spawn has that does not say otherwise."""

    timeout: Annotated[float, Meta(ge=1, extra=_DURATION)] = 120.0
    program_profile: Literal["coding-agent", "off"] = "coding-agent"
    """The profile of a known agent program whose run names none."""
    turns: Annotated[int, Meta(ge=1, le=1_000_000)] | None = 25
    """Tool calls, at most `limits.max_turns`. `None`, here and below, is no such limit."""
    cost: Annotated[float, Meta(ge=0.01, le=1_000_000)] | None = 1.0
    """USD, of a run and its descendants, at most `limits.max_cost`."""
    messages: Annotated[int, Meta(ge=1, extra=_COUNT)] | None = None
    tokens: Annotated[int, Meta(ge=1, extra=_COUNT)] | None = None
    """Input and output, of a run and its descendants."""
    output: Annotated[int, Meta(ge=64 * 1024, extra=_SIZE)] = 64 * 1024 * 1024
    """Bytes kept of stdout, and of stderr."""
    memory: Annotated[int, Meta(ge=1024 * 1024, extra=_SIZE)] | None = None
    """Bytes, of a run and its descendants. The ranges are those of `sfad.protocol.kinds`."""
    pids: Annotated[int, Meta(ge=1, le=4_194_304)] | None = 1024
    """Processes and threads of a tree; Linux has at most 2^22 (PID_MAX_LIMIT)."""
    cpu: Annotated[float, Meta(ge=0.01)] | None = None
    """Cores; the kernel takes no less than 1 ms of every 100 (`cpu.max`)."""


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds on the limits themselves (SPEC section 3)."""

    max_time: Annotated[float, Meta(ge=1, le=31 * 86400, extra=_DURATION)] = 3600.0
    """The longest `time` that can be asked for; it always terminates."""
    max_turns: Annotated[int, Meta(ge=1, le=1_000_000)] = 100
    max_cost: Annotated[float, Meta(ge=0.01, le=1_000_000)] = 100.0
    """USD: the largest limit of each kind of cost that can be asked for."""
    nearing: Annotated[float, Meta(gt=0, lt=1)] = 0.8
    """The part of a limit at which `limit_nearing` is told."""
    pause_max: Annotated[float, Meta(ge=1, le=31 * 86400, extra=_DURATION)] = 86400.0
    """The longest that a limit may keep a run paused before it terminates."""
    approval_timeout: Annotated[float, Meta(ge=1, le=31 * 86400, extra=_DURATION)] = 600.0
    """How long a request for an increase waits for an answer before the run terminates."""
    adaptive: bool = False
    """Whether what the ledger teaches (`sfactl recommend`) replaces the defaults."""


class Stop(Struct, frozen=True, kw_only=True):
    """The stop ladder (SPEC section 6)."""

    grace: Annotated[float, Meta(ge=0, le=60, extra=_DURATION)] = 5.0
    """Between the stop signal and SIGKILL."""
    polite: Annotated[float, Meta(ge=0, le=60, extra=_DURATION)] = 1.0
    """The part of the grace that a main process has for itself where its program is stopped by `SIGINT-main`."""
    kill_wait: Annotated[float, Meta(ge=0.1, le=600, extra=_DURATION)] = 10.0
    """After SIGKILL, before what is still there is reported as a survivor."""
    result_wait: Annotated[float, Meta(ge=0, le=3600, extra=_DURATION)] = 30.0
    """How long an agent may linger after it printed its final result."""


class Program(Struct, frozen=True, kw_only=True):
    """What an agent program needs (SPEC section 6)."""

    stop: Literal["SIGINT-main", "SIGTERM"]
    """`SIGINT-main`: SIGINT to the main process alone, then like `SIGTERM`: the stop signal to every process."""


class Quotas(Struct, frozen=True, kw_only=True):
    """Bounds on users and on the daemon (SPEC section 5)."""

    trees_per_user: Annotated[int, Meta(ge=1, le=100_000)] = 32
    trees: Annotated[int, Meta(ge=1, le=100_000)] = 64
    spawns_per_hour: Annotated[int, Meta(ge=1, le=1_000_000)] = 600
    """Root spawns of one user, in a sliding window."""


class Attempts(Struct, frozen=True, kw_only=True):
    """Back-off between attempts (SPEC section 4)."""

    delay: Annotated[float, Meta(ge=0, le=3600, extra=_DURATION)] = 1.0
    """Before the second attempt; it doubles each time. What `--retry-delay` may ask for has the same range."""
    delay_max: Annotated[float, Meta(ge=0, le=86400, extra=_DURATION)] = 60.0


class Containment(Struct, frozen=True, kw_only=True):
    """How a run's processes are held together."""

    mode: Literal["auto", "cgroup", "tags"] = "auto"
    """`auto`: cgroup where there is one to write to, else tags."""
    cgroup_parent: Annotated[str, Meta(extra=_PATH)] | None = None
    """The cgroup directory below which runs live; without it the daemon's own."""


class Log(Struct, frozen=True, kw_only=True):
    """The JSON log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    file: Annotated[str, Meta(extra=_PATH)] | None = None
    """Without it stderr, which is the journal under systemd."""


class Retention(Struct, frozen=True, kw_only=True):
    """How long what is over is kept (SPEC section 9). Live runs keep everything."""

    output: Annotated[float, Meta(ge=60, le=3650 * 86400, extra=_DURATION)] | None = 7 * 86400.0
    """Of output files, since their run's end. `None`, here and below: for ever, or never."""
    ledger: Annotated[float, Meta(ge=3600, le=3650 * 86400, extra=_DURATION)] | None = 90 * 86400.0
    """Of ended trees, since their last end, and of events."""
    backup_every: Annotated[float, Meta(ge=60, le=366 * 86400, extra=_DURATION)] | None = 86400.0
    """Between two copies of the ledger; each replaces the one before."""
    sweep_every: Annotated[float, Meta(ge=60, le=31 * 86400, extra=_DURATION)] = 3600.0
    """How often cleanup runs."""


class Price(Struct, frozen=True, kw_only=True):
    """What a model costs, in USD per million tokens. It overrides what the library says, or adds to it (SPEC section 8)."""

    input_mtok: Annotated[float, Meta(ge=0)]
    output_mtok: Annotated[float, Meta(ge=0)]
    cached_mtok: Annotated[float, Meta(ge=0)] | None = None
    """Of input read from a cache; `None`: like other input."""
    cache_write_mtok: Annotated[float, Meta(ge=0)] | None = None
    """Of input written to a cache; `None`: like other input."""


class UserBudget(Struct, frozen=True, kw_only=True):
    """What one user may spend (SPEC section 5)."""

    daily_usd: Annotated[float, Meta(ge=0)]


class TeamBudget(Struct, frozen=True, kw_only=True):
    """What several users may spend together (SPEC section 5)."""

    usd: Annotated[float, Meta(ge=0)]
    period: Literal["day", "week", "month"]
    members: tuple[str, ...]
    """User names."""


class Budgets(Struct, frozen=True, kw_only=True):
    """Money of users and teams, by their names."""

    action: Literal["pause", "terminate", "warn"] = "pause"
    """What becomes of the live trees of a user, or of a team's members, when the budget has run out."""
    users: dict[str, UserBudget] = {}
    teams: dict[str, TeamBudget] = {}


if TYPE_CHECKING:
    MeterName = str
else:
    MeterName = Literal[("auto", *METERS)]


class Agent(Struct, frozen=True, kw_only=True):
    """How to start an agent that has a name of its own (SPEC section 13)."""

    command: Annotated[tuple[str, ...], Meta(min_length=1, extra=_COMMAND)]
    """See `sfad.agents` for the placeholders."""
    description: Annotated[str, Meta(max_length=1000, extra=_TEXT)] = ""
    kind: Literal["agent", "skill"] = "agent"
    type: Annotated[str, Meta(max_length=64, extra=_TEXT)] | None = None
    meter: MeterName = "auto"
    """`auto`: chosen from the command."""
    limits: Annotated[tuple[str, ...], Meta(extra=_LIMITS)] = ()
    """As `--limit` takes them."""
    stdin: bool = False
    """Keep the stdin of background runs open for `sfactl send`."""


class Config(Struct, frozen=True, kw_only=True):
    """The effective configuration. Durations are in seconds."""

    enabled: bool = True
    """False refuses every start."""
    guard: Guard = Guard()
    defaults: Defaults = Defaults()
    limits: Limits = Limits()
    stop: Stop = Stop()
    quotas: Quotas = Quotas()
    attempts: Attempts = Attempts()
    containment: Containment = Containment()
    log: Log = Log()
    retention: Retention = Retention()
    programs: dict[str, Program] = msgspec.field(
        default_factory=lambda: {name: Program(stop="SIGINT-main") for name, known in PROGRAMS.items() if known.interrupted}
    )
    """By the program's name as the loop rule derives it from a command."""
    prices: dict[str, Price] = {}
    """By the model's name as agents write it."""
    budgets: Budgets = Budgets()
    agents: dict[str, Agent] = {}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and where each of its values comes from."""

    config: Config
    settings: list[Setting]
    files: list[Path]
    """The files that were there."""
    strongest: Path | None = None
    """The file whose values win, there or not: what no file sets would be set in it."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What the files set, the strongest last. `names` holds, for each table of tables, the names in it, with the file."""

    values: dict[str, tuple[Path, Any]]
    names: dict[str, dict[str, Path]]


def load(files: Sequence[Path] = (), *, required: bool = False) -> Loaded:
    """Reads `files`, the weakest first. One that is missing is skipped unless `required`. Raises `ConfigError`."""
    layers = [(path, table) for path in files if (table := _read(path, required=required)) is not None]
    found = _Found({}, {})
    for path, table in layers:
        _collect(Config, table, path, "", found)
    config = _build(Config, found, "")
    if lowered := {low: found.values[high] for low, high in _too_high(config) if low not in found.values}:
        found.values.update(lowered)
        config = _build(Config, found, "")
    _check_together(config, found.values)
    _check_agents(config, found)
    settings = [
        Setting(key=key, value=value, source=str(found.values[key][0]) if key in found.values else BUILT_IN)
        for key, value in _values(config, "")
    ]
    return Loaded(config, settings, [path for path, _ in layers], files[-1] if files else None)


def _read(path: Path, *, required: bool) -> dict[str, Any] | None:
    try:
        return tomllib.loads(_content(path).decode())
    except FileNotFoundError as error:
        if required:
            raise ConfigError(f"{path}: no such file") from error
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: of a number with too many digits int() says so
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _content(path: Path) -> bytes:
    # O_NONBLOCK: open(2) of a FIFO would wait for a writer
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):  # /dev/null is an empty config
            raise ConfigError(f"{path}: neither a regular file nor a device such as /dev/null")
        content = file.read(MAX_FILE + 1) or b""
    if len(content) > MAX_FILE:
        raise ConfigError(f"{path}: larger than {MAX_FILE} bytes")
    return content


def _collect(struct: type[Struct], table: Mapping[str, Any], path: Path, prefix: str, found: _Found) -> None:
    """Checks the keys of a file's table, and adds what it sets."""
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    for name, value in table.items():
        key = f"{prefix}{name}"
        if name not in fields:
            raise ConfigError(f"{path}: {key}: unknown key; known here: {', '.join(sorted(fields))}")
        if _is_section(fields[name]):
            _collect(fields[name], _table(value, path, key), path, f"{key}.", found)
        elif (entry := _entry(fields[name])) is not None:
            _collect_named(entry, _table(value, path, key), path, key, found)
        else:
            found.values[key] = (path, value)


def _collect_named(entry: type[Struct], table: Mapping[str, Any], path: Path, key: str, found: _Found) -> None:
    for name, value in table.items():
        inner = entry_key(key, name)
        if not 0 < len(name) <= NAME_MAX:
            raise ConfigError(f"{path}: {inner[:200]}: a name of 1 to {NAME_MAX} characters is expected")
        found.names.setdefault(key, {})[name] = path
        _collect(entry, _table(value, path, inner), path, f"{inner}.", found)


def _table(value: Any, path: Path, key: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {key} = {value!r}: a table is expected, written [{key}]")
    return value


def entry_key(key: str, name: str) -> str:
    """Return the key of a named table, as TOML has it: quoted where it must be."""
    return f"{key}.{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else json.dumps(name, ensure_ascii=False)}"


def _values(struct: Struct, prefix: str) -> Iterator[tuple[str, Any]]:
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, Struct):
            yield from _values(value, f"{prefix}{name}.")
        elif isinstance(value, dict):
            for entry, inner in value.items():
                yield from _values(inner, f"{entry_key(f'{prefix}{name}', entry)}.")
        else:
            yield f"{prefix}{name}", value


def _build(struct: type[Any], found: _Found, prefix: str) -> Any:
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        key = f"{prefix}{field.name}"
        if _is_section(field.type):
            values[field.name] = _build(field.type, found, f"{key}.")
        elif (entry := _entry(field.type)) is not None:
            named = {name: _build_named(entry, found, key, name) for name in found.names.get(key, ())}
            values[field.name] = field.default_factory() | named
        elif key in found.values:
            values[field.name] = _convert(field.type, key, *found.values[key])
    return struct(**values)


def _build_named(entry: type[Struct], found: _Found, key: str, name: str) -> Any:
    inner = entry_key(key, name)
    for field in msgspec.structs.fields(entry):
        if field.required and f"{inner}.{field.name}" not in found.values:
            path = found.names[key][name]
            raise ConfigError(f"{path}: {inner}.{field.name} is missing: allowed is {_allowed(field.type)}")
    return _build(entry, found, f"{inner}.")


def _convert(kind: Any, key: str, path: Path, value: Any) -> Any:
    try:
        return _converted(kind, value)
    except (ValueError, TypeError, OverflowError) as error:  # msgspec.ValidationError is a ValueError
        raise _bad_value(path, key, value, _allowed(kind)) from error


def _converted(kind: Any, value: Any) -> Any:
    if value == OFF and _may_be_off(kind):
        return None
    unit = _unit(kind)
    if unit in _PARSERS:
        if not isinstance(value, str | int | float):
            raise ValueError
        value = _PARSERS[unit](value)
    elif unit == "path" and not Path(value).is_absolute():
        raise ValueError
    converted = msgspec.convert(value, kind)
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ValueError
    return converted


def _bad_value(path: Path, key: str, value: Any, allowed: str) -> ConfigError:
    shown = f"{str(value).lower() if isinstance(value, bool) else repr(value)}"
    return ConfigError(f"{path}: {key} = {shown[:200]}: allowed is {allowed}")


def _allowed(kind: Any) -> str:
    meta = _meta(kind)
    if meta is None:
        return _allowed_unbounded(kind)
    return f'{_allowed_range(kind, meta)}, or "{OFF}"' if _may_be_off(kind) else _allowed_range(kind, meta)


def _allowed_unbounded(kind: Any) -> str:
    if kind is bool:
        return "true or false"
    if get_origin(kind) is tuple:
        return "a list of names"
    return "one of " + ", ".join(f'"{choice}"' for choice in get_args(kind))


def _allowed_range(kind: Any, meta: Meta) -> str:
    unit = _unit(kind)
    if unit == "path":
        return "an absolute path"
    if unit == "text":
        return f"a text of at most {meta.max_length} characters"
    if unit == "command":
        return "a list of texts: the program and its arguments, one text each"
    if unit == "limits":
        return 'a list of limits as --limit takes them, such as "turns=50" or "cost=2.50:warn"'
    if unit == "duration":
        return f"a duration of {_range(meta, format_duration)} ({DURATION_FORMS})"
    if unit == "size":
        return f"a size of {_range(meta, format_size)} ({SIZE_FORMS})"
    if unit == "count":
        return f"a whole number {_between(meta)} ({COUNT_FORMS})"
    return f"{'a number' if float in _parts(kind) else 'a whole number'} {_between(meta)}"


def _range(meta: Meta, shown: Callable[[Any], str]) -> str:
    least = shown(meta.ge or 0)
    return f"{least} or more" if meta.le is None else f"{least} to {shown(meta.le)}"


def _between(meta: Meta) -> str:
    if meta.gt is not None:
        return f"above {_plain(meta.gt)}" + ("" if meta.lt is None else f" and below {_plain(meta.lt)}")
    return f"{'of' if meta.le is None else 'from'} {_range(meta, _plain)}"


def _plain(number: float) -> str:
    return f"{number:.15g}"


def _meta(kind: Any) -> Meta | None:
    return next((part for part in _parts(kind) if isinstance(part, Meta)), None)


def _unit(kind: Any) -> str:
    meta = _meta(kind)
    return "" if meta is None else str((meta.extra or {}).get("unit", ""))


def _may_be_off(kind: Any) -> bool:
    return NoneType in _parts(kind) and _unit(kind) not in {"path", "text"}


def _parts(kind: Any) -> Iterator[Any]:
    """A type, and everything it is put together from."""
    yield kind
    for part in get_args(kind):
        yield from _parts(part)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _entry(kind: Any) -> type[Struct] | None:
    """Of a table of tables whose names are free to choose, what each of them holds."""
    return get_args(kind)[1] if get_origin(kind) is dict else None


_AT_MOST = (
    ("guard.max_depth", "guard.depth_ceiling"),
    ("guard.max_descendants", "guard.descendants_ceiling"),
    ("defaults.timeout", "limits.max_time"),
    ("defaults.turns", "limits.max_turns"),
    ("defaults.cost", "limits.max_cost"),
    ("attempts.delay", "attempts.delay_max"),
)
"""Pairs of which the first may not be above the second. Where only the second is set, it lowers the first's built-in value;
where both are set, it is an error."""


def _too_high(config: Config) -> list[tuple[str, str]]:
    values = dict(_values(config, ""))
    return [(low, high) for low, high in _AT_MOST if values[low] is not None and values[low] > values[high]]


def _check_together(config: Config, origins: Mapping[str, tuple[Path, Any]]) -> None:
    values = dict(_values(config, ""))
    for low, high in _too_high(config):
        path, value = origins[low]
        source = origins[high][0] if high in origins else BUILT_IN
        raise _bad_value(path, low, value, f"at most {high}, which is {values[high]:g} ({source})")


def _check_agents(config: Config, found: _Found) -> None:
    """Raise `ConfigError` for an agent whose name could not be that of a run, or whose limits no run could have."""
    ranges = Policy(max_time=config.limits.max_time, max_turns=config.limits.max_turns, max_cost=config.limits.max_cost)
    for name, agent in config.agents.items():
        key = entry_key("agents", name)
        if not NAME.fullmatch(name) or name.startswith("-"):
            path = found.names["agents"][name]
            raise ConfigError(f"{path}: {key}: an agent's name has 1 to 64 of A-Z a-z 0-9 . _ - and does not begin with -")
        try:
            for text in agent.limits:
                check(parse_limit(text), ranges)
        except (ValueError, Invalid) as error:
            raise ConfigError(f"{found.values[f'{key}.limits'][0]}: {key}.limits: {error}") from error


def main() -> None:
    """Print the settings of a daemon that would be started here, as JSON. `sfactl run --help` asks for them where no daemon is."""
    from .host.paths import config_files

    files, required = config_files(os.environ)
    try:
        print(msgspec.json.encode(load(files, required=required).settings).decode())
    except ConfigError as error:
        sys.exit(f"sfad: {error}")


if __name__ == "__main__":
    main()
