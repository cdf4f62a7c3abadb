"""Verbs: plan (to come)."""
