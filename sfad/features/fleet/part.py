"""The part in a daemon."""

from collections.abc import Collection
from pathlib import Path

import trio
from msgspec.structs import replace

from ...core.state.run import Run
from ...daemon.loop.seam import Heart, Machines, Part
from ...host.tasks import keep_serving
from ...processes.launcher import LaunchSpec
from ...runs.live import Live
from .answers.remains import Remains
from .awaited import AwaitedRuns
from .feature import FleetConfig
from .file_verbs import FileVerbs
from .files.kept import ShippedFiles
from .files.sending import Shipping
from .health import Health
from .keeper import FleetKeeper
from .node import Fleet
from .nodes import Nodes
from .preparing import Preparing
from .process import FleetProcess
from .quotas import SharedQuotas
from .verbs import FleetVerbs, GrantedRuns


def part(heart: Heart) -> Part:
    config, resources = heart.section("fleet", FleetConfig), heart.resources
    files = ShippedFiles(Path(resources.state_dir), config.ship_max)
    shipping = Shipping(files, heart.commands, heart.catalogue.live)
    fleet = Fleet(config, heart, shipping)
    process = FleetProcess(config, fleet, resources.launcher, resources.log,
        sock=resources.socket, lock=Path(resources.state_dir, "ray"),
    )  # fmt: skip
    keeper = FleetKeeper(config, fleet, heart)
    quotas = SharedQuotas(config, keeper, heart)
    granted = GrantedRuns(resources.timers)
    nodes = Nodes(fleet, resources.spool.values)
    awaited = AwaitedRuns(nodes, heart)
    preparing = Preparing(fleet, shipping, awaited)
    health = Health(fleet, nodes, process)
    verbs = FleetVerbs(config, fleet, process, keeper, granted, nodes, health, quotas, heart)
    remains = Remains(fleet, Path(resources.state_dir, "elsewhere"), shipping, resources.log)
    of_files = FileVerbs(fleet, shipping, heart, remains)

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            serving = (fleet.serve, nodes.serve, process.serve, remains.serve, quotas.serve)
            for each in (*serving, awaited.serve, keeper.serve, keeper.serve_shares):
                nursery.start_soon(keep_serving, each, resources.log.internal_error)

    def changed(runs: Collection[Run]) -> None:
        if fleet.remote:
            fleet.changed(runs)
        granted.changed(runs)
        quotas.changed(runs)
        awaited.changed(runs)

    def ended(run: Run) -> None:
        fleet.ended(run)
        remains.ended(run)

    def launch(live: Live, spec: LaunchSpec, _: list[int]) -> LaunchSpec:
        step = shipping.first_step(live)
        if step is None:
            return spec
        env = shipping.environment(live, spec.env)
        return replace(spec, env=env, first_step=step[0], cwd=step[1])

    return Part(
        verbs={**verbs.all(), **of_files.all()},
        loaded=quotas.loaded,
        serve=serve,
        look=preparing.look,
        check=preparing.check,
        launch=launch,
        changed=changed,
        ended=ended,
        machines=Machines(preparing.elsewhere, fleet.place, of_files.answer_there, keeper),
        shared_changed=keeper.shares_changed,
        is_own=process.is_of_ray if config.start is not None else None,
        kept=remains,
    )
