"""Reads MovieLens folders, from ML-100K to ML-25M and ml-latest (https://grouplens.org/datasets/movielens)."""

import csv
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.arrays import cached, file_key, joined
from tuner.datasets.download import fetch_movielens, progress_bar
from tuner.datasets.faults import unexpected
from tuner.datasets.ratings import RatingData, Ratings, rating_data, split_validation
from tuner.datasets.synthetic import synthetic_ratings
from tuner.errors import DataError, option
from tuner.machine.safe_files import regular

T = TypeVar("T")
Matrix: TypeAlias = NDArray[np.float32]
Ids: TypeAlias = NDArray[np.int64]
Entities: TypeAlias = tuple[Ids, Matrix]  # ids in ascending order, and the features of each (len(ids), F)
Parts: TypeAlias = tuple[Ratings, Ratings, Matrix, Matrix]
User: TypeAlias = tuple[int, bool, str]  # age, whether female, occupation

LARGE_FILE = 2**25  # bytes
LINES = 2**20  # of a large file that are read at a time
CACHE_VERSION = 1
RATING_FILES = ("u.data", "u1.base", "u1.test", "ratings.dat", "ratings.csv")
_LARGEST_ID = 2**31 - 1
# A data set without a test split gets the same fifth for every seed, so that results of all seeds can be compared.
_TEST_FRACTION, _TEST_SEED = 0.2, 0
_RATING = "user, item, rating (0.5 to 5) and time"


def load_ratings(source: str, *, seed: int) -> RatingData:
    """Rating data by name or path; raises ``DataError`` if the folder is missing or invalid, or the download fails.

    ``source`` is `synthetic` (generated), `ml-100k` (downloaded once into the user's cache), or a MovieLens folder.
    ``seed`` is the seed of the training/validation split; the test ratings of a source are always the same.
    """
    if source == "synthetic":
        return synthetic_ratings(split_seed=seed)
    if source == "ml-100k":
        return load_folder(fetch_movielens(), seed=seed)
    return load_folder(Path(source).expanduser(), seed=seed)


def load_folder(path: Path, *, seed: int) -> RatingData:
    """Reads a MovieLens folder in one of three layouts.

    ML-100K: `u.user`, `u.item` and `u1.base` with `u1.test`, or `u.data`.
    ML-1M and ML-10M: `users.dat` (only ML-1M), `movies.dat`, `ratings.dat`.
    ML-20M, ML-25M and ml-latest: `movies.csv`, `ratings.csv`.

    What is read of files of over 32 MB is kept in the user's cache, from which all processes map it.

    User features are the standardised age, a flag for female, and a flag for each occupation; item features are a
    flag for each genre. Users of whom there are no data get a constant feature. Without a test file, a fifth of the
    ratings is the test split.

    Raises ``DataError`` with file and line if the folder, a file or an id is missing, or a line is invalid.
    """
    try:
        load = _loader(path)
        files = [file for name in RATING_FILES if (file := path / name).is_file()]
        if max(file.stat().st_size for file in files) <= LARGE_FILE:
            return _loaded(load, path, seed)
        read = sorted({*files, *path.glob("movies.*"), *path.glob("u*.*")})  # a folder's own order may change
        key = file_key(path, read, CACHE_VERSION, seed)
        return cached(RatingData, key, lambda: _loaded(load, path, seed))
    except OSError as error:
        hint = "a MovieLens folder has it (genres may be empty)"
        raise DataError(f"cannot read {error.filename}: {error.strerror}; {hint}") from error


def _loaded(load: Callable[[Path], Parts], path: Path, seed: int) -> RatingData:
    train, test, users, items = load(path)
    return rating_data(path.resolve().name, train, test, users, items, seed=seed)


def _loader(path: Path) -> Callable[[Path], Parts]:
    if path.is_file():
        raise DataError(f"{str(path)!r} is a file; give {option('data')} the folder that it is in")
    if not path.is_dir():
        raise DataError(
            f"no folder {str(path)!r}; give {option('data')} a MovieLens folder, 'ml-100k' or 'synthetic'"
        )
    if (path / "u.data").is_file() or (path / "u1.base").is_file():
        return _load_100k
    if (path / "ratings.dat").is_file():
        return _load_dat
    if (path / "ratings.csv").is_file():
        return _load_csv
    raise DataError(
        f"no MovieLens data in {str(path)!r}: it has neither u.data nor u1.base (ML-100K), "
        "ratings.dat (ML-1M, ML-10M) or ratings.csv (ML-20M, ML-25M, ml-latest)"
    )


