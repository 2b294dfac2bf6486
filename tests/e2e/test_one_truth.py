"""One figure for what a run has used, in all places, while it runs and at its end: whatever its
sources tell."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo, Status
from tests.conftest import Start
from tests.harness import Daemon, ended, spawn, wait_until
from tests.tiers import first, variant

from .agents import info, limit
from .caller import MODEL
from .provider import IN_USD, OUT_USD, Provider
from .test_by_default import run
from .test_bypass import SESSION
from .test_gateway import CALLER, config
from .test_run_feed import watching

AGENT = """#!{python}
import json, os, subprocess, sys, time
for number in range(99):
    order = os.environ["HOME"] + f"/orders/{{number}}"
    while not os.path.exists(order):
        time.sleep(0.01)
    what, how = json.load(open(order))
    if what == "exit":
        sys.exit(how)
    elif what == "call":
        subprocess.run([sys.executable, *how], stdout=subprocess.DEVNULL, check=True)
    elif what == "shell":
        subprocess.run(how, shell=True)
    elif what == "print":
        print(json.dumps(how), flush=True)
    else:
        os.makedirs(os.path.dirname(what), exist_ok=True)
        with open(what, "a") as file:
            print(json.dumps(how), file=file)
    open(order + ".done", "w").close()
"""
"""An agent that obeys, order by order: it calls its model, prints an event, or writes a line of its
session file."""
SESSION_ID = "a5af6365-dfd2-4803-89e8-81fe8ea605e7"


class Agent:
    """A Claude Code below the gateway that prints and saves what it is told."""

    def __init__(
        self, daemon: Daemon, client: Client, provider: Provider, home: Path, name: str
    ) -> None:
        self.daemon, self.client, self.provider, self.home = daemon, client, provider, home
        self._orders = home / "orders"
        self._orders.mkdir()
        self._number = 0
        work = home / "work"
        work.mkdir()
        project = re.sub("[^a-zA-Z0-9]", "-", str(work))
        self._file = f"{home}/.claude/projects/{project}/{SESSION_ID}.jsonl"
        own = [
            key + b"=" + value
            for key, value in os.environb.items()
            if key not in {b"HOME", b"CLAUDE_CONFIG_DIR"}
        ]
        agent = home / "bin" / name
        agent.parent.mkdir()
        agent.write_text(AGENT.format(python=sys.executable))
        agent.chmod(0o755)
        reply = spawn(
            client, [str(agent), "-p", "hi", "--output-format", "stream-json"], meter="claude",
            limits=[limit("cost", 9, "warn")], env=[*own, b"HOME=" + bytes(home)], cwd=bytes(work),
        )  # fmt: skip
        assert isinstance(reply, m.RunReply), reply
        self.id = reply.run.id

    def order(self, what: str, how: Any, *, wait: bool = True) -> None:
        file = self._orders / str(self._number)
        self._number += 1
        file.with_suffix(".new").write_text(json.dumps([what, how]))
        file.with_suffix(".new").rename(file)
        if wait and what != "exit":
            wait_until(file.with_name(file.name + ".done").exists, "it has obeyed")

    def call(self, output: int, *, wait: bool = True, **plan: Any) -> None:
        self.order("call", [CALLER, json.dumps({"output": output, **plan})], wait=wait)

    def says(self, *, input_tokens: int, text: int) -> None:
        """Print an answer, whose output can only be estimated: `text` tokens."""
        self.order(
            "print", _answer("m1", input_tokens, 1, [{"type": "text", "text": "word" * text}])
        )

    def saves(self, *, input_tokens: int, output_tokens: int, usd: float | None = None) -> None:
        """Save an answer, and, with `usd`, the totals of the session."""
        line = _answer("m2", input_tokens, output_tokens, [])
        place = {"sessionId": SESSION_ID, "cwd": str(self.home / "work")}
        self.order(self._file, line | place)
        if usd is not None:
            totals = {"type": "cost-state", "totalCostUSD": usd, "timestamp": line["timestamp"]}
            self.order(self._file, totals | place)

    def concludes(self, usd: float, *, tokens: int | None = None) -> None:
        """Print its totals. `tokens`: of output, if its prices are not those of the gateway."""
        tokens = round(usd / OUT_USD) if tokens is None else tokens
        used = {"inputTokens": 0, "outputTokens": tokens, "costUSD": usd}
        self.order(
            "print",
            {
                "type": "result", "subtype": "success", "session_id": SESSION_ID, "result": "done",
                "total_cost_usd": usd, "modelUsage": {MODEL: used},
            },
        )  # fmt: skip

    def tells(self, source: str, usd: float) -> None:
        """Wait until a source has told so much."""

        def told() -> float | None:
            found = info(self.client, self.id).usage_by_source.get(source)  # type: ignore[call-overload]
            return found.cost_usd if found is not None else None

        wait_until(lambda: told() == pytest.approx(usd), f"{source} tells {usd}, not {told()}")

    def exits(self) -> None:
        self.order("exit", 0)
        assert ended(self.client, self.id).status is Status.COMPLETED

    def json(self, *words: str) -> Any:
        done = self.daemon.sfactl(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def shows(self, usd: float, *, partial: bool | None = None) -> None:
        """Check that all places show the same figure; while calls are open, without what is only
        reserved."""
        run = self.json("info", self.id)
        (row,) = self.json("list")["runs"]
        status = self.json("status")
        (budget,) = status["budgets"]
        (limited,) = [each for each in run["limits"] if each["kind"] == "cost"]
        summary = self.json("summary")
        found = {
            "info": run["usage"]["cost_usd"],
            "tree": run["total_cost_usd"],
            "top": self.fed.usage.cost_usd,
            "top, tree": self.fed.total_cost_usd,
            "limit": limited["used"],
            "list": row["usage"]["cost_usd"],
            "list, limit": next(x for x in row["limits"] if x["kind"] == "cost")["used"],
            "budget": budget["used_usd"],
            "summary": summary["cost_usd"],
        }
        assert {name: round(each or 0, 6) for name, each in found.items()} == dict.fromkeys(
            found, round(usd, 6)
        )
        assert limited["reserved"] == pytest.approx(budget["reserved_usd"] or None)
        if partial is not None:
            marks = run["usage"]["partial"], run["total_partial"], row["usage"]["partial"]
            assert {*marks, budget["partial"], summary["partial"]} == {partial}

    @property
    def fed(self) -> RunInfo:
        """The run as `sfactl top` and the console are told of it."""
        with watching(self.daemon) as found:
            return found.runs[self.id]

    def tree_shows(self, usd: float, *, reserved: bool) -> None:
        """Check what is shown of the run with all below it."""
        run, (budget,) = self.json("info", self.id), self.json("status")["budgets"]
        (limited,) = [each for each in run["limits"] if each["kind"] == "cost"]
        rows = self.json("list")["runs"]
        found = [
            run["total_cost_usd"] or 0,
            self.fed.total_cost_usd or 0,
            limited["used"] or 0,
            sum(row["usage"]["cost_usd"] or 0 for row in rows),
            budget["used_usd"],
            self.json("summary")["cost_usd"] or 0,
            sum(call["cost_usd"] or 0 for call in self.calls("--tree")),
        ]
        assert found == pytest.approx([usd] * len(found))
        assert bool(limited["reserved"]) == bool(budget["reserved_usd"]) == reserved
        assert limited["reserved"] == pytest.approx(budget["reserved_usd"] or None)

    def calls(self, *options: str) -> list[dict[str, Any]]:
        done = self.daemon.sfactl("calls", self.id, "--json", *options)
        return [json.loads(line) for line in done.stdout.splitlines()]


def _answer(name: str, input_tokens: int, output_tokens: int, content: list[Any]) -> dict[str, Any]:
    now = time.time()
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03}Z"
    usage = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    said = {
        "id": name, "model": MODEL, "stop_reason": "end_turn", "usage": usage, "content": content
    }  # fmt: skip
    return {"type": "assistant", "session_id": SESSION_ID, "timestamp": at, "message": said}


@contextmanager
def obeying(start: Start, provider: Provider, home: Path, name: str = "claude") -> Iterator[Agent]:
    budget = f"[budgets.users.{getpass.getuser()}]\ndaily_usd = 9\n"
    daemon = start(config=config(provider) + budget)
    with daemon.client() as client:
        yield Agent(daemon, client, provider, home, name)


@variant
def test_an_estimate_of_what_the_gateway_has_measured_counts_nowhere(
    start: Start, provider: Provider, tmp_path: Path
) -> None:
    with obeying(start, provider, tmp_path) as agent:
        agent.call(1000, wait=False, stall=True)
        wait_until(lambda: provider.stalled == 1, "the call is under way")
        (bill,) = provider.bills
        agent.shows(0)
        provider.released.set()
        wait_until(lambda: provider.under_way == 0, "it has ended")
        agent.tells("gateway", bill.usd)
        agent.says(input_tokens=bill.input, text=10_000)
        agent.tells("stream", IN_USD * bill.input + OUT_USD * 10_000)
        agent.shows(bill.usd, partial=False)
        # it tells of more than the gateway has seen
        agent.order("print", _answer("m9", bill.input, 1, []))
        agent.tells("stream", 2 * IN_USD * bill.input + OUT_USD * 10_001)
        agent.shows(2 * IN_USD * bill.input + OUT_USD * 10_001, partial=True)
        agent.exits()
        agent.shows(2 * IN_USD * bill.input + OUT_USD * 10_001, partial=True)


@first(1)
@pytest.mark.parametrize("source", ["stream", "session"])
@pytest.mark.parametrize("larger", [True, False])
def test_a_final_figure_of_another_source_counts_if_it_is_larger(
    start: Start, provider: Provider, tmp_path: Path, source: str, *, larger: bool
) -> None:
    with obeying(start, provider, tmp_path) as agent:
        agent.call(1000)
        usd = sum(bill.usd for bill in provider.bills)
        agent.tells("gateway", usd)
        tokens = 20_000 if larger else 200
        if source == "stream":
            agent.concludes(OUT_USD * tokens)
            agent.tells("stream", OUT_USD * tokens)
        else:
            agent.says(input_tokens=0, text=1)  # it names the session
            agent.saves(input_tokens=0, output_tokens=tokens)
            agent.tells("session", OUT_USD * tokens)
        most = OUT_USD * tokens if larger else usd
        agent.shows(most)
        agent.exits()
        agent.shows(most, partial=False)
        listed = agent.calls()
        assert sum(each["cost_usd"] for each in listed) == pytest.approx(usd)
        words = agent.daemon.sfactl("info", agent.id).stdout
        assert f"{source if larger else 'gateway'}, shown elsewhere]" in words
        below = agent.daemon.sfactl("calls", agent.id).stdout.splitlines()[2:]
        where = "output" if source == "stream" else "session file"
        more = f"{agent.id}: 0.30 USD count for it, because its {where} tells of more than these"
        assert [line.startswith(more) for line in below] == [True] * larger, below


@first(1)
@pytest.mark.parametrize("source", ["stream", "session"])
def test_the_agents_own_price_of_what_the_gateway_has_measured_counts_nowhere(
    start: Start, provider: Provider, tmp_path: Path, source: str
) -> None:
    """Claude Code's price list knows neither a router nor the prices of the config."""
    with obeying(start, provider, tmp_path) as agent:
        for _ in range(3):
            agent.call(1000)
        usd = sum(bill.usd for bill in provider.bills)
        agent.tells("gateway", usd)
        tokens, own = sum(bill.output for bill in provider.bills), 1.3 * usd
        if source == "stream":
            agent.concludes(own, tokens=tokens)
            agent.tells("stream", own)
        else:
            agent.says(input_tokens=0, text=1)  # it names the session
            agent.saves(input_tokens=0, output_tokens=tokens, usd=own)
            agent.tells("session", own)
        agent.shows(usd, partial=False)
        agent.exits()
        agent.shows(usd, partial=False)
        assert agent.fed.usage.cost_from == "prices"
        assert len(agent.daemon.sfactl("calls", agent.id).stdout.splitlines()) == 1 + 3


