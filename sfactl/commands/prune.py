"""Remove ended runs, with their output.

A tree is removed as a whole, with its rows and events in the ledger, and never while one of its runs is alive. --older-than 7d
--keep 100 removes trees that ended more than 7 days ago, except the newest 100. Root removes the trees of all
users, another user only their own.

Exit codes: 0 removed; 2 neither --older-than nor --keep; 75 not everything could be removed; 77 not permitted inside a run.
"""

from sfad.protocol.requests.daemon import Prune, Pruned
from sfad.protocol.units import counted

from .. import output
from ..connection import call
from ..exits import ExitCode, UsageError
from ..options import COMMON, Option, Parameter, count, seconds

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    Option(("--older-than",), "older_than", "Remove trees that ended longer ago: 7d, 12h", "TIME"),
    Option(("--keep",), "keep", "Keep the newest N trees (default: 0)", "N"),
    Option(("--dry-run",), "dry_run", "Only print what would be removed"),
)


def main(
    *,
    older_than: str | None = None,
    keep: str | None = None,
    dry_run: bool = False,
    socket: str | None = None,
    json: bool = False,
) -> int:
    if older_than is None and keep is None:
        raise UsageError("say what to remove: --older-than 7d, --keep 100, or --keep 0 for everything that has ended")
    wanted = Prune(
        id=0,
        older_than=seconds("--older-than", older_than),
        keep=count("--keep", keep) or 0,
        dry_run=dry_run,
    )
    found = call(socket, wanted, Pruned)
    if json:
        output.print_json({**output.content(found), "dry_run": dry_run})
    else:
        ledger = f", {output.size(found.ledger_bytes)} of the ledger's file" if found.ledger_bytes else ""
        print(
            f"{'would remove' if dry_run else 'removed'} {counted(found.runs, 'run')} in "
            f"{counted(found.trees, 'tree')}, {counted(found.events, 'event')}, "
            f"{counted(found.files, 'output file')} of {output.size(found.output_bytes)}{ledger}"
        )
    return ExitCode.DONE
