"""What is read of a run and made of it: counters, CPU and memory of processes, intervals."""
