"""Routes runs through the gateway, or around it: what their commands and environments say of it
(docs/gateway.md)."""

import json
import os
import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from msgspec.structs import replace

from ...agents.command import Command
from ...agents.programs import claude
from ...agents.setup_reader import Root, SetupReader, TreeSetups
from ...agents.setups import (
    GATEWAY,
    VARIABLES,
    Setup,
    UnreadableError,
    json_object,
    merged,
    savable,
)
from ...config_values import is_base_url
from ...core.state.naming import executed_word, named_word, program_name
from ...core.state.policy import Invalid
from ...host.tasks import Background, Line
from ...protocol.errors import unavailable
from ...protocol.known import KEYS, KNOWN_PROGRAMS
from ...protocol.messages import Spawn
from ...runs.live import Live
from ...start.prepared import Prepared, Surroundings
from .feature import UpstreamConfig
from .gateways import Gateways
from .process import Serving

PLACEHOLDER = "the-gateway-has-the-key"
SHORTEST = 8
"""Characters of a key. What is shorter may be a part of anything."""

_PROXIES = (b"http_proxy=", b"https_proxy=", b"all_proxy=")
_NO_PROXY = (b"no_proxy", b"NO_PROXY")
"""Most programs read the first one first."""


class Routed(NamedTuple):
    argv: list[bytes]
    env: list[bytes]
    direct: str | None
    """Why it leads around the gateway."""


def routed(
    command: Command,
    setups: TreeSetups,
    gateways: Gateways,
    uid: int,
    *,
    gateway: bool,
    direct: str | None = None,
    explicit: bool = False,
    token: str | None = None,
) -> Routed:
    """Return what leads a user's command through the gateway, or around it. `gateway`: what was
    decided; `direct`: why it has to go around it, if that is known before; `explicit`: the request
    asked for the gateway; `token`: names the run in the gateway's address, where that is known.
    Raise `Invalid`, `OSError`."""
    words = [os.fsdecode(word) for word in command.argv]
    program = program_name(words)
    known = program in KNOWN_PROGRAMS  # of another one neither words nor variables matter
    at = named_word(words, program) if known else None
    setup = (
        setups.of(program, *_asked(words, at, command.env, gateways.of(uid).base))
        if gateway and known
        else setups.of(program)
    )

    def around(why: str | None) -> Routed:
        if explicit and why is not None:
            raise Invalid(f"{why}: leave out --gateway")
        env = _direct(command.env, setups, gateways)
        return Routed(command.argv, env, why if gateway else None)

    if not gateway or setup.direct is not None:
        return around(setup.direct)
    address = gateways.of(uid).address(token)
    more = [word.replace(GATEWAY, address) for word in setup.words]
    given = words[at + 1 :] if at is not None else []
    if given[: len(more)] == more:  # `timeout 60 codex` has them when its codex leads to a shim
        given = given[len(more) :]
    moved = _moved(command.env, setups, setup, gateways)
    own = next((variable for variable in moved if variable in setups.followed(setup)), None)
    why = (
        direct
        or _undone(setup, command, given)
        or (own and f"{own} was set to another address after its tree was started")
    )
    if why is not None:
        return around(why)
    argv = (
        command.argv
        if at is None
        else [*command.argv[: at + 1], *map(os.fsencode, [*more, *given])]
    )
    env = keyless(command.env, program, gateways.upstreams, setups, setup)
    env = with_options(with_objects(env, setup.merged, address), setup.appended, address)
    variables = {
        variable: value for variable, value in setups.env_of(setup).items() if variable not in moved
    }
    return Routed(argv, _with(env, variables, setup.unset, address), None)


def _settings_file(command: Command) -> str | None:
    """Return the file of settings that a command of Claude Code names; `None` if there is none."""
    if b"--settings" not in b" ".join(command.argv):
        return None
    words = [os.fsdecode(word) for word in command.argv]
    at = executed_word(words, "claude")
    file = claude.settings_file(words[at + 1 :]) if at is not None else None
    return None if file is None else os.path.normpath(os.path.join(os.fsdecode(command.cwd), file))


def _undone(setup: Setup, command: Command, options: Sequence[str]) -> str | None:
    """Return why other settings may count for a run than those that were found; `None` if none
    do."""
    # a word may hold a key
    if setup.undone_by is not None and any(re.fullmatch(setup.undone_by, word) for word in options):
        return (
            "with the settings in its command, others may count than those that route "
            f"{setup.program} through the gateway"
        )
    if setup.only_in is not None and savable(os.fsdecode(command.cwd)) != setup.only_in:
        return (
            f"the address in the settings of {setup.program} is known for {setup.only_in} only, "
            "where this tree was started"
        )
    if not setup.only_with:
        return None
    env = dict(
        item.decode(errors="surrogateescape").split("=", 1) for item in command.env if b"=" in item
    )
    set_above = dict(setup.env)  # the run above may be one of the same program
    other = next(
        (
            variable
            for variable, value in setup.only_with
            if savable(env.get(variable, "")) not in (value, set_above.get(variable, value))
        ),
        None,
    )
    return (
        (
            f"{other} is not what it was where this tree was started, "
            f"so other settings of {setup.program} count"
        )
        if other
        else None
    )


