"""Running a method: the loop, seeds, devices, processes, chunks of data."""
