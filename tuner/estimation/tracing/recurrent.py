"""RNN, LSTM and GRU as a GPU computes them: cell by cell, or in cuDNN's single kernel.

Without cuDNN, every step of every layer is one fused cell (RNN.cpp, cuda/RNN.cu). With cuDNN, which computes all
steps and layers at once, the input, the result and a reserve space are kept for the backward pass. cuDNN alone knows
the size of that reserve: here it holds the gates, the cells and the results of every layer. An estimate with it has a
wider margin (``Trace.has_guess``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from tuner.estimation.tracing.autocast import arguments
from tuner.estimation.tracing.corrections.temporaries import Operator, aten
from tuner.estimation.tracing.dispatch_mode import TraceMode

State = tuple[Tensor, ...]
Dropout = Callable[[Tensor, float, bool], Tensor]
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
STATES = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}  # an LSTM has cells, too
KEPT = {
    "lstm": 6,
    "gru": 5,
    "rnn_tanh": 2,
    "rnn_relu": 2,
}  # numbers of the reserve for each hidden one: gates, a cell or a product, and a result


@dataclass(frozen=True)
class Network:
    """The arguments of ``torch.lstm`` and the like that say what is computed."""

    kind: str
    parameters: Sequence[Tensor]
    has_biases: bool
    layers: int
    dropout: float
    trained: bool
    bidirectional: bool
    batch_first: bool = False

    @property
    def directions(self) -> int:
        """1 or 2."""
        return 2 if self.bidirectional else 1

    def weights(self, layer: int, direction: int) -> Sequence[Tensor]:
        """Of the input, of the hidden state, and their biases, for one layer and direction."""
        number = 4 if self.has_biases else 2
        first = number * (layer * self.directions + direction)
        return self.parameters[first : first + number]


def replacements(mode: TraceMode, dropout: Dropout) -> dict[object, Callable[..., State | Tensor]]:
    """By torch's functions: what to call instead for a GPU. ``dropout`` is a GPU's."""
    return {
        **{getattr(torch, kind): partial(_run, mode, dropout, kind) for kind in CELLS},
        torch.lstm_cell: partial(_cell, aten.lstm_cell.default, _lstm_cell),
        torch.gru_cell: lambda *given: _cell(aten.gru_cell.default, _gru_cell, *given)[0],
    }


def _cell(operator: Operator, cell: Callable[..., State], x: Tensor, states: Any, *weights: Tensor | None) -> State:
    """``torch.lstm_cell(input, states, weights …)`` or ``torch.gru_cell``, whose biases may be None."""
    x, states, *given = arguments(operator, x, states, *weights)
    return cell(x, states if isinstance(states, (list, tuple)) else (states,), *(w for w in given if w is not None))


def _run(mode: TraceMode, dropout: Dropout, kind: str, first: Tensor, second: Any, *arguments: Any) -> State:
    """``torch.lstm(input, states, …, batch_first)``, or with batch sizes and no ``batch_first`` if it is packed."""
    packed = isinstance(second, Tensor) and not second.is_floating_point()
    states, arguments = (arguments[0], arguments[1:]) if packed else (second, arguments)
    network = Network(kind, *arguments)
    states = tuple(states) if kind == "lstm" else (states,)
    if torch.backends.cudnn.enabled or packed:
        mode.tracker.has_guess = True
        return _whole(network, first, states)
    if len(states) > 1 and states[0].shape[-1] != states[1].shape[-1]:
        raise NotImplementedError("an LSTM with projections keeps a workspace of unknown size")
    return _cells(network, dropout, first, states)


def _cells(network: Network, dropout: Dropout, input: Tensor, states: State) -> State:
    """Layer after layer, direction after direction, step after step."""
    x = input.transpose(0, 1) if network.batch_first else input
    ends: list[State] = []
    for layer in range(network.layers):
        x = _layer(network, layer, x, states, ends)
        if network.dropout and network.trained and layer + 1 < network.layers:
            x = dropout(x, network.dropout, True)
    last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
    return (x.transpose(0, 1) if network.batch_first else x), *last


def _layer(network: Network, layer: int, x: Tensor, states: State, ends: list[State]) -> Tensor:
    """The results of all steps of a layer; its last states are added to ``ends``."""
    results = []
    steps = x.unbind(0)
    for direction in range(network.directions):
        now = tuple(state[layer * network.directions + direction] for state in states)
        outputs = []
        for step in reversed(steps) if direction else steps:
            now = CELLS[network.kind](step, now, *network.weights(layer, direction))
            outputs.append(now[0])
        results.append(torch.stack(outputs[::-1] if direction else outputs))
        ends.append(now)
    return torch.cat(results, -1) if network.bidirectional else results[0]


def _lstm_cell(x: Tensor, states: State, weight: Tensor, hidden_weight: Tensor, *biases: Tensor) -> State:
    gates, hidden_gates = x.matmul(weight.t()), states[0].matmul(hidden_weight.t())
    out: State = aten._thnn_fused_lstm_cell(gates, hidden_gates, states[1], *biases)
    return out[:2]


def _gru_cell(x: Tensor, states: State, weight: Tensor, hidden_weight: Tensor, *biases: Tensor) -> State:
    gates, hidden_gates = x.matmul(weight.t()), states[0].matmul(hidden_weight.t())
    given = arguments(aten._thnn_fused_gru_cell.default, gates, hidden_gates, states[0], *biases)
    return (_GRUCell.apply(*given),)  # type: ignore[no-untyped-call]


def _plain_cell(
    activation: Callable[[Tensor], Tensor],
    x: Tensor,
    states: State,
    weight: Tensor,
    hidden_weight: Tensor,
    *biases: Tensor,
) -> State:
    bias, hidden_bias = biases or (None, None)
    return (activation(F.linear(states[0], hidden_weight, hidden_bias).add_(F.linear(x, weight, bias))),)


CELLS: dict[str, Callable[..., State]] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": partial(_plain_cell, torch.tanh),
    "rnn_relu": partial(_plain_cell, torch.relu),
}


class _GRUCell(torch.autograd.Function):
    """``_thnn_fused_gru_cell``, which has no fake version."""

    @staticmethod
    def forward(ctx: FunctionCtx, gates: Tensor, hidden_gates: Tensor, hidden: Tensor, *biases: Tensor) -> Tensor:
        """(B, 3H), (B, 3H), (B, H) → (B, H); five numbers for each hidden one are kept."""
        workspace = gates.new_empty(hidden.shape[0], 5 * hidden.shape[1])
        out = torch.empty_like(hidden)
        ctx.save_for_backward(gates, hidden_gates, hidden, workspace)
        ctx.biases = len(biases)  # type: ignore[attr-defined]
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        """The gradients of gates and hidden state, and sums of the former for the biases."""
        gates, hidden_gates, hidden, _ = ctx.saved_tensors
        gradients = [torch.empty_like(tensor) for tensor in (gates, hidden_gates, hidden)]
        return *gradients, *(tensor.sum(0) for tensor in gradients[: ctx.biases])


def _whole(network: Network, input: Tensor, states: State) -> State:
    out: State = _Whole.apply(network, input, *states, *network.parameters)  # type: ignore[no-untyped-call]
    return out


class _Whole(torch.autograd.Function):
    """All steps and layers as one kernel."""

    @staticmethod
    def forward(ctx: FunctionCtx, network: Network, input: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The result (…, directions · H), the last states, and beside them a reserve and a workspace."""
        states = tensors[: STATES[network.kind]]
        hidden = states[-1].shape[-1]  # an LSTM's cells; its results are smaller if they are projected
        steps = input.shape[:-1].numel() * network.directions
        output = input.new_empty(*input.shape[:-1], network.directions * states[0].shape[-1])
        reserve = input.new_empty(steps * network.layers * KEPT[network.kind] * hidden if network.trained else 0)
        last = [torch.empty_like(state) for state in states]
        # The workspace: gates and results of all layers. An H200 took 83 MB where this is 80 (LSTM, cuDNN 9.19).
        ctx.numbers = steps * network.layers * (GATES[network.kind] + 1) * hidden  # type: ignore[attr-defined]
        input.new_empty(ctx.numbers)  # type: ignore[attr-defined]
        ctx.save_for_backward(input, output, reserve, *tensors)
        return output, *last

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of input, states and weights, beside a workspace."""
        input, _output, _reserve, *tensors = ctx.saved_tensors
        workspace = input.new_empty(ctx.numbers)
        results = [torch.empty_like(tensor) for tensor in (input, *tensors)]
        del workspace
        return None, *results
