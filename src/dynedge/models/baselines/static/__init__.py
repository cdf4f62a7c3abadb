"""Models whose vectors do not change after training."""
