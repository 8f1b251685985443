"""Training: the loop, the optimisers, the learning rate of a step, and what a run needs before its first step."""
