"""Models whose vectors stay as training left them."""
