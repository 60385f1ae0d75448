"""The training loop of all workloads."""

import math
import time
from collections.abc import Callable, Generator, Iterator
from itertools import count

import torch
from torch import nn

from tuner.objective import Objective
from tuner.training.checkpoints import Checkpoint, TrainingState
from tuner.training.endings import REPORTS, Diverged, Fit, Paused, Pruned, phases
from tuner.training.exchange import Ranks
from tuner.training.graphs import steps_of
from tuner.training.optimizers import LearningRates, build_optimizer
from tuner.training.process_state import seed_of
from tuner.training.step import Steps, constants, evaluate, place, snapshot
from tuner.trial import Config, EpochReport, Phase, Trial
from tuner.workloads import contract
from tuner.workloads.base import Workload
from tuner.workloads.micro_batches import training_steps
from tuner.workloads.objectives import check_reported
from tuner.workloads.protocols import OptionalMethods, optional

# How many of an epoch's first steps show what launching one takes, after a warm-up. More might fill the queue
# of the GPU, which holds about a thousand kernels: a thread that waits for room in it is busy with nothing.
LAUNCHED = 4


class Launching:
    """The part of a CPU core that launching the kernels of an epoch's steps keeps busy.

    A trial on a GPU runs ahead of it until the queue is full. The CPU time of the first steps is spent on launching
    alone; it includes the thread in which torch runs the backward pass.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, cpu: Callable[[], float] = time.process_time
    ) -> None:
        """Both clocks are in seconds; ``cpu`` is that of all threads of the process."""
        self._clock, self._cpu = clock, cpu

    def begin(self) -> None:
        """An epoch begins, and the GPU's queue is empty."""
        self._began, self._steps, self._launched = self._clock(), 0, [0.0, 0.0]

    def step(self) -> None:
        """A step has been launched."""
        self._steps += 1
        if self._steps in (1, 1 + LAUNCHED):
            self._launched[self._steps > 1] = self._cpu()

    def core_share(self) -> float | None:
        """The share in the epoch that now ends, at most 1; None if it had too few steps."""
        if self._steps <= LAUNCHED:
            return None
        a_step = (self._launched[1] - self._launched[0]) / LAUNCHED
        return min(1.0, a_step * self._steps / (self._clock() - self._began))


def fit(
    workload: Workload,
    trial: Trial,
    data: object,
    device: str,
    checkpoint: Checkpoint | None = None,
    *,
    last_epoch: int | None = None,
    prune_asked: Callable[[], bool] = lambda: False,
    objective: Objective | None = None,
    notes: list[str] | None = None,
    ranks: Ranks | None = None,
) -> Generator[EpochReport | Fit, None, None]:
    """Trains a trial; yields a report at the beginning and after every epoch, and at the end a ``Fit``.

    The epoch that is best on the validation split is kept, and with ``patience`` in the configuration training ends
    after that many epochs without a better one. The test split is evaluated once, with that epoch's weights, and
    decides nothing.

    Raises ``Pruned``, ``Stopped`` if the study ends, and ``Diverged`` if an epoch's mean loss is not finite or too
    large by the workload's ``divergence_factor``. Other exceptions are the workload's or torch's; ``phase_of``
    returns the phase in which they were raised.

    Args:
        workload: the workload to train.
        trial: its configuration and the seed of weights, batches and dropout.
        data: the data from ``load_data``.
        device: a torch device, such as "cpu" or "cuda:0".
        checkpoint: the file to resume from and to write.
        last_epoch: the epoch after which to stop, with the learning rates of all epochs, where nothing is held out.
            Then nothing is evaluated, and the last epoch is kept. None trains all epochs, with held-out data.
        prune_asked: returns whether to prune the trial; called after every step.
        objective: what says which epoch is the best; by default the workload's own.
        notes: gets one line if the configuration asks for CUDA graphs and they cannot be used.
        ranks: what this process exchanges with the trial's other ranks, if it has some. Rank 0 alone evaluates,
            writes checkpoints, and has metrics and weights in the end.
    """
    held_out, last = last_epoch is None, trial.epochs if last_epoch is None else last_epoch
    patience = int(trial.config.get("patience", 0))
    epoch_data = optional(workload, OptionalMethods.epoch_data)
    objective = objective or workload.objective
    with phases() as enter:
        model, optimizer, rates, progress = _begin(workload, trial, data, device, checkpoint)
        leads = ranks is None or ranks.rank == 0
        if ranks:
            ranks.begin(model)
        if not leads:
            checkpoint, prune_asked = None, lambda: False
        step = steps_of(workload, model, optimizer, trial.config, device, notes, ranks)
        constant = contract.constant_loss(workload, data)
        unchanging = constants(workload, model) if leads else {}  # collected once, as they are as large as the data
        if progress.weights:  # a checkpoint has them without what is no part of the state
            progress.weights |= unchanging
        yield EpochReport(trial.trial_id, progress.epoch, last)
        for epoch, metrics in progress.reports:  # a study that was killed may not have written the last ones down
            yield EpochReport(trial.trial_id, epoch, last, metrics, again=True)
        number, launching = count(1), Launching()
        enter("first step")

        def after_step(phase: Phase) -> None:
            enter(phase)
            launching.step()
            if prune_asked():
                raise Pruned(progress.best)

        for epoch in range(progress.epoch + 1, last + 1):
            if checkpoint and 0 < trial.until <= progress.epoch and progress.reports:
                checkpoint.pause(model, optimizer, progress)
                raise Paused(progress.reports[-1][1])
            if patience and progress.epoch - progress.best.get("best_epoch", 0) >= patience:
                break
            if checkpoint:
                checkpoint.stop_if_asked(model, optimizer, progress)
            if ranks:
                ranks.begin_epoch(model, epoch)
            rates.begin(epoch)
            step.begin_epoch()
            now = epoch_data(model, trial.config, data, epoch) if epoch_data else data
            launching.begin()
            model.train()
            loss, first = train_epoch(workload, step, trial.config, now, device, after_step, number)
            core_share = None if device == "cpu" else launching.core_share()
            progress.first_loss = first if progress.first_loss is None else progress.first_loss
            _check(loss, progress.first_loss, constant, epoch, workload.divergence_factor)
            enter("evaluation")
            metrics = {"train_loss": loss}
            if held_out and leads:
                metrics |= evaluate(workload, model, data, "validation", objective.metric, config=trial.config)
                check_reported(objective, metrics, workload.name)
            if held_out and ranks:
                metrics = ranks.agree(metrics, objective.metric, workload.metric)
            best = progress.best.get(objective.metric, objective.worst)
            if not held_out or objective.better(metrics[objective.metric], best):
                # First, so that metrics and weights always belong to the same epoch.
                weights = snapshot(model) | unchanging if leads else {}
                progress.best, progress.weights = {**metrics, "best_epoch": epoch}, weights
            progress.epoch, progress.schedule = epoch, rates.end(metrics)
            progress.reports = [*progress.reports, (epoch, metrics)][-REPORTS:]
            if checkpoint:
                checkpoint.save_if_due(model, optimizer, progress)
            enter("training")
            yield EpochReport(trial.trial_id, epoch, last, metrics, core_share=core_share)
        step.end()
        if not leads:
            yield Fit({}, {})
            return
        enter("evaluation")
        if not progress.weights:
            raise Diverged(_never_finite(objective.metric, model))
        model.load_state_dict({name: progress.weights[name] for name in model.state_dict()})
        tested = evaluate(workload, model, data, "test", config=trial.config) if held_out else {}
        yield Fit(progress.best | tested, progress.weights)


