"""The count memory: hash tables of what followed what, mixed by a gating network."""
