"""segment_sum: rows of a table summed by key, the same bits every time."""