def test_a_script_that_goes_around_the_gateway_adds_to_it(
    start: Start, provider: Provider, tmp_path: Path
) -> None:
    around = tmp_path / "claude"
    around.write_text(SESSION.format(python=sys.executable))
    around.chmod(0o755)
    done = tmp_path / "done"
    with obeying(start, provider, tmp_path, "script") as agent:
        agent.call(1000)
        usd = sum(bill.usd for bill in provider.bills)
        agent.tells("gateway", usd)
        agent.shows(usd, partial=False)
        agent.order(
            "shell", f"env -i HOME={tmp_path} PATH=/usr/bin:/bin {around} 9 {done}", wait=False
        )
        past = 9 * (1000 * IN_USD + OUT_USD)
        agent.tells("around", past)
        agent.shows(usd + past, partial=True)
        done.touch()
        agent.call(1000)
        usd = sum(bill.usd for bill in provider.bills)
        agent.tells("gateway", usd)
        agent.exits()
        agent.shows(usd + past, partial=True)


PRINTS = """#!{python}
import json, subprocess, sys
call = [sys.executable, {caller!r}, json.dumps({{"output": 1000}})]
subprocess.run(call, stdout=subprocess.DEVNULL, check=True)
used = {{"inputTokens": 0, "outputTokens": 1000}}
print(json.dumps({{
    "type": "result", "subtype": "success", "session_id": {session!r}, "result": "done",
    "total_cost_usd": 1.3 * 1000 * {usd}, "modelUsage": {{{model!r}: used}},
}}), flush=True)
"""
"""A Claude Code that makes a call through the gateway and prints its events."""


