"""The event log on disk, and how files become one."""
