"""Benchmarks: deterministic workloads, interleaved arms, peers, and the statistics of their ratios."""
