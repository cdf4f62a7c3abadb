"""Model training: the loop, the optimizer, checkpoints and logging. No model is known here by name."""
