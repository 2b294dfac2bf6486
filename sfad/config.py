"""Layered TOML: built-in values, the operator's file, the user's file, key by key.

A misspelt key or a value outside its range is an error that names the file, the key and what is
allowed: a limit that an operator believes to be set must not be silently absent. Each key is
written once, as a field of a section below: its range is in the type, and docs/configuration.md
describes it.
"""

import json
import os
import re
import stat
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from .config_values import (
    COMMAND,
    COUNT,
    GROUP,
    LIMITS,
    NAME_MAX,
    PATH,
    SIZE,
    TEXT,
    NotAllowed,
    allowed,
    converted,
)  # fmt: skip
from .core.state.limits import check_range
from .core.state.naming import NAME, is_name
from .core.state.policy import (
    DURATION,
    AttemptsConfig,
    GuardConfig,
    Invalid,
    LimitsConfig,
    Policy,
    QuotasConfig,
    SessionsConfig,
    StopConfig,
)
from .feature import Section
from .features.listed import FEATURES
from .protocol.known import KNOWN_PROGRAMS, METERS
from .protocol.limits import parse_limit
from .protocol.messages import Setting
from .protocol.paths import is_systems, state_dir, xdg

SYSTEM_CONFIG = Path("/etc/sfad/sfad.toml")
"""The config of the system's daemon alone: it names users, keys and commands that no user's own
daemon has a right to."""

USERS_CONFIG = Path("/etc/sfad/user.toml")
"""What the operator sets for the daemons of users. Their own files override it."""

T = TypeVar("T")

BUILT_IN = "built-in"
"""The source of a value that no file sets."""

MAX_FILE = 1 << 20


class ConfigError(Exception):
    """A config file cannot be used. The message names the file, the key, the value and what is
    allowed."""


class DefaultsConfig(Struct, frozen=True, kw_only=True):
    timeout: Annotated[float, Meta(ge=1, extra=DURATION)] = 120.0
    program_profile: Literal["coding-agent", "off"] = "coding-agent"
    turns: Annotated[int, Meta(ge=1, le=1_000_000)] | None = 25
    """Tool calls, at most `limits.max_turns`. `None`, here and below, means no limit."""
    cost: Annotated[float, Meta(ge=0.01, le=1_000_000)] | None = 1.0
    messages: Annotated[int, Meta(ge=1, extra=COUNT)] | None = None
    tokens: Annotated[int, Meta(ge=1, extra=COUNT)] | None = None
    waiting: Annotated[float, Meta(ge=1, extra=DURATION)] | None = None
    """Seconds of waiting for a person; `limits.waiting` says what follows."""
    output: Annotated[int, Meta(ge=64 * 1024, extra=SIZE)] = 64 * 1024 * 1024
    memory: Annotated[int, Meta(ge=1024 * 1024, extra=SIZE)] | None = None
    """Bytes, of a run and its descendants. The ranges are those of `sfad.protocol.kinds`."""
    pids: Annotated[int, Meta(ge=1, le=4_194_304)] | None = 1024
    """Processes and threads of a tree; Linux allows at most 2^22 (PID_MAX_LIMIT, proc(5))."""
    cpu: Annotated[float, Meta(ge=0.01)] | None = None
    """Cores; the kernel accepts no less than 1 ms of every 100 ms (`cpu.max`)."""


class ProgramConfig(Struct, frozen=True, kw_only=True):
    stop: Literal["SIGINT-main", "SIGTERM"]


class GroupConfig(Struct, frozen=True, kw_only=True):
    NAMES: ClassVar = (
        r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}",
        "a group's name has 1 to 64 of A-Z a-z 0-9 _ - and does not begin with -",
    )
    slots: Annotated[int, Meta(ge=1, le=100_000)]
    """Trees of the group that a user may have at once."""


class ServiceConfig(Struct, frozen=True, kw_only=True):
    continue_lost: bool = False


class ContainmentConfig(Struct, frozen=True, kw_only=True):
    mode: Literal["auto", "cgroup", "tags"] = "auto"
    cgroup_parent: Annotated[str, Meta(extra=PATH)] | None = None


class AccessConfig(Struct, frozen=True, kw_only=True):
    users: Literal["auto", "all", "own"] = "auto"
    admin_group: Annotated[int, Meta(ge=0, le=2**32 - 2, extra=GROUP)] | None = None
    """The group whose members may do with all runs what root may."""


