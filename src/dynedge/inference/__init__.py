"""Using a trained run without a service: sessions, recommendations, vectors, Parquet files."""
