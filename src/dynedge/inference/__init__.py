"""A trained run in use without a service: sessions, recommendations, vectors, files."""
