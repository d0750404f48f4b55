"""Prompts for text that the target writes itself, built by templates from words and from the Python library.

Prompt i of a seed is a function of both alone. Kinds: story, explain, chat, travel, code, docs, rewrite, data. A prompt
is one or two user turns; the second is asked after the model's first answer.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

from exactspec.bench.recipes.materials import Materials
from exactspec.training import words

_LARGEST_FILE = 100_000  # bytes
_LONGEST_SOURCE, _LONGEST_DOC = 1400, 700  # characters quoted in a prompt
_HELD_OUT_FILES = 10  # one library file in this many is for held-out prompts alone


@dataclass(frozen=True, slots=True)
class PromptText:
    """`turns`: what the user says, one or two. `greedy`: the answer is the target's own, else sampled."""

    kind: str
    turns: tuple[str, ...]
    greedy: bool


@dataclass(frozen=True, slots=True)
class Function:
    """A documented function of the library: dotted name, source and the docstring's first paragraph."""

    name: str
    source: str
    doc: str


@dataclass(frozen=True, slots=True)
class PromptMaterial:
    """What templates quote. `held_out`: this material is for held-out prompts, and shares no file with the other."""

    functions: tuple[Function, ...]
    cities: tuple[str, ...]
    held_out: bool


def held_out_file(name: str) -> bool:
    """Whether a library file (its name within the library) is kept out of everything that is trained on."""
    return sha256(name.encode()).digest()[0] % _HELD_OUT_FILES == 0


def prompt_material(*, held_out: bool, materials: Materials | None = None) -> PromptMaterial:
    """Documented functions of the library's files, and names of cities from the time zone table. Takes seconds."""
    materials = materials or Materials()
    functions: list[Function] = []
    for name, text in materials.library_texts(2000, _LARGEST_FILE):
        if held_out_file(name) == held_out:
            functions += _functions(name.removesuffix(".py").replace("/", "."), text)
    if not functions:
        raise ValueError(f"{materials.library} holds no documented Python functions to ask about")
    return PromptMaterial(tuple(functions), _cities(materials), held_out)


def _functions(module: str, text: str) -> list[Function]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    found = []
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
            doc = (ast.get_docstring(node) or "").split("\n\n")[0]
            source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            if 20 <= len(doc) <= _LONGEST_DOC and len(source) <= _LONGEST_SOURCE:
                indent = len(source) - len(source.lstrip())
                source = "\n".join(line[indent:] if not line[:indent].strip() else line for line in source.split("\n"))
                found.append(Function(f"{module}.{node.name}", source, " ".join(doc.split())))
    return found


def _cities(materials: Materials) -> tuple[str, ...]:
    lines = materials.system_lines("/usr/share/zoneinfo/tzdata.zi") or []
    zones = {part for line in lines for part in line.split() if "/" in part and part[0].isupper()}
    names = sorted({Path(zone).name.replace("_", " ") for zone in zones if not any(c.isdigit() for c in zone)})
    cities = [name for name in names if name.replace(" ", "").isalpha() and len(name) > 3]
    return tuple(cities) if len(cities) > 50 else _FEW_CITIES


_FEW_CITIES: Final = ("Paris", "Lagos", "Lima", "Oslo", "Kyoto", "Cairo", "Quito", "Prague", "Dakar", "Perth", "Hanoi")

Recipe: TypeAlias = Callable[[random.Random, PromptMaterial], str]


def story(rng: random.Random, _: PromptMaterial) -> str:
    who, where, what, mood = (rng.choice(x) for x in (words.PEOPLE, words.PLACES, words.THINGS, words.MOODS))
    return rng.choice(
        (
            f"Write a {mood} story about a {who} and {what}.",
            f"Tell me a short story that takes place in {where}. It should involve {what}.",
            f"Write the first page of a {mood} novel. The main character is a {who} who lives in {where}.",
            f"A {who} finds {what} in {where}. What happens next?",
            f"Write a {mood} poem about {what}.",
            f"Write a dialogue between a {who} and a {rng.choice(words.PEOPLE)} about {what}.",
            f"Write a bedtime story with a {who}, {where} and {what}.",
            f"Invent a legend that explains why {what} is kept in {where}.",
            f"Describe {where} through the eyes of a {who}.",
            f"Write a diary entry of a {who} on the day {what} turned up.",
        )
    )


def explain(rng: random.Random, _: PromptMaterial) -> str:
    topic, other, audience = rng.choice(words.TOPICS), rng.choice(words.TOPICS), rng.choice(words.AUDIENCES)
    return rng.choice(
        (
            f"Explain {topic} to {audience}.",
            f"What is {topic}?" if rng.random() < 0.5 else f"What should everyone know about {topic}?",
            f"Why does {topic} matter?",
            f"Give me {rng.randint(3, 7)} facts about {topic}.",
            f"What do {topic} and {other} have in common?",
            f"Write an introduction to {topic} for {audience}.",
            f"What are common misunderstandings about {topic}?",
            f"Write a quiz of {rng.randint(3, 6)} questions about {topic}, with answers.",
            f"Explain the difference between {topic} and {other}.",
            f"Summarise the history of {topic} in a few sentences.",
            f"Use an analogy to explain {topic}.",
            f"How would you teach {topic} in one lesson?",
        )
    )


