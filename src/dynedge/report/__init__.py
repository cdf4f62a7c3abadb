"""Reports: figures by matplotlib (the --plot options) and the leaderboard as an HTML page (compare --report)."""
