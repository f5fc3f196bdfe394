"""Running an experiment: every run over all seeds, its folder, its checkpoints, several processes."""
