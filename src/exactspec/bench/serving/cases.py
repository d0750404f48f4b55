"""What clients ask for: plain text with nothing to copy, and edits of text that is in the prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

from exactspec.bench.case import Case
from exactspec.bench.plan import Asked, recipe_cases
from exactspec.bench.workloads import prompt_ids
from exactspec.params import SamplingParams
from exactspec.target.tokenizer import Tokenizer

PLAIN, COPY = "plain", "copy"
COPY_RECIPES = ("code_edit", "json_reemit")
_STORIES = (
    "a lighthouse keeper who finds a map in a bottle",
    "two rival bakers in a small mountain town",
    "a robot that learns to paint",
    "a night train that stops where no station is",
    "a girl who repairs clocks for the whole street",
    "an old map maker and his last journey",
    "a cat that moves into a library",
    "three friends who build a boat in a barn",
)
_SUBJECTS = (
    "why the sky is blue and sunsets are red",
    "how bread rises",
    "what a hash table is good for",
    "how vaccines work",
    "why ships of steel float",
    "what happens when a web page is opened",
    "how bees find their way home",
    "why the seasons change",
)


def plain_cases(tokenizer: Tokenizer, n: int, *, max_tokens: int) -> list[Case]:
    """n short prompts, a story and an explanation in turn, with answers of exactly `max_tokens` tokens.

    Raises ValueError if there are not so many.
    """
    texts = [
        text
        for story, subject in zip(_STORIES, _SUBJECTS, strict=True)
        for text in (f"Write a story about {story}.", f"Explain {subject}, in a few paragraphs.")
    ]
    if n > len(texts):
        raise ValueError(f"there are {len(texts)} plain prompts, not {n}")
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return [
        Case(
            id=f"{PLAIN}-{number}",
            ids=tuple(prompt_ids(tokenizer, [{"role": "user", "content": text}])),
            params=params,
        )
        for number, text in enumerate(texts[:n])
    ]


def copy_cases(tokenizer: Tokenizer, n: int, *, sizes: Sequence[int], max_tokens: int) -> list[Case]:
    """n prompts of the copy-heavy recipes: seed by seed, each in every size. An answer has the length of the ideal
    reply and a tenth more, at most `max_tokens`, whatever the model says: every server emits as many tokens."""

    def cases() -> Iterator[Case]:
        asked = Asked(max_tokens=max_tokens)
        for seed in count():
            for size in sizes:
                yield from recipe_cases(tokenizer, COPY_RECIPES, [size], [seed], asked)

    found: list[Case] = []
    for case in cases():
        if len(found) == n:
            break
        found.append(replace(case, params=replace(case.params, ignore_eos=True)))
    return found
