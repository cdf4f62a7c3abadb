"""The systems to compare with: sequential, dynamic and static models, and heuristics."""
