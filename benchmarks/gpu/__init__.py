"""What `bash benchmarks/gpu.sh` runs: steps on GPUs, bounded in time, with a verdict per goal."""