RUN = f"{shlex.quote(sys.executable)} -m sfactl run -q"
PLAIN = "claude -p hi --output-format stream-json"
SCRIPTS = {
    "shim": f"{PLAIN}; true",
    "pipe": f"{PLAIN} | cat",
    "text": f"{RUN} --text -- {PLAIN}",
    "raw": f"{RUN} --raw -- {PLAIN}",
    "auto": f"{RUN} --name between -- sh -c {shlex.quote(f'{PLAIN}; true')}",
    "two relays": f"{RUN} --raw --meter claude --name between -- {RUN} --raw -- {PLAIN}",
    "pipes": f"{PLAIN} | tee log | cat",
    "variable": f'said=$({PLAIN}); echo "$said"',
    "file": f"{PLAIN} > said; cat said",
    "later": f"{PLAIN} > said & wait; cat said",
}
"""How a metered script starts it, and copies what it prints."""


def printing(directory: Path) -> Path:
    """Return such a program, in a directory of its own."""
    program = directory / "programs" / "claude"
    program.parent.mkdir()
    program.write_text(
        PRINTS.format(
            python=sys.executable, caller=CALLER, session=SESSION_ID, usd=OUT_USD, model=MODEL
        )
    )
    program.chmod(0o755)
    return program


@first(1)
@pytest.mark.parametrize("how", SCRIPTS)
def test_what_a_child_run_prints_into_a_metered_script_counts_once(
    start: Start, provider: Provider, tmp_path: Path, how: str
) -> None:
    program = printing(tmp_path)
    daemon = start(config=config(provider))
    words = ["--meter", "claude", "--name", "night", "--", "sh", "-c", SCRIPTS[how]]
    done = run(daemon, program.parent, *words)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(daemon.sfactl("list", "--json").stdout)["runs"]}
    above = "between" if "between" in rows else "night"
    assert rows["claude"]["parent_id"] == rows[above]["id"]
    bill = pytest.approx(provider.usd)
    costs = {name: row["usage"]["cost_usd"] for name, row in rows.items()}
    told = json.loads(daemon.sfactl("info", "night", "--json").stdout)
    assert (told["total_cost_usd"], costs["claude"]) == (bill, bill), costs
    assert {name for name, cost in costs.items() if cost} == {"claude"}, costs
    printed = told["usage_by_source"].get("stream", {}).get("output_tokens")
    assert printed == (None if how == "text" else 1000)
    summary = json.loads(daemon.sfactl("summary", "--json").stdout)
    assert summary["cost_usd"] == bill


