"""The arithmetic: one folder per operator, with `reference.py`, the truth, and what is quick beside it."""
