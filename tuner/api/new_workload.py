"""A workload of the user's own to start from: the function behind ``tuner new-workload``."""

from __future__ import annotations

import keyword
import re
from importlib.util import find_spec
from pathlib import Path

from tuner.errors import InputError

TEMPLATE = '''"""CLASS: a workload of tuner's. Replace the data, the model and the loss by your own."""

import numpy as np
import torch
from torch import nn

from tuner import Hyperparameter, Workload


class CLASS(Workload):
    """A perceptron with one hidden layer, on generated points."""

    metric = "val_error"  # evaluate's "error" on the validation split
    direction = "minimize"  # or "maximize", as of an accuracy
    memory_scales_with = "batch_size"  # then a batch can be halved, and batch_size be "auto"
    hyperparameters = {  # default, smallest, largest, what it is; the loop reads epochs, lr and weight_decay
        "hidden": Hyperparameter(64, 1, 65536, "units of the hidden layer"),
        "batch_size": Hyperparameter(128, 1, 100000, "points in a batch"),
        "epochs": Hyperparameter(5, 1, 10000, "passes over the training points"),
        "lr": Hyperparameter(0.01, 1e-6, 10, "Adam's learning rate at the start; decays linearly"),
        "weight_decay": Hyperparameter(0.0, 0, 1, "L2 penalty"),
    }

    def load_data(self, source, seed):
        """The splits, as numpy arrays. `source` is the option `data`, `seed` drives the validation split alone."""
        x = np.random.default_rng(0).normal(size=(5000, 16)).astype(np.float32)
        y = (np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] > 0).astype(np.int64)
        order = np.random.default_rng(seed).permutation(4000)
        parts = {"train": order[400:], "validation": order[:400], "test": np.arange(4000, 5000)}
        return {name: (x[part], y[part]) for name, part in parts.items()}

    def build_model(self, config, data):
        """A new model, on the CPU."""
        return nn.Sequential(nn.Linear(16, config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], 2))

    def batches(self, config, data):
        """One epoch of training batches: tuples of CPU tensors, in an order drawn from torch's generator."""
        x, y = map(torch.tensor, data["train"])
        for part in torch.randperm(len(y)).split(config["batch_size"]):
            yield x[part], y[part]

    def loss(self, model, batch):
        """The loss of one batch, which is on the model's device."""
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)

    def evaluate(self, model, data, split):
        """Metrics on "validation" or "test", in evaluation mode and without gradients."""
        device = next(model.parameters()).device
        x, y = (torch.tensor(part, device=device) for part in data[split])
        return {"error": (model(x).argmax(1) != y).float().mean()}
'''


def new_workload(name: str) -> Path:
    """Writes a workload to start from into the current folder: what ``tuner new-workload`` does.

    Args:
        name: what to call it, such as "my_model": its file is then ``my_model.py``, its class ``MyModel``.

    Returns:
        The file.

    Raises:
        InputError: it is no name for a module, or there is one of this name; nothing has been written.
    """
    module = name.replace("-", "_")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", module):
        raise InputError(f"new-workload {name}: expected letters, digits and _, such as my_model")
    if keyword.iskeyword(module):
        raise InputError(
            f"new-workload {name}: {module} is a word of Python's own: give another name, such as my_model"
        )
    file = Path(f"{module}.py")
    if file.exists():
        raise InputError(f"new-workload {name}: {file} is there already: give another name")
    if find_spec(module) is not None:
        raise InputError(f"new-workload {name}: Python has a module {module} already: give another name")
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(TEMPLATE.replace("CLASS", class_name(module)))
    except OSError as error:
        raise InputError(f"new-workload {name}: {file} cannot be written: {error.strerror}") from error
    return file


def class_name(module: str) -> str:
    """What the class in a module is called: ``my_model`` has ``MyModel``."""
    return "".join(part[:1].upper() + part[1:] for part in module.split("_"))


def commands(file: Path) -> str:
    """What to try with a new workload."""
    spec = f"{file.stem}:{class_name(file.stem)}"
    return "\n".join(
        [
            f"wrote {file}. Try:",
            f"  tuner estimate --workload {spec} --set hidden=1024",
            f"  tuner --workload {spec}",
            f"  tuner --workload {spec} --set hidden=256 --seeds 3",
        ]
    )
