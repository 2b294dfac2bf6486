"""Deletes the output of runs that ended long ago."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..core.ids import number_or_zero
from ..protocol.types import RunId
from .files import SUFFIXES, TIMES

BATCH = 256
_KEPT = (*SUFFIXES, TIMES)

Ends = Callable[[Sequence[RunId]], Mapping[RunId, float | None]]
"""Returns when runs ended, in seconds since the epoch; `None` for a live run. Unknown runs are missing."""


def remove_old(directory: Path, cutoff: float, *, ends: Ends, live: Collection[RunId], between: Callable[[], object]) -> int:
    """Delete the output files of runs that ended before `cutoff`, in seconds since the epoch; return how many.

    Of a run that `ends` does not know, the time of the last write counts. Files of `live` runs, and other files, stay. For a
    thread: it waits for the disk. `between` is called between bounded batches, and may wait, or raise to give up. Raises the first
    `OSError` when all files have been tried."""
    names = [entry.name for entry in os.scandir(directory) if _run(entry.name) is not None]
    count, failed = 0, []
    for start in range(0, len(names), BATCH):
        batch = [name for name in names[start : start + BATCH] if _run(name) not in live]
        known = ends([run for name in batch if (run := _run(name)) is not None])
        for name in batch:
            try:
                count += _remove_if_old(directory / name, cutoff, known)
            except OSError as error:
                failed.append(error)
        between()
    if failed:
        raise failed[0]
    return count


def remove(directory: Path, runs: Collection[RunId], *, dry: bool, between: Callable[[], object]) -> tuple[int, int]:
    """Delete the files of `runs`, or only count them if `dry`. Return how many, and their bytes on the disk. Else as
    `remove_old`."""
    count, freed, failed = 0, 0, []
    for position, path in enumerate(directory / f"{run}{suffix}" for run in runs for suffix in _KEPT):
        try:
            freed += _remove(path, dry=dry)
            count += 1
        except FileNotFoundError:
            pass  # the run kept no output, or it was removed before
        except OSError as error:
            failed.append(error)
        if position % BATCH == BATCH - 1:
            between()
    if failed:
        raise failed[0]
    return count, freed


def _remove(path: Path, *, dry: bool) -> int:
    taken = path.lstat().st_blocks * 512  # st_blocks counts in units of 512 bytes: stat(2). Freed output leaves holes
    if not dry:
        path.unlink()
    return taken


def _remove_if_old(path: Path, cutoff: float, known: Mapping[RunId, float | None]) -> bool:
    run = path.name.partition(".")[0]
    with suppress(FileNotFoundError):
        # a run may have put a link in its file's place: the link is deleted, and not its target
        ended = known[run] if run in known else path.lstat().st_mtime
        if ended is not None and ended < cutoff:
            path.unlink()
            return True
    return False


def _run(name: str) -> RunId | None:
    run, dot, suffix = name.partition(".")
    return run if number_or_zero(run) and dot + suffix in _KEPT else None