def _moved(env: Iterable[bytes], setups: TreeSetups, setup: Setup, gateways: Gateways) -> list[str]:
    """Return the variables in which a run above has put another address. They stay: the key of what
    follows them is for that."""
    upstream_of = {
        variable: value.split("/")[1]
        for variable, value in setups.env_of(setup).items()
        if value.startswith(f"{GATEWAY}/")
    }
    names = tuple([f"{variable}=".encode() for variable in upstream_of])
    inherited = [item for item in env if item.startswith(names)]
    if not inherited:
        return []
    moved = []
    urls = {name: upstream.url for name, upstream in gateways.upstreams.items()}
    urls |= {name: upstream.url for name, upstream in setups.upstreams.items()}
    for item in inherited:
        variable, _, value = item.decode(errors="surrogateescape").partition("=")
        if not value or gateways.is_own(value):
            continue
        if not f"{value}/".startswith(f"{urls[upstream_of[variable]]}/"):
            moved.append(variable)
    return moved


def _asked(
    words: Sequence[str], at: int | None, env: Iterable[bytes], gateway: str
) -> tuple[list[str], dict[str, str]]:
    """Return the words after the program, and its environment. What an earlier start has put there
    names no address of its own."""
    variables = dict(os.fsdecode(item).partition("=")[::2] for item in env)
    before, after = (words, []) if at is None else (words[:at], words[at + 1 :])
    assigned = dict(
        word.partition("=")[::2] for word in before if "=" in word and not word.startswith("-")
    )
    return [word.replace(f"{gateway}/", f"{GATEWAY}/") for word in after], variables | assigned


def check_base_urls(setups: TreeSetups) -> None:
    """Raise `Invalid` for an address of a person's that no request can be sent to: the agent's key
    would go to the provider of the config."""
    for upstream in setups.upstreams.values():
        if not is_base_url(upstream.url):
            shown = next(
                (variable for variable, (name, _) in VARIABLES.items() if name == upstream.name),
                upstream.name,
            )
            raise Invalid(
                f"{shown} in the environment cannot be an upstream of the gateway: "
                "it is not a URL that begins with http:// or https:// and has a host; "
                "correct or unset it, or start the run with --no-gateway"
            )


def _with(
    env: Iterable[bytes], variables: Mapping[str, str], unset: Iterable[str], address: str
) -> list[bytes]:
    told = {
        variable.encode(): value.replace(GATEWAY, address).encode()
        for variable, value in variables.items()
    }
    left_out = {*told, *(variable.encode() for variable in unset)}
    kept = [item for item in env if item.partition(b"=")[0] not in left_out]
    return exempt_from_proxies(kept) + [variable + b"=" + value for variable, value in told.items()]


def _direct(env: Sequence[bytes], setups: TreeSetups, gateways: Gateways) -> list[bytes]:
    """Return the environment of a run that leaves out the gateway, which the run above it may use:
    without placeholders, and with what the person had in place of the gateway's address."""
    own = {name: upstream.url for name, upstream in setups.upstreams.items()}
    kept = []
    for item in env:
        variable, _, value = item.partition(b"=")
        name = _upstream_in(value.decode(errors="replace"), gateways)
        if name is not None:
            kept += [variable + b"=" + own[name].encode()] if name in own else []
        elif value != PLACEHOLDER.encode():
            kept.append(item)
    return kept


def _upstream_in(url: str, gateways: Gateways) -> str | None:
    """Return the upstream that an address of the gateway leads to; `None` if it is another
    address."""
    parts = url.split("/")[3:] if gateways.is_own(url) else []
    return next(iter(parts[2:] if parts[:1] == ["run"] else parts), None)


