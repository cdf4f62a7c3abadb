"""Verbs: demo (to come)."""
