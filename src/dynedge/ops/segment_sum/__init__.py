"""segment_sum: sums of table rows by sorted key, with the same bits every time."""
