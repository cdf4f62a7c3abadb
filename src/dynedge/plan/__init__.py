"""Planning: links, levels, d-nodes and schedules of training windows. Integer arrays in, integer arrays out."""
