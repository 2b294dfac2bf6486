"""Codex (0.169): it follows no variable, but `openai_base_url` of its config, which `-c` sets."""

from . import variables
from .setup import GATEWAY, Setup, Surroundings


def setup(surroundings: Surroundings) -> Setup:
    any_program = variables.setup(surroundings)
    return Setup("codex", any_program.upstreams, words=("-c", f'openai_base_url="{GATEWAY}/openai"'), env=any_program.env)