def keyless(
    env: Sequence[bytes],
    program: str,
    upstreams: Mapping[str, UpstreamConfig],
    setups: TreeSetups,
    setup: Setup,
) -> list[bytes]:
    """Return the environment of a run that uses the gateway: without the keys that the gateway has,
    and with placeholders, because programs do not start without a key. For upstreams that the run's
    root has chosen the gateway uses no key, so theirs stay."""
    chosen = setups.upstreams
    keyed = {
        name: each
        for name, each in upstreams.items()
        if name not in chosen and (each.key_file or each.key_env)
    }
    if not keyed:
        return list(env)
    secrets = {
        os.environb.get(each.key_env.encode(), b"")
        for each in keyed.values()
        if each.key_env is not None
    }
    secrets = {secret for secret in secrets if len(secret) >= SHORTEST}
    replaced = {variable for name in keyed for variable in KEYS.get(name, ())} - setups.keys
    kept = [
        item
        for item in env
        if item.partition(b"=")[0].decode(errors="replace") not in replaced
        and not item.endswith(f"={PLACEHOLDER}".encode())
        and not any(secret in item for secret in secrets)
    ]
    called = [name for name in keyed if name in KEYS and not {*KEYS[name]}.issubset(setup.keys)]
    known = KNOWN_PROGRAMS.get(program)
    own = known.keys if known is not None else ()
    variables = {
        next((key for key in own if key in KEYS[name]), KEYS[name][0]).encode() for name in called
    }
    missing = variables - {item.partition(b"=")[0] for item in kept}
    return kept + [variable + f"={PLACEHOLDER}".encode() for variable in sorted(missing)]


def with_objects(
    env: Sequence[bytes], objects: Iterable[tuple[str, str]], address: str
) -> list[bytes]:
    """Return the environment with these objects merged into those of its variables. What is not
    JSON stays as it is."""
    result = list(env)
    for variable, text in objects:
        name = f"{variable}=".encode()
        before = next((item.removeprefix(name) for item in result if item.startswith(name)), b"")
        try:
            own = json_object(before.decode(errors="surrogateescape"), variable)
        except UnreadableError:
            continue
        value = json.dumps(merged(own, json.loads(text.replace(GATEWAY, address)))).encode()
        result = [item for item in result if not item.startswith(name)] + [name + value]
    return result


def with_options(
    env: Sequence[bytes], options: Iterable[tuple[str, str]], address: str
) -> list[bytes]:
    """Return the environment with each option after those that its variable has."""
    result = list(env)
    for variable, text in options:
        name, option = f"{variable}=".encode(), text.replace(GATEWAY, address).encode()
        before = next((item.removeprefix(name) for item in result if item.startswith(name)), b"")
        if option not in before:
            result = [item for item in result if not item.startswith(name)] + [
                name + (before + b" " + option).strip()
            ]
    return result


def exempt_from_proxies(env: list[bytes]) -> list[bytes]:
    """Return an environment in which no program looks for the gateway behind a proxy."""
    if not any(item.lower().startswith(_PROXIES) and not item.endswith(b"=") for item in env):
        return env
    no_proxy = {
        name: value
        for name, _, value in (item.partition(b"=") for item in env)
        if name in _NO_PROXY
    }
    hosts = next((value for name in _NO_PROXY if (value := no_proxy.get(name))), b"")
    if hosts.strip() != b"*" and b"127.0.0.1" not in (host.strip() for host in hosts.split(b",")):
        hosts += b",127.0.0.1" if hosts else b"127.0.0.1"
    return [item for item in env if item.partition(b"=")[0] not in _NO_PROXY] + [
        name + b"=" + hosts for name in _NO_PROXY
    ]


# ---- Steps of `Starting.prepare`


def asks_for_gateway(request: Spawn, *, by_default: bool | None) -> bool:
    """Return whether the request says that its run is to use the gateway. A list of models says so
    too."""
    return (
        request.gateway
        if request.gateway is not None
        else bool(request.allowed_models or by_default)
    )


@lru_cache(maxsize=1)  # starts in a shell loop have the same, here and below
def _is_agent(argv: tuple[bytes, ...]) -> bool:
    return program_name([os.fsdecode(word) for word in argv]) in KNOWN_PROGRAMS


@lru_cache(maxsize=1)
def _root(uid: int, cwd: bytes, env: tuple[bytes, ...], ports: frozenset[int]) -> Root:
    """Return whose root it is, and where it starts. An address of a gateway in its environment was
    inherited."""
    own = tuple([b"http://127.0.0.1:%d/" % port for port in ports])
    return Root.of(uid, cwd, [item for item in env if not item.partition(b"=")[2].startswith(own)])


