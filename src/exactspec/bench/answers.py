"""Plain answers kept in a result file: what later turns have in their history, what peers are made to say, and what is
replayed. Greedy or seeded answers of one identity never change, so they are generated once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from exactspec.bench.case import Case
from exactspec.bench.rounds import Measurement
from exactspec.bench.store import ResultFile


@dataclass(frozen=True, slots=True)
class KeptAnswers:
    """Answers of one model in `out`. `identity`: of its bits; answers of another one are not used."""

    out: ResultFile
    model: str
    identity: str

    def find(self, case: Case) -> tuple[int, ...] | None:
        """The ids of the plain answer, None if there is none yet."""
        same = self._key(case)
        for line in reversed(self.out.lines):
            if all(line.get(key) == value for key, value in same.items()):
                return tuple(line["token_ids"])
        return None

    def keep(self, case: Case, token_ids: tuple[int, ...]) -> None:
        """Add a plain answer unless one is there."""
        if self.find(case) is None:
            self.out.append([{**self._key(case), "case": case.id, "token_ids": list(token_ids)}])

    def get(self, case: Case, plain: Callable[[], Measurement]) -> tuple[int, ...]:
        """The kept answer, or a new one, which is then kept."""
        found = self.find(case)
        if found is None:
            found = plain().token_ids
            self.keep(case, found)
        return found

    def _key(self, case: Case) -> dict[str, str]:
        return {"kind": "answer", "model": self.model, "asked": case.asked, "identity": self.identity}
