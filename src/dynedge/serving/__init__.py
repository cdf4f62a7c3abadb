"""HTTP service of a trained run: events in, recommendations out."""
