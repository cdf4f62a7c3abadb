"""Experiments over many runs: comparisons, benchmarks of several models, hyper-parameter search."""
