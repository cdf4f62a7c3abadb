"""Many runs: comparisons, benchmarks of all models, hyper-parameter search."""
