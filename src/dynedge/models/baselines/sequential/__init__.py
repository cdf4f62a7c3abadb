"""Models that read a user's last items in order."""
