"""The arrays of the recycle drafter, and what their columns hold.

The *table* keeps, for a context of one or two tokens, the tokens that the target found likeliest after it, with their
probabilities: entries are found by a hash of the context, and a newer context takes the place of an older one with the
same slot, so its size is fixed. Per entry: `keys` int64 (0: free), `ids` int32 [WAYS], `odds` float32 [WAYS] (0 behind
the last), `stamps` int32: length of the history when it was written last.

The *base* is the tree of the other drafters of a step (empty without any): `base_i` int64 [5, NODES] (token, parent,
source, origin, first child or -1), `base_n` int64 [NODES + 1] (next sibling or -1; the last: first child of the root)
and `base_p` float32 [NODES].
"""

from __future__ import annotations

WAYS = 8  # successors kept of a context
SINGLES = 1 << 14  # entries for contexts of one token
PAIRS = 1 << 15  # entries for contexts of two
ENTRIES = SINGLES + PAIRS

NODES = 256  # most of a tree, base included
ROOM = 1024  # nodes known but not taken

B_TOKEN, B_PARENT, B_SOURCE, B_ORIGIN, B_CHILD = range(5)

# Node of a grown tree: token, parent, source, origin. Open nodes also: depth, base node or -1, token before.
O_TOKEN, O_PARENT, O_SOURCE, O_ORIGIN, O_DEPTH, O_BASE = range(6)
OPEN_COLUMNS = 6
TREE_COLUMNS = 4

# How a successor was found: its context's length, and whether the base offers something beside it.
ORDERS = 2  # one token, two tokens
BESIDE = 3  # nothing; less than an even chance; more
RANKS = 4  # first, second, third, later
CHANCES = 9  # buckets of probability
HOPES = ORDERS * BESIDE * RANKS * CHANCES  # cells, and behind them one for each order and what is beside

# What the table says of a token that the base offers.
SILENT = 0  # it does not know the context, or but a few successors
ABSENT = 1  # it knows the context and not the token
LISTED = 2  # and on, by probability: five buckets
VIEWS = 7
TRUSTS = 8  # buckets of the base's own probability
MAKERS = 2  # sources of the base's nodes: those that know their odds, others

# regs int64: length of the history, its last token, the one before, nodes of the base, how many of its sources know
# their odds (the first ones).
R_LENGTH, R_LAST, R_BEFORE, R_BASE, R_SOUND = range(5)
REGS = 5
