"""The copy drafter's compiled parts: search in a text, candidates, the tree of their continuations, what is learned."""
