"""The training loop and what keeps it alive: optimiser, checkpoints, run folders. It knows no model by name."""
