"""Whether a run is isolated, and what its sandbox is given."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from ...core.state.naming import program_name
from ...core.state.policy import Invalid
from ...daemon.loop.seam import Heart
from ...processes.launcher import LaunchSpec
from ...protocol.errors import unavailable
from ...protocol.known import KNOWN_PROGRAMS
from ...protocol.texts.destinations import Destination, destination
from ...protocol.types import Isolation
from ...runs.live import Live
from ...start.prepared import Prepared, Surroundings
from .feature import ISOLATION, IsolationConfig
from .programs import VARIABLES
from .sandbox import Sandbox, impossible

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


def _destinations(texts: Sequence[str], is_model: Callable[[str], bool]) -> dict[Destination, str]:
    """Return entries of `--egress`, each with its text. `is_model`: see `Leading`. Raise
    `Invalid`."""
    try:
        found = {destination(text): text for text in texts}
    except ValueError as error:
        raise Invalid(f"--egress: {error}") from None
    for entry, text in found.items():
        if is_model(entry.host):
            raise Invalid(
                f"--egress: {text} is the API of a model, which a run reaches through the gateway: "
                "leave it out"
            )
    return found


def _of_home(paths: Sequence[str], home: bytes) -> Iterator[bytes]:
    """Yield paths of the config as they are for a user."""
    for path in map(os.fsencode, paths):
        yield home + path[1:] if path.startswith(b"~/") else path


def _of(caller: Live | None) -> Isolation | None:
    """Return how the run is isolated that asks for another one."""
    isolation: Isolation | None = caller.parts.of(ISOLATION) if caller is not None else None
    return isolation


class Isolating:
    def __init__(self, heart: Heart) -> None:
        self._heart = heart
        self._leading = heart.parts().leading()
        self.reconfigure()

    def reconfigure(self) -> None:
        self._config = self._heart.section("isolation", IsolationConfig)
        # the config names programs that the daemon executes
        self._hidden = [
            self._heart.resources.state_dir,
            *map(str, self._heart.in_force.files),
            *self._leading.key_files(),
        ]

    def isolate(self, p: Prepared, around: Surroundings) -> None:
        """A step of `Starting.prepare`: decide what the run's sandbox has."""
        try:
            p.parts.decide(ISOLATION, self._decided(p, around))
        except IsolationImpossible as error:
            raise unavailable(str(error)) from None

    def _decided(self, p: Prepared, around: Surroundings) -> Isolation | None:
        """Return how a run is isolated. What its caller's isolation is, is the least. Raise
        `Invalid`, `IsolationImpossible`."""
        caller, asked = around.caller, around.order.isolation
        least: Least = self._config.default
        inherited = _of(caller)
        if asked is None and inherited is None and least == "off":
            return None
        if (why := impossible(around.peer.uid)) is not None:
            raise IsolationImpossible(f"the run cannot be isolated: {why}")
        network = (
            least != "net"
            and (asked is None or asked.network)
            and (inherited is None or inherited.network)
        )
        egress = self._egress(p, asked, caller, network=network)
        if inherited is None:
            return self._first(p, asked or Isolation(), egress, network=network)
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
        return replace(inherited, network=network, egress=egress)

    def _egress(
        self, p: Prepared, isolation: Isolation | None, caller: Live | None, *, network: bool
    ) -> list[str]:
        """Return what a run reaches beside its model: at most what the run that asks does. Raise
        `Invalid`."""
        asked = isolation.egress if isolation is not None else []
        inherited = _of(caller)
        if asked and network:
            raise Invalid(
                "--egress is a way out of --isolate=net, "
                "and this run keeps the whole network: add --isolate=net"
            )
        if asked and not p.parts.gateway:
            raise Invalid(
                "--egress leads through the gateway, and this run has none: start it with --gateway"
            )
        wanted = _destinations(asked, self._leading.is_model)
        if caller is None or inherited is None or inherited.network:
            return [] if network else [*asked, *self._config.egress]
        if not asked:
            return inherited.egress
        more = wanted.keys() - _destinations(inherited.egress, self._leading.is_model).keys()
        if more:
            raise Invalid(
                f"run {caller.run.id} is isolated, so what it starts has at most its --egress: "
                f"leave out {wanted[min(more)]}"
            )
        return asked

    def _first(
        self, p: Prepared, asked: Isolation, egress: list[str], *, network: bool
    ) -> Isolation:
        command = p.command
        home = next((item[5:] for item in command.env if item.startswith(b"HOME=/")), b"")
        program = program_name([os.fsdecode(word) for word in command.argv])
        word = command.argv[0] if command.argv else b""
        return Isolation(
            network=network,
            writable=[*asked.writable, *_of_home(self._config.writable, home)],
            readable=[*asked.readable, *_of_home(self._config.readable, home)],
            egress=egress,
            directory=command.cwd,
            home=home,
            program=os.path.join(command.cwd, word) if b"/" in word else word,
            agent=program if program in KNOWN_PROGRAMS else "",
            variables=[item for item in command.env if item.startswith(_PLACES)],
        )

    def launch(self, live: Live, spec: LaunchSpec, _: list[int]) -> LaunchSpec:
        """Return what a run is launched with: a sandbox. Raises `OSError`."""
        isolation: Isolation = live.parts.of(ISOLATION)
        gated = bool(live.parts.gateway)
        sandbox = self.sandbox_of(
            isolation,
            gateway=self._leading.port(live.uid) if gated and not isolation.network else None,
            terminal=spec.terminal,
            stand_ins=spec.stand_ins,
        )
        if not gated or not isolation.egress:
            return replace(spec, sandbox=sandbox)
        return replace(
            spec, env=self._environment(live, spec.env, isolation.egress), sandbox=sandbox
        )

    def _environment(self, live: Live, env: list[bytes], egress: Sequence[str]) -> list[bytes]:
        """Return the environment of a run that reaches hosts through the gateway: that is its
        proxy. A person's is left out, because the run cannot reach it. Raises `OSError`."""
        token = self._leading.token(live.run.id)
        user = f"{token}:run@" if token is not None else ""
        proxy = f"http://{user}127.0.0.1:{self._leading.port(live.uid)}"
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

    def sandbox_of(
        self,
        isolation: Isolation,
        *,
        gateway: int | None = None,
        terminal: bool = False,
        stand_ins: Sequence[bytes] = (),
    ) -> list[bytes]:
        """Return `LaunchSpec.sandbox` of a command with this isolation. Raises `OSError`."""
        return Sandbox(
            socket=self._heart.resources.socket,
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
            stand_ins=stand_ins,
            repository=isolation.repository,
            branches=isolation.branches,
        ).words()
