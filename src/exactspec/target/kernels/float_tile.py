"""The register tile of attention: up to 6 rows of float32 times columns that lie in panels of 16, in three cache types.

A *panel* is 16 columns: ``[k][16]``, so a tile reads one stream whatever the width of the matrix. Elements are widened
to float32 in registers, which is exact; each product is one fused multiply-add, k in order, so neither the rows nor the
columns that share a pass change a bit.

Order of a panel's 16 elements in memory: float32 and int8 as they are; bfloat16 in pairs, word i holding element i in
its low half and element i + 8 in its high half, so that widening is one shift and one mask.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from exactspec.target.kernels import emit
from exactspec.target.kernels.emit import I8, I32, I64, const

BLOCK = 6  # most rows of a tile
PANEL = 16  # columns of a panel
# Cache types; 4 >> kind is the size of an element in bytes.
FLOAT32, BFLOAT16, INT8 = 0, 1, 2
KINDS = 3

_VF, _VI = ir.VectorType(emit.F32, PANEL), ir.VectorType(I32, PANEL)
_WORDS = ir.VectorType(I32, PANEL // 2)
# 16-lane sums of several panels that fit the register file beside what a step loads, by instruction set. With 16
# registers of 256 bits (5, in effect 4) 6 sums of one panel fit too, but not of two: 3 rows would spill.
_SUMS = {"avx512vnni": 24, "avx512vnni-256": 12}
_FEW_SUMS = 5
_MOST_PANELS = 4


def _panels(kind: str, rows: int) -> int:
    """Panels of a pass, a power of two: enough sums in flight to hide a multiply-add's latency, no more than fit."""
    panels = 1
    while 2 * panels * rows <= _SUMS.get(kind, _FEW_SUMS) and panels < _MOST_PANELS:
        panels *= 2
    return panels


def _widened(b: Any, at: Any, stored: int) -> Any:
    """16 elements of a panel as float32."""
    if stored == FLOAT32:
        return emit.load(b, at, _VF)
    if stored == INT8:
        return b.sitofp(b.sext(emit.load(b, at, ir.VectorType(I8, PANEL)), _VI), _VF)
    words = emit.load(b, at, _WORDS)
    low = b.shl(words, ir.Constant(_WORDS, [16] * 8))
    high = b.and_(words, ir.Constant(_WORDS, [0xFFFF0000] * 8))
    return b.bitcast(b.shuffle_vector(low, high, emit.indices(range(PANEL))), _VF)


def _float_tile(module: Any, kind: str, stored: int, rows: int) -> Any:
    """``void (a, lda, b, panel_bytes, count, out, ldo, panels, add)``, see `float_tile`."""
    name = f"exactspec_float_tile_{kind}_{stored}_{rows}"
    known = module.globals.get(name)
    if known:
        return known
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 9), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    start: Any = const(0)
    wide = _panels(kind, rows)
    while wide:
        before = b.block
        head, body, after = (b.append_basic_block(f"{label}{wide}") for label in ("head", "body", "after"))
        b.branch(head)
        b.position_at_end(head)
        panel = b.phi(I64)
        panel.add_incoming(start, before)
        following = b.add(panel, const(wide))
        b.cbranch(b.icmp_signed("<=", following, function.args[7]), body, after)
        b.position_at_end(body)
        _Pass(b, stored, rows, wide, panel, *function.args).write()
        panel.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(after)
        start = panel
        wide //= 2
    b.ret_void()
    return function


class _Pass:
    """Emits the loop over k for `rows` rows and `wide` panels from `panel` on."""

    def __init__(self, b: Any, stored: int, rows: int, wide: int, panel: Any, *arguments: Any) -> None:
        self.b, self.stored, self.rows, self.wide = b, stored, rows, wide
        a, lda, matrix, panel_bytes, self.count, out, ldo, _, self.add = arguments
        self.row = [b.add(a, b.mul(lda, const(4 * r))) for r in range(rows)]
        self.panel = [b.add(matrix, b.mul(panel_bytes, b.add(panel, const(c)))) for c in range(wide)]
        first = b.add(out, b.mul(panel, const(4 * PANEL)))
        self.out = [
            b.add(first, b.add(b.mul(ldo, const(4 * r)), const(4 * PANEL * c)))
            for r in range(rows)
            for c in range(wide)
        ]

    def write(self) -> None:
        b = self.b
        going = b.icmp_signed("!=", self.add, const(0))
        initial = [b.select(going, emit.load(b, at, _VF), ir.Constant(_VF, [0.0] * PANEL)) for at in self.out]
        before, loop, done = b.block, b.append_basic_block("k"), b.append_basic_block("done")
        b.cbranch(b.icmp_signed(">", self.count, const(0)), loop, done)
        b.position_at_end(loop)
        k = b.phi(I64)
        k.add_incoming(const(0), before)
        sums = [b.phi(_VF) for _ in initial]
        new: list[Any] = list(sums)
        for u in range(2):
            new = self._step(b.add(k, const(u)), new)
        following = b.add(k, const(2))
        k.add_incoming(following, loop)
        for p, x, x0 in zip(sums, new, initial, strict=True):
            p.add_incoming(x0, before)
            p.add_incoming(x, loop)
        b.cbranch(b.icmp_signed("<", following, self.count), loop, done)
        b.position_at_end(done)
        results = []
        for x, x0 in zip(new, initial, strict=True):
            result = b.phi(_VF)
            result.add_incoming(x0, before)
            result.add_incoming(x, loop)
            results.append(result)
        for result, at in zip(results, self.out, strict=True):
            emit.store(b, result, at)

    def _step(self, k: Any, sums: list[Any]) -> list[Any]:
        b = self.b
        at = b.mul(k, const(PANEL * 4 >> self.stored))
        columns = [_widened(b, b.add(start, at), self.stored) for start in self.panel]
        new = []
        for r, start in enumerate(self.row):
            one = emit.broadcast(b, emit.load(b, b.add(start, b.mul(k, const(4))), emit.F32), PANEL)
            new += [emit.fma(b, one, columns[c], sums[r * self.wide + c]) for c in range(self.wide)]
        return new


@intrinsic
def float_tile(typingctx, isa, stored, rows, a, lda, b, panel_bytes, count, out, ldo, panels, add):
    """out[r, 16 * p + i] = sum over k of a[r, k] * b[p][k][i], in order of k, starting from out if `add`.

    `stored`: cache type of b; `rows` 1 .. BLOCK; `count`: an even number of k; `panel_bytes` apart lie the panels of b.
    `lda` and `ldo` count floats.
    """
    kind = isa.kind

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, stored, rows, *rest = args
        both = builder.add(rows, builder.mul(stored, const(BLOCK)))
        tile = lambda n: _float_tile(builder.module, kind, (n - 1) // BLOCK, (n - 1) % BLOCK + 1)  # noqa: E731
        emit.by_rows(builder, both, KINDS * BLOCK, tile, rest)
        return context.get_dummy_value()

    return types.void(isa, *[types.int64] * 11), codegen
