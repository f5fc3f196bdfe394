"""The experiments of the papers, thin over the library: `python -m benchmarks --help`.

`commands` lists what there is. A problem is one file (streams, settings, and the `Experiment` they make) and one row
there; a method is one row of `methods`. `runner` runs any experiment, `folder` and `checkpoints` keep its results,
`tables`, `plots` and `report` show them.
"""
