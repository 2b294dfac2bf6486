"""What is known of a tree: how each agent program in it is led through the gateway."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from . import aider, claude, codex, gemini, network, opencode, variables
from .files import UnreadableError
from .setup import Setup, Surroundings, TreeUpstream

_OF_PROGRAMS = {
    "aider": aider.setup,
    "claude": claude.setup,
    "codex": codex.setup,
    "gemini": gemini.setup,
    "opencode": opencode.setup,
}
_FOLLOWED = {"opencode": opencode.FOLLOWED}
"""Variables of any program that a program with a setup of its own follows, too."""
_OF_COMMANDS = {"codex": codex.of_command}
"""Of programs whose command line chooses where their calls go."""
ANY_PROGRAM = ""


def all_setups(surroundings: Surroundings) -> dict[str, Setup]:
    """Return the setup of each program that has a module here, and that of any other program."""
    if (why := network.obstacle(surroundings, surroundings.env)) is not None:
        return {program: Setup(program, direct=why) for program in (ANY_PROGRAM, *_OF_PROGRAMS)}
    programs = {program: _of(program, of, surroundings) for program, of in _OF_PROGRAMS.items()}
    any_program = _of(ANY_PROGRAM, variables.setup, surroundings)
    any_program = replace(any_program, certificates=network.certificates(surroundings, surroundings.env))
    return {ANY_PROGRAM: _beside(any_program, programs["gemini"])} | programs


def _of(program: str, of: Callable[[Surroundings], Setup], surroundings: Surroundings) -> Setup:
    """Return the setup of a program, which goes around the gateway if a file that may have its address cannot be read."""
    try:
        return of(surroundings)
    except UnreadableError as error:
        return Setup(program, direct=str(error))


def _beside(any_program: Setup, own: Setup) -> Setup:
    """Return the setup of any program so that Gemini CLI still starts where it is not known as such, in a script or by its path."""
    env = dict(any_program.env)
    if gemini.BASE_URL not in env or any(upstream.name == "gemini" for upstream in any_program.upstreams):
        return any_program
    if own.direct is not None:
        del env[gemini.BASE_URL]
    return replace(any_program, env=tuple(({**dict(own.env), **env} if own.direct is None else env).items()))


_USUAL = all_setups(Surroundings({}, "/", lambda _path: None, {}))
"""Of a person with no settings at all. Trees are not saved with these."""


class TreeSetups(Struct, frozen=True, omit_defaults=True):
    """What was found when a person started the root of a tree. What its agents write into settings later changes nothing here."""

    programs: tuple[str, ...] = ()
    """Known agent programs in the root's PATH."""
    unusual: tuple[Setup, ...] = ()

    def of(self, program: str, options: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Setup:
        """Return the setup of a program by its name for the guard, as it is for a command with these words after the program and
        this environment."""
        found = self._all
        setup = found.get(program) or found[ANY_PROGRAM]
        of_command = _OF_COMMANDS.get(program)
        return setup if of_command is None else of_command(setup, options, env or {})

    @property
    def _all(self) -> dict[str, Setup]:
        return _USUAL | {setup.program: setup for setup in self.unusual}

    def env_of(self, setup: Setup) -> dict[str, str]:
        """Return the variables to set for a program: its own, and those of any program that it may start."""
        env = dict(self.of(ANY_PROGRAM).env) | dict(setup.env)
        return {variable: value for variable, value in env.items() if variable not in setup.unset}

    def followed(self, setup: Setup) -> set[str]:
        """Return the variables that lead the program itself, of those that `env_of` sets."""
        return {variable for variable, _ in setup.env} | {*_FOLLOWED.get(setup.program, ())}

    @property
    def keys(self) -> set[str]:
        """Variables with keys for addresses of the person's own, which some program of the tree may need."""
        return {variable for setup in self._setups for variable in setup.keys}

    @property
    def upstreams(self) -> dict[str, TreeUpstream]:
        return {upstream.name: upstream for setup in self._setups for upstream in setup.upstreams}

    @property
    def _setups(self) -> list[Setup]:
        return [each for setup in self._all.values() for each in (setup, *(profile for _, profile in setup.profiles))]

    @property
    def certificates(self) -> list[str]:
        """Files of certificates that the gateway must trust for calls of the tree."""
        return list(dict.fromkeys(path for setup in self.unusual for path in setup.certificates))


NO_SETUPS = TreeSetups()


def tree_setups(surroundings: Surroundings, programs: Iterable[str]) -> TreeSetups:
    """Return what to keep with a tree. `programs`: those of its PATH."""
    found = all_setups(surroundings)
    return TreeSetups(tuple(programs), tuple(setup for name, setup in found.items() if setup != _USUAL[name]))
