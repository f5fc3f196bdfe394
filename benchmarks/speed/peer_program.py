"""Times the public PyTorch code of [N]; a program of its own, for a Python with torch and perhaps without JAX.

Arguments: the checkout, a file of inputs and targets, and the task as JSON (see `benchmarks.speed.peer`). The last line
that it prints is JSON: seconds per step, the median of the timings, and the mean loss of the last one.
"""

import json
import statistics
import sys
import time

import numpy as np
import torch


def main(checkout: str, data: str, task: dict) -> None:
    """Trains one network and prints what it took."""
    sys.path.insert(0, checkout)
    arrays = np.load(data)
    inputs = torch.from_numpy(arrays["inputs"])
    targets = torch.from_numpy(arrays["targets"])
    is_number = task["sizes"][-1] == 1
    if not is_number:
        targets = targets.long()
    torch.manual_seed(0)
    learner = _learner(task, "mse" if is_number else "nll")
    seconds = []
    for turn in range(task["warm_up"] + task["repeats"]):
        losses = []
        begin = time.perf_counter()
        for step in range(task["steps"]):
            place = step % len(inputs)
            learned = learner.learn(x=inputs[place], target=targets[place])
            losses.append(learned if is_number else learned[0])
        if turn >= task["warm_up"]:
            seconds.append((time.perf_counter() - begin) / task["steps"])
    print(json.dumps({"seconds_per_step": statistics.median(seconds), "loss": float(torch.stack(losses).mean())}))


def _learner(task: dict, loss: str) -> object:
    """Returns the peer's learner of a network with hidden layers of one width."""
    from lop.algos.bp import Backprop
    from lop.algos.cbp import ContinualBackprop
    from lop.nets.deep_ffnn import DeepFFNN
    from lop.nets.ffnn import FFNN

    inputs, *hidden, outputs = task["sizes"]
    if len(hidden) == 1:
        net = FFNN(inputs, num_features=hidden[0], num_outputs=outputs, hidden_activation=task["activation"])
    else:
        net = DeepFFNN(
            inputs,
            num_features=hidden[0],
            num_outputs=outputs,
            num_hidden_layers=len(hidden),
            act_type=task["activation"],
        )
    common = {"step_size": task["step_size"], "loss": loss, "opt": task["optimizer"]}
    if task["method"] == "backprop":
        return Backprop(net, **common)
    return ContinualBackprop(
        net,
        replacement_rate=task["replacement_rate"],
        decay_rate=task["decay"],
        maturity_threshold=task["maturity_threshold"],
        util_type="contribution",
        accumulate=True,
        **common,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
