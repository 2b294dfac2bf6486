"""The completion scripts of bash, zsh and fish, and what they exchange with `sfactl`.

A script passes the command line up to the cursor, and is answered with a word on each line. Nothing
of an answer is evaluated: a run chose its names and labels. zsh and fish quote the words that they
insert; for bash they are quoted here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

LINE = {
    "bash": "COMP_WORDS",
    "zsh": "_TYPER_COMPLETE_ARGS",
    "fish": "_TYPER_COMPLETE_ARGS",
}
"""The variable with the command line up to the cursor, by shell. typer has these names."""
BREAKS = "COMP_WORDBREAKS"
"""The variable with the characters at which bash begins the part of a word that it replaces."""

SCRIPTS = {
    "bash": r"""
_sfactl_completion() {
    mapfile -t COMPREPLY < <(
        env _SFACTL_COMPLETE=complete_bash COMP_WORDS="${COMP_LINE:0:COMP_POINT}" \
            COMP_WORDBREAKS="$COMP_WORDBREAKS" "$1")
}

complete -o default -F _sfactl_completion sfactl
""",
    "zsh": r"""
#compdef sfactl

_sfactl_completion() {
    local -a lines found shown
    local line before="${words[1,CURRENT-1]}"
    lines=("${(@f)$(env _SFACTL_COMPLETE=complete_zsh \
        _TYPER_COMPLETE_ARGS="$before $QIPREFIX$PREFIX" sfactl)}")
    for line in "${lines[@]}"; do
        [[ -n $line ]] || continue
        found+=("${line%%$'\t'*}")
        shown+=("${line/$'\t'/  -- }")
    done
    if (( ${#found} )); then
        compadd -l -d shown -a -- found
    else
        _files
    fi
}

compdef _sfactl_completion sfactl
""",
    "fish": r"""
function __sfactl_completion
    set -l line (commandline -cp | string collect)
    set -l found (env _SFACTL_COMPLETE=complete_fish _TYPER_COMPLETE_ARGS=$line sfactl)
    if set -q found[1]
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end

complete --command sfactl --no-files --arguments '(__sfactl_completion)'
""",
}
"""By shell. They need bash 4.4, zsh 5 or fish 3.1."""


class Line(NamedTuple):
    """A command line up to the cursor."""

    words: list[str]
    """The words before the last one, without the quotes of the shell."""
    last: str
    """The word at the cursor, without quotes; empty after a space."""
    quote: str
    """The quote that is open; empty if none is."""
    kept: int | None
    """Characters of `last` before the part that bash replaces; `None` if that is not known."""


_PART = re.compile(r"""\\(?P<escaped>.?)|(?P<quote>['"])|(?P<space>[ \t\n]+)|(?P<plain>.)""", re.S)
_IN_QUOTES = {"'": re.compile(r"(?P<text>[^']*)(?P<end>'?)"),
              '"': re.compile(r'(?P<text>(?:[^"\\]|\\.)*)\\?(?P<end>"?)', re.S)}  # fmt: skip
_ESCAPED_IN_QUOTES = re.compile(r'\\([$`"\\\n])')


def read(text: str, breaks: str = "") -> Line:
    """Return what a shell would make of the beginning of a command line. `breaks`: characters at
    which bash begins a part of a word."""
    words: list[str] = []
    last, quote, kept, at = "", "", 0, 0
    begun = False
    closed = False
    while at < len(text):
        found = _PART.match(text, at)
        assert found is not None  # the last alternative takes any character
        at = found.end()
        if found["space"]:
            if begun:
                words.append(last)
            last, kept, begun, closed = "", 0, False, False
            continue
        begun = True
        if found["quote"]:
            inside = _IN_QUOTES[found["quote"]].match(text, at)
            assert inside is not None  # the text may be empty
            if not inside["end"]:
                kept, quote, closed = len(last), found["quote"], False
            else:
                closed = True
            said = inside["text"]
            last += _ESCAPED_IN_QUOTES.sub(r"\1", said) if found["quote"] == '"' else said
            at = inside.end()
        elif found["plain"]:
            last += found["plain"]
            if found["plain"] in breaks:
                kept = len(last)
        else:
            last += found["escaped"]
    return Line(words, last, quote, None if closed else kept)


def answer(shell: str, line: Line, words: Iterable[tuple[str, str]]) -> str:
    """Return the lines for a script: of words that may follow `line`, with what they mean. A word
    replaces all of `line.last`."""
    if shell != "bash":
        return "".join(f"{word}\t{about}\n" if about else f"{word}\n" for word, about in words)
    if line.kept is None:
        return ""
    rest = (word[line.kept :] for word, _ in words)
    return "".join(f"{quoted}\n" for each in rest if (quoted := _for_bash(each, line.quote)))


_READ_IN_QUOTES = {"'": re.compile("'"), '"': re.compile(r'["$`\\!]')}
"""What bash reads within open quotes: no word with it can be added there."""
_READ = re.compile(r"[^\w@%+,./:=-]")


def _for_bash(text: str, quote: str) -> str | None:
    """Return a text as bash has to read it; `None` if that cannot be written behind this open
    quote."""
    if quote:
        return None if _READ_IN_QUOTES[quote].search(text) else text
    return _READ.sub(r"\\\g<0>", text)