def _begin(
    workload: Workload, trial: Trial, data: object, device: str, checkpoint: Checkpoint | None
) -> tuple[nn.Module, torch.optim.Optimizer, LearningRates, TrainingState]:
    """The model, its optimizer, the learning rates and the progress, from the checkpoint if it can be used."""
    torch.manual_seed(seed_of(trial))
    model = place(workload, trial.config, data, device)
    optimizer = build_optimizer(workload, model, trial.config)
    rates = LearningRates(workload, optimizer, trial.config)
    progress = checkpoint.restore(model, optimizer) if checkpoint else TrainingState()
    if progress is None:  # the model and the optimizer may be partly restored
        del model, optimizer, rates
        return _begin(workload, trial, data, device, None)
    rates.restore(progress.schedule, taken_over=bool(trial.parent))
    return model, optimizer, rates, progress


def _check(loss: float, first: float, constant: float, epoch: int, divergence_factor: float) -> None:
    """Raises ``Diverged``. ``first`` is the loss of the first step, ``constant`` of a constant prediction."""
    if not math.isfinite(loss):
        raise Diverged(f"the training loss became {loss} in epoch {epoch}: lower lr")
    if loss > divergence_factor * max(1.0, min(abs(first), constant)):
        least = f"; a constant prediction has {constant:.3g}" if constant < math.inf else ""
        raise Diverged(f"the training loss rose from {first:.3g} to {loss:.3g} in epoch {epoch}{least}: lower lr")


def _never_finite(metric: str, model: nn.Module) -> str:
    """Explains that no epoch was the best although every training loss was finite."""
    if all(bool(value.isfinite().all()) for value in model.parameters()):
        return f"{metric} was never a finite number, but the training loss and the weights were: look at evaluate"
    return f"{metric} was never a finite number: lower lr"


def train_epoch(
    workload: Workload,
    step: Steps,
    config: Config,
    data: object,
    device: str,
    enter: Callable[[Phase], None],
    number: Iterator[int],
) -> tuple[float, float]:
    """Trains one epoch; returns the mean loss of its steps and the first loss.

    ``enter`` is called with "training" after each step; ``number`` counts the trial's steps from 1.
    """
    losses = []
    for group in training_steps(workload, config, data):
        losses.append(step(*group))
        enter("training")
        if (every := int(config.get("clear_cache_every_n", 0))) and next(number) % every == 0 and device != "cpu":
            torch.cuda.empty_cache()
    if not losses:  # possible if the workload has its own training_steps
        contract.refuse_none(workload)
    stacked = torch.stack(losses)
    mean, first = torch.stack([stacked.mean(), stacked[0]]).tolist()
    return mean, first
