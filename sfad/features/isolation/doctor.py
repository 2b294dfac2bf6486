"""What `sfactl doctor` says of sandboxes."""

import os
from collections.abc import Iterator

from ...host import probe
from .sandbox import closes_abstract_sockets, impossible, tried


def findings() -> Iterator[tuple[str, str, str, str]]:
    """Yield whether this machine can isolate runs of this user."""
    path = probe.bubblewrap()
    if path is None:
        absent = "bubblewrap is not installed, so --isolate is refused"
        yield "isolation", "warn", absent, probe.FIX
        return
    why_not = impossible(os.getuid())
    failed = {
        option: why_not or tried(network=option == "--isolate")
        for option in ("--isolate", "--isolate=net")
    }
    possible = [option for option, why in failed.items() if why is None]
    for option, why in failed.items() if possible else [("any --isolate", failed["--isolate"])]:
        if why is not None:
            cannot = f"{path} cannot make a sandbox for {option}: {why}"
            instead = f"only {possible[0]}" if possible else "no --isolate"
            yield "isolation", "warn", cannot, f"allow user namespaces, or use {instead}"
    if possible:
        yield "isolation", "ok", f"{path} can make sandboxes for {' and '.join(possible)}", ""
    if failed["--isolate"] is None:
        those = "off the abstract Unix sockets of other programs"
        if closes_abstract_sockets():
            yield "abstract sockets", "ok", f"--isolate closes {those}", ""
        else:
            open_ = f"--isolate does not close {those}"
            fix = "use --isolate=net, or Linux 6.12 with Landlock, which containers may forbid"
            yield "abstract sockets", "warn", open_, fix