def _load_100k(folder: Path) -> Parts:
    users = _user_features(_table(folder / "u.user", "|", _user_100k, "id|age|M or F|occupation|zip code"))
    table = _table(folder / "u.item", "|", _item_100k, "id|title|date|video date|url|19 flags of 0 or 1")
    items = _ids(table), np.array(list(table.values()), dtype=np.float32)
    parts = folder / "u1.base", folder / "u1.test"
    if all(part.is_file() for part in parts):
        train, test = (_ratings(part, "\t", users[0], items[0]) for part in parts)
    else:
        train, test = _split_test(_ratings(folder / "u.data", "\t", users[0], items[0]))
    return train, test, users[1], items[1]


def _load_dat(folder: Path) -> Parts:
    items = _genre_flags(_table(folder / "movies.dat", "::", _movie, "id::title::genre|genre"))
    file, path = folder / "users.dat", folder / "ratings.dat"
    if not file.exists():  # ML-10M
        return _without_users(path, "::", items)
    users = _user_features(_table(file, "::", _user_1m, "id::M or F::age::occupation::zip code"))
    train, test = _split_test(_ratings(path, "::", users[0], items[0]))
    return train, test, users[1], items[1]


def _load_csv(folder: Path) -> Parts:
    header = "movieId,title,genres"
    items = _genre_flags(_table(folder / "movies.csv", ",", _movie, "id,title,genre|genre", header=header))
    return _without_users(folder / "ratings.csv", ",", items, "userId,movieId,rating,timestamp")


def _without_users(path: Path, separator: str, items: Entities, header: str = "") -> Parts:
    """Ratings whose users have no data; each user gets one constant feature."""
    table = _rating_table(path, separator, header)
    users = np.unique(table.user).astype(np.int64)
    train, test = _split_test(_with_positions(table, path, users, items[0], header))
    return train, test, np.ones((len(users), 1), dtype=np.float32), items[1]


def _split_test(ratings: Ratings) -> tuple[Ratings, Ratings]:
    return split_validation(ratings, _TEST_FRACTION, _TEST_SEED)


# Lines and their faults


def _lines(path: Path, header: str = "") -> Iterator[tuple[int, str]]:
    """The numbered lines of a text file, without blank lines, header, byte-order mark and line endings."""
    with regular(path).open(encoding=_encoding(path), newline="\n") as file:
        unmarked = (line.removeprefix("\xef\xbb\xbf") for line in file)  # a byte-order mark before latin-1
        lines = ((number, line.rstrip("\r\n")) for number, line in enumerate(unmarked, 1) if line.strip())
        if header:
            number, line = next(lines, (1, ""))
            if line != header:
                raise unexpected(path, number, line, f"the header {header}")
        yield from lines


def _encoding(path: Path) -> str:
    """ML-100K and ML-1M have latin-1 titles."""
    try:
        with regular(path).open(encoding="utf-8", newline="\n") as file:
            for _ in file:
                pass
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8-sig"


def _id(text: str) -> int:
    number = int(text)
    if not 1 <= number <= _LARGEST_ID:
        raise ValueError(text)
    return number


# Users and items: small files, read line by line


def _table(
    path: Path, separator: str, parse: Callable[[list[str]], tuple[int, T]], expected: str, header: str = ""
) -> dict[int, T]:
    """The parsed fields of every line, by ascending id."""
    table: dict[int, T] = {}
    for number, line in _lines(path, header):
        try:
            # Only CSV files quote titles; in other files a quotation mark is part of the title.
            fields = next(csv.reader([line])) if separator == "," else line.split(separator)
            key, value = parse(fields)
        except (ValueError, csv.Error) as error:
            raise unexpected(path, number, line, expected) from error
        if key in table:
            raise unexpected(path, number, line, f"a new id ({key} is used twice)")
        table[key] = value
    if not table:
        raise DataError(f"{path} is empty; expected lines of {expected}")
    return dict(sorted(table.items()))


def _user_100k(fields: list[str]) -> tuple[int, User]:
    key, age, gender, occupation, _ = fields
    return _id(key), (int(age), bool(("M", "F").index(gender)), occupation)


def _user_1m(fields: list[str]) -> tuple[int, User]:
    key, gender, age, occupation, zip_code = fields
    return _user_100k([key, age, gender, occupation, zip_code])


def _item_100k(fields: list[str]) -> tuple[int, list[bool]]:
    key, _, _, _, _, *flags = fields
    if len(flags) != 19:
        raise ValueError(fields)
    return _id(key), [bool(("0", "1").index(flag)) for flag in flags]


