"""The order of work: links, levels, d-nodes, schedules. Integers in, integers out."""
