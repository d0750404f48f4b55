"""Constraints, compiled for a tokenizer with the llguidance library (extra ``structured``): which tokens may come next.

A mask belongs to one place of one answer: the walk goes down a single path, the sampler takes in its tokens one by
one, and only rows that are really sampled get a mask. So a constrained answer is the same with and without drafts.
The library's parser and its masks: github.com/guidance-ai/llguidance (an Earley parser over a lexer of regular
expressions' derivatives; the vocabulary is walked as a trie).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread, stack_size
from types import ModuleType
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from exactspec.constraint import Constraint, Unanswerable, Unusable
from exactspec.target.tokenizer import Tokenizer
from exactspec.tree import DraftTree

# Any white space JSON allows, but not without end: a weak model would go on with blanks for ever.
_JSON_OPTIONS = {"whitespace_pattern": r"[ \t\n\r]{0,80}"}
_FUEL = 100_000  # the library's measure of work at the first mask; it holds the interpreter's lock meanwhile
_STACK = 256 * 2**20  # bytes; enough for the deepest description of `MAX_CHARACTERS`
_T = TypeVar("_T")
_NO_TEXT = b"\xff"  # what the library takes for the mark of a token that stands for no text


class Matcher(Protocol):
    """Follows one answer along its constraint."""

    def allows(self, token: int) -> bool:
        """Whether `token` may come next; an ending id may where the answer may end."""
        ...

    def ban(self, row: npt.NDArray[np.float64]) -> None:
        """Set the logits [vocab_size] of all tokens that may not come next to -inf, in place. Raises
        `Unanswerable` where the constraint became too complex to follow."""
        ...

    def take(self, token: int) -> None:
        """Append a token. Raises `Unanswerable` if it may not come next."""
        ...

    def fit(self, tree: DraftTree) -> DraftTree:
        """The draft without the nodes (and all below them) that may not come at their place."""
        ...


class Grammars:
    """Compiles constraints for one tokenizer. `vocab_size`: length of a row of logits; ids that the tokenizer does not
    have are never allowed. What the library keeps of the vocabulary is made once, at the first constraint (a second
    or more for a large vocabulary; `prepare` does it ahead). Thread-safe."""

    __slots__ = ("_library", "_lock", "_tokenizer", "_vocab", "_vocab_size")

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = Lock()
        self._library: ModuleType | None = None
        self._vocab: Any = None

    def prepare(self) -> None:
        """Load the library and hand it the vocabulary. Raises ValueError if the library is not installed or the
        tokenizer has no token that ends an answer."""
        with self._lock:
            if self._vocab is None:
                self._library = _import()
                self._vocab = _vocabulary(self._library, self._tokenizer, self._vocab_size)

    def matcher(self, constraint: Constraint) -> Matcher:
        """A matcher at the start of an answer. Raises `Unusable` if the constraint cannot be compiled."""
        self.prepare()
        try:
            inner = _deep(lambda: self._compile(constraint))
            matcher = _Matcher(inner, vocab_size=self._vocab_size)
            error = inner.get_error() if inner.is_error() else matcher.first_error()
        except ValueError as refused:  # half a surrogate pair in the text, for one
            error = str(refused) or type(refused).__name__
        if error:
            what = constraint.kind.replace("_", " ").replace("json", "JSON")
            raise Unusable(f"the {what} of the constraint cannot be used: {_line(error)}")
        return matcher

    def _compile(self, constraint: Constraint) -> Any:
        library = self._library
        assert library is not None
        compiler = library.LLMatcher
        if constraint.kind == "json_object":
            grammar = compiler.grammar_from_json_schema({"type": "object"}, overrides=_JSON_OPTIONS)
        elif constraint.kind == "json_schema":
            grammar = compiler.grammar_from_json_schema(constraint.text, overrides=_JSON_OPTIONS)
        elif constraint.kind == "regex":
            grammar = compiler.grammar_from_regex(constraint.text)
        else:
            grammar = compiler.grammar_from_lark(constraint.text)
        limits = library.LLParserLimits(verbose_errors=False, initial_lexer_fuel=_FUEL)
        return compiler(self._vocab, grammar, log_level=0, limits=limits)


class _Matcher:
    """`Matcher` over the library's."""

    __slots__ = ("_bits", "_inner", "_vocab_size")

    def __init__(self, inner: Any, *, vocab_size: int) -> None:
        self._inner = inner
        self._vocab_size = vocab_size
        self._bits = np.zeros((vocab_size + 31) // 32 * 4, dtype=np.uint8)

    def first_error(self) -> str:
        """What is known to be wrong once the first mask was made; "" if nothing is."""
        self._inner.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        return str(self._inner.get_error()) if self._inner.is_error() else ""

    def allows(self, token: int) -> bool:
        return bool(self._inner.validate_tokens([token]) == 1)

    def ban(self, row: npt.NDArray[np.float64]) -> None:
        self._inner.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        banned = np.unpackbits(~self._bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        np.copyto(row, -np.inf, where=banned)

    def take(self, token: int) -> None:
        if not self._inner.consume_token(token):
            self._check()
            raise Unanswerable(f"token {token} does not fit the constraint")

    def fit(self, tree: DraftTree) -> DraftTree:
        tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
        inner_nodes = set(parents)
        keep = np.zeros(len(tokens), dtype=np.bool_)
        for leaf in range(len(tokens)):
            if leaf not in inner_nodes:
                path = tree.path(leaf)
                fits = self._inner.validate_tokens([tokens[node] for node in path])
                keep[path[: max(0, fits)]] = True
        return tree if keep.all() else tree.restrict(np.flatnonzero(keep))

    def _check(self) -> None:
        if self._inner.is_error():
            raise Unanswerable(f"the constraint cannot be followed further: {_line(self._inner.get_error())}")


def _deep(call: Callable[[], _T]) -> _T:
    """`call()`, on a thread whose stack has room for it.

    The library descends into a description as deep as it goes, and a long chain of rules or references would overflow
    an ordinary stack, which ends the process. Of these bytes only those that are used are ever taken.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    before = stack_size(_STACK)  # of threads to come; a thread that another caller starts meanwhile may have it too
    try:
        thread = Thread(target=work, daemon=True)
        thread.start()
    finally:
        stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _import() -> ModuleType:
    try:
        import llguidance
    except ImportError:
        raise ValueError(
            "constraints need the llguidance library: pip install 'exactspec[structured]', or leave the constraint out"
        ) from None
    return llguidance


def _vocabulary(library: ModuleType, tokenizer: Tokenizer, vocab_size: int) -> Any:
    """The library's view of a tokenizer: the bytes of every id, and which ids end an answer."""
    ends = sorted(t for t in tokenizer.eos_ids if 0 <= t < vocab_size)
    if not ends:
        raise ValueError("a constraint needs a model with a token that ends an answer, and this one has none")
    known = min(tokenizer.vocab_size, vocab_size)
    pieces = [tokenizer.token_bytes(token) for token in range(known)] + [b""] * (vocab_size - known)
    silent = [token for token, piece in enumerate(pieces) if not piece]
    for token in silent:
        pieces[token] = b"%s[%d]" % (_NO_TEXT, token)

    class Seen:
        eos_token_id = ends[0]
        bos_token_id = tokenizer.bos_id
        tokens = pieces
        special_token_ids = silent

        def __call__(self, text: str) -> list[int]:
            return tokenizer.encode(text)

    return library.LLTokenizer(library.TokenizerWrapper(Seen()), n_vocab=vocab_size, eos_token=ends)


def _line(error: str) -> str:
    """One line, of a length that fits a reply."""
    text = " ".join(error.split())
    return text if len(text) <= 300 else text[:297] + "..."