def _movie(fields: list[str]) -> tuple[int, str]:
    key, _, genres = fields
    return _id(key), genres


def _ids(table: dict[int, T]) -> Ids:
    return np.fromiter(table, dtype=np.int64, count=len(table))


def _user_features(table: dict[int, User]) -> Entities:
    ages, female, occupations = (np.array(column) for column in zip(*table.values(), strict=True))
    standard = (ages - ages.mean()) / (ages.std() or 1.0)
    one_hot = occupations[:, None] == np.unique(occupations)
    return _ids(table), np.column_stack([standard, female, one_hot]).astype(np.float32)


def _genre_flags(table: dict[int, str]) -> Entities:
    import pandas as pd

    genres = pd.Series(list(table.values())).str.split("|").explode()
    return _ids(table), pd.get_dummies(genres).groupby(level=0).any().to_numpy(np.float32)


# Ratings: large files, which are read at once, and line by line only to find a fault


def _ratings(path: Path, separator: str, users: Ids, items: Ids) -> Ratings:
    return _with_positions(_rating_table(path, separator), path, users, items)


def _with_positions(table: Ratings, path: Path, users: Ids, items: Ids, header: str = "") -> Ratings:
    """Ratings with positions in `users` and `items` instead of ids."""
    places = []
    for what, ids, listed in (("user", table.user, users), ("item", table.item, items)):
        place = np.searchsorted(listed, ids).clip(max=len(listed) - 1).astype(np.int32)
        strange = np.flatnonzero(listed[place] != ids)
        if strange.size:
            row = int(strange[0])
            number, line = next(islice(_lines(path, header), row, None))
            raise unexpected(
                path, number, line, f"{'a' if what == 'user' else 'an'} {what} that is in the {what} file"
            )
        places.append(place)
    return Ratings(places[0], places[1], table.rating)


def _rating_table(path: Path, separator: str, header: str = "") -> Ratings:
    """The ratings of every line, with ids; raises the errors of `_rating_row`."""
    table = _read_in_parts(path, separator, header)
    if table is None:  # by line, which is slow and finds a fault
        rows = (_rating_row(path, number, line, separator) for number, line in _lines(path, header))
        table = _sound(np.fromiter(rows, np.dtype((np.float64, 4))))
    if table is None:
        raise DataError(f"{path} is empty; expected lines of {_RATING}")
    return table


def _read_in_parts(path: Path, separator: str, header: str) -> Ratings | None:
    """The table of a file, with a bar in a terminal for a large one; None if the file is unusual in any way."""
    import pandas as pd

    parts, size = [], path.stat().st_size
    # pandas reads fast with separators of one character. "::" gives empty columns between the others.
    columns = [0, 2, 4, 6] if separator == "::" else [0, 1, 2, 3]
    try:
        with regular(path).open("rb") as file, progress_bar(path.name, size, shown=size > LARGE_FILE) as advance_to:
            if header and file.readline().decode("utf-8-sig").rstrip("\r\n") != header:
                return None
            for part in pd.read_csv(file, sep=separator[0], header=None, dtype=np.float64, chunksize=LINES):
                if part.shape[1] != columns[-1] + 1:
                    return None
                values = part.to_numpy()[:, columns]
                table = None if np.isnan(values).any() else _sound(values)  # pandas reads a missing value as NaN
                if table is None:
                    return None
                parts.append(table)
                advance_to(file.tell())
    except ValueError:  # pandas' and Unicode's errors are of this kind
        return None
    return joined(parts) if parts else None


def _sound(table: NDArray[np.float64]) -> Ratings | None:
    """The ratings of a table of user, item, rating and time (lines, 4); None if it is empty or a value is invalid."""
    if not len(table):
        return None
    ids, stars = table[:, :2], table[:, 2]
    sound = (ids >= 1).all() and (ids <= _LARGEST_ID).all() and (ids == np.floor(ids)).all()
    if not (sound and (stars >= 0.5).all() and (stars <= 5).all()):
        return None
    user, item = ids.T.astype(np.int32)
    return Ratings(user, item, stars.astype(np.float32))


def _rating_row(path: Path, number: int, line: str, separator: str) -> tuple[float, float, float, float]:
    try:
        user, item, stars, time = line.split(separator)
        row = _id(user), _id(item), float(stars), float(time)
        if not 0.5 <= row[2] <= 5:
            raise ValueError(stars)
    except ValueError as error:
        raise unexpected(path, number, line, f"{_RATING}, separated by {separator!r}") from error
    return row
