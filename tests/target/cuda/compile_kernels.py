"""Compiles every kernel for GPUs that need not be there, with the sizes of real models: run without TRITON_INTERPRET.

Prints a line per kernel: registers, spilled bytes, shared memory. Usage: ``python compile_kernels.py [80 90 ...]``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from exactspec.target.cuda.kernels.attention import attend_span, merge_spans
from exactspec.target.cuda.kernels.best import best_of_block
from exactspec.target.cuda.kernels.place import move_slots, place_rows
from exactspec.target.cuda.kernels.products import grouped_product
from exactspec.target.cuda.kernels.rows import gate_quantise, norm_quantise, quantise

# Arguments by name: what `exactspec.target.cuda.launch` passes. Pointers are aligned to 16 bytes.
TYPES = {
    **dict.fromkeys(
        ["x", "weight", "normed", "scale", "a_scale", "w_scale", "bias", "gate_up", "qkv", "cos", "sin", "queries"],
        "*fp32",
    ),
    **dict.fromkeys(
        ["out", "out_max", "out_sum", "part", "part_max", "part_sum", "attended", "logits", "values"], "*fp32"
    ),
    **dict.fromkeys(["q", "a", "w"], "*i8"),
    **dict.fromkeys(["positions", "slots", "bases", "path_at", "paths", "page_at"], "*i64"),
    **dict.fromkeys(["page_of_row", "pages", "table", "ids", "source_ids"], "*i64"),
    **dict.fromkeys(["rows", "groups", "layer", "spans", "first_row", "moves", "source_stride", "count"], "i32"),
    **dict.fromkeys(["eps", "query_scale"], "fp32"),
}


def cases() -> list[tuple[str, Any, dict[str, Any], dict[str, Any]]]:
    """Name, kernel, constants, options: the shapes of qwen2.5-coder-1.5b and smollm2-135m."""
    exact = {"enable_fp_fusion": False, "num_warps": 4}
    product = {"WIDTH": 1536, "CHANNELS": 2048, "GROUP": 64, "MODE": 1}
    down = {"WIDTH": 8960, "CHANNELS": 1536, "GROUP": 64, "MODE": 2}
    heads = {"HEADS": 12, "KV_HEADS": 2, "HEAD": 128, "CHUNK": 128, "SPAN_CHUNKS": 4, "SHARE": 16}
    small = {**heads, "HEADS": 9, "KV_HEADS": 3, "HEAD": 64}
    wide = {**exact, "num_warps": 8, "num_stages": 1}
    deep = {**exact, "num_stages": 4}
    return [
        ("product, 16 rows", grouped_product, {**product, "TILE_ROWS": 16, "TILE_CHANNELS": 32}, deep),
        ("product, 32 rows", grouped_product, {**product, "TILE_ROWS": 32, "TILE_CHANNELS": 64}, deep),
        ("product, 64 rows", grouped_product, {**product, "MODE": 0, "TILE_ROWS": 64, "TILE_CHANNELS": 64}, deep),
        ("product, long rows", grouped_product, {**down, "TILE_ROWS": 64, "TILE_CHANNELS": 64}, deep),
        ("norm", norm_quantise, {"COUNT": 1536, "WIDTH": 1536, "GROUP": 64, "BLOCK": 2048, "KEEP": True}, exact),
        ("quantise", quantise, {"COUNT": 1536, "WIDTH": 1536, "GROUP": 64, "TILE": 8}, exact),
        ("gate", gate_quantise, {"WIDTH": 8960, "GROUP": 64, "TILE": 8}, exact),
        (
            "place",
            place_rows,
            {"HEADS": 12, "KV_HEADS": 2, "TILE": 16, "HALF": 64, "STRIDE": 2048, "CHUNK": 128},
            exact,
        ),
        ("attend, heads of 128", attend_span, {**heads, "STEP": 32, "SLICE": 16}, wide),
        ("attend, heads of 64", attend_span, {**small, "STEP": 32, "SLICE": 16}, wide),
        ("merge, heads of 128", merge_spans, heads, wide),
        ("merge, heads of 64", merge_spans, small, wide),
        (
            "best, logits",
            best_of_block,
            {"BLOCKS": 149, "TOP": 8, "NO_ID": 151936, "NAMED": False, "TILE_ROWS": 4, "BLOCK": 1024},
            {"num_warps": 4},
        ),
        (
            "best, winners",
            best_of_block,
            {"BLOCKS": 2, "TOP": 8, "NO_ID": 151936, "NAMED": True, "TILE_ROWS": 4, "BLOCK": 1024},
            {"num_warps": 4},
        ),
        ("move", move_slots, {"HEAD": 128, "CHUNK": 128}, {"num_warps": 1}),
    ]


def usage(ptx: str, capability: int) -> str:
    """Registers and spills as the assembler counts them."""
    ptxas = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        arch = "sm_90a" if capability == 90 else f"sm_{capability}"
        command = [str(ptxas), "-v", f"--gpu-name={arch}", str(source), "-o", str(Path(folder) / "out")]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.search(r"Used (\d+) registers", told)
    spilled = re.search(r"(\d+) bytes spill stores", told)
    return f"{registers and registers[1]} registers, {spilled and spilled[1]} bytes spilled"


def main(capabilities: list[int]) -> None:
    for capability in capabilities:
        for name, kernel, constants, options in cases():
            signature = {n: "constexpr" if n in constants else TYPES[n] for n in kernel.arg_names}
            aligned = {
                (i,): [["tt.divisibility", 16]]
                for i, n in enumerate(kernel.arg_names)
                if n not in constants and TYPES[n].startswith("*")
            }
            source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=aligned)
            compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(options))
            ptx = compiled.asm["ptx"]
            print(
                f"sm_{capability} {name}: {usage(ptx, capability)}, {compiled.metadata.shared} bytes shared, "
                f"{len(re.findall('mma', ptx))} mma, {len(re.findall('fma.rn.f32', ptx))} fma, "
                f"{len(re.findall('fma.rn.ftz', ptx))} flushing",
                flush=True,
            )


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [80, 90])
