"""What the calls under way of each user take, summed when one begins or ends: no decision asks every live run for it."""

from collections import Counter

from .account import OpenReservation


class CallsUnderWay:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._doubts: Counter[str] = Counter()

    def begin(self, user: str, reservation: OpenReservation) -> None:
        self._counts[user] += reservation.messages
        self._doubts[user] += reservation.more_cost

    def end(self, user: str, reservation: OpenReservation) -> None:
        self._counts[user] -= reservation.messages
        self._doubts[user] -= reservation.more_cost

    def count(self, user: str) -> int:
        return self._counts.get(user, 0)

    def doubts(self, user: str) -> int:
        """Return nano-dollars that they may cost beyond what they have charged."""
        return self._doubts.get(user, 0)
