"""Layered TOML: built-in values, the system's file, the user's file, key by key.

A misspelt key or a value outside its range is an error that names the file, the key and what is allowed: a limit that
somebody believes to be set must not be silently absent. Every key here is read by something.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from .protocol.messages import Setting
from .protocol.units import DURATION_FORMS, format_duration, parse_duration

BUILT_IN = "built-in"
"""The source of a value that no file sets."""

_DURATION = {"unit": "duration"}
_PATH = {"unit": "path"}


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


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds on the limits themselves (SPEC section 3)."""

    max_time: Annotated[float, Meta(ge=1, le=31 * 86400, extra=_DURATION)] = 3600.0
    """The longest `time` that can be asked for; it always terminates."""


class Stop(Struct, frozen=True, kw_only=True):
    """The stop ladder (SPEC section 6)."""

    grace: Annotated[float, Meta(ge=0, le=60, extra=_DURATION)] = 5.0
    """Between the stop signal and SIGKILL."""
    kill_wait: Annotated[float, Meta(ge=0.1, le=600, extra=_DURATION)] = 10.0
    """After SIGKILL, before what is still there is reported as a survivor."""


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


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and where each of its values comes from."""

    config: Config
    settings: list[Setting]
    files: list[Path]
    """The files that were there."""


def load(files: Sequence[Path] = (), *, required: bool = False) -> Loaded:
    """Reads `files`, the weakest first. One that is missing is skipped unless `required`. Raises `ConfigError`."""
    layers = [(path, table) for path in files if (table := _read(path, required=required)) is not None]
    origins: dict[str, tuple[Path, Any]] = {}
    for path, table in layers:
        _check_keys(Config, table, path, "")
        origins |= {key: (path, value) for key, value in _set_keys(Config, table, "")}
    config = _build(Config, origins, "")
    if lowered := {low: origins[high] for low, high in _too_high(config) if low not in origins}:
        origins |= lowered
        config = _build(Config, origins, "")
    _check_together(config, origins)
    settings = [
        Setting(key=key, value=value, source=str(origins[key][0]) if key in origins else BUILT_IN)
        for key, value in _values(config, "")
    ]
    return Loaded(config, settings, [path for path, _ in layers])


def _read(path: Path, *, required: bool) -> dict[str, Any] | None:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError as error:
        if required:
            raise ConfigError(f"{path}: no such file") from error
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _check_keys(struct: type[Struct], table: Mapping[str, Any], path: Path, prefix: str) -> None:
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(f"{path}: {prefix}{key}: unknown key; known here: {', '.join(sorted(fields))}")
        if _is_section(fields[key]):
            if not isinstance(value, dict):
                raise ConfigError(f"{path}: {prefix}{key} = {value!r}: a table is expected, written [{prefix}{key}]")
            _check_keys(fields[key], value, path, f"{prefix}{key}.")


def _set_keys(struct: type[Struct], table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(struct):
        if field.name not in table:
            continue
        if _is_section(field.type):
            yield from _set_keys(field.type, table[field.name], f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", table[field.name]


def _values(struct: Struct, prefix: str) -> Iterator[tuple[str, Any]]:
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, Struct):
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _build(struct: type[Any], origins: Mapping[str, tuple[Path, Any]], prefix: str) -> Any:
    values = {}
    for field in msgspec.structs.fields(struct):
        key = f"{prefix}{field.name}"
        if _is_section(field.type):
            values[field.name] = _build(field.type, origins, f"{key}.")
        elif key in origins:
            values[field.name] = _convert(field.type, key, *origins[key])
    return struct(**values)


def _convert(kind: Any, key: str, path: Path, value: Any) -> Any:
    meta = _meta(kind)
    try:
        if meta is not None and meta.extra == _DURATION:
            if not isinstance(value, str | int | float):
                raise ValueError
            return msgspec.convert(parse_duration(value), kind)
        if meta is not None and meta.extra == _PATH and not Path(value).is_absolute():
            raise ValueError
        return msgspec.convert(value, kind)
    except (ValueError, TypeError) as error:  # msgspec.ValidationError is a ValueError
        raise _bad_value(path, key, value, _allowed(kind)) from error


def _bad_value(path: Path, key: str, value: Any, allowed: str) -> ConfigError:
    shown = f"{str(value).lower() if isinstance(value, bool) else repr(value)}"
    return ConfigError(f"{path}: {key} = {shown[:200]}: allowed is {allowed}")


def _allowed(kind: Any) -> str:
    meta = _meta(kind)
    if meta is not None and meta.extra == _PATH:
        return "an absolute path"
    if meta is not None and meta.extra == _DURATION:
        least = f"{format_duration(meta.ge or 0)} or more"
        bounds = least if meta.le is None else f"{format_duration(meta.ge or 0)} to {format_duration(meta.le)}"
        return f"a duration of {bounds} ({DURATION_FORMS})"
    if meta is not None:
        return f"a whole number from {meta.ge} to {meta.le}"
    return "true or false" if kind is bool else "one of " + ", ".join(f'"{choice}"' for choice in get_args(kind))


def _meta(kind: Any) -> Meta | None:
    for part in (kind, *get_args(kind)):
        for note in getattr(part, "__metadata__", ()):
            if isinstance(note, Meta):
                return note
    return None


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


_AT_MOST = (
    ("guard.max_depth", "guard.depth_ceiling"),
    ("guard.max_descendants", "guard.descendants_ceiling"),
    ("defaults.timeout", "limits.max_time"),
    ("attempts.delay", "attempts.delay_max"),
)
"""Pairs of which the first may not be above the second. Where only the second is set, it lowers the first's built-in value;
where both are set, it is an error."""


def _too_high(config: Config) -> list[tuple[str, str]]:
    values = dict(_values(config, ""))
    return [(low, high) for low, high in _AT_MOST if values[low] > values[high]]


def _check_together(config: Config, origins: Mapping[str, tuple[Path, Any]]) -> None:
    values = dict(_values(config, ""))
    for low, high in _too_high(config):
        path, value = origins[low]
        source = origins[high][0] if high in origins else BUILT_IN
        raise _bad_value(path, low, value, f"at most {high}, which is {values[high]:g} ({source})")
