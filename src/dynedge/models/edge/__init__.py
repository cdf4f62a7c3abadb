"""EDGE: the default model, which fuses the co-evolving recurrence with the count memory."""
