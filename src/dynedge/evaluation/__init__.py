"""Evaluation: ranking protocol, metrics, confidence intervals."""
