"""The count memory: what followed what in an index of all events, mixed by a gating network."""
