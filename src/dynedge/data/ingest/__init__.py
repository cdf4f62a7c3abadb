"""Ingestion: input files become an event log. Reading, tokenizing, parsing, encoding of ids, sorting, writing."""
