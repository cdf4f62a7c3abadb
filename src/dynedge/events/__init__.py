"""The log: files become an event log on disk, which everything else reads."""
