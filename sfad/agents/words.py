"""The words after a program, sorted into options and others."""

from collections.abc import Container, Sequence
from typing import NamedTuple


class SortedWords(NamedTuple):
    options: list[str]
    """With their values."""
    others: list[str]


def sorted_words(
    words: Sequence[str],
    *,
    valued: Container[str],
    listed: Container[str] = (),
    without: Container[str] = (),
) -> SortedWords:
    """Return the options among the words after a program, but for those of `without`, and its other
    words. `valued` are options that take the next word, `listed` those that take each word up to
    the next option. A value that begins with `-` is attached."""
    options: list[str] = []
    others: list[str] = []
    taking, most = others, 0
    for word in words:
        if word.startswith("-") and len(word) > 1:
            name, attached, _ = word.partition("=")
            taking = [] if name in without else options
            most = 0 if attached else 1 if name in valued else len(words) if name in listed else 0
            taking.append(word)
        elif most:
            most -= 1
            taking.append(word)
        else:
            others.append(word)
    return SortedWords(options, others)
