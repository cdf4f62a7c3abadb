"""HTTP routes, one module per subject; each defines a `router`."""
