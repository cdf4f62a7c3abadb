"""Models whose users and items change with every event."""
