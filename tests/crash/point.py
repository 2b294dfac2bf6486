"""One crash: the scenario with a daemon that dies at one effect, and everything that must be true
afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sfad.protocol.types import RunInfo
from tests.e2e.provider import Provider, providing
from tests.harness import PATIENCE, strays, wait_until
from tests.leaks import cgroups

from . import promises
from .scenario import CONFIG, RENEWED, STORIES, Scenario, Story, everything, left_running
from .victim import Agents, Victim

MODES = ("cgroup", "tags")
KINDS = ("scenario", "recovery", "reexec")
"""`recovery`: the daemon is killed in the middle of everything, and it is the next one that dies at
an effect. `reexec`: effects are counted from the moment on at which the daemon re-executes
itself."""

TIME = 90.0
"""Seconds that a point takes at most."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where the daemon is to die."""

    kind: str
    mode: str
    number: int

    @property
    def crash_at(self) -> str:
        """For the daemon's environment."""
        return f"hand over+{self.number}" if self.kind == "reexec" else str(self.number)


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    point: Point
    effect: str | None = None
    """At which it died; `None` if there are fewer effects than that."""
    serving: bool = True
    """Whether it had begun to serve by then."""
    down: float = 0.0
    """Seconds from its death until the next one served."""
    wrong: list[str] = field(default_factory=list)
    log: str = ""

    def __str__(self) -> str:
        point = self.point
        died = (
            f"died at {self.effect!r}{'' if self.serving else ' before it served'}"
            if self.effect
            else "no such effect"
        )
        told = "".join(f"\n    {line}" for line in self.wrong)
        return (
            f"{point.mode} {point.kind} {point.number}: "
            f"{died}, back after {self.down:.1f} s: {'WRONG' if told else 'ok'}{told}"
        )


class _Play:
    """The scenario, and who starts the daemon again."""

    def __init__(self, directory: Path, point: Point, provider: Provider) -> None:
        self.point = point
        self.outcome = Outcome(point)
        self.agents = Agents(directory)
        first = "" if point.kind == "recovery" else point.crash_at
        self.until = time.monotonic() + TIME
        self.provider = provider
        self.daemon = Victim(
            directory, config=CONFIG.format(url=provider.url), mode=point.mode, crash_at=first
        )
        self.acknowledged: set[str] = set()
        self.finals: dict[str, RunInfo] = {}

    def go(self) -> None:
        outcome, daemon = self.outcome, self.daemon
        kind = self.point.kind
        self._play(STORIES if kind == "scenario" else RENEWED, interrupt=kind != "scenario")
        self._play([everything])
        self._check_end(stopped=True)
        self._play([left_running])
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: daemon.process.poll() is not None, "it ends", seconds=PATIENCE)
        if daemon.process.poll() != 0 and self._look_after():
            daemon.process.send_signal(signal.SIGTERM)
            daemon.process.wait(PATIENCE)
        if daemon.process.returncode != 0:
            outcome.wrong.append(f"it ended with {daemon.process.returncode} after SIGTERM")
        self._check_end(stopped=False)
        if "internal error" in (log := daemon.log.read_text()) or "Traceback" in log:
            outcome.wrong.append(f"the log tells of an internal error: {log}")

    def _play(self, stories: Sequence[Story], *, interrupt: bool = False) -> None:
        scenario = Scenario(self.daemon, self.agents, stories)
        self.acknowledged |= scenario.book.acknowledged
        if interrupt:
            self._interrupt()
        while scenario.going_on:
            assert time.monotonic() < self.until, (
                f"the scenario is not over after {TIME:g} s: {scenario.wrong}"
            )
            if self._look_after():
                self._check_present(scenario)
            time.sleep(0.01)
        self.outcome.wrong += scenario.wrong
        self.acknowledged |= scenario.book.acknowledged
        self.finals |= scenario.book.finals

    def _interrupt(self) -> None:
        """In the middle of everything."""
        with suppress(AssertionError):
            wait_until(
                lambda: self._look_after() or len(self.agents.read().runs) >= len(RENEWED) - 1,
                "agents have begun",
                seconds=5,
            )
        self._look_after()
        if self.point.kind == "reexec":
            self.daemon.process.send_signal(signal.SIGUSR2)
        else:
            self.daemon.process.kill()
            self.daemon.start_again(self.point.crash_at)

    def _look_after(self) -> bool:
        """Starts the daemon again if it is dead; whether it was."""
        fallen = self.daemon.fallen
        if fallen is None:
            return False
        assert self.outcome.effect is None, f"it died a second time: {fallen}"
        self.outcome.effect, self.outcome.serving = fallen, self.daemon.serving
        died = time.monotonic()
        self.daemon.start_again()
        self.outcome.down = time.monotonic() - died
        return True

    def _check_present(self, scenario: Scenario) -> None:
        known = self.acknowledged | scenario.book.acknowledged
        with self.daemon.client() as client:
            self.outcome.wrong += promises.settle(
                lambda: promises.present(client, self.daemon, known, self.agents.read)
            )

    def _check_end(self, *, stopped: bool) -> None:
        outcome, daemon = self.outcome, self.daemon
        outcome.wrong += promises.settle(lambda: promises.nothing_left(daemon))
        if stopped:
            with daemon.client() as client:
                shown = promises.all_runs(client)
            outcome.wrong += [
                f"{run} was acknowledged and is not listed"
                for run in self.acknowledged
                if run not in shown
            ]
            outcome.wrong += promises.history(shown, self.agents.read(), self.finals)
            outcome.wrong += promises.charged(shown, self.provider)
        else:
            outcome.wrong += daemon.leftovers()
            outcome.wrong += promises.no_gateway(daemon)

    def clean_up(self) -> None:
        process = self.daemon.process
        if process.poll() is None:
            process.kill()
            process.wait()
        for stray in strays(self.daemon.instance):
            with suppress(psutil.NoSuchProcess):
                stray.kill()
        for base in (path for path in cgroups() if path.endswith(f"/sfad-{self.daemon.instance}")):
            for directory, _, _ in os.walk(base, topdown=False):
                with suppress(OSError):
                    os.rmdir(directory)


def crash(directory: Path, point: Point) -> Outcome:
    """Lets the daemon die there."""
    with providing() as provider:
        play = _Play(directory, point, provider)
        try:
            play.go()
        except Exception as error:  # noqa: BLE001 - the others are to be tried as well
            play.outcome.wrong.append(f"{type(error).__name__}: {error}")
        finally:
            play.clean_up()
    play.outcome.log = play.daemon.log.read_text()
    return play.outcome
