"""The words of `sandbox.Sandbox.words`, before `--` and the command."""

from __future__ import annotations


class SandboxSettings:
    def __init__(self, words: list[str]) -> None:
        at = words.index("--")
        self._pairs = [(name, value) for name, _, value in (word.partition("=") for word in words[:at])]
        self.command = words[at + 1 :]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def one(self, name: str) -> str:
        return next(iter(self.all(name)), "")

    def has(self, name: str) -> bool:
        return any(key == name for key, _ in self._pairs)

    def named(self, name: str) -> dict[str, str]:
        """Return `KEY=VALUE` items. Of two with one key, the first counts."""
        return {key: value for key, _, value in (item.partition("=") for item in reversed(self.all(name)))}
