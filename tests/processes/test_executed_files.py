"""Agent programs are known by what a process executes, whatever its command line says: by a link, a
copy, another word in place of the name, or a link to the script of an interpreter.

The programs are imitations: copies of `sleep`, made large, and scripts."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
from pathlib import Path

import pytest
import trio

from sfad.core.events import AgentSeen, MainExited
from sfad.processes import kernel
from sfad.processes.executed_files import Executed, ExecutedFiles, File, Unsure
from tests.harness import until, wait_until
from tests.processes.rig import Rig
from tests.processes.test_agent_watch import agent, either_way
from tests.tiers import first

__all__ = ["either_way"]

NAMES = frozenset({"claude", "codex", "gemini", "copilot", "qwen"})


def native(file: Path, like: str = "sleep") -> Path:
    """Make a program of more than 1 MiB, as agent programs are, unlike any other."""
    file.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(shutil.which(like) or "", file)
    with file.open("ab") as end:
        end.write(b"\0" * (2 << 20) + str(file).encode())
    file.chmod(0o755)
    return file


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A PATH with agent programs, as their makers install them."""
    commands = tmp_path / "bin"
    commands.mkdir()
    native(commands / "node", like="tail")
    version = native(tmp_path / "share/claude/versions/2.1.330")
    (commands / "claude").symlink_to(version)
    modules = tmp_path / "lib/node_modules"
    native(modules / "@openai/codex-linux-x64/vendor/musl/bin/codex")
    for name, script in (("@openai/codex", "bin/codex.js"), ("@github/copilot", "load.js")):
        file = modules / name / script
        file.parent.mkdir(parents=True)
        # no `node` has to be installed here
        file.write_text(f"#!/usr/bin/env python3\nimport time\ntime.sleep(300)  # {name}\n")
        file.chmod(0o755)
        command = name.rpartition("/")[2]
        (modules / name / "package.json").write_text(
            json.dumps({"name": name, "bin": {command: script}})
        )
        (commands / command).symlink_to(file)
    return tmp_path


CLAUDE = "share/claude/versions/2.1.330"
CODEX = "lib/node_modules/@openai/codex-linux-x64/vendor/musl/bin/codex"
HOW = {
    "a link": (f"ln -s {CLAUDE} ed; ./ed 300", "claude", 0),
    "the file of a version": (f"{CLAUDE} 300", "claude", 0),
    "another first word": (f"exec -a foo {CODEX} 300", "codex", 0),
    "no first word": (f"exec -a '' {CODEX} 300", "codex", 0),
    "the name of another": (f"exec -a claude {CODEX} 300", "codex", 0),
    "the name of a shim": (f"exec -a /x/shims/codex {CODEX} 300", "codex", 0),
    "a hard link": (f"ln {CLAUDE} ed; ./ed 300", "claude", 0),
    "a copy": (f"cp {CLAUDE} ed; ./ed 300", "claude", 0),
    "a copy of a package's": (f"cp {CODEX} cdx; ./cdx 300", "codex", 0),
    "a copy that is removed": (f"cp {CODEX} cdx; (sleep 0.1; rm cdx) & ./cdx 300", "codex", 0),
    "a link to a script": ("ln -s bin/codex ed; ./ed x", "codex", 1),
    "a link to a package's script": ("ln -s bin/copilot ed; ./ed x", "copilot", 1),
    "a copy of a script": ("cp bin/copilot ed; python3 -B ./ed x", "copilot", 2),
    "a hard link of a script": (
        "ln lib/node_modules/@github/copilot/load.js ed; python3 ed", "copilot", 1
    ),
    "a copy of an interpreter": ("cp bin/node nd; ln -s bin/codex ed; ./nd -f ed", "codex", 2),
}  # fmt: skip


@first(16)
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("how", HOW)
async def test_a_program_by_another_name(rig: Rig, installed: Path, how: str) -> None:
    line, program, word = HOW[how]
    rig.launcher.watch_agents(NAMES)
    # an empty environment: the one of the process above it has PATH
    script = installed / "script"
    # with an empty environment: the process above has PATH
    script.write_text(f"cd {installed}\nenv -i PATH={os.environ['PATH']} bash inner; true\n")
    (installed / "inner").write_text(f"{line}\n")
    rig.launch("a1", "bash", "-c", f"export PATH={installed}/bin:$PATH; bash {script}; true")
    await rig.running("a1")
    found = await agent(rig, "a1")
    assert (found.program, found.word, found.is_main) == (program, word, False)
    await rig.stop("a1")


