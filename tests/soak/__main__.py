"""`python -m tests.soak --minutes 10 --seed N`: see the package. Exit code 0 if every promise was
kept."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random, SystemRandom

from sfad import config as configuration
from sfad.daemon.loop.policy import policy_of
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo
from tests import surroundings
from tests.crash import promises
from tests.crash.victim import Agents, Victim
from tests.e2e.provider import providing
from tests.harness import PATIENCE, strays, wait_until

from .chaos import Chaos, small_disk
from .clients import Book, Worker, final_list
from .model import Judge

CLIENTS = 4

LOOK = 3.0
"""Maximum seconds between two faults."""

CONFIG = """
[guard]
max_depth = 4
max_descendants = 6
[quotas]
trees = 8
trees_per_user = 8
spawns_per_hour = 100000
[defaults]
timeout = 60
[stop]
grace = 1
[limits]
approval_timeout = 20
pause_max = 20
[gateway]
enabled = true
[gateway.upstreams.anthropic]
url = "{url}"
api = "anthropic"
"""
"""With the URL of a provider to be filled in."""


class Soak:
    """A daemon, its clients and its faults."""

    def __init__(self, directory: Path, mode: str, seed: int, url: str, *, disk: bool) -> None:
        """`url`: of a provider."""
        self._random = Random(seed)
        self.agents = Agents(directory)
        self.daemon = Victim(directory, config=CONFIG.format(url=url), mode=mode)
        self.chaos = Chaos(self.daemon, Random(seed + 1), disk=disk)
        self.book = Book()
        self.wrong: list[str] = []
        self.runs: list[RunInfo] = []
        self.judged: Counter[str] = Counter()

    def go(self, seconds: float) -> None:
        """Run clients and faults, and check the promises afterwards."""
        until = time.monotonic() + seconds
        workers = [
            Worker(self.daemon, self.agents, self.book, Random(self._random.random()))
            for _ in range(CLIENTS)
        ]
        for worker in workers:
            worker.start()
        while time.monotonic() < until:
            self._pass(self._random.uniform(0, LOOK))
            self.chaos.strike()
            self._look()
        self.book.ended.set()
        self._pass(1)
        self._renew_for_the_last_time()
        for worker in workers:
            worker.join(2 * PATIENCE)
        self._end()

    def _pass(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.chaos.look_after()
            time.sleep(0.05)

    def _look(self) -> None:
        """Check the promises now, unless the daemon dies meanwhile."""
        known = set(self.book.acknowledged)
        try:
            with self.daemon.client() as client:
                found = promises.settle(
                    lambda: promises.present(client, self.daemon, known, self.agents.read)
                )
        except Exception:  # noqa: BLE001 - no daemon serves at the moment
            return
        self.wrong += [f"after {self.chaos.deaths[-1:]}: {line}" for line in found]

    def _renew_for_the_last_time(self) -> None:
        """Replace the daemon by one that does not crash."""
        self.chaos.kill()
        self.daemon.start_again()

    def _end(self) -> None:
        with self.daemon.client() as client:
            client.call(m.Stop(id=client.next_id(), everything=True, grace=1), m.Stopped)
            self.wrong += promises.settle(lambda: promises.nothing_left(self.daemon), PATIENCE)
            self.runs = final_list(client)
        shown = {run.id: run for run in self.runs}
        diary = self.agents.read()
        self.wrong += [
            f"{run} was acknowledged and is not listed"
            for run in self.book.acknowledged
            if run not in shown
        ]
        for run, told in self.book.refusals.items():
            if run in shown and shown[run].status != told:
                self.wrong.append(f"{run} was told to be {told} and is {shown[run].status}")
        self.wrong += promises.history(shown, diary, self.book.finals, unique=False)
        policy = policy_of(configuration.load([self.daemon.config], required=True), everyone=False)
        judge = Judge(policy, self.runs, diary, self.chaos.deaths)
        judge.judge()
        self.wrong += judge.wrong
        self.judged = judge.judged
        self.daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: self.daemon.process.poll() is not None, "it ends")
        self.wrong += (
            [f"it ended with {self.daemon.process.returncode}"]
            if self.daemon.process.returncode
            else []
        )
        self.wrong += self.daemon.leftovers()
        self.wrong += promises.no_gateway(self.daemon)
        log = self.daemon.log.read_text()
        self.wrong += (
            ["the log tells of an internal error"]
            if "internal error" in log or "Traceback" in log
            else []
        )

    def tell(self) -> None:
        """Print what was done."""
        print("operations:", _listed(self.book.done))
        print("faults:", _listed(self.chaos.done))
        print(
            f"deaths: {sum(self.chaos.died.values())}; longest restart {self.chaos.longest:.1f} s:",
            _listed(self.chaos.died),
        )
        print("runs:", _listed(Counter(run.status.value for run in self.runs)))
        print("the core:", _listed(self.judged))
        for line in [*self.book.wrong, *self.chaos.wrong, *self.wrong]:
            print("WRONG", line)

    @property
    def failed(self) -> bool:
        """Return whether a promise was broken."""
        return bool(self.book.wrong or self.chaos.wrong or self.wrong)

    def clean_up(self) -> None:
        """Leave no process and no mount behind."""
        self.book.ended.set()
        if self.daemon.process.poll() is None:
            self.daemon.process.kill()
            self.daemon.process.wait()
        for stray in strays(self.daemon.instance):
            stray.kill()


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {times}" for what, times in counts.most_common())


def main() -> int:
    """Parse the command line and run the soak."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 30))
    parser.add_argument("--mode", choices=("cgroup", "tags"), help="default: chosen by the seed")
    options = parser.parse_args()
    mode = options.mode or ("cgroup", "tags")[options.seed % 2]
    directory = Path(tempfile.mkdtemp(prefix="sfad-soak-"))
    surroundings.enter(directory / "surroundings")
    print(f"seed {options.seed}, {mode}, {options.minutes:g} minutes, in {directory}", flush=True)
    with small_disk(directory / "state") as disk, providing() as provider:
        soak = Soak(directory, mode, options.seed, provider.url, disk=disk)
        try:
            soak.go(60 * options.minutes)
        finally:
            soak.tell()
            soak.clean_up()
            if soak.failed:
                shutil.copytree(
                    directory / "state",
                    directory / "state-kept",
                    ignore=shutil.ignore_patterns("filler"),
                )
    if soak.failed:
        print(f"what it left is in {directory}; again with --seed {options.seed} --mode {mode}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
