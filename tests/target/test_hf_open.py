"""``hf:FOLDER`` from end to end: opening, refusing, and drafted answers that equal plain ones."""

from __future__ import annotations

import io
import json
import shutil

import pytest

torch = pytest.importorskip("torch", reason="the float target runs on torch")
transformers = pytest.importorskip("transformers", reason="the float target runs models of transformers")

from scripted import Oracle, RandomTree  # noqa: E402
from tiny_hf import VOCAB, save, tiny  # noqa: E402

from exactspec import Engine, SamplingParams, Speculation  # noqa: E402
from exactspec.cli.main import main  # noqa: E402
from exactspec.cli.services import Services  # noqa: E402
from exactspec.target.hf_open import open_hf  # noqa: E402

PROMPT = "one two three, one two three, one two"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("hf")
    return {name: save(root / name.replace(" ", "-"), tiny(name)) for name in ("llama", "mistral window 8", "gpt2")}


@pytest.fixture(scope="module", params=["llama", "mistral window 8", "gpt2"])
def engine(request, folders):
    return Engine.from_pretrained(f"hf:{folders[request.param]}", threads=1)


PARAMS = {
    "greedy": SamplingParams(max_tokens=60, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.8, top_p=0.95, seed=3),
    "penalties": SamplingParams(
        max_tokens=60, ignore_eos=True, temperature=0.5, seed=5, repetition_penalty=1.2, frequency_penalty=0.3
    ),
}


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_drafted_answers_equal_plain_ones(engine, params):
    """Float32 and no near-tie among all rows, so nothing can part (sampling: no draw on a border, by the seeds)."""
    ids = engine.encode(PROMPT)
    plain = engine.generate(ids, params, speculation=Speculation(draft="none"))
    assert plain.exact is False
    whole = [*ids, *plain.token_ids]
    drafters = [
        Oracle(whole, length=6, wrong_every=5, vocab_size=VOCAB),
        RandomTree(vocab_size=VOCAB, text=whole, nodes=20),
        "copy",
        "copyspec",
    ]
    for draft in drafters:
        drafted = Engine(engine.target, engine.tokenizer, draft=draft, prefill_chunk=16).generate(ids, params)
        assert drafted.token_ids == plain.token_ids
        if not isinstance(draft, str):
            assert drafted.metrics.num_accepted_tokens > 20
            assert drafted.metrics.num_draft_tokens > drafted.metrics.num_accepted_tokens
    assert engine.target.near_ties.count == 0


def test_plain_answers_are_those_of_transformers(engine, folders):
    folder = folders[{"llama": "llama", "mistral": "mistral window 8", "gpt2": "gpt2"}[engine.target.name]]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = engine.encode(PROMPT)
    theirs = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=40,
        min_new_tokens=40,
        eos_token_id=sorted(engine.tokenizer.eos_ids),
        do_sample=False,
    )
    ours = engine.generate(ids, SamplingParams(max_tokens=40, min_tokens=40), speculation=Speculation(draft="none"))
    assert list(ours.token_ids) == theirs[0, len(ids) :].tolist()


def test_a_session_reuses_the_prefix(engine):
    params = SamplingParams(max_tokens=12)
    session = engine.session()
    first = session.generate(PROMPT, params)
    again = PROMPT + first.text + " and"
    second = session.generate(again, params)
    assert second.metrics.cached_tokens > len(PROMPT) - 2
    assert second.token_ids == engine.generate(again, params).token_ids


def test_chat_template_and_end_of_text(folders):
    target, tokenizer = open_hf(str(folders["llama"]), threads=1)
    assert tokenizer.has_chat_template
    assert tokenizer.eos_ids >= {256}
    ids = tokenizer.chat([{"role": "user", "content": "<|im_end|> hi"}])
    assert ids.count(258) == 1  # the message's own is plain text
    assert target.vocab_size == VOCAB


def run(*argv):
    out, err = io.StringIO(), io.StringIO()
    services = Services(stdin=io.BytesIO(), stdout=out, stderr=err, environ={})
    return main(list(argv), services=services), out.getvalue(), err.getvalue()