class GatewaySteps:
    """Steps of `Starting.prepare`: how a run is led to its model."""

    def __init__(self, gateways: Gateways, setups: SetupReader, background: Background) -> None:
        self._gateways = gateways
        self._setups = setups
        self._line = Line(background)
        """Of each root that waits for its setups, and of each user who waits for the gateway:
        requests are admitted in the order of their arrival."""

    def read_setups(self, around: Surroundings) -> Awaitable[TreeSetups] | None:
        """Find out how the agent programs of a person's new tree are led to their models: set that,
        or return what it becomes."""
        order, peer, gateways = around.order, around.peer, self._gateways
        if (
            around.caller is not None
            or peer.unidentified
            or not asks_for_gateway(order, by_default=gateways.enabled)
        ):
            return None
        root = _root(peer.uid, order.cwd, tuple(order.env), frozenset(gateways.all_ports))
        # an agent program calls its model at once: what was found a moment ago may be old by now
        is_agent = order.agent is not None or _is_agent(tuple(order.argv[:8]))
        known = None if is_agent else self._setups.known(root)
        if known is None or not self._line.is_empty(root):
            around.waits()
            return self._line.wait(root, partial(self._setups.read, root))
        around.setups = known
        return None

    def decide(self, p: Prepared, around: Surroundings) -> None:
        """Decide whether the run uses the gateway. What is in a run that uses it may not leave it,
        and the other way round."""
        order, caller = around.order, around.caller
        inherited = self._gateways.enabled if caller is None else caller.parts.gateway
        asked = order.gateway
        if asked is None and asks_for_gateway(order, by_default=inherited):
            asked = True
        if not asked and (order.allowed_models or (caller is not None and caller.run.birth.models)):
            raise Invalid(
                "only the gateway bounds models: leave out --no-gateway, "
                "because --model-allow was given to this run or one above it"
            )
        if caller is None:
            if asked:
                check_base_urls(around.setups)
        elif asked and caller.parts.gateway is False:
            raise Invalid(
                f"run {caller.run.id} was started with --no-gateway, which holds for what it "
                "starts: leave out --gateway"
            )
        elif asked is None:
            asked = inherited
        elif not asked and inherited:
            raise Invalid(
                f"run {caller.run.id} uses the gateway, so what it starts may not leave it: "
                "leave out --no-gateway, or start the run from outside any run"
            )
        p.parts.gateway = asked
        if asked and order.agent is not None:
            p.gateway_address = self._gateways.of(around.peer.uid).address()

    def read_settings(self, p: Prepared, around: Surroundings) -> Awaitable[None] | None:
        """Look at the settings that a command names: with them its program may go elsewhere."""
        file = _settings_file(p.command) if p.parts.gateway else None
        return self._read_settings(p, around, file) if file is not None else None

    async def _read_settings(self, p: Prepared, around: Surroundings, file: str) -> None:
        await around.aside()
        p.parts.direct = await self._setups.why_around(around.peer.uid, file)

    def route(self, p: Prepared, around: Surroundings) -> None:
        """Route command and environment through the gateway, or around it."""
        gateway, direct, uid = p.parts.gateway, p.parts.direct, around.peer.uid
        if gateway is None:
            return
        lead = partial(
            routed, setups=around.setups, gateways=self._gateways, uid=uid, gateway=gateway,
            direct=direct,
        )  # fmt: skip
        if p.command.resume_argv:
            resumed = replace(p.command, argv=p.command.resume_argv)
            p.command.resume_argv = lead(resumed).argv
        p.command.argv, p.command.env, p.parts.direct = lead(
            p.command, explicit=bool(around.order.gateway)
        )

    def own_command(self, around: Surroundings, run: Live) -> list[bytes]:
        """Return the command of a run's own program, which starts it in place of a shim. Raise
        `Invalid`, `OSError`."""
        p = Prepared.of(around.order)
        self.decide(p, around)
        if p.parts.gateway is None:
            return p.command.argv
        return routed(
            p.command, around.setups, self._gateways, run.uid,
            gateway=p.parts.gateway, token=self._gateways.token(run.run.id),
        ).argv  # fmt: skip

    def have(self, p: Prepared, around: Surroundings) -> Awaitable[None] | None:
        """Have the gateway started, and wait for it if the run may not start without."""
        gateways, uid = self._gateways, around.peer.uid
        if not p.parts.gateway:
            return None
        if around.caller is None and (around.order.gateway or gateways.always):
            serving = gateways.start_for_run(uid)
            if serving.known and self._line.is_empty(uid):
                return None
            return self._have(serving, around)
        is_agent = around.order.agent is not None or p.asked.sources.agent_program
        if p.parts.direct is None and is_agent:
            gateways.start_ahead(uid)
        return None

    async def _have(self, serving: Serving, around: Surroundings) -> None:
        around.waits()
        await self._line.wait(around.peer.uid, serving.wait)
        while not serving.known:  # those in front have waited for an earlier start
            await self._line.wait(around.peer.uid, serving.wait)
        trouble = await serving.wait()
        if trouble is not None:
            way_out = ". --no-gateway starts the run without it" if around.peer.run is None else ""
            raise unavailable(
                f"the gateway cannot be started: {trouble}; the daemon's log says more{way_out}"
            )
