"""How fast, how exact, how much memory: `python -m benchmarks` measures what the documentation claims."""
