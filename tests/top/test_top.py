"""`sfactl top` in a terminal, against a real daemon."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import Action, After, Limit, LimitKind, RunInfo, Status
from tests.conftest import Start
from tests.harness import Daemon, started, stopped, wait_until
from tests.tiers import variant
from tests.top.terminal import CTRL_C, ENTER, ESCAPE, HOME, WHEEL_DOWN, WHEEL_UP, top

SLEEP = ["sleep", "300"]


@pytest.fixture
def daemon(common: Daemon) -> Daemon:
    return common


def about(client: Client, run: str) -> RunInfo:
    return client.call(m.Info(id=0, run=run), m.RunReply).run


def limit(kind: LimitKind, threshold: float, action: Action | None = None) -> Limit:
    return Limit(kind=kind, threshold=threshold, action=action)


def test_a_person_finds_the_run_in_trouble_stops_it_and_gives_another_more_room(
    daemon: Daemon,
) -> None:
    with daemon.client() as client:
        started(client, SLEEP, name="calm")
        spender = started(
            client,
            SLEEP,
            name="spender",
            meter="report",
            limits=[limit(LimitKind.COST, 5.0, Action.PAUSE)],
        ).id
        looper = started(
            client, SLEEP, name="looper", meter="report", limits=[limit(LimitKind.TURNS, 10)]
        ).id
        client.call(m.Report(id=0, run=looper, turns=9), m.RunReply)
        client.call(m.Report(id=0, run=spender, cost_usd=5.25), m.RunReply)

        with top(daemon.env) as terminal:
            # within the first screen: which, and why
            terminal.until(r"(?s)3 live.*1 paused.*1 in trouble.*1 near a limit.*\d alerts?")
            terminal.until(r"(?m)^!\w+ spender +paused")
            terminal.until(
                rf"(?s){spender} spender: paused: used 5\.25 USD; its cost limit is\s+5\.00"
            )
            assert terminal.line_of("calm").startswith(" ")
            assert terminal.line_of("looper").startswith("!")

            terminal.press("A")
            terminal.until(r"(?s)── alerts.*raised since .*looper")
            terminal.press("A")

            # the next one is near its limit, and is stopped: all keys at once
            terminal.press("nsy")
            terminal.until(lambda: "cancelled" in terminal.line_of("looper"))

            # a wrong limit stays in the prompt, with the daemon's message above it
            terminal.press("nr")
            terminal.until(r"(?m)^resume \w+ \(spender\).*cost=")
            terminal.press("1" + ENTER)
            terminal.until(r"(?s)new limit must be above that.*cost=1 *\n")
            terminal.press("2" + ENTER)
            terminal.until(lambda: "running" in terminal.line_of("spender"))
            assert client.call(m.Info(id=0, run=spender), m.RunReply).run.status is Status.RUNNING

            terminal.press("q")
            assert terminal.exit_code() == 0


def test_the_cost_of_the_last_hour_and_the_share_that_warns_are_the_daemons(share: Start) -> None:
    daemon = share(config="alerts.limit_share = 0.3\nalerts.window = '2h'")
    with daemon.client() as client:
        run = started(
            client, SLEEP, name="early", meter="report", limits=[limit(LimitKind.TURNS, 10)]
        ).id
        with top(daemon.env) as terminal:
            terminal.until(r"1 live  0\.00 USD in 2h")
            terminal.until(lambda: terminal.line_of("early").startswith(" "))
            client.call(m.Report(id=0, run=run, turns=4, cost_usd=0.25), m.RunReply)
            terminal.until(r"1 live  1 near a limit.*0\.25 USD in 2h")
            terminal.until(rf"{run} early: is near its limit: turns 4 of 10")
            line = terminal.lines.index(terminal.line_of("early"))
            bar = re.search(r" n[▁-█]", terminal.lines[line])
            assert bar is not None
            assert terminal.colour(line, bar.end() - 1) == "brown"  # pyte's name of yellow


@variant
def test_a_run_that_waits_for_another_says_for_which(daemon: Daemon) -> None:
    with daemon.client() as client, top(daemon.env, columns=160) as terminal:
        first = started(client, SLEEP, name="first").id
        started(client, SLEEP, name="second", after=[After(run=first, ok=True)])
        terminal.until(rf"(?m)second +queued .* after {first}:ok")
        terminal.press("/second" + ENTER)
        terminal.until(rf"second: queued: it starts when {first} has completed")
        terminal.press("q")
        assert terminal.exit_code() == 0


@variant
def test_keys_keep_their_order_however_fast_they_come(daemon: Daemon) -> None:
    with daemon.client() as client:
        run = started(client, SLEEP, name="only", limits=[limit(LimitKind.TURNS, 10)]).id
        with top(daemon.env) as terminal:
            terminal.until(r"\w+ only +running")
            terminal.press("e")  # hides what other tests have left
            for turns in range(20, 25):
                terminal.press(f"nn{HOME}l\x15turns={turns}{ENTER}")
            terminal.until(rf"{run} is running: turns .*24")
            wanted = client.call(m.Info(id=0, run=run), m.RunReply).run.limits
            assert [state.threshold for state in wanted if state.kind is LimitKind.TURNS] == [24]
            terminal.press("l" + "x" * 50 + ESCAPE)
            terminal.until(lambda: "xxx" not in terminal.text and "limits of" not in terminal.text)
            terminal.press(CTRL_C)
            assert terminal.exit_code() == 0


def test_more_room_is_approved_and_denied(daemon: Daemon) -> None:
    with daemon.client() as client:
        asking = limit(LimitKind.TURNS, 10, Action.REQUEST_INCREASE)
        run = started(client, SLEEP, name="asker", meter="report", limits=[asking]).id
        with top(daemon.env) as terminal:
            client.call(m.Report(id=0, run=run, turns=11), m.RunReply)
            terminal.until(rf"(?m)^{run} asker: waits for approval until .*used 11 turns")
            terminal.press("a")
            terminal.until(rf"(?m)^approve {run} \(asker\) .*turns=")
            terminal.press("20" + ENTER)
            terminal.until(lambda: "running" in terminal.line_of("asker"))
            assert [
                state.threshold
                for state in about(client, run).limits
                if state.kind is LimitKind.TURNS
            ] == [20]

            client.call(m.Report(id=0, run=run, turns=10), m.RunReply)
            terminal.until(rf"(?m)^{run} asker: waits for approval until .*used 21 turns")
            terminal.press("dn")
            terminal.until("nothing done")
            assert about(client, run).status is Status.PAUSED
            terminal.press("d")
            terminal.until(rf"deny {run} \(asker\) more room, and stop it\? y/N")
            terminal.press("y")
            terminal.until(lambda: "failed" in terminal.line_of("asker"))


def test_the_tree_its_folds_its_filter_and_its_panes(daemon: Daemon) -> None:
    script = (
        "sfactl spawn --name leaf -- sleep 300 >/dev/null; echo one; "
        "echo '[red]two[/red]' $(printf '\\033[31m'); sleep 300"
    )
    env = [f"{key}={value}".encode() for key, value in daemon.env.items() if key != "PATH"]
    env.append(f"PATH={sys.prefix}/bin:/usr/bin:/bin".encode())
    with daemon.client() as client:
        root = started(client, ["sh", "-c", script], name="root", env=env).id
        other = started(client, SLEEP, name="other").id
        wait_until(
            lambda: client.call(m.Info(id=0, run=root), m.RunReply).run.descendants == 1,
            "it has a child",
        )
        with top(daemon.env, columns=120, lines=30) as terminal:
            terminal.until(r"(?m)└─\w+ leaf +running")
            # its processes
            terminal.until(lambda: re.search(r"running +\S+ +\S+ +0 +3 ", terminal.line_of("root")))
            terminal.press("o")
            terminal.until(rf"── output of {root} root")
            terminal.until(r"(?m)^one\n\[red\]two\[/red\] \\x1b\[31m$")
            terminal.press("w")
            terminal.until(rf"(?s)── why of {root} root.*limit turns")
            terminal.press("w ")
            terminal.until(r"root +\+1")
            assert not terminal.line_of("leaf")
            terminal.press(" /leaf" + ENTER)
            terminal.until(lambda: not terminal.line_of("other") and terminal.line_of("leaf"))
            terminal.press(ESCAPE)
            terminal.until(lambda: terminal.line_of("other"))

            terminal.click("other")
            terminal.until(rf"(?m)^{other} other: ")
            terminal.click("root")
            terminal.until(rf"(?m)^{root} root: ")
            terminal.click("root")  # a second click folds
            terminal.until(r"root +\+1")
            terminal.click("root")
            terminal.until(lambda: terminal.line_of("leaf"))
            # without the ended runs of other tests above and below
            terminal.press("e" + WHEEL_DOWN)
            terminal.until(rf"(?m)^{other} other: ")
            terminal.press(WHEEL_UP)  # to the root, or a run of an earlier test above it
            terminal.until(lambda: f"\n{other} other: " not in terminal.text)

            terminal.press("e")
            stopped(client, other)
            terminal.until(lambda: "cancelled" in terminal.line_of("other"))
            terminal.press("e")
            terminal.until(lambda: not terminal.line_of("other"))
            terminal.press("?")
            terminal.until(r"── keys")


@pytest.mark.rest("keeps a processor busy for seconds")
def test_output_that_comes_fast_is_followed_until_a_person_scrolls(
    daemon: Daemon, tmp_path: Path
) -> None:
    """More output comes only when the test says so, or a slow machine had pages of it."""
    os.mkfifo(more := tmp_path / "more")
    lines = "seq -f 'line %.0f, which is too long for a narrow terminal' 100000"
    with daemon.client() as client:
        run = started(client, ["sh", "-c", f"{lines}; exec cat '{more}'"], name="flood").id
        with top(daemon.env, columns=40) as terminal, more.open("w", buffering=1) as write:
            terminal.until(r"\w+ flood +running")
            terminal.press("/flood" + ENTER + "o")
            terminal.until(r"line 100000, which")
            write.write("more\n")
            terminal.until(r"(?m)^more$")
            terminal.press("[[[")
            terminal.until(lambda: "more" not in terminal.text)
            write.write("still more\n")
            assert re.search(
                r"(?m)^line 99\d\d\d, which is too long for a narr$\now terminal$", terminal.text
            )
            terminal.press("]" * 10)
            terminal.until(r"(?m)^more$\nstill more$")
        stopped(client, run)


@variant
def test_a_question_leaves_the_tree_on_the_screen_and_q_does_not_wait_for_a_stop(
    daemon: Daemon,
) -> None:
    with daemon.client() as client:
        run = started(
            client,
            ["sh", "-c", "trap '' TERM INT; while :; do sleep 1; done"],
            name="stubborn",
            grace=60.0,
        ).id
        with top(daemon.env) as terminal:
            terminal.until(r"\w+ stubborn +running")
            terminal.press("/stubborn" + ENTER + "s")
            terminal.until(rf"(?s) stubborn +running.*\nstop {run} \(stubborn\)\? y/N")
            terminal.press("y")
            terminal.until(lambda: "stopping" in terminal.line_of("stubborn"))
            terminal.press("q")
            assert terminal.exit_code() == 0
            assert about(client, run).status is Status.STOPPING
        stopped(client, run, grace=0.0)


def test_escape_does_not_wait_for_a_daemon_that_hangs(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        started(client, SLEEP, name="only")
    with top(daemon.env) as terminal:
        terminal.until(r"\w+ only +running")
        terminal.press("l")
        terminal.until(r"limits of \w+ \(only\)")
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            terminal.press("turns=20" + ENTER)
            terminal.until("turns=20")
            terminal.press(ESCAPE)
            terminal.until(lambda: "limits of" not in terminal.text)
            terminal.press("?")
            terminal.until(r"── keys")
            terminal.until("the daemon does not answer for")
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        terminal.until("the daemon is back")
        terminal.until(lambda: "does not answer" not in terminal.text)


def test_a_daemon_that_goes_away_is_waited_for(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        started(client, SLEEP, name="survivor")
    with top(daemon.env) as terminal:
        terminal.until(r"\w+ survivor +running")
        daemon.kill()
        terminal.until(r"the daemon is away for .*waiting for it")
        daemon.restart()
        terminal.until(
            lambda: "away" not in terminal.text and "running" in terminal.line_of("survivor")
        )
        with daemon.client() as client:
            started(client, SLEEP, name="newcomer")
        terminal.until(r"\w+ newcomer +running")


def test_without_a_terminal_or_a_daemon_it_says_what_to_do(daemon: Daemon) -> None:
    done = daemon.sfactl("top")
    assert (done.returncode, done.stdout) == (2, "")
    assert "sfactl tree" in done.stderr
    with top(daemon.env, "no-such-run") as terminal:
        assert terminal.exit_code() == 66
        assert "no-such-run" in terminal.text
    with top(daemon.env | {"SFAD_SOCKET": f"{daemon.socket}-gone"}) as terminal:
        assert terminal.exit_code() == 69


def test_without_its_extra_it_says_how_to_install_it() -> None:
    script = (
        "import sys\nsys.modules['textual'] = None\nfrom sfactl.__main__ import main\nsys.argv "
        "= ['sfactl', 'top']\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "pip install '.[top]'" in done.stderr
