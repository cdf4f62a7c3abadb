"""The verdict: where the true item stands among the candidates, and what that says of a model."""
