"""What is known of a tree: how each agent program in it is led through the gateway."""

from collections.abc import Iterable

from msgspec import Struct

from . import codex, variables
from .setup import Setup, Surroundings, TreeUpstream

_OF_PROGRAMS = {"codex": codex.setup}
ANY_PROGRAM = ""


def all_setups(surroundings: Surroundings) -> dict[str, Setup]:
    """Return the setup of each program that has a module here, and that of any other program."""
    return {ANY_PROGRAM: variables.setup(surroundings)} | {program: of(surroundings) for program, of in _OF_PROGRAMS.items()}


_USUAL = all_setups(Surroundings({}, "/", lambda _path: None, {}))
"""Of a person with no settings at all. Trees are not saved with these."""


class TreeSetups(Struct, frozen=True, omit_defaults=True):
    """What was found when a person started the root of a tree. What its agents write into settings later changes nothing here."""

    programs: tuple[str, ...] = ()
    """Known agent programs in the root's PATH."""
    unusual: tuple[Setup, ...] = ()

    def of(self, program: str) -> Setup:
        """Return the setup of a program by its name for the guard."""
        found = _USUAL | {setup.program: setup for setup in self.unusual}
        return found.get(program) or found[ANY_PROGRAM]

    def env_of(self, setup: Setup) -> dict[str, str]:
        """Return the variables to set for a program: its own, and those of any program that it may start."""
        env = dict(self.of(ANY_PROGRAM).env) | dict(setup.env)
        return {variable: value for variable, value in env.items() if variable not in setup.unset}

    @property
    def upstreams(self) -> dict[str, TreeUpstream]:
        return {upstream.name: upstream for setup in self.unusual for upstream in setup.upstreams}


NO_SETUPS = TreeSetups()


def tree_setups(surroundings: Surroundings, programs: Iterable[str]) -> TreeSetups:
    """Return what to keep with a tree. `programs`: those of its PATH."""
    found = all_setups(surroundings)
    return TreeSetups(tuple(programs), tuple(setup for name, setup in found.items() if setup != _USUAL[name]))
