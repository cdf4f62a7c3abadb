"""Run folders: what training writes, and how it is read."""