class LogConfig(Struct, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    file: Annotated[str, Meta(extra=PATH)] | None = None


class RetentionConfig(Struct, frozen=True, kw_only=True):
    output: Annotated[float, Meta(ge=60, le=3650 * 86400, extra=DURATION)] | None = 7 * 86400.0
    output_size: Annotated[int, Meta(ge=1 << 20, extra=SIZE)] | None = 10 << 30
    """Bytes on the disk, of each user."""
    ledger: Annotated[float, Meta(ge=3600, le=3650 * 86400, extra=DURATION)] | None = 90 * 86400.0
    backup_every: Annotated[float, Meta(ge=60, le=366 * 86400, extra=DURATION)] | None = 86400.0
    sweep_every: Annotated[float, Meta(ge=60, le=31 * 86400, extra=DURATION)] = 3600.0


class Price(Struct, frozen=True, kw_only=True):
    """What a model costs, in USD per million tokens; input from or to a cache costs what other
    input does where it has no price.

    It overrides, or adds to, the prices of the library genai-prices."""

    input_mtok: Annotated[float, Meta(ge=0)]
    output_mtok: Annotated[float, Meta(ge=0)]
    cached_mtok: Annotated[float, Meta(ge=0)] | None = None
    cache_write_mtok: Annotated[float, Meta(ge=0)] | None = None


class GatewayConfig(Struct, frozen=True, kw_only=True):
    bypass: Literal["auto", "warn", "terminate"] = "auto"
    """What follows if a run calls its model around the gateway, or an agent program in any run
    hands work to a server of its own outside of the tree. `auto`: `terminate` where a person has
    set a limit of money or tokens, else `warn`."""


if TYPE_CHECKING:
    MeterName = str
else:
    MeterName = Literal[("auto", *METERS)]


class Agent(Struct, frozen=True, kw_only=True):
    """How to start an agent by a name that the operator chose."""

    command: Annotated[tuple[str, ...], Meta(min_length=1, extra=COMMAND)]
    """`sfad.agents` has the placeholders."""
    resume: Annotated[tuple[str, ...], Meta(extra=COMMAND)] = ()
    """Continues one of its sessions, `{session}`; `{task}` is what it is told then."""
    description: Annotated[str, Meta(max_length=1000, extra=TEXT)] = ""
    kind: Literal["agent", "skill"] = "agent"
    type: Annotated[str, Meta(max_length=64, extra=TEXT)] | None = None
    meter: MeterName = "auto"
    limits: Annotated[tuple[str, ...], Meta(extra=LIMITS)] = ()
    stdin: bool = False


class Configuration(Struct, frozen=True, kw_only=True):
    """The effective configuration. Durations are in seconds."""

    enabled: bool = True
    guard: GuardConfig = GuardConfig()
    defaults: DefaultsConfig = DefaultsConfig()
    limits: LimitsConfig = LimitsConfig()
    stop: StopConfig = StopConfig()
    quotas: QuotasConfig = QuotasConfig()
    groups: dict[str, GroupConfig] = {}
    attempts: AttemptsConfig = AttemptsConfig()
    service: ServiceConfig = ServiceConfig()
    containment: ContainmentConfig = ContainmentConfig()
    access: AccessConfig = AccessConfig()
    log: LogConfig = LogConfig()
    retention: RetentionConfig = RetentionConfig()
    programs: dict[str, ProgramConfig] = msgspec.field(
        default_factory=lambda: {
            name: ProgramConfig(stop="SIGINT-main")
            for name, known in KNOWN_PROGRAMS.items()
            if known.interrupted
        }
    )
    """By the program's name, as the loop rule derives it from a command."""
    prices: dict[str, Price] = {}
    """By the model's name, as agents write it."""
    gateway: GatewayConfig = GatewayConfig()
    sessions: SessionsConfig = SessionsConfig()
    agents: dict[str, Agent] = {}

    def section(self, key: str, kind: type[T]) -> T:
        """Return a section that a feature has declared, or its keys in one of the heart's."""
        return msgspec.convert(getattr(self, key), kind, from_attributes=True)

    def is_set(self, section: Section) -> bool:
        """Return whether what a feature has declared differs from the defaults."""
        found = self.section(section.key, section.kind)
        if isinstance(found, dict) and section.key in Configuration.__struct_fields__:
            return any(entry != type(entry)() for entry in found.values())
        return bool(found != section.kind())


SECTIONS = tuple(section for feature in FEATURES.values() for section in feature.sections)


def _with(base: type[Struct], fields: Iterable[tuple[str, Any, Any]]) -> Any:
    return msgspec.defstruct(base.__name__, fields, bases=(base,), frozen=True, kw_only=True)


def _sections() -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields of `Whole` that features declare. A section of the heart keeps its place and
    its own keys."""
    hearts = {field.name: field.type for field in msgspec.structs.fields(Configuration)}
    for key, kind, *_ in SECTIONS:
        if key not in hearts:
            yield key, kind, kind()
            continue
        hearts[key] = both = _both(hearts[key], kind)
        yield key, both, {} if get_origin(both) is dict else both()


def _both(hearts: Any, own: Any) -> Any:
    """Return the type of a section that has the keys of two. A dictionary has them in each of its
    entries."""
    if get_origin(hearts) is dict:
        name, entry = get_args(hearts)
        return dict[name, _both(entry, get_args(own)[1])]  # type: ignore[misc, valid-type]
    fields = msgspec.structs.fields(own)
    return _with(hearts, [(each.name, each.type, _default(each)) for each in fields])


def _default(field: Any) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return msgspec.field(default_factory=field.default_factory)


Whole = _with(Configuration, _sections())
"""With the sections of the features."""
ARRAYS = {section.key for section in SECTIONS if section.array}


class Loaded(Struct, frozen=True):
    """A configuration, and where each of its values comes from."""

    config: Configuration
    settings: list[Setting]
    files: list[Path]
    strongest: Path | None = None
    """The file whose values win. It may not exist; a value that no file sets belongs in it."""
    contents: list[bytes] = msgspec.field(default_factory=list)
    """What is in each of `files`."""
    rejected: str | None = None
    """Why the files as they are now are not used, if this is the config of an earlier daemon."""


class _FileValues(Struct, frozen=True):
    """What the files set, the strongest file's values in place of others'.

    `names` holds, for each table of named tables, the names in it and their files."""

    values: dict[str, tuple[Path, Any]]
    names: dict[str, dict[str, Path]]


def config_files(
    env: Mapping[str, str], state: Path, flag: str | None = None
) -> tuple[list[Path], bool]:
    """Return the config files of the daemon with this state directory, the weakest first, and
    whether they must exist: the one of `flag` or SFAD_CONFIG must."""
    chosen = flag or env.get("SFAD_CONFIG")
    if chosen:
        return [Path(chosen).absolute()], True
    if is_systems(state):
        return [SYSTEM_CONFIG], False
    try:
        return [USERS_CONFIG, xdg(env, "XDG_CONFIG_HOME", ".config") / "sfad" / "sfad.toml"], False
    except ValueError:  # no home
        return [USERS_CONFIG], False


def load(files: Sequence[Path] = (), *, required: bool = False) -> Loaded:
    """Read `files`, the weakest first. A missing file is skipped unless `required`. Raises
    `ConfigError`."""
    contents = [
        (path, content) for path in files if (content := _read(path, required=required)) is not None
    ]
    return understand(contents, files[-1] if files else None)


def understand(contents: Sequence[tuple[Path, bytes]], strongest: Path | None) -> Loaded:
    """Return the config that files with these contents make, the weakest first. Raises
    `ConfigError`."""
    found = _FileValues({}, {})
    for path, content in contents:
        _collect(Whole, _parsed(path, content), path, "", found)
    config = _build(Whole, found, "")
    if lowered := {
        low: found.values[high] for low, high in _too_high(config) if low not in found.values
    }:
        found.values.update(lowered)
        config = _build(Whole, found, "")
    _check_together(config, found.values)
    _check_agents(config, found)
    _check_sections(config, found)
    settings = [
        Setting(
            key=key,
            value=value,
            source=str(found.values[key][0]) if key in found.values else BUILT_IN,
        )
        for key, value in _values(config, "")
    ]
    return Loaded(
        config,
        settings,
        [path for path, _ in contents],
        strongest,
        [content for _, content in contents],
    )


def _read(path: Path, *, required: bool) -> bytes | None:
    try:
        return _content(path)
    except FileNotFoundError as error:
        if required:
            raise ConfigError(f"{path}: no such file") from error
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        # ValueError: int() refuses a number with too many digits
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _content(path: Path) -> bytes:
    # O_NONBLOCK: open(2) of a FIFO would wait for a writer
    with open(
        path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)
    ) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):  # /dev/null is an empty config
            raise ConfigError(f"{path}: neither a regular file nor a device such as /dev/null")
        content = file.read(MAX_FILE + 1) or b""
    if len(content) > MAX_FILE:
        raise ConfigError(f"{path}: larger than {MAX_FILE} bytes")
    return content


def _collect(
    struct: type[Struct], table: Mapping[str, Any], path: Path, prefix: str, found: _FileValues
) -> None:
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    for name, value in table.items():
        key = f"{prefix}{name}"
        if name not in fields:
            raise ConfigError(
                f"{path}: {key}: unknown key; known here: {', '.join(sorted(fields))}"
            )
        if _is_section(fields[name]):
            _collect(fields[name], _table(value, path, key), path, f"{key}.", found)
        elif (entry := _entry(fields[name])) is not None:
            table = _by_name(value, path, key) if key in ARRAYS else _table(value, path, key)
            _collect_named(entry, table, path, key, found)
        else:
            found.values[key] = (path, value)


def _collect_named(
    entry: type[Struct], table: Mapping[str, Any], path: Path, key: str, found: _FileValues
) -> None:
    for name, value in table.items():
        inner = entry_key(key, name)
        if not 0 < len(name) <= NAME_MAX:
            raise ConfigError(
                f"{path}: {inner[:200]}: a name of 1 to {NAME_MAX} characters is expected"
            )
        found.names.setdefault(key, {})[name] = path
        _collect(entry, _table(value, path, inner), path, f"{inner}.", found)


def _by_name(value: Any, path: Path, key: str) -> Mapping[str, Any]:
    """Return an array of tables as a table, by the key `name` of each; one without a name gets its
    place in the file."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ConfigError(f"{path}: {key}: an array of tables is expected, each written [[{key}]]")
    found: dict[str, Any] = {}
    for place, each in enumerate(value, 1):
        table = dict(each)
        name = table.pop("name", f"{key}-{place}")
        if not isinstance(name, str) or not is_name(name):
            raise ConfigError(f"{path}: {key}.name = {name!r}: allowed are {NAME}")
        if name in found:
            raise ConfigError(f"{path}: {key}: two have the name {name!r}")
        found[name] = table
    return found


def _table(value: Any, path: Path, key: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {key} = {value!r}: a table is expected, written [{key}]")
    return value


def entry_key(key: str, name: str) -> str:
    """Return the key of a named table in TOML, quoted if necessary."""
    bare = re.fullmatch(r"[A-Za-z0-9_-]+", name)
    return f"{key}.{name if bare else json.dumps(name, ensure_ascii=False)}"


def _values(struct: Struct, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield each key with its value, in the order of TOML: what is in a table comes before the
    tables below it."""
    values = [(name, getattr(struct, name)) for name in struct.__struct_fields__]
    for name, value in sorted(values, key=lambda each: isinstance(each[1], Struct | dict)):
        if isinstance(value, Struct):
            yield from _values(value, f"{prefix}{name}.")
        elif isinstance(value, dict):
            for entry, inner in value.items():
                yield from _values(inner, f"{entry_key(f'{prefix}{name}', entry)}.")
        else:
            yield f"{prefix}{name}", value


def _build(struct: type[Any], found: _FileValues, prefix: str) -> Any:
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        key = f"{prefix}{field.name}"
        if _is_section(field.type):
            values[field.name] = _build(field.type, found, f"{key}.")
        elif (entry := _entry(field.type)) is not None:
            named = {
                name: _build_named(entry, found, key, name) for name in found.names.get(key, ())
            }
            values[field.name] = field.default_factory() | named
        elif key in found.values:
            values[field.name] = _convert(field.type, key, *found.values[key])
    built = struct(**values)
    for pair in getattr(struct, "EITHER", ()):
        _check_either(built, prefix, pair, found)
    return built


def _build_named(entry: type[Struct], found: _FileValues, key: str, name: str) -> Any:
    inner = entry_key(key, name)
    form, words = getattr(entry, "NAMES", (".*", ""))
    if not re.fullmatch(form, name, re.DOTALL):
        raise ConfigError(f"{found.names[key][name]}: {inner}: {words}")
    for field in msgspec.structs.fields(entry):
        if field.required and f"{inner}.{field.name}" not in found.values:
            path = found.names[key][name]
            raise ConfigError(
                f"{path}: {inner}.{field.name} is missing: allowed is {allowed(field.type)}"
            )
    return _build(entry, found, f"{inner}.")


def _convert(kind: Any, key: str, path: Path, value: Any) -> Any:
    try:
        return converted(kind, value)
    except NotAllowed as error:
        raise _bad_value(path, key, value, str(error)) from error
    except (ValueError, TypeError, OverflowError, KeyError) as error:
        # msgspec.ValidationError is a ValueError
        raise _bad_value(path, key, _without_secret(key, value), allowed(kind)) from error


def _without_secret(key: str, value: Any) -> Any:
    """Return a wrong value as an error may show it: a key may have been written in place of its
    variable's name."""
    if key.endswith((".key_env", ".headers_env")):
        return "…"
    if key.endswith((".url", ".endpoint")) and isinstance(value, str):
        return re.sub(r"//.*@", "//…@", value, flags=re.DOTALL)
    return value


def _bad_value(path: Path, key: str, value: Any, expected: str) -> ConfigError:
    shown = f"{str(value).lower() if isinstance(value, bool) else repr(value)}"
    return ConfigError(f"{path}: {key} = {shown[:200]}: allowed is {expected}")


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _entry(kind: Any) -> type[Struct] | None:
    """Return the type of each entry, for a table of tables whose names the operator chooses; else
    `None`."""
    return get_args(kind)[1] if get_origin(kind) is dict else None


_AT_MOST = (
    ("guard.max_depth", "guard.depth_ceiling"),
    ("guard.max_descendants", "guard.descendants_ceiling"),
    ("defaults.timeout", "limits.max_time"),
    ("defaults.turns", "limits.max_turns"),
    ("defaults.cost", "limits.max_cost"),
    ("defaults.output", "limits.max_output"),
    ("attempts.delay", "attempts.delay_max"),
    ("sessions.default_timeout_minutes", "sessions.max_timeout_minutes"),
    ("sessions.default_token_budget", "sessions.max_token_budget"),
)
"""Pairs of keys: the first may not be above the second. If only the second is set, it lowers the
first's built-in value. If both are set, it is an error."""


def _too_high(config: Configuration) -> list[tuple[str, str]]:
    values = dict(_values(config, ""))
    return [
        (low, high)
        for low, high in _AT_MOST
        if values[low] is not None and values[low] > values[high]
    ]


def _check_together(config: Configuration, origins: Mapping[str, tuple[Path, Any]]) -> None:
    values = dict(_values(config, ""))
    for low, high in _too_high(config):
        path, value = origins[low]
        source = origins[high][0] if high in origins else BUILT_IN
        raise _bad_value(
            path, low, value, f"at most {high}, which is {values[high]:.12g} ({source})"
        )


def _check_agents(config: Configuration, found: _FileValues) -> None:
    ranges = Policy(limits=config.limits)
    for name, agent in config.agents.items():
        key = entry_key("agents", name)
        if not is_name(name):
            path = found.names["agents"][name]
            raise ConfigError(f"{path}: {key}: an agent's name has {NAME}")
        try:
            for text in agent.limits:
                check_range(parse_limit(text), ranges)
        except (ValueError, Invalid) as error:
            raise ConfigError(
                f"{found.values[f'{key}.limits'][0]}: {key}.limits: {error}"
            ) from error


def _check_sections(config: Configuration, found: _FileValues) -> None:
    for section in SECTIONS:
        for name, expected in section.check(config) if section.check is not None else ():
            key = f"{section.key}.{name}"
            path, value = found.values[key]
            raise _bad_value(path, key, value, expected)


def _check_either(
    section: Struct, prefix: str, pair: tuple[str, str, str], found: _FileValues
) -> None:
    """Raise `ConfigError` if both keys of a pair are set. The message names the first."""
    one, other, why = pair
    if getattr(section, one) is None or getattr(section, other) is None:
        return
    path, value = found.values[f"{prefix}{one}"]
    source = found.values[f"{prefix}{other}"][0]
    raise _bad_value(path, f"{prefix}{one}", value, f'"off" beside {other} ({source}): {why}')


def main() -> None:
    """Print, as JSON, the settings of a daemon that would be started here. `sfactl run --help`
    shows them if no daemon runs."""
    try:
        files, required = config_files(os.environ, state_dir(os.environ, os.geteuid()))
        print(msgspec.json.encode(load(files, required=required).settings).decode())
    except (ConfigError, ValueError) as error:
        sys.exit(f"sfad: {error}")


if __name__ == "__main__":
    main()
