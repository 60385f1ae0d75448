"""A training step of any model: the call, the loss, the teacher, and copies."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tuner.errors import InputError, one_line
from tuner.machine.caps import is_out_of_memory
from tuner.sizing.batch_size_finder.samples import Batch, parts_of, tensors_of
from tuner.training.optimizers import Adam
from tuner.workloads.batches import Graph, is_graph

Loss = Callable[..., Tensor]  # its arguments are a model and a batch
MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]


@dataclass(frozen=True)
class TrainingStep:
    """A model with its optimizer and loss, by default the mean of its floating outputs.

    The teacher is called before the model, without gradients. Its outputs live until the loss is computed.
    """

    model: nn.Module
    optimizer: MakeOptimizer = Adam
    loss: Loss | None = None
    teacher: nn.Module | None = None

    def value(self, batch: Batch) -> Tensor:
        """The loss of a batch. A model that rejects it or has no differentiable loss raises ``InputError``."""
        with torch.no_grad():
            taught = None if self.teacher is None else call(self.teacher, batch)
        held = [tensor.detach() for tensor in tensors_of(batch)]  # so that a trace also sees unused tensors
        value = mean_output(call(self.model, batch)) if self.loss is None else self.loss(self.model, batch)
        del taught, held
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise InputError(
                "the loss is not a scalar tensor that depends on a trainable parameter of the model that it gets, "
                "which may be a copy: give loss=..."
            )
        return value

    def make_optimizer(self) -> Optimizer:
        """An optimizer of the model's trainable parameters; one without any of them raises ``InputError``."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        made = self.optimizer(trained)
        if {*trained}.isdisjoint(parameter for group in made.param_groups for parameter in group["params"]):
            raise InputError("optimizer: it must use the parameters that it is given, which are copies")
        return made

    def models(self) -> list[nn.Module]:
        """The model and its teacher, if it has one."""
        return [self.model] if self.teacher is None else [self.model, self.teacher]

    def tensors(self) -> list[Tensor]:
        """Parameters and buffers of the models."""
        return [tensor for model in self.models() for tensor in (*model.parameters(), *model.buffers())]

    @contextmanager
    def flags(self) -> Iterator[None]:
        """Sets the model to training mode, unless it is in it already, and the teacher to evaluation mode."""
        with ExitStack() as restore:
            for module in (module for model in self.models() for module in model.modules()):
                restore.callback(setattr, module, "training", module.training)
            if not self.model.training:
                self.model.train()
            if self.teacher is not None:
                self.teacher.eval()
            yield

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """No gradient reaches the model in this block, even if the loss uses it instead of its copy."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in trained:
                parameter.requires_grad_(True)


def call(model: nn.Module, batch: Batch) -> object:
    """Calls a model with a batch.

    If a graph has all required parameters of ``forward`` as attributes, these are the arguments; else the graph is.
    Sequences are positional arguments, mappings keyword arguments, and a tensor is the single argument.

    Raises:
        InputError: ``forward`` does not take these arguments.
    """
    signature = inspect.signature(model.forward)
    arguments: list[object] = []
    keywords: dict[str, object] = {}
    if is_graph(batch):
        named = _attributes(signature, batch)
        arguments, keywords = ([batch], {}) if named is None else ([], named)
    elif isinstance(batch, Mapping):
        keywords = dict(batch)
    else:
        arguments = [*parts_of(batch)]
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        name = type(model).__name__
        raise InputError(f"{name}.forward{signature} does not take the sample ({error}): give loss=...") from error
    return model(*arguments, **keywords)


def _attributes(signature: inspect.Signature, graph: Graph) -> dict[str, object] | None:
    """The graph's attributes for ``forward``, or None if a required one is missing."""
    attributes: dict[str, object] = {}
    names = set(graph.keys())
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        held = name in names or name.removesuffix("_dict") in names  # x_dict: the x of every node type
        value = getattr(graph, name, None) if held else None
        if value is not None:
            attributes[name] = value
        elif parameter.default is parameter.empty:
            return None
    return attributes


def mean_output(output: object) -> Tensor:
    """The sum of the means of all floating tensors in a model's outputs, one level deep.

    Outputs that do not depend on a trainable parameter raise ``InputError``.
    """
    values = [*output.values()] if isinstance(output, Mapping) else output
    parts = values if isinstance(values, (list, tuple)) else [values]
    floats = [part.mean() for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
    if not any(part.requires_grad for part in floats):
        raise InputError("the model's outputs hold no floating tensor to follow back: give loss=...")
    return torch.stack([part.float() for part in floats]).sum()


def copied(step: TrainingStep, device: torch.device) -> TrainingStep:
    """The step with copies of model and teacher on a device. A failed copy raises ``InputError``."""
    copies = _copied(step, {})
    copies.model.zero_grad(set_to_none=True)
    for module in copies.models():
        module.to(device)
    return copies


def sharing(step: TrainingStep) -> TrainingStep:
    """The step with copies for a trace, which share floating parameters and buffers with the originals.

    A trace changes no floats, but modules may keep fake results, which must not stay in the originals.
    """
    shared: dict[int, object] = {}
    for tensor in step.tensors():
        if not tensor.is_floating_point():  # integers are computed in a trace
            continue
        if type(tensor) is nn.Parameter:
            shared[id(tensor)] = nn.Parameter(tensor.detach(), tensor.requires_grad)
        elif type(tensor) is Tensor:
            shared[id(tensor)] = tensor.detach()
    return _copied(step, shared)


def _copied(step: TrainingStep, memo: dict[int, object]) -> TrainingStep:
    """The step with deep copies; ``memo`` has replacements by object id."""
    memo |= {id(tensor): tensor.detach().clone() for model in step.models() for tensor in _computed(model)}
    try:
        model, teacher = copy.deepcopy((step.model, step.teacher), memo)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = one_line(error, 200)
        raise InputError(f"the model cannot be copied to be run: {type(error).__name__}: {reason}") from error
    return replace(step, model=model, teacher=teacher)


def _computed(model: nn.Module) -> list[Tensor]:
    """Attributes computed from parameters, which torch does not copy, such as those of weight normalisation."""
    values = (value for module in model.modules() for value in vars(module).values())
    return [value for value in values if isinstance(value, Tensor) and not value.is_leaf]
