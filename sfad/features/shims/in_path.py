"""What a run finds of the shims: its PATH begins with them, also after a login shell has set it."""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...processes.launcher import LaunchSpec
from ...protocol.types import RunId
from ...runs.live import Live
from . import files
from .directories import AutomaticShims, ShimDirectory
from .feature import SHIMS

THEIR_BASH_ENV = "SFA_BASH_ENV"
"""A variable of a run: what BASH_ENV was before, which bash expands."""


class ShimsInPath(Struct):
    installed: ShimDirectory
    automatic: AutomaticShims
    live: Mapping[RunId, Live]

    def launch(self, live: Live, spec: LaunchSpec, _: list[int]) -> LaunchSpec:
        """Return what a run is launched with: the installed shims come first in its PATH, then the
        automatic ones."""
        run, installed = live.run, self.installed
        enters = installed.in_path is not None and installed.open_to(run.birth.uid)
        found = [installed.in_path if enters else None]
        if live.parts.gateway:
            programs = self.live[run.root.id].setups.programs
            found.append(self.automatic.in_path(programs, run.birth.uid))
        shims = [each for each in found if each is not None]
        if not shims:
            return spec
        return replace(spec, env=_environment(spec.env, shims), stand_ins=shims)


def _environment(env: list[bytes], shims: Sequence[bytes]) -> list[bytes]:
    kept, own = [], b"/" + files.BASH_ENV.encode()
    for item in env:
        if item.startswith(b"PATH="):
            others = [directory for directory in item[5:].split(b":") if directory not in shims]
            kept.append(b"PATH=" + b":".join([*shims, *others]))
        elif not item.startswith(b"BASH_ENV="):
            kept.append(item)
        elif not item.endswith(own):
            # else it is that of a run above, and SFA_BASH_ENV holds the person's
            kept.append(f"{THEIR_BASH_ENV}=".encode() + item[9:])
    return [
        *kept,
        b"BASH_ENV=" + shims[-1] + own,
        SHIMS.encode() + b"=" + b":".join(shims),
    ]
