"""Benchmarks: questions with contestants and bars. `mixwise bench` and `python -m benchmarks` run them."""

# Suites by name: the module, and what it compares. Those of the second table take minutes and run when they are named.
SHORT = {
    "gme": "optimal mixing weights: CVXPY as in the paper, and solvers on the edges",
    "sketch": "sketches of updates: a Gaussian matrix as in the paper",
    "training": "steps of D-SGD in one process: the naive loop in PyTorch",
    "quadratics": "steps on small quadratics: a NumPy loop, and decent-bench",
    "distributed": "steps of four processes, an MLP: DDP and Decent-DP",
    "startup": "the time until the command line answers",
}
LONG = {
    "gme-large": "256 nodes, where one solve of CVXPY takes a minute",
    "sketch-large": "k = 1,000, where one product with the matrix takes a minute",
    "distributed-large": "steps of four processes, a ResNet-20: DDP and Decent-DP",
    "slow-link": "four hosts and one slow cable: DDP (Linux, from a checkout)",
    "large": "100,000 nodes in one process: gradients and one copy",
    "memory": "peak memory: the announcement, tensors per run, sketches",
    "busy": "a small run beside four busy processes: one thread, and all",
    "images": "reading JPEGs: a DataLoader",
    "report": "the report over 100 runs: its size, and a browser",
}
SUITES = SHORT | LONG
