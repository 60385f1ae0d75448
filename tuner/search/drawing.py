"""Configurations that do not depend on results: a grid, or random draws by Optuna."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from tuner.errors import InputError, ParameterError, option
from tuner.search.configurations import check_grid
from tuner.search.domains import Space, in_optuna, size, suggested
from tuner.search.searchers import Searcher
from tuner.trial import ConfigValue
from tuner.values import config_key

Values = dict[str, ConfigValue]
MAX_REJECTED_DRAWS = 1000  # in a row


def grid(space: Space, source: str, points: Sequence[Mapping[str, ConfigValue]] = (), seed: int = 0) -> list[Values]:
    """All combinations of a space's values; the last hyperparameter varies fastest.

    Those that complete ``points`` come first. A range without a step raises ``InputError``.
    """
    if ranges := [key for key, domain in space.items() if domain.count == math.inf]:
        raise without_grid(ranges, source)
    check_grid(size(space), source)
    completed = itertools.islice(draws(space, seed, points), len(points))
    first = {config_key(row): row for row in completed}
    return [*first.values(), *(row for row in _product(space) if not first or config_key(row) not in first)]


def without_grid(ranges: Sequence[str], source: str) -> InputError:
    """The error of ranges with infinitely many values."""
    return InputError(
        f"{source}: {', '.join(ranges)}: a range without a step has no grid: give {{choice: [...]}} or a step, or "
        f"use {option('search', 'random')} or tpe"
    )


def crossed(space: Space) -> list[Values]:
    """The combinations of all values under ``grid_search``; a single empty one without any."""
    return _product({key: domain for key, domain in space.items() if domain.crossed})


def draws(space: Space, seed: int, points: Sequence[Mapping[str, ConfigValue]] = ()) -> Iterator[Values]:
    """Random configurations without end, which only depend on the seed and the points.

    The first ones complete ``points``. Under ``grid_search`` each value takes its turn.
    """
    from optuna.samplers import RandomSampler

    from tuner.search.optuna_trials import new_study

    sampler = RandomSampler(seed=seed)
    for point in itertools.chain(points, itertools.cycle(crossed(space))):
        study = new_study(sampler)  # one for each draw, as asking takes longer with more trials
        if point:
            study.enqueue_trial(in_optuna(space, point))
        yield suggested(study.ask(), space)


class Draws(Searcher):
    """Suggests random points of a space, each once. Those of earlier processes are skipped."""

    def __init__(self, space: Space, seed: int, points: Sequence[Mapping[str, ConfigValue]] = ()) -> None:
        """Begins with the points, as ``draws`` does."""
        self._space, self._drawn = space, draws(space, seed, points)
        self._known: set[str] = set()

    def ask(self, trial_id: str) -> Values | None:
        """A point that was not suggested before; None if there seems to be none."""
        for _ in range(MAX_REJECTED_DRAWS + len(self._known)):
            values, count = next(self._drawn), len(self._known)
            self.recall(trial_id, values)
            if len(self._known) > count:
                return values
        return None

    def recall(self, trial_id: str, values: Mapping[str, ConfigValue]) -> None:
        """Skips a point that was suggested before."""
        applied: Values = {}
        for key, domain in self._space.items():
            if key in values and domain.applies(applied):
                applied[key] = values[key]
        self._known.add(config_key(applied))


def check_number(space: Space, number: int, source: str, points: Sequence[object]) -> int:
    """How many configurations are drawn for this number of samples; one that cannot be drawn is refused."""
    combinations = len(crossed(space))
    most = size(space) / combinations
    if number > most:
        raise ParameterError("num_samples", number, f"{source} has {most:g}", f"give at most {most:g}")
    if points and combinations > 1:
        raise InputError(f"{source}: points: a grid_search has all its combinations tried: leave the points out")
    if number < len(points):
        rule = f"{source} has {len(points)} points to try first"
        raise ParameterError("num_samples", number, rule, f"give at least {len(points)}")
    return number * combinations


def _product(space: Space) -> list[Values]:
    rows: list[Values] = [{}]
    for key, domain in space.items():
        rows = [
            {**row, **value}
            for row in rows
            for value in ([{key: listed} for listed in domain.listed] if domain.applies(row) else [{}])
        ]
    return rows