def test_the_command_line_compares(folders):
    argv = ["generate", "-m", f"hf:{folders['llama']}", "--raw", "--prompt", PROMPT, "--draft", "copy", "--compare"]
    code, out, err = run(*argv, "--max-tokens", "40", "--min-tokens", "40", "--pairs", "1", "--threads", "1", "--json")
    assert code == 0, err
    value = json.loads(out)
    assert value["exact"] is False
    assert value["compare"]["equal"] is True
    assert value["compare"]["plain"]["num_draft_tokens"] == 0
    ties = value["compare"]["near_ties"]
    assert ties["rows"] >= 80
    assert ties["count"] == 0
    assert ties["smallest_gap"] > 0
    assert "not bit-exact" in err
    code, out, err = run(*argv, "--max-tokens", "8", "--pairs", "1", "--threads", "1", "--dtype", "bfloat16")
    assert code in (0, 1)  # a near-tie may part the texts
    assert "not bit-exact (float): " in err
    assert ("NOT EQUAL" in err) == (code == 1)


def test_wrong_options_are_one_line(folders):
    llama = f"hf:{folders['llama']}"
    for argv, message in (
        (("-m", llama, "--dtype", "int4"), "dtype must be one of float32, bfloat16, got 'int4'"),
        (("-m", llama, "--device", "tpu"), "device must be one of cpu, cuda"),
        (("-m", llama, "--cache-dtype", "int8"), "leave cache_dtype as it is"),
        (("-m", "smollm2-135m", "--dtype", "float32"), "dtype is for models run through transformers"),
        (("-m", "hf:nowhere/at-all"), "neither a folder nor a model in the Hugging Face cache"),
    ):
        code, _, err = run("generate", *argv, "--prompt", "x")
        assert code == 2
        assert message in err
        assert err.count("\n") == 1
    if not torch.cuda.is_available():
        assert "no CUDA device" in run("generate", "-m", llama, "--device", "cuda", "--prompt", "x")[2]


def broken(folders, tmp_path, change):
    folder = tmp_path / "model"
    shutil.copytree(folders["llama"], folder)
    change(folder)
    with pytest.raises(ValueError) as error:
        open_hf(str(folder), threads=1)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"hf:{folder}: ")
    return str(error.value)


def edit(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_broken_folders_are_one_line(folders, tmp_path):
    cases = {
        "no config.json": lambda f: (f / "config.json").unlink(),
        "config.json cannot be used": lambda f: (f / "config.json").write_text("{"),
        "no *.safetensors": lambda f: (f / "model.safetensors").unlink(),
        "no tokenizer.json": lambda f: (f / "tokenizer.json").unlink(),
        "weights cannot be loaded": lambda f: (f / "model.safetensors").write_bytes(b"0" * 100),
        "the weights lack": lambda f: edit(f, num_hidden_layers=4),
        "quantised": lambda f: edit(f, quantization_config={"quant_method": "gptq", "bits": 4}),
        "no causal language model of the type 'clip'": lambda f: edit(f, model_type="clip"),
        "mamba has linear_attention layers": lambda f: (f / "config.json").write_text(
            transformers.MambaConfig(num_hidden_layers=2).to_json_string()
        ),
    }
    for index, (message, change) in enumerate(cases.items()):
        assert message in broken(folders, tmp_path / str(index), change)


def test_no_code_of_a_folder_is_run(folders, tmp_path):
    def change(folder):
        (folder / "own.py").write_text("raise SystemExit('this ran')")
        edit(folder, model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})

    assert "config.json cannot be used" in broken(folders, tmp_path, change)


def test_too_large_for_the_memory(folders, monkeypatch):
    monkeypatch.setattr("exactspec.target.hf_open.available_memory", lambda: 1000)
    with pytest.raises(ValueError, match=r"GiB in float32, available 0\.00 GiB"):
        open_hf(str(folders["llama"]), threads=1)


def test_the_cache_of_the_hub_is_looked_into(folders, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    commit = "0" * 40
    home = tmp_path / "models--org--name"
    shutil.copytree(folders["llama"], home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    target, _ = open_hf("org/name", threads=1)
    assert target.name == "llama"
