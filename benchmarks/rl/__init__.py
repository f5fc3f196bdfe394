"""Control: environments, PPO and the methods' rows for it, as pure functions."""
