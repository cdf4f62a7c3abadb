"""column_sum: sums of a matrix's columns in float32; on a GPU by Triton, with the same bits every time."""
