"""Where trials get their data: files that people have, tables they hold, and generators of the same shape."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.datasets.ratings import RatingData


def load_ratings(source: str, *, seed: int) -> RatingData:
    """Rating data by name or path.

    Args:
        source: `synthetic` (generated), `ml-100k` (downloaded once into the user's cache), or a folder that
            holds MovieLens files.
        seed: of the training/validation split. The test ratings of a source are always the same.

    Raises:
        DataError: the folder is missing or broken, or the download failed.
    """
    if source == "synthetic":
        from tuner.datasets.synthetic import synthetic_ratings

        return synthetic_ratings(split_seed=seed)
    from tuner.datasets.movielens import load_folder

    if source == "ml-100k":
        from tuner.datasets.download import fetch_movielens

        return load_folder(fetch_movielens(), seed=seed)
    return load_folder(Path(source).expanduser(), seed=seed)
