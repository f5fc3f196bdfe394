"""PPO in slow NumPy: loops over single transitions, float64."""

import numpy as np


def network(params, x):
    hidden = sorted(name for name in params if name.startswith("hidden"))
    h = np.float64(x)
    for name in hidden:
        h = np.maximum(h @ np.float64(params[name]["kernel"]) + np.float64(params[name]["bias"]), 0)
    return h @ np.float64(params["output"]["kernel"]) + np.float64(params["output"]["bias"])


def value(params, x):
    return network(params["value"], x)[0]


def log_prob(params, x, action):
    out = network(params["policy"], x)
    if "log_std" in params:
        std = np.exp(np.float64(params["log_std"]))
        densities = np.exp(-((action - out) ** 2) / (2 * std**2)) / (std * np.sqrt(2 * np.pi))
        return np.log(np.prod(densities))
    return np.log(np.exp(out[action]) / np.exp(out).sum())


def entropy(params, x):
    if "log_std" in params:
        return np.sum(np.log(np.exp(np.float64(params["log_std"])) * np.sqrt(2 * np.pi * np.e)))
    out = network(params["policy"], x)
    probabilities = np.exp(out) / np.exp(out).sum()
    return -np.sum(probabilities * np.log(probabilities))


def targets(params, seen, given):
    """What `make_targets` returns beside the observations, as a dict."""
    steps, workers = seen.rewards.shape
    estimates = np.zeros((steps, workers))
    values = np.zeros((steps, workers))
    for n in range(workers):
        for t in range(steps):
            values[t, n] = value(params, seen.observations[t, n])
    for n in range(workers):
        for t in range(steps):
            factor = 1.0
            for later in range(t, steps):  # the definition: a discounted sum of errors up to the episode's end
                dead = seen.terminated[later, n] or (seen.truncated[later, n] and not given.bootstrap)
                future = 0.0 if dead else value(params, seen.next_observations[later, n])
                reward = given.reward_scale * np.float64(seen.rewards[later, n])
                estimates[t, n] += factor * (reward + given.discount * future - values[later, n])
                if seen.terminated[later, n] or seen.truncated[later, n]:
                    break
                factor *= given.discount * given.trace_decay
    places = [(t, n) for t in range(steps) for n in range(workers)]
    return {
        "actions": np.array([seen.actions[place] for place in places]),
        "log_probs": np.array([log_prob(params, seen.observations[p], np.asarray(seen.actions[p])) for p in places]),
        "advantages": ((estimates - estimates.mean()) / estimates.std()).reshape(-1),
        "returns": (estimates + values).reshape(-1),
    }


def loss(params, observations, expected, given):
    """The loss, and the number of transitions whose ratio is clipped."""
    total, clipped = 0.0, 0
    for i, x in enumerate(observations):
        ratio = np.exp(log_prob(params, x, expected["actions"][i]) - expected["log_probs"][i])
        bounded = min(max(ratio, 1 - given.clip), 1 + given.clip)
        clipped += bounded != ratio
        advantage = expected["advantages"][i]
        total -= min(ratio * advantage, bounded * advantage)
        total += (value(params, x) - expected["returns"][i]) ** 2
        total -= given.entropy * entropy(params, x)
    return total / len(observations), clipped
