"""The gateways of a daemon: its own, and root's daemon has one for each other user, as that user.

So a user's calls come from that user's own process, and no other user depends on it: on its memory,
its connections, and what reads hostile requests in it. Only the service's own gateway calls
upstreams with a key of the operator's. A user's gateway knows no key. It passes requests to these
on to the service's own, with a name of the run that only the daemon can write. So a run has one
address, whatever the config says of keys at the time of a call.
"""

import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path

import trio
from msgspec.structs import replace

from ...agents.setup_reader import TreeSetups
from ...core.events import AgentProcess
from ...host.log import Log
from ...host.tasks import keep_serving
from ...processes import kernel
from ...processes.launcher import Launcher, LaunchSpec
from ...protocol.event_types import EventType
from ...protocol.known import KNOWN_PROGRAMS, KnownProgram
from ...protocol.types import RunId, Severity
from ...runs.live import Live
from .feature import GatewayConfig, UpstreamConfig
from .messages import UpstreamInfo
from .process import ANY_RUN, RECORD, GatewayProcess, Serving
from .program.call_journal import Noted


class Gateways:
    def __init__(
        self,
        config: GatewayConfig,
        launcher: Launcher,
        log: Log,
        tell: Callable[[EventType, str, Severity], None],
        settle: Callable[[int | None, Noted], Awaitable[None]],
        live: Callable[[], Iterable[Live]],
        damaged: Callable[[str], None],
        *,
        sock: str,
        state_dir: str,
    ) -> None:
        """Adopt the gateways of an earlier daemon. `settle` is told of the user whose gateway has
        noted the calls, too. Others: see `GatewayProcess`."""
        self.config = config
        self._launcher = launcher
        self._log = log
        self._live = live
        self.all_ports: set[int] = set()
        """Where any listens."""
        self._nursery: trio.Nursery | None = None

        def make(uid: int | None) -> GatewayProcess:
            return GatewayProcess(
                self.config, launcher, log, tell, partial(settle, uid), partial(self._in_use, uid),
                damaged, self.all_ports, uid=uid, sock=sock, state_dir=state_dir,
            )  # fmt: skip

        self._make = make
        self.own = make(None)
        self._of_users: dict[int, GatewayProcess] = {}
        self._for_users = os.geteuid() == 0
        if self._for_users:
            for path in Path(state_dir).glob(f"gateway-*{RECORD}"):
                if (text := path.stem.removeprefix("gateway-")).isdecimal():
                    self._of_users[int(text)] = make(int(text))

    def __iter__(self) -> Iterator[GatewayProcess]:
        yield self.own
        yield from self._of_users.values()

    def of(self, uid: int) -> GatewayProcess:
        """Return the gateway of a user's runs."""
        if uid <= 0 or not self._for_users:
            return self.own
        if uid not in self._of_users:
            self._of_users[uid] = self._make(uid)
            self._begin(self._of_users[uid])
        return self._of_users[uid]

    def known(self, uid: int) -> GatewayProcess | None:
        """Return the gateway of a user's runs, if there was need of one."""
        return self._of_users.get(uid) if self._for_users and uid else self.own

    def at(self, pid: int) -> GatewayProcess | None:
        """Return the gateway whose process this is."""
        return next((each for each in self if each.is_process(pid)), None)

    def reconfigure(self, config: GatewayConfig) -> None:
        self.config = config
        for each in self:
            each.reconfigure(config)

    def start_for_run(self, uid: int) -> Serving:
        """As `GatewayProcess.start_for_run`, for a run of a user."""
        if self._keyed:
            self.own.start_ahead()
        return self.of(uid).start_for_run()

    async def ready(self, uid: int) -> str | None:
        """Have the gateway of a user's run started. Return why that cannot be."""
        return await self.start_for_run(uid).wait()

    def address(self, uid: int, run: RunId) -> str:
        """Return where a user's run finds its gateway, whose cgroup tells nothing. Raises
        `OSError`."""
        return f"{self.of(uid).base}/run/{self.signed(run)}"

    def start_ahead(self, uid: int) -> None:
        """As `GatewayProcess.start_ahead`, for a run of a user."""
        self.of(uid).start_ahead()
        if self._keyed:
            self.own.start_ahead()

    # ---- what the config says

    @property
    def enabled(self) -> bool:
        """Whether new roots use it unless they ask otherwise."""
        return self.config.enabled is not False

    @property
    def always(self) -> bool:
        return self.config.enabled is True

    @property
    def upstreams(self) -> Mapping[str, UpstreamConfig]:
        return self.config.upstreams

    @property
    def _keyed(self) -> bool:
        return any(map(_has_key, self.upstreams.values()))

    def _in_use(self, uid: int | None) -> bool:
        """Return whether a live run uses the gateway of a user, or the service's own."""
        users = {live.uid for live in self._live() if live.parts.gateway}
        if uid is not None:
            return uid in users
        return bool(users) if self._keyed or os.geteuid() != 0 else 0 in users

    # ---- who calls which upstream

    def settings(self, gateway_uid: int | None) -> dict[str, UpstreamInfo]:
        """Return the upstreams of the config as a gateway is told them: that of a user, or the
        service's own. Raises `OSError`."""
        return {
            name: UpstreamInfo(url=each.url, api=each.api, through=self.own.base, free=each.free)
            if gateway_uid is not None and _has_key(each)
            else UpstreamInfo(
                url=each.url,
                api=each.api,
                key_env=each.key_env,
                key_file=each.key_file,
                free=each.free,
            )
            for name, each in self.upstreams.items()
        }

    def leads_keyed_only(self, gateway_uid: int | None, uid: int) -> bool:
        """Return whether a gateway leads a user's runs to upstreams with a key of the operator's
        only."""
        return gateway_uid is None and self.of(uid) is not self.own

    def may_ask(
        self, gateway_uid: int | None, live: Live, setups: TreeSetups, upstream: str
    ) -> bool:
        """Return whether a gateway may ask about a call of a run to an upstream. `setups`: of the
        run's tree."""
        if gateway_uid not in {None, live.uid}:
            return False
        found = self.upstreams.get(upstream) if upstream not in setups.upstreams else None
        keyed = found is not None and _has_key(found)
        return (
            keyed
            if self.leads_keyed_only(gateway_uid, live.uid)
            else gateway_uid is None or not keyed
        )

    # ---- names of runs

    def is_own(self, url: str) -> bool:
        """Return whether an address is that of a gateway: a run has inherited it."""
        return any(url.startswith(f"http://127.0.0.1:{port}/") for port in self.all_ports)

    def ports(self, uid: int) -> tuple[int | None, frozenset[int]]:
        """Return where the gateway of a user's runs listens, if it has an address yet, and where
        any does."""
        gateway = self.known(uid)
        return None if gateway is None else gateway.known_port, frozenset(self.all_ports)

    def lead(self, process: AgentProcess) -> bool:
        """Return whether an agent program calls its model through a gateway, as far as its command
        and its variables tell."""
        known = KNOWN_PROGRAMS.get(process.program, KnownProgram())
        variables = (kernel.variable(process.pid, name.encode()) for name in known.addresses)
        texts = [*map(os.fsdecode, filter(None, variables)), *kernel.command(process.pid)]
        return any(f"http://127.0.0.1:{port}/" in text for port in self.all_ports for text in texts)

    def run_of(self, token: str) -> RunId | None:
        """Return the run that a token names."""
        run = token.partition(".")[0]
        return run if secrets.compare_digest(self.signed(run).encode(), token.encode()) else None

    def token(self, run: RunId) -> str | None:
        """Return what names a run in an address; `None` where its cgroup tells."""
        return (
            self.signed(run)
            if self._launcher.containment != "cgroup" and self.own.known_port is not None
            else None
        )

    def named(self, run: RunId, spec: LaunchSpec) -> LaunchSpec:
        """Return what a run is launched with, each address of the gateway in command and
        environment with what names the run. Raises `OSError`."""
        if (token := self.token(run)) is None:
            return spec
        return replace(spec, argv=_with_token(spec.argv, token), env=_with_token(spec.env, token))

    def passage(self, gateway_uid: int | None, run: RunId) -> str | None:
        """Return what names a run to the service's own gateway, where a gateway passes calls on to
        that; else `None`. Raises `OSError`."""
        return self.signed(run) if gateway_uid is not None and self._keyed else None

    def signed(self, run: RunId) -> str:
        """Return a run's name as only the daemon can write it. Raises `OSError`."""
        return f"{run}.{blake2b(run.encode(), key=self.own.secret, digest_size=16).hexdigest()}"

    # ---- the processes

    async def serve(self) -> None:
        """Keep each gateway running while it is wanted, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            for each in self:
                self._begin(each)
            await trio.sleep_forever()

    def _begin(self, gateway: GatewayProcess) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._serve, gateway)

    async def _serve(self, gateway: GatewayProcess) -> None:
        await keep_serving(gateway.serve, self._log.internal_error)
        if gateway.uid is not None:  # nothing has been awaited since it was not in use
            del self._of_users[gateway.uid]
            gateway.close()
            gateway.forget()

    async def stop(self) -> None:
        """End all, because the daemon ends."""
        async with trio.open_nursery() as nursery:
            for each in self:
                nursery.start_soon(each.stop)
        for each in self._of_users.values():
            if not self._in_use(each.uid):
                each.forget()

    def close(self) -> None:
        for each in self:
            each.close()


def _has_key(upstream: UpstreamConfig) -> bool:
    return upstream.key_file is not None or upstream.key_env is not None


def _with_token(words: list[bytes], token: str) -> list[bytes]:
    return [word.replace(ANY_RUN.encode(), token.encode()) for word in words]
