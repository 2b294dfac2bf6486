"""The part in a daemon: it puts shims first in the PATH of runs, and answers them."""

from pathlib import Path

from ...core.state.access import Peer, Scope
from ...daemon.loop.seam import Heart, Part
from .answering import Answering
from .directories import AutomaticShims, ShimDirectory
from .in_path import ShimsInPath


def part(heart: Heart) -> Part:
    state = Path(heart.resources.state_dir)
    installed = ShimDirectory(state)
    automatic = AutomaticShims(state, heart.resources.log.warning)
    in_path = ShimsInPath(installed, automatic, heart.catalogue.live)

    def look() -> None:
        installed.look()
        made.launch = in_path.launch if installed.in_path is not None else None

    def status(peer: Peer, _scope: Scope) -> dict[str, object]:
        look()  # so that the answer is what the next run finds
        shims = list(installed.programs) if installed.open_to(peer.uid) else []
        return {"shim_dir": str(installed.path), "shims": shims}

    made = Part(
        launch_routed=in_path.launch,
        instead_of_run=Answering(heart.parts().leading()).instead_of_run,
        reconfigure=look,
        status=status,
    )
    look()
    return made