def chat(rng: random.Random, _: PromptMaterial) -> str:
    goal, food, view, who = (rng.choice(x) for x in (words.GOALS, words.FOODS, words.OPINIONS, words.PEOPLE))
    return rng.choice(
        (
            f"How can I {goal}?",
            f"I want to {goal} but never find the time. Any advice?",
            f"Give me {rng.randint(3, 10)} tips to {goal}.",
            f"Write a plan for {rng.randint(2, 8)} weeks to {goal}.",
            f"How do I make {food}?",
            f"What goes well with {food}? We are {rng.randint(2, 8)} people.",
            f"What are arguments for and against {view}?",
            f"Write an email to my {rng.choice(('landlord', 'boss', 'teacher', 'neighbour', 'bank'))} about {view}.",
            f"What does a {who} do all day?",
            f"Write a speech of a {who} about {view}.",
            f"I have {rng.choice(('a cold', 'a free afternoon', 'too many books', 'no garden'))} and want to {goal}.",
            f"Suggest {rng.randint(3, 8)} names for a shop that sells {food}.",
            f"Which is better: to {goal} alone or with friends?",
            f"Pretend you are a {who}. Tell me about {view}.",
        )
    )


def travel(rng: random.Random, material: PromptMaterial) -> str:
    city, other = rng.sample(material.cities, 2)
    return rng.choice(words.QUESTIONS).format(city=city, other=other, n=rng.randint(2, 6))


def code(rng: random.Random, _: PromptMaterial) -> str:
    task, language = rng.choice(words.TASKS), rng.choice(words.LANGUAGES)
    return rng.choice(
        (
            f"Write a {language} function that {task}.",
            f"Write a {language} program that {task}. Comment it.",
            f"Show me how one {task} in {language}, step by step.",
            f"Write a class in {language} that {task}.",
            f"Write a {language} function that {task}, and tests for it.",
            f"I need a {language} script that {task}. Keep it short.",
        )
    )


def docs(rng: random.Random, material: PromptMaterial) -> str:
    f = rng.choice(material.functions)
    return rng.choice(
        (
            f"What does this function do?\n\n```python\n{f.source}\n```",
            f"Explain this code line by line.\n\n```python\n{f.source}\n```",
            f"The documentation of `{f.name}` says: {f.doc}\n\nExplain that in plain words and give an example.",
            f"How do I use `{f.name}` in Python? Its documentation: {f.doc}",
            f"Write tests for this function.\n\n```python\n{f.source}\n```",
            f"Find possible problems in this function.\n\n```python\n{f.source}\n```",
            f"Write a Python function with this documentation: {f.doc}",
        )
    )


def rewrite(rng: random.Random, material: PromptMaterial) -> str:
    count = rng.randint(1, 4)
    text = " ".join(rng.sample(words.SENTENCES, count))
    if rng.random() < 0.4:
        text = rng.choice(material.functions).doc
    return rng.choice(
        (
            f"Correct the grammar: {text}",
            f"Rewrite this more politely:\n\n{text}",
            f"Rewrite this in simpler words:\n\n{text}",
            f"Summarise in one sentence:\n\n{text}",
            f"Turn this into bullet points:\n\n{text}",
            f"Write it as a {rng.choice(('headline', 'text message', 'formal letter', 'poem', 'question'))}:\n\n{text}",
            f"Make it longer and add details:\n\n{text}",
            f"Rewrite it in the past tense:\n\n{text}",
            f"What is the tone of this text, and what would make it {rng.choice(words.MOODS)}?\n\n{text}",
        )
    )


def data(rng: random.Random, _: PromptMaterial) -> str:
    items, n = rng.choice(words.ITEMS), rng.randint(3, 8)
    fields = ", ".join(rng.sample(words.FIELDS, rng.randint(2, 4)))
    return rng.choice(
        (
            f"Make up {n} {items} as JSON with {fields}.",
            f"Write a table in Markdown of {n} {items} with the columns {fields}.",
            f"Write SQL that creates a table of {items} with {fields}, and {n} rows.",
            f"List {n} {items} as CSV with {fields}.",
            f"Write a Python dataclass for {items} with {fields}, and make a list of {n}.",
            f"Design a database for {items}. Which tables and fields are needed besides {fields}?",
            f"Write an HTML page that lists {n} {items} with {fields}.",
        )
    )


RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {f.__name__: f for f in (story, explain, chat, travel, code, docs, rewrite, data)}
)
_SHARES: Final[Sequence[int]] = (18, 18, 20, 6, 12, 12, 8, 6)  # in a hundred, in the order of RECIPES


def make_prompt(seed: int, index: int, material: PromptMaterial, *, greedy: float = 0.5) -> PromptText:
    """Prompt `index`; held-out material gives other prompts. `greedy`: the share of greedy answers."""
    rng = random.Random(f"{seed} {index} {'held out' if material.held_out else ''}")
    kind = rng.choices(tuple(RECIPES), _SHARES)[0]
    turns = [RECIPES[kind](rng, material)]
    if rng.random() < 0.25:
        turns.append(rng.choice(words.FOLLOW_UPS))
    return PromptText(kind, tuple(turns), rng.random() < greedy)
