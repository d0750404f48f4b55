"""What the columns of the copy drafter's arrays mean: names for numbers, shared by the compiled parts.

One request's state is a few arrays (`copy._Copying` owns them):

* three texts to copy from: the history (HISTORY), the predicted text (PREDICTION), the shared store (STORE);
* `slots` int32 [SLOTS, SLOT_COLUMNS]: *places*, where a copy stood last. A place *follows* while what came agreed with
  it (LOST 0); afterwards it is *lost*, and looked for again;
* `candidates` int32 [CANDIDATES, CANDIDATE_COLUMNS]: continuations on offer in one step;
* `edits` int32 [EDITS, EDIT_COLUMNS] and `edit_odds` float32 [EDITS + 1, 2]: replacements seen in this request,
  and how often each was made and offered lately; the last row sums up the short matches (see grow.mood);
* `base` float32 [KINDS, BUCKETS, 3] and `rates` float32 [2, KINDS, SHARES, BUCKETS, 3]: odds (see odds).
"""

from __future__ import annotations

HISTORY, PREDICTION, STORE = 0, 1, 2

# A place. P_TEXT: -1 where the slot is free. P_POS: index of the token that comes next. P_LEN: tokens before it that
# agreed. P_LOST: tokens since it last agreed. P_SINCE: index in the history of the first token that did not agree.
# P_STAMP: step of the last agreement. P_REP, P_REPS: tokens of the history still expected before P_POS (a replacement
# under way). P_EDIT..: an edit seen, to be noted once the place has proved right: source from, to; history from, to.
P_TEXT, P_POS, P_LEN, P_LOST, P_SINCE, P_STAMP, P_REP, P_REPS, P_SRC, P_SRC_END, P_NEW, P_NEW_END, P_KIND = range(13)
SLOTS, SLOT_COLUMNS = 4, 13

# A candidate. From depth C_DEPTH on it says C_REPS tokens of the history from C_REP on, then its text from C_POS on.
# C_LEN: tokens agreeing before. C_SLOT: place it stems from, -1: none. C_EDIT: replacement it applies, -1: none.
# C_LOST: tokens since its place was lost. C_AGE: rank by recency among its like.
C_TEXT, C_POS, C_LEN, C_KIND, C_DEPTH, C_REP, C_REPS, C_SLOT, C_EDIT, C_LOST, C_AGE = range(11)
CANDIDATES, CANDIDATE_COLUMNS = 62, 11  # sets of candidates are bits of one int64

# Kinds of candidates, each with odds of its own.
FOLLOW = 0  # a place that agreed up to now
MATCH = 1  # a match of the history's end in the history
FORESEEN = 2  # a match in, or a place of, the predicted text
STORED = 3  # a match in the shared store
ALIGNED = 4  # near a lost place, with the last tokens agreeing
REPLACED = 5  # right behind a lost place, as many tokens on as came: nothing agrees yet
INSERTED = 6  # right at a lost place: nothing agrees yet
EDITED = 7  # a replacement seen before, applied again
KINDS = 8

# A replacement: E_KEY hash of what is replaced (-1: free), source (text, from, tokens), new tokens (from, tokens).
E_KEY, E_TEXT, E_SRC, E_SRCS, E_NEW, E_NEWS = range(6)
EDITS, EDIT_COLUMNS = 256, 6
EDIT_MOST = 16  # longest replaced and longest new run of tokens

BUCKETS = 16  # of match lengths
SHARES = 4  # of agreement among candidates

# regs int64: sizes of the three texts, candidates at the root, step number, shortest match.
R_HISTORY, R_PREDICTION, R_STORE, R_ROOTS, R_STEP, R_MIN_MATCH = range(6)
REGS = 6
