"""What every layer uses: arrays, files, threads, progress, random numbers, compilation."""
