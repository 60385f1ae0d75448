"""Fits a footprint to a few measured rows.

    GB = c + c₁ · v + … + batch · (c₂ + c₃ · v + …),   every c ≥ 0

Of all sums of such terms, the one with the smallest leave-one-out error is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import InputError, option
from tuner.sizing.footprints.footprint import Footprint, Term, check_new, used, write_footprint
from tuner.sizing.footprints.rows import Measured, read_rows
from tuner.trial import GB

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tuner.sizing.footprints.rows import Rows

    Matrix = NDArray[np.float64]

LEAST_ROWS = 4
MOST_VARIABLES = 6  # beside the batch; there are 3,472 sums of up to MOST_TERMS of their 14 terms
MOST_TERMS = 5
COLLINEAR = 0.999  # variables with a larger correlation count as one
AS_GOOD = 1.05  # of sums within this factor of the best, the one with the fewest terms is chosen
EXACT = 1e-4  # smaller relative errors are rounding
DIGITS = 6  # of a coefficient


@dataclass(frozen=True)
class FootprintFit:
    """A fitted footprint, and how good it is.

    Attributes:
        footprint: the sum; its variables' values are the largest that were measured.
        errors: of each row, |fitted − measured| / measured.
        left_out_errors: the same for a fit to all other rows.
        left_out: what was not used, and why, a line each.
    """

    footprint: Footprint
    errors: tuple[float, ...]
    left_out_errors: tuple[float, ...]
    left_out: tuple[str, ...]

    def text(self) -> str:
        """The formula, its errors and what was left out."""
        rows = len(self.errors)
        lines = [
            f"GB = {self.footprint.formula()}",
            f"{rows} rows: error {_spread(self.errors)}; of rows left out of the fit {_spread(self.left_out_errors)}",
        ]
        return "\n".join([*lines, *(f"left out: {each}" for each in self.left_out)])


def fitted(
    rows: Rows,
    output: str | Path | None,
    name: str | None,
    batch: str,
    overwrite: bool,
) -> FootprintFit:
    """See ``tuner.fit_footprint``."""
    if output is not None:
        check_new(output, overwrite=overwrite)
    measured = read_rows(rows, batch)
    variables, alike = _distinct_columns(measured, batch)
    terms, errors, left_out_errors = _best(measured, variables, batch)
    constants = [f"{key}: is {value:g} in every row" for key, value in measured.constants.items()]
    idle = [f"{key}: explains no memory" for key in variables if key not in used(terms)]
    footprint = Footprint(
        name=name or Path(output or measured.source).stem,
        terms=terms,
        variables={key: _plain(max(variables[key])) for key in used(terms) if key != batch},
        batch=batch,
        batch_is_step=measured.batch_is_step,
        source=str(output or measured.source),
    )
    if output is not None:
        write_footprint(footprint, output, overwrite=overwrite)
    reasons = (*measured.left_out, *constants, *alike, *idle)
    return FootprintFit(footprint, errors, left_out_errors, reasons)


def _distinct_columns(measured: Measured, batch: str) -> tuple[dict[str, list[float]], list[str]]:
    """The batch and the variables that differ from it and from each other, and the reasons for omitting others."""
    import numpy as np

    rows, source = len(measured.memory_gb), measured.source
    if batch in measured.constants:
        raise InputError(
            f"{source}: {batch} is {measured.constants[batch]:g} in every row: measure other batches too"
        )
    if batch not in measured.variables:
        columns = ", ".join([*measured.variables, *measured.constants]) or "none"
        raise InputError(
            f"{source}: the column {batch} is missing (columns are {columns}): name it: {option('batch', 'COLUMN')}"
        )
    if rows < LEAST_ROWS:
        raise InputError(f"{source}: {rows} rows are too few: measure {LEAST_ROWS} or more")
    kept, alike = {batch: measured.variables[batch]}, []
    for name, column in measured.variables.items():
        twin = next((other for other in kept if abs(np.corrcoef(column, kept[other])[0, 1]) > COLLINEAR), None)
        if twin is None:
            kept[name] = column
        elif twin != name:
            alike.append(f"{name}: varies only together with {twin}")
    if len(kept) - 1 > MOST_VARIABLES:
        names = ", ".join(name for name in kept if name != batch)
        raise InputError(
            f"{source}: {names} are too many variables: leave columns out until {MOST_VARIABLES} are left"
        )
    return kept, alike


def _best(
    measured: Measured, variables: Mapping[str, Sequence[float]], batch: str
) -> tuple[tuple[Term, ...], tuple[float, ...], tuple[float, ...]]:
    """The terms with the smallest leave-one-out error, their errors, and their leave-one-out errors."""
    import numpy as np

    memory = np.asarray(measured.memory_gb)
    others = [name for name in variables if name != batch]
    products: list[tuple[str, ...]] = [
        (),
        (batch,),
        *((name,) for name in others),
        *((batch, name) for name in others),
    ]
    values = {name: np.asarray(column) for name, column in variables.items()}
    columns = {times: math.prod((values[name] for name in times), start=np.ones(len(memory))) for times in products}
    fits = list(_fits(columns, memory))
    if not fits:
        raise InputError(f"{measured.source}: no sum of non-negative terms fits: is more memory measured for more?")
    least = max(min(fit.score for fit in fits), EXACT)
    chosen = min((fit for fit in fits if fit.score <= least * AS_GOOD), key=lambda fit: (len(fit.times), fit.score))
    if not any(batch in times for times in chosen.times):
        raise InputError(
            f"{measured.source}: memory does not grow with {batch} in these rows: measure larger batches"
        )
    terms = tuple(
        Term(_part(times, batch), float(f"{gb:.{DIGITS}g}") * GB, times)
        for times, gb in zip(chosen.times, chosen.gb, strict=True)
    )
    return terms, tuple(np.abs(chosen.errors).tolist()), tuple(np.abs(chosen.left_out_errors).tolist())


@dataclass(frozen=True)
class _Fit:
    times: tuple[tuple[str, ...], ...]
    gb: Matrix
    errors: Matrix
    left_out_errors: Matrix

    @property
    def score(self) -> float:
        """The root mean square of the leave-one-out errors."""
        return float((self.left_out_errors**2).mean() ** 0.5)


def _fits(columns: Mapping[tuple[str, ...], Matrix], memory: Matrix) -> Iterator[_Fit]:
    """Least squares of relative errors, for all sums of terms with positive coefficients.

    They include the best non-negative fit, which is the unconstrained fit of its positive terms. A row's
    leave-one-out error is e / (1 − h), where the leverage h is its diagonal entry in the hat matrix (Allen 1974).
    """
    import numpy as np

    for size in range(1, min(MOST_TERMS, len(memory) - 1, len(columns)) + 1):
        for times in combinations(columns, size):
            matrix = np.stack([columns[each] / memory for each in times], axis=1)
            scale = np.linalg.norm(matrix, axis=0)
            if not scale.all():
                continue
            basis, triangle = np.linalg.qr(matrix / scale)
            if np.abs(np.diag(triangle)).min() < 1e-8:  # the terms are linearly dependent
                continue
            gb = np.linalg.solve(triangle, basis.sum(axis=0)) / scale
            leverage = (basis**2).sum(axis=1)
            if gb.min() > 0 and leverage.max() < 1 - 1e-9:
                errors = matrix @ gb - 1
                yield _Fit(times, gb, errors, errors / (1 - leverage))


def _part(times: tuple[str, ...], batch: str) -> str:
    return "per sample" if batch in times else "model" if times else "fixed"


def _plain(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _spread(errors: Sequence[float]) -> str:
    from statistics import median

    return f"{median(errors):.1%} median, {max(errors):.1%} worst"
