"""The whole update in NumPy and float64, one function a sub-step, for stacks of dense layers.

Slow and obvious on purpose, and written from the papers rather than from the library:
[N] Dohare et al., Nature 632 (2024); [A] arXiv 2108.06325; [G] arXiv 2605.06834.
`network` is the learner and its derivatives, `utilities` the scores, `optimizers` the optimizers whose state a
reset clears, and `continual_backprop` the order in which everything happens.
"""
