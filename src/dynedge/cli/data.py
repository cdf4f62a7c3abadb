"""Verbs: data (to come)."""
