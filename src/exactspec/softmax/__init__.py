"""The two parts of a draw that look at every id of the vocabulary, compiled: weights, and the id a number selects."""
