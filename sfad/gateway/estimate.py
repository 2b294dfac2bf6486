"""How many tokens the input of a call has, from its size."""

from collections import OrderedDict

BYTES_A_TOKEN = 2.5
"""Of a run whose calls nothing is known of yet. English and code have three to four bytes a token, so this estimates too much."""
MAX_RUNS = 4096


class InputEstimates:
    """The tokens a byte of each run's last calls. A run's calls grow by what the agent adds to one conversation."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], float] = OrderedDict()

    def tokens(self, run: str, model: str, size: int) -> int:
        return 1 + int(size * self._known.get((run, model), 1 / BYTES_A_TOKEN))

    def learn(self, run: str, model: str, size: int, tokens: int) -> None:
        """Take what a call has had in truth."""
        if size and tokens:
            self._known[run, model] = tokens / size
            self._known.move_to_end((run, model))
            while len(self._known) > MAX_RUNS:
                self._known.popitem(last=False)
