"""The experiments of the papers, thin over the library: `python -m benchmarks --help`.

`commands` lists what there is. A problem is one file of `problems` or `rl`, which ends with its `Problem`, and one row
there; a network is one file of `networks`, a method one row of `methods`. `learner` has the one train step, `running`
runs any experiment and keeps its results, `showing` shows them. `reset_cost` and `speed` are studies of their own.
"""
