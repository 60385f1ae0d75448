"""``fit_footprint``: a formula of memory from measured rows."""

from __future__ import annotations

from tuner.sizing.footprints.fitting import FootprintFit, fitted
from tuner.spec.commands import FitOptions
from tuner.spec.options import public


@public(FitOptions)
def fit_footprint(options: FitOptions) -> FootprintFit:
    """Fits a footprint to measured rows, and writes it where an output is given.

    Raises:
        InputError: the rows cannot be read, are too few, or say nothing of the batch; the output is there already.
    """
    return fitted(options.rows, options.output, options.name, options.batch, options.overwrite)
