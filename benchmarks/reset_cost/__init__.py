"""Does a utility predict what a reset costs? Eq. (1) of [G], measured on networks along a continual run.

Networks learn permuted images, task after task. At the end of some tasks every hidden unit is really reset, one at a
time, and the change of the outputs on held-back images of the task is compared with what each utility says: the running
average that continual backprop would rank by at that moment, and the same utility of the held-back images alone. Sets
of units that each utility would choose are reset too, in one layer for their cost, and in all layers for the shock.

`settings` says what can be chosen, `training` trains the networks and follows the utilities, `measuring` resets units,
`tables` and `figures` show what was found, `study` is the command.

[G] Elisii et al., arXiv 2605.06834.
"""