@first(4)
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    "line",
    [
        f"exec -a rg {CLAUDE} 0.4",
        f"exec -a apply_patch {CODEX} 0.4",
        "cp bin/node ed; timeout 0.4 ./ed -f script",
        f"cp {CLAUDE} ed; echo . >>ed; ./ed 0.4",
    ],
    ids=["ripgrep in claude", "a helper of codex", "another program", "a copy that was changed"],
)
async def test_what_is_no_agent(rig: Rig, installed: Path, line: str) -> None:
    rig.launcher.watch_agents(NAMES)
    (installed / "script").write_text("")
    end = f"ln -s {CODEX} last; ./last 300"
    rig.launch("a1", "bash", "-c", f"cd {installed}; PATH=$PWD/bin:$PATH; ({line}); {end}; true")
    await rig.running("a1")
    assert (await agent(rig, "a1")).program == "codex"
    seen = [each for each in rig.events if isinstance(each, AgentSeen)]
    assert {each.process.command for each in seen} == {"./last 300"}
    await rig.stop("a1")


EXECUTES = "os.execv('/bin/sleep', ['sleep', '300'])"
TITLE = """
at = int(open('/proc/self/stat').read().rpartition(')')[2].split()[45])
ctypes.memmove(at, b'my agent', 9)
time.sleep(300)
"""


@pytest.mark.parametrize(
    ("does", "told"), [(EXECUTES, False), (TITLE, True)], ids=["exec", "title"]
)
async def test_a_process_that_changes_while_it_is_searched_for(
    rig: Rig, installed: Path, monkeypatch: pytest.MonkeyPatch, does: str, told: bool
) -> None:
    """What executes another program is none; what has another title is the same."""
    rig.launcher.watch_agents(NAMES)
    os.mkfifo(installed / "gate")
    script = installed / "lib/node_modules/@openai/codex/bin/codex.js"
    begins = f"import ctypes, os, time\nopen('{installed}/gate').read()"
    script.write_text(f"#!/usr/bin/env python3\n{begins}\n{does}\n")
    search, changed = ExecutedFiles.search, list[int]()

    def meanwhile(self: ExecutedFiles, wanted: list[Unsure]) -> dict[int, Executed]:
        found = search(self, wanted)
        if found and not changed:
            pid = next(iter(found))
            before = kernel.command(pid)
            (installed / "gate").write_text("")
            wait_until(lambda: kernel.command(pid) != before, "it has changed")
            changed.append(pid)
        return found

    monkeypatch.setattr(ExecutedFiles, "search", meanwhile)
    rig.launch("a1", "bash", "-c", f"cd {installed}; ln -s bin/codex ed; ./ed x; true")
    await rig.running("a1")
    await until(lambda: changed, "it was searched for")
    rig.launch("a2", "bash", "-c", f"cd {installed}; PATH=$PWD/bin:$PATH; bin/claude 300; true")
    await rig.running("a2")
    await agent(rig, "a2")
    seen = [each.process for each in rig.events if isinstance(each, AgentSeen) and each.run == "a1"]
    assert [each.pid for each in seen] == changed * told
    await rig.stop("a1", "a2")


@pytest.mark.usefixtures("either_way")
async def test_a_shortage_of_descriptors_is_told_and_passes(rig: Rig, installed: Path) -> None:
    """The rig fails if the log speaks of an internal error."""
    rig.launcher.watch_agents(NAMES)
    os.mkfifo(installed / "gate")
    rig.launch("a1", "sh", "-c", f"cd {installed}; cat gate; ln -s {CLAUDE} ed; ./ed 300; true")
    await rig.running("a1")
    gate = await trio.to_thread.run_sync(os.open, installed / "gate", os.O_WRONLY)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        os.close(gate)
        await until(lambda: bool(rig.complaints))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert os.strerror(errno.EMFILE) in rig.complaints[0]
    assert (await agent(rig, "a1")).program == "claude"
    await rig.stop("a1")


def test_what_cannot_be_searched_for_want_of_descriptors_is_no_answer() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    script = Unsure(os.getpid(), ("python3", "x"), File((0, 0), 0, 0, (0, 0)), "python3", 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            ExecutedFiles(NAMES).search([script])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_ordinary_programs_are_not_searched(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[object] = []

    def search(_: ExecutedFiles, unsure: list[object]) -> dict[int, object]:
        searched.extend(unsure)
        return {}

    monkeypatch.setattr(ExecutedFiles, "search", search)
    rig.launcher.watch_agents(NAMES)
    rig.launch("a1", "sh", "-c", "/bin/true; sleep 0.7")  # longer than until the first look
    await rig.wait(MainExited, "a1")
    assert not searched
