"""Whether a run is isolated, and what its sandbox is given."""

import os
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from ...config import Loaded
from ...core.state.naming import program_name
from ...core.state.policy import Invalid
from ...gateway.egress_rules import is_model_api
from ...processes.isolation.programs import VARIABLES
from ...processes.isolation.sandbox import Sandbox, impossible
from ...protocol.egress import Destination, destination
from ...protocol.known import KNOWN_PROGRAMS
from ...protocol.messages import Spawn
from ...protocol.types import Isolation
from ...runs.live import Live
from .gateways import Gateways
from .worktrees import isolated

Least = Literal["off", "on", "net"]
_PLACES = (
    *(
        f"{each.files_variable}=/".encode()
        for each in KNOWN_PROGRAMS.values()
        if each.files_variable
    ),
    *(f"{name}=".encode() for name in VARIABLES),
)
_PROXIES = (
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "npm_config_proxy",
    "npm_config_https_proxy",
)
"""curl does not obey HTTP_PROXY, which a CGI program would take from its client. npm's are stronger
than a person's .npmrc."""
_NO_PROXIES = ("no_proxy", "NO_PROXY", "npm_config_noproxy")
_REPLACED = {
    name.lower().encode() for name in (*_PROXIES, *_NO_PROXIES, "all_proxy", "NODE_USE_ENV_PROXY")
}


class IsolationImpossible(Exception):
    """This machine cannot isolate the run. The message says why, and what to do."""


def _destinations(texts: Sequence[str]) -> dict[Destination, str]:
    """Return entries of `--egress`, each with its text. Raise `Invalid`."""
    try:
        found = {destination(text): text for text in texts}
    except ValueError as error:
        raise Invalid(f"--egress: {error}") from None
    for entry, text in found.items():
        if is_model_api(entry.host):
            raise Invalid(
                f"--egress: {text} is the API of a model, which a run reaches through the gateway: "
                "leave it out"
            )
    return found


def _of_home(paths: Sequence[str], home: bytes) -> Iterator[bytes]:
    """Yield paths of the config as they are for a user."""
    for path in map(os.fsencode, paths):
        yield home + path[1:] if path.startswith(b"~/") else path


