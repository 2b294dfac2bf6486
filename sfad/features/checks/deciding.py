"""Which checks and which setup a run gets: those of its request, else of its agent, else of its
profile."""

from ...core.state.naming import AGENT_COMMANDS, derive_name
from ...core.state.policy import Invalid
from ...core.state.request import Stage
from ...daemon.loop.seam import Heart
from ...protocol.errors import bad_request, check_most
from ...protocol.known import CODING_AGENT
from ...protocol.types import Checks, Worktree
from ...start.prepared import Prepared, Surroundings
from .feature import (
    CHECK,
    MOST,
    MOST_CHARACTERS,
    SETUP,
    AgentChecks,
    AgentsChecks,
    DefaultChecks,
)

NOTHING = AgentChecks()


class Deciding:
    def __init__(self, heart: Heart) -> None:
        self._heart = heart
        self.reconfigure()

    def reconfigure(self) -> None:
        self._agents = self._heart.section("agents", AgentsChecks)
        self._profiles = self._heart.section("defaults", DefaultChecks).check

    def decide(self, p: Prepared, around: Surroundings) -> None:
        """A step of `start.prepare`. Raise `Invalid`, `RequestError`."""
        order = around.order
        checks, setup = order.check, order.setup
        _check_words(checks, setup)
        own = self._agents.get(order.agent or "", NOTHING)
        if checks is None:
            checks = Checks(commands=list(own.check)) if own.check else self._of_profile(p)
        elif not checks.commands:
            checks = None if checks.timeout is None else self._with_timeout(p, own, checks)
        if setup is None:
            setup = own.setup or None
        elif setup and not _has_worktree(p):
            raise Invalid(
                "--setup prepares the new worktree of a run: add --worktree, or leave --setup out"
            )
        p.parts.decide(CHECK, checks)
        p.parts.decide(SETUP, setup if setup and _has_new_worktree(p) else None)
        p.stages = stages_of(p)

    def _with_timeout(self, p: Prepared, own: AgentChecks, asked: Checks) -> Checks | None:
        found = Checks(commands=list(own.check)) if own.check else self._of_profile(p)
        if found is None:
            raise Invalid(
                "--check-timeout is for checks, and this run has none: add --check COMMAND"
            )
        return Checks(commands=found.commands, timeout=asked.timeout)

    def _of_profile(self, p: Prepared) -> Checks | None:
        if not self._profiles:
            return None
        run_type = p.identity.run_type
        if run_type is None and self._heart.machine.policy.program_profile:
            words = tuple(word.decode(errors="backslashreplace") for word in p.command.argv)
            run_type = CODING_AGENT if derive_name(words) in AGENT_COMMANDS else None
        found = self._profiles.get(run_type or "")
        if found is None or not found.commands:
            return None
        return Checks(commands=list(found.commands), timeout=found.timeout)


def _check_words(checks: Checks | None, setup: str | None) -> None:
    commands = [] if checks is None else checks.commands
    check_most("checks of a run", len(commands), MOST)
    for option, command in (*(("--check", each) for each in commands), ("--setup", setup or "-")):
        check_most(f"characters of {option}", len(command), MOST_CHARACTERS)
        if "\0" in command:
            raise bad_request(f"a NUL character in {option}")
        if not command.strip():
            raise bad_request(f"{option}: the command is blank; name one, or leave it out")
    seconds = None if checks is None else checks.timeout
    if seconds is not None and not 0 < seconds <= 31 * 86400:
        raise bad_request(f"--check-timeout must be above 0 and at most 31d, got {seconds:g} s")


def _has_worktree(p: Prepared) -> bool:
    worktree: Worktree | None = p.parts.of("worktree")
    return worktree is not None and not worktree.shared


def _has_new_worktree(p: Prepared) -> bool:
    """Return whether a worktree is going to be made for the run."""
    return _has_worktree(p) and not p.parts.of("worktree").there


def stages_of(p: Prepared) -> tuple[Stage, ...]:
    """Return what is executed beside the command, in order."""
    checks: Checks | None = p.parts.of(CHECK)
    setup: str | None = p.parts.of(SETUP)
    before = (Stage(SETUP, setup, before=True),) if setup else ()
    if checks is None:
        return before
    return (*before, *(Stage(CHECK, each, seconds=checks.timeout) for each in checks.commands))
