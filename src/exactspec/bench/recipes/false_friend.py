"""C2, false friend: near-duplicate lines whose continuations part after a few tokens. It punishes eager drafting."""

from __future__ import annotations

import random
import re
import sys

from exactspec.bench.recipes.base import CountTokens, Draft, Message, fit_units, user
from exactspec.bench.recipes.materials import Materials

_SERVICES = "/etc/services"
_ENTRY = re.compile(r"([a-z][a-z0-9-]{1,14})\s+\d+/(?:tcp|udp)\b")
_RAISE = 17
_GOLD_LINES = 40
_MOST_LINES = 4096


def make(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """Lines in the manner of a services table; each name comes with several ports, no two lines agree for long.

    The task raises every port and halves every count, so that the gold follows a line of the prompt for 3 to 6
    tokens and then leaves it. Raises ValueError if no number of lines gives the size.
    """
    rng = random.Random(seed)
    names, files = service_names(materials)
    lines = [_line(rng, rng.choice(names)) for _ in range(_MOST_LINES)]

    def messages(n: int) -> tuple[Message, ...]:
        table = "\n".join(f"{name} {port}/{protocol} {seen}" for name, port, protocol, seen in lines[:n])
        return user(
            "Below is a table of services: name, port, count of clients. Write the table again in the same order, "
            f"with every port raised by {_RAISE} and every count halved. Write nothing else.\n\n{table}"
        )

    n = fit_units(len(lines), size, lambda n: count(messages(n)))
    if n is None:
        raise ValueError(f"false_friend: no number of lines gives {size} tokens within 5%: ask for another size")
    gold = "\n".join(
        f"{name} {port + _RAISE}/{protocol} {seen // 2}" for name, port, protocol, seen in lines[:n][:_GOLD_LINES]
    )
    return Draft(messages(n), gold, files, n)


def _line(rng: random.Random, name: str) -> tuple[str, int, str, int]:
    return name, rng.randrange(1024, 65000), rng.choice(("tcp", "udp")), 2 * rng.randrange(50, 5000)


def service_names(materials: Materials) -> tuple[list[str], tuple[str, ...]]:
    """A few names, so that each occurs in many lines; of the services table, or of Python's modules without it."""
    names = sorted({found[1] for line in materials.system_lines(_SERVICES) if (found := _ENTRY.match(line))})
    files: tuple[str, ...] = (_SERVICES,)
    if not names:
        names = sorted(name for name in sys.stdlib_module_names if not name.startswith("_"))
        files = ("sys.stdlib_module_names",)
    return names[:: max(1, len(names) // 24)][:24], files