class Isolating:
    def __init__(self, loaded: Loaded, gateways: Gateways, *, sock: str, state_dir: str) -> None:
        self._gateways = gateways
        self._socket = sock
        self._state_dir = state_dir
        self.reconfigure(loaded)

    def reconfigure(self, loaded: Loaded) -> None:
        self._config = loaded.config.isolation
        keys = (upstream.key_file for upstream in loaded.config.gateway.upstreams.values())
        # the config names programs that the daemon executes
        self._hidden = [
            self._state_dir,
            *map(str, loaded.files),
            *(path for path in keys if path is not None),
        ]

    def decided(self, request: Spawn, caller: Live | None, uid: int) -> Spawn:
        """Return the request of a user with its decision about isolation. `caller`: the run that
        asks, whose isolation is the least. Raise `Invalid`, `IsolationImpossible`."""
        least: Least = self._config.default
        inherited = caller.spawn.isolation if caller is not None else None
        asked = request.isolation
        if asked is None and inherited is None and least == "off":
            return request
        if (why := impossible(uid)) is not None:
            raise IsolationImpossible(f"the run cannot be isolated: {why}")
        network = (
            least != "net"
            and (asked is None or asked.network)
            and (inherited is None or inherited.network)
        )
        egress = self._egress(request, caller, network)
        if inherited is None:
            return replace(
                request, isolation=self._first(request, asked or Isolation(), network, egress)
            )
        if caller is not None and asked is not None and (asked.writable or asked.readable):
            what, option = (
                ("write only where", "--writable")
                if asked.writable
                else ("read only what", "--readable")
            )
            raise Invalid(
                f"run {caller.run.id} is isolated, so what it starts can {what} it can itself: "
                f"leave out {option}"
            )
        return replace(request, isolation=replace(inherited, network=network, egress=egress))

    def _egress(self, request: Spawn, caller: Live | None, network: bool) -> list[str]:
        """Return what a run reaches beside its model: at most what the run that asks does. Raise
        `Invalid`."""
        asked = request.isolation.egress if request.isolation is not None else []
        inherited = caller.spawn.isolation if caller is not None else None
        if asked and network:
            raise Invalid(
                "--egress is a way out of --isolate=net, "
                "and this run keeps the whole network: add --isolate=net"
            )
        if asked and not request.gateway:
            raise Invalid(
                "--egress leads through the gateway, and this run has none: start it with --gateway"
            )
        wanted = _destinations(asked)
        if caller is None or inherited is None or inherited.network:
            return [] if network else [*asked, *self._config.egress]
        if not asked:
            return inherited.egress
        more = wanted.keys() - _destinations(inherited.egress).keys()
        if more:
            raise Invalid(
                f"run {caller.run.id} is isolated, so what it starts has at most its --egress: "
                f"leave out {wanted[min(more)]}"
            )
        return asked

    def _first(
        self, request: Spawn, asked: Isolation, network: bool, egress: list[str]
    ) -> Isolation:
        home = next((item[5:] for item in request.env if item.startswith(b"HOME=/")), b"")
        program = program_name([os.fsdecode(word) for word in request.argv])
        word = request.argv[0] if request.argv else b""
        isolation = Isolation(
            network=network,
            writable=[*asked.writable, *_of_home(self._config.writable, home)],
            readable=[*asked.readable, *_of_home(self._config.readable, home)],
            egress=egress,
            directory=request.cwd,
            home=home,
            program=os.path.join(request.cwd, word) if b"/" in word else word,
            agent=program if program in KNOWN_PROGRAMS else "",
            variables=[item for item in request.env if item.startswith(_PLACES)],
        )
        return isolated(isolation, request.worktree)

    def environment(self, live: Live, env: list[bytes]) -> list[bytes]:
        """Return the environment of a run. If it reaches hosts through the gateway, that is its
        proxy. A person's is left out, because the run cannot reach it. Raises `OSError`."""
        spawn = live.spawn
        egress = spawn.isolation.egress if spawn.isolation is not None and spawn.gateway else []
        if not egress:
            return env
        token = self._gateways.token(live.run.id)
        user = f"{token}:run@" if token is not None else ""
        proxy = f"http://{user}127.0.0.1:{self._gateways.of(live.uid).port}"
        # the gateway itself, and what the run serves within its sandbox
        direct = (
            "127.0.0.1"
            if any(destination(text).host == "localhost" for text in egress)
            else "127.0.0.1,localhost"
        )
        told = (
            dict.fromkeys(_PROXIES, proxy)
            | dict.fromkeys(_NO_PROXIES, direct)
            | {"NODE_USE_ENV_PROXY": "1"}
        )
        kept = [item for item in env if item.partition(b"=")[0].lower() not in _REPLACED]
        return kept + [f"{name}={value}".encode() for name, value in told.items()]

    def sandbox(self, live: Live, *, terminal: bool, shims: Sequence[bytes]) -> list[bytes] | None:
        """Return `LaunchSpec.sandbox` of a run; `None` if it is not isolated. Raises `OSError`."""
        spawn = live.spawn
        if spawn.isolation is None:
            return None
        gateway = (
            self._gateways.of(live.uid).port
            if spawn.gateway and not spawn.isolation.network
            else None
        )
        return self.sandbox_of(spawn.isolation, gateway=gateway, terminal=terminal, shims=shims)

    def sandbox_of(
        self,
        isolation: Isolation,
        *,
        gateway: int | None = None,
        terminal: bool = False,
        shims: Sequence[bytes] = (),
    ) -> list[bytes]:
        """Return `LaunchSpec.sandbox` of a command with this isolation. Raises `OSError`."""
        return Sandbox(
            socket=self._socket,
            hidden=self._hidden,
            directory=isolation.directory,
            writable=isolation.writable,
            readable=isolation.readable,
            home=isolation.home,
            program=isolation.program,
            agent=isolation.agent,
            variables=isolation.variables,
            network=isolation.network,
            gateway=gateway,
            terminal=terminal,
            shims=shims,
            repository=isolation.repository,
            branches=isolation.branches,
        ).words()
