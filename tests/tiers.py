"""Which tests belong to the fast tier, and what was left out and why: a plugin of pytest.

`make test` runs the fast tier: at least one test of each promise that needs nothing but Python and
this kernel. `make test-all` runs the rest. pytest itself runs both unless `--tier` says otherwise.
To the rest belong

- tests with `@pytest.mark.rest("why")`, and the files and directories of `REST`;
- variants of a test that the fast tier has: those with `@variant`, and of a test with `@first(3)`
  all parameters but the first three;
- tests with `@pytest.mark.needs("bwrap", …)`: programs that a machine may lack, or root. They are
  skipped where one is missing;
- of each end-to-end test that is tried in both containments, the second one: tags, or cgroups where
  there are none. Of a test that is tried in both with both trampolines, two of the four pairs.

Tests with Hypothesis are in both tiers. The fast one tries a fifth of the examples.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from .needs import no_cgroup

PACKAGES = {
    "bwrap": "bubblewrap",
    "cc": "gcc libc6-dev binutils",
    "tmux": "tmux",
    "chromium": "chromium",
    "fish": "fish",
    "git": "git",
    "git-lfs": "git-lfs",
    "groff": "groff-base",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "qemu-system-x86_64": "qemu-system-x86 dpkg",
    "setpriv": "util-linux mount procps passwd",
    "systemd-analyze": "systemd",
    "systemd-nspawn": "systemd-container libpam-systemd dbus",
    "zsh": "zsh",
}
"""Programs that tests need, and the packages of Debian that bring them."""

HAS: dict[str, Callable[[], bool]] = {
    "root": lambda: os.geteuid() == 0,
    "FUSE": lambda: os.access("/dev/fuse", os.W_OK),
}
"""What else tests need, and whether it is there."""

REST = {
    "bench": "runs the benchmark",
    "crash": "kills the daemon at its effects",
    "fleet": "needs Ray",
    "frameworks": "installs agent frameworks",
    "real_agents": "needs the agent programs",
    "systemd/test_install.py": "boots a systemd",
    "systemd/test_install_fleet.py": "boots a systemd, and needs Ray",
    "systemd/test_service.py": "boots a systemd",
    "vm": "boots a virtual machine",
    "web/browser": "needs a browser",
    "e2e/test_otel.py": "needs OpenTelemetry",
}
"""Files and directories below tests/ that the fast tier does not even import, because it does not
install what they need, or because they try tools of the maintainers."""

VARIANTS = "variants of tests that ran: make test-all"
variant = pytest.mark.rest(VARIANTS)
"""Marks a test that tries again, in another way, what a test of the fast tier tries: another crash,
another attack, a re-execution instead of a restart."""


def first(keep: int = 1) -> pytest.MarkDecorator:
    """Mark a test of which the fast tier tries only the first `keep` parameters."""
    return pytest.mark.first(keep)


COMPLETE = "SFAD_TEST_COMPLETE"
"""Set where everything that can be installed is installed: then a test is skipped only for what is
listed here."""

MAY_SKIP = (
    "SFAD_TEST_AGENTS=1",  # the tests with real agents are opt-in, and `make agents` runs them
    "SFAD_TEST_VM=1",  # `make vm` runs the virtual machine
    # what the machine delegates
    "cgroup v1", "cgroup v2 controller", "for the sake of a controller",
    "the kernel throttles here",
    # other traits of a machine
    "needs two CPUs", "FUSE", "file system", "pids cannot be chosen here",
    "takes the pid each time",
    "it would take long",  # on a disk without holes
    # parameters that do not go together
    "only with cgroups", "only with tags", "for a pretended controller",
    # of real agents: likewise
    "nothing tells what it uses", "which the gateway does not do for it",
)  # fmt: skip

_HERE = Path(__file__).parent
_left_out: Counter[str] = Counter()
"""How many tests the tier leaves out, by reason. In the process that reports, those of all
workers."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=("fast", "rest", "all"),
        default="all",
        help="which tests to run (tests/tiers.py)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--tier") == "fast":
        global _few
        _few = True
        hypothesis.settings.register_profile("few", max_examples=examples(100))
        hypothesis.settings.load_profile("few")
    config.addinivalue_line("markers", "rest(why): only `make test-all` runs this test")
    config.addinivalue_line("markers", "first(keep): `make test` tries so many of its parameters")
    config.addinivalue_line(
        "markers", "needs(program, …): skipped without; only `make test-all` runs this test"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out of the fast tier what needs packages that it does not have."""
    if config.getoption("--tier") != "fast" or not collection_path.is_relative_to(_HERE):
        return None
    return True if str(collection_path.relative_to(_HERE)) in REST else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of the other tier."""
    tier = config.getoption("--tier")
    kept, left_out = [], []
    tried: Counter[str] = Counter()
    for item in items:
        if why_not := _why_impossible(
            [need for mark in item.iter_markers("needs") for need in mark.args]
        ):
            item.add_marker(pytest.mark.skip(why_not))
        why = _why_rest(item)
        if why is None and (mark := item.get_closest_marker("first")):
            test = item.nodeid.partition("[")[0]
            tried[test] += 1
            why = VARIANTS if tried[test] > mark.args[0] else None
        if (
            tier == "all"
            or (tier == "rest") == (why is not None)
            or (why is None and _varies(item))
        ):
            kept.append(item)
        else:
            left_out.append(item)
            _left_out[why or "of the fast tier"] += 1
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _why_impossible(needs: Sequence[str]) -> str | None:
    """Return what this machine lacks of what a test needs; `None` if it has all."""
    if lacking := [need for need in needs if need in HAS and not HAS[need]()]:
        return f"takes {' and '.join(lacking)}"
    missing = [need for need in needs if need in PACKAGES and shutil.which(need) is None]
    return f"not installed: {', '.join(missing)} (Debian: {packages(missing)})" if missing else None


def sampled(values: Iterable[Any], *, keep: int = 1, ids: Iterable[str] | None = None) -> list[Any]:
    """Return parameters of which only the first `keep` belong to the fast tier."""
    values = list(values)
    names = [None] * len(values) if ids is None else list(ids)
    return [
        pytest.param(value, id=name, marks=[variant] if at >= keep else [])
        for at, (value, name) in enumerate(zip(values, names, strict=True))
    ]


_few = False


def examples(number: int) -> int:
    """Return how many of these examples the tier tries, for `max_examples`."""
    return number // 5 if _few else number


def is_loaded_always(path: Path) -> bool:
    """Return whether a file belongs to no place of `REST`."""
    return _why_place(path) is None


def packages(programs: Iterable[str]) -> str:
    """Return the packages of Debian that bring these programs, as words."""
    return " ".join(dict.fromkeys(" ".join(PACKAGES[program] for program in programs).split()))


def _why_rest(item: pytest.Item) -> str | None:
    """Return why a test belongs to the rest; `None` for a test of the fast tier."""
    for mark in item.iter_markers("needs"):
        return f"needs {', '.join(mark.args)}"
    for mark in item.iter_markers("rest"):
        return str(mark.args[0])
    if why := _why_place(item.path):
        return why
    parameters = _parameters(item)
    if item.nodeid.startswith("tests/e2e/") and _second_containment() in parameters.values():
        return "the second containment"
    return VARIANTS if _is_other_pair(parameters) else None


def _is_other_pair(parameters: Mapping[str, Any]) -> bool:
    """Return whether other pairs of a containment and a trampoline have both of these."""
    return not no_cgroup() and (parameters.get("containment"), parameters.get("program")) in (
        ("cgroup", "python"),
        ("tags", "elf"),
    )


def _second_containment() -> str:
    return "cgroup" if no_cgroup() else "tags"


def _varies(item: pytest.Item) -> bool:
    """Return whether a test tries fewer examples in the fast tier."""
    return isinstance(item, pytest.Function) and hypothesis.is_hypothesis_test(item.obj)


@cache
def _why_place(path: Path) -> str | None:
    place = path.relative_to(_HERE)
    return next((why for name, why in REST.items() if place.is_relative_to(name)), None)


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return (
        item.callspec.params
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else {}
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give each skipped test its reason, and fail a test that may not be skipped."""
    report = yield
    if report.skipped and call.excinfo is not None and isinstance(report.longrepr, tuple):
        reason = _why_skipped(call.excinfo.value)
        report.longrepr = (*report.longrepr[:2], reason)
        if COMPLETE in os.environ and not any(known in reason for known in MAY_SKIP):
            report.outcome, report.longrepr = (
                "failed",
                f"{reason}; with {COMPLETE} set this test may not be skipped",
            )
    return report


def _why_skipped(skipped: BaseException) -> str:
    """Return why a test is skipped. pytest-trio skips a test without a reason when the test has
    given one."""
    given = skipped if str(skipped) else skipped.__context__
    while isinstance(given, BaseExceptionGroup):
        given = given.exceptions[0]
    return str(given)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker has left out. Each has left out the same."""
    _left_out.update({} if _left_out else getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(_left_out)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say in a short table what was not run: how many tests, why, and what runs them."""
    rows = list(_rows(terminalreporter.getreports("skipped"), config))
    if rows:
        terminalreporter.section("not run")
        terminalreporter.write_line("\n".join(rows))


def _rows(skipped: Iterable[pytest.TestReport], config: pytest.Config) -> Iterator[str]:
    reasons = Counter(
        str(report.longrepr[2]) for report in skipped if isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.most_common():
        yield f"{count:6}  skipped: {reason}"
    for reason, count in _left_out.most_common():
        yield f"{count:6}  {reason}"
    if config.getoption("--tier") == "fast":
        yield f"        not even loaded: {', '.join(f'tests/{name}' for name in REST)}"
        yield "`make test-all` runs them, and installs what they need (as root, with apt-get)."