def test_what_a_child_run_prints_elsewhere_hides_nothing_of_a_metered_script(
    start: Start, provider: Provider, tmp_path: Path
) -> None:
    """Which also starts the program by its path."""
    program = printing(tmp_path)
    daemon = start(config=config(provider))
    script = f"{PLAIN} > unread; {shlex.quote(str(program.parent))}/{PLAIN}"
    words = ["--meter", "claude", "--name", "night", "--", "sh", "-c", script]
    done = run(daemon, program.parent, *words)
    assert done.returncode == 0, done.stderr
    told = json.loads(daemon.sfactl("info", "night", "--json").stdout)
    assert len(provider.bills) == 2
    assert told["total_cost_usd"] == pytest.approx(provider.usd)
    assert told["usage"]["output_tokens"] == 1000


def test_a_tree_shows_the_sum_of_its_runs(start: Start, provider: Provider, tmp_path: Path) -> None:
    """While a call below it is under way, and after its end."""
    with obeying(start, provider, tmp_path) as agent:
        plan = json.dumps({"output": 1000, "stall": True})
        child = [sys.executable, "-m", "sfactl", "run", "-q", "--", sys.executable, CALLER, plan]
        agent.order("shell", shlex.join(child), wait=False)
        wait_until(lambda: provider.stalled == 1, "a call below it is under way")
        agent.tree_shows(0, reserved=True)
        provider.released.set()
        wait_until(lambda: len(agent.calls("--tree")) == 1, "it is recorded")
        agent.call(500)
        broken = [*child[:-1], json.dumps({"output": 1000, "does": "error"})]
        agent.order("shell", shlex.join(broken))
        for _ in range(2):
            agent.tree_shows(sum(each.usd for each in provider.bills), reserved=False)
            run = agent.json("info", agent.id)
            assert (run["total_partial"], run["usage"]["partial"]) == (True, False)
            assert agent.fed.total_partial
            if run["status"] == "running":
                agent.exits()
