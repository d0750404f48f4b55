"""One bar: what was measured, its limit, and whether it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Sense: TypeAlias = Literal["at least", "at most", "below"]
_SIGNS: dict[Sense, str] = {"at least": ">=", "at most": "<=", "below": "<"}
_FORMATS = {"x": "{:.2f}x", "us": "{:.1f} us", "s": "{:.2f} s", "MB": "{:.0f} MB", "%": "{:.2f}%"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """`value` must be `sense` ("at least", "at most", "below") `limit`, both in `unit` (x, us, s, MB or %).

    `equal`: whether the tokens were the same, where that is part of the bar. `otherwise`: the bar's other condition
    holds, which is as good as the limit. `detail`: what else to know.
    """

    name: str
    value: float
    limit: float
    unit: str
    detail: str
    sense: Sense = "at least"
    equal: bool | None = None
    otherwise: bool = False

    @property
    def passed(self) -> bool:
        if self.equal is False:
            return False
        if self.otherwise:
            return True
        if self.sense == "below":
            return self.value < self.limit
        return self.value >= self.limit if self.sense == "at least" else self.value <= self.limit

    @property
    def told_value(self) -> str:
        return _FORMATS[self.unit].format(self.value)

    @property
    def told_limit(self) -> str:
        return f"{_SIGNS[self.sense]} {_FORMATS[self.unit].format(self.limit)}"
