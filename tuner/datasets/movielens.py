"""Reads ratings: MovieLens folders (https://grouplens.org/datasets/movielens), and tables of any other source."""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.arrays import cached, file_key
from tuner.datasets.download import fetch_movielens, progress_bar
from tuner.datasets.ratings import RatingData, Ratings, rating_data, split_validation
from tuner.datasets.synthetic import synthetic_ratings
from tuner.datasets.texts import (
    NO_TABLES,
    compression_of,
    encoding_of,
    filled_lines,
    first_line,
    opened,
    reading,
    separator_of,
    unexpected,
    unpacked,
)
from tuner.errors import DataError, ParameterError, one_line, option
from tuner.machine.safe_files import regular

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
Matrix: TypeAlias = NDArray[np.float32]
Entities: TypeAlias = tuple["pd.Index[Any]", Matrix]  # ids in ascending order, and the features of each (len(ids), F)
Parts: TypeAlias = tuple[Ratings, Ratings, Matrix, Matrix]
User: TypeAlias = tuple[int, bool, str]  # age, whether female, occupation
# The columns of user, item and rating as pandas has them, and the error of a row that is not what is expected.
Table: TypeAlias = tuple[list[Any], Callable[[int, str], DataError]]

LARGE_FILE = 2**25  # bytes
LINES = 2**20  # of a large file that are read at a time
CACHE_VERSION = 2
# A folder's ratings are in the first of these that it has, or else in its only table.
RATING_FILES = ("u.data", "u1.base", "ratings.dat", "ratings.csv", "rating.csv")
TABLES = (".csv", ".tsv", ".txt", ".dat", ".inter", ".parquet", ".json", ".jsonl")
# What a column may be called, in lower-case letters and digits; a type may follow, as in ``user_id:token``.
NAMES: Mapping[str, Sequence[str]] = {
    "user": ("user", "userid"),
    "item": ("item", "itemid", "movie", "movieid"),
    "rating": ("rating", "ratings"),
}
_LARGEST_ID = 2**31 - 1
# A data set without a test split gets the same fifth for every seed, so that results of all seeds can be compared.
_TEST_FRACTION, _TEST_SEED = 0.2, 0
_RATING = "user, item, rating (a number)"


def load_ratings(source: str, *, seed: int, columns: str | None = None) -> RatingData:
    """Rating data by name or path; raises ``DataError`` if they are missing or invalid, or the download fails.

    ``source`` is `synthetic` (generated), `ml-100k` (downloaded once into the user's cache), a MovieLens folder or a
    table. ``seed`` is the seed of the training/validation split; the test ratings of a source are always the same.
    ``columns`` says which column of a table is what, as in ``user=reader,item=ISBN,rating=3``.
    """
    pairs = [pair.partition("=")[::2] for pair in columns.split(",")] if columns else []
    if any(key not in NAMES or not name for key, name in pairs):
        raise ParameterError("columns", columns, "must name columns as in user=reader,item=ISBN,rating=3")
    if pairs and source in ("synthetic", "ml-100k"):
        raise ParameterError("columns", columns, f"has no effect on {source}", "leave it out")
    if source == "synthetic":
        return synthetic_ratings(split_seed=seed)
    path = fetch_movielens() if source == "ml-100k" else Path(source).expanduser()
    return load_folder(path, seed=seed, columns=dict(pairs))


def load_folder(path: Path, *, seed: int, columns: Mapping[str, str] = {}) -> RatingData:
    """Reads a MovieLens folder in one of three layouts, a table, or a folder with one table.

    ML-100K: `u.user`, `u.item` and `u1.base` with `u1.test`, or `u.data`.
    ML-1M and ML-10M: `users.dat` (only ML-1M), `movies.dat`, `ratings.dat`.
    ML-20M, ML-25M and ml-latest: `movies.csv`, `ratings.csv`.
    A table is text with names of columns, parquet or lines of JSON, which may be compressed.

    What is read of files of over 32 MB is kept in the user's cache, from which all processes map it.

    User features are the standardised age, a flag for female, and a flag for each occupation; item features are a
    flag for each genre. Users and items of which there are no data get a constant feature. Without a test file, a
    fifth of the ratings is the test split.

    Raises ``DataError`` with file and line if the folder, a file or an id is missing, or a line is invalid.
    """
    file = _rating_file(path)
    beside = [*path.glob("movie*.*"), *path.glob("u*.*")] if path.is_dir() else []
    read = sorted({file, *beside})  # a folder's own order may change
    if max(one.stat().st_size for one in read) <= LARGE_FILE:
        return _loaded(path, file, columns, seed)
    key = file_key(path, read, CACHE_VERSION, seed, *map("=".join, sorted(columns.items())))
    return cached(RatingData, key, lambda: _loaded(path, file, columns, seed))


def _rating_file(path: Path) -> Path:
    """The file itself, or the one of a folder that has its ratings."""
    if path.is_file():
        return path
    if not path.is_dir():
        kinds = "a MovieLens folder, a table of ratings, 'ml-100k' or 'synthetic'"
        raise DataError(f"no folder {str(path)!r}; give {option('data')} {kinds}")
    with reading(path):
        files = {unpacked(file).name: file for file in sorted(path.iterdir(), reverse=True) if file.is_file()}
    known = [files[name] for name in RATING_FILES if name in files]
    tables = [files[name] for name in files if name.endswith(TABLES) and not name.startswith(NO_TABLES)]
    named = [file for file in tables if "rating" in file.name.lower() or unpacked(file).suffix == ".inter"]
    if not known and len(named or tables) != 1:
        names = ", ".join(sorted(file.name for file in named or tables))
        raise DataError(
            f"no MovieLens data in {str(path)!r}: it has neither u.data nor u1.base (ML-100K), ratings.dat (ML-1M, "
            f"ML-10M) or ratings.csv (ML-20M, ML-25M, ml-latest): give {option('data')} the file with the ratings"
            + (f", one of {names}" if names else "")
        )
    return (known or named or tables)[0]


def _loaded(path: Path, file: Path, columns: Mapping[str, str], seed: int) -> RatingData:
    load = {"u.data": _load_100k, "u1.base": _load_100k, "ratings.dat": _load_dat}.get(file.name)
    if path.is_dir() and load and not columns:
        parts = load(path)
    else:
        movies = [one for one in path.glob("movie*.*") if unpacked(one).name in ("movies.csv", "movie.csv")]
        items = _genre_flags(_movies(movies[0])) if movies else None
        parts = _without_users(read_table(file, columns), items)
    train, test, user_features, item_features = parts
    return rating_data(path.resolve().name, train, test, user_features, item_features, seed=seed)


def _load_100k(folder: Path) -> Parts:
    users = _user_features(_table(folder / "u.user", "|", _user_100k, "id|age|M or F|occupation|zip code"))
    table = _table(folder / "u.item", "|", _item_100k, "id|title|date|video date|url|19 flags of 0 or 1")
    items = np.array(list(table.values()), dtype=np.float32)
    read = partial(_with_positions, users=users[0], items=_ids(table))
    parts = folder / "u1.base", folder / "u1.test"
    if all(part.is_file() for part in parts):
        train, test = (read(_of_lines(part, "\t")) for part in parts)
    else:
        train, test = _split_test(read(_of_lines(folder / "u.data", "\t")))
    return train, test, users[1], items


def _load_dat(folder: Path) -> Parts:
    items = _genre_flags(_table(folder / "movies.dat", "::", _movie, "id::title::genre|genre"))
    file, ratings = folder / "users.dat", _of_lines(folder / "ratings.dat", "::")
    if not file.exists():  # ML-10M
        return _without_users(ratings, items)
    users = _user_features(_table(file, "::", _user_1m, "id::M or F::age::occupation::zip code"))
    train, test = _split_test(_with_positions(ratings, users[0], items[0]))
    return train, test, users[1], items[1]


def _without_users(table: Table, items: Entities | None) -> Parts:
    """Ratings whose users, and maybe items, have no data; each of these gets one constant feature."""
    listed = [_distinct(column) for column in table[0][: 1 if items else 2]]
    features = [np.ones((len(ids), 1), dtype=np.float32) for ids in listed]
    users, (item_ids, item_features) = listed[0], items or (listed[1], features[1])
    train, test = _split_test(_with_positions(table, users, item_ids))
    return train, test, features[0], item_features


def _split_test(ratings: Ratings) -> tuple[Ratings, Ratings]:
    return split_validation(ratings, _TEST_FRACTION, _TEST_SEED)


# Users and items: small files, read line by line


def _id(text: str) -> int:
    number = int(text)
    if not 1 <= number <= _LARGEST_ID:
        raise ValueError(text)
    return number


def _table(
    path: Path, separator: str, parse: Callable[[list[str]], tuple[int, T]], expected: str, *, header: bool = False
) -> dict[int, T]:
    """The parsed fields of every line, by ascending id."""
    table: dict[int, T] = {}
    for number, line in islice(filled_lines(path), header, None):
        try:
            key, value = parse(_fields(line, separator))
        except (ValueError, csv.Error) as error:
            raise unexpected(path, number, line, expected) from error
        if key in table:
            raise unexpected(path, number, line, f"a new id ({key} is used twice)")
        table[key] = value
    if not table:
        raise DataError(f"{path} is empty; expected lines of {expected}")
    return dict(sorted(table.items()))


def _fields(line: str, separator: str) -> list[str]:
    """Only CSV files quote titles; in other files a quotation mark is part of the title."""
    quoted = separator in (",", ";")
    return next(csv.reader([line], delimiter=separator)) if quoted else line.split(separator or None)


def _movies(path: Path) -> dict[int, str]:
    """The genres of a table with names of columns, by the items' ids."""
    number, line = next(filled_lines(path), (1, ""))
    names = [_plain(name) for name in _fields(line, separator_of(line))]
    places = [names.index(name) for name in (*NAMES["item"], "genres", "genre") if name in names]
    if len(places) != 2:
        raise unexpected(path, number, line, "the header movieId,title,genres")

    def movie(fields: list[str]) -> tuple[int, str]:
        return _id(fields[places[0]]), dict(zip(names, fields, strict=True))[names[places[1]]]

    return _table(path, separator_of(line), movie, line, header=True)


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


def _ids(table: dict[int, T]) -> "pd.Index[Any]":
    import pandas as pd

    return pd.Index([*table], dtype=np.int64)


def _user_features(table: dict[int, User]) -> Entities:
    ages, female, occupations = (np.array(column) for column in zip(*table.values(), strict=True))
    standard = (ages - ages.mean()) / (ages.std() or 1.0)
    one_hot = occupations[:, None] == np.unique(occupations)
    return _ids(table), np.column_stack([standard, female, one_hot]).astype(np.float32)


def _genre_flags(table: dict[int, str]) -> Entities:
    import pandas as pd

    genres = pd.Series(list(table.values())).str.split("|").explode()
    return _ids(table), pd.get_dummies(genres).groupby(level=0).any().to_numpy(np.float32)


# Ratings: tables whose columns are known by their names, and MovieLens files without names


def _plain(name: object) -> str:
    return re.sub("[^a-z0-9]", "", str(name).lower().partition(":")[0])


def _places(names: Sequence[object], columns: Mapping[str, str], where: str) -> list[int]:
    """The places of user, item and rating. A missing one raises ``DataError``, which begins with ``where``."""
    texts, plain, places = [str(name).strip(' "') for name in names], [*map(_plain, names)], []
    for key, usual in NAMES.items():
        found = [plain.index(name) for name in usual if name in plain]
        if wanted := columns.get(key):
            place = int(wanted) - 1 if wanted.isdecimal() else texts.index(wanted) if wanted in texts else -1
            found = [place] * (0 <= place < len(texts))
        if not found or (texts.count(texts[found[0]]) > 1 and not (wanted or "").isdecimal()):
            missing = f"no column is {wanted or f'the {key}'}" if not found else f"{texts[found[0]]!r} is there twice"
            raise DataError(
                f"{where}: expected the header userId,movieId,rating or alike, but {missing}: "
                f"{', '.join(texts):.120}; give {option('columns', f'{key}=NAME')}, or its "
                "number from 1 if the first line has no names"
            )
        places.append(found[0])
    return places


def read_table(path: Path, columns: Mapping[str, str]) -> Table:
    """The ratings of a table with names of columns; raises ``DataError`` if it cannot be read."""
    import pandas as pd

    kind, packed = unpacked(path).suffix, cast(Any, compression_of(path))
    if kind not in (".parquet", ".json", ".jsonl"):
        with opened(path) as text:
            number, line = first_line(path, text)
        if not line:
            raise DataError(f"{path} is empty; expected the header userId,movieId,rating or alike")
        fields = _fields(line.rstrip("\r\n"), separator_of(line))
        places = _places(fields, columns, f"{path}, line {number}")
        header = bool(np.isnan(_numbers(pd.Index([fields[places[2]]]))[0]))  # else columns were given by number
        return _of_lines(path, separator_of(line), places, len(fields), header)
    try:
        with reading(path), regular(path).open("rb") as file:
            if kind == ".parquet":
                frame = pd.read_parquet(file)
                frame = frame.reset_index() if any(frame.index.names) else frame
            else:
                first, *more = [line for _, line in islice(filled_lines(path), 2)] or [""]
                lines = first.strip()[:1] == "{" and first.strip()[-1:] == "}" and bool(more)  # else it is one object
                frame = pd.read_json(file, lines=lines, dtype=False, compression=packed)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no table of {kind[1:]} that pandas reads: {one_line(error, 200)}") from error
    table = frame.iloc[:, _places(list(frame.columns), columns, str(path))]

    def where(row: int, expected: str) -> DataError:
        return DataError(f"{path}, row {row + 1}: expected {expected}, but got {table.iloc[row].tolist()}")

    return [table.iloc[:, place].array for place in range(3)], where


def _of_lines(
    path: Path, separator: str, places: Sequence[int] | None = None, width: int = 4, header: bool = False
) -> Table:
    """The columns at these places of a text, by default those of MovieLens, whose lines all have a time as well."""
    import pandas as pd

    expected = f"{_RATING}, separated by {separator or ' '!r}"

    def where(row: int, expected: str) -> DataError:
        return unexpected(path, *next(islice(filled_lines(path), row + header, None)), expected)

    head = next((line for _, line in filled_lines(path)), None)
    if head and len(_fields(head, separator)) != width:
        raise where(0, expected)
    # pandas reads fast with separators of one character. "::" gives empty columns between the others.
    step, parts, size = 2 if separator == "::" else 1, list[Any](), path.stat().st_size
    chosen = [place * step for place in places or (0, 1, 2)]
    options: dict[str, Any] = {"header": None, "skiprows": int(header), "sep": separator[:1] or r"\s+"}
    options |= {"dtype": dict.fromkeys(chosen, "category"), "chunksize": LINES, "low_memory": False}
    options |= {"encoding": encoding_of(path), "compression": compression_of(path), "skipinitialspace": True}
    options |= {"keep_default_na": False, "na_values": [""]}
    with (
        reading(path),
        regular(path).open("rb") as file,
        progress_bar(path.name, size, shown=size > LARGE_FILE) as bar,
    ):
        try:
            for part in pd.read_csv(file, **options):
                if part.shape[1] != (width - 1) * step + 1:
                    raise where(0, expected)
                if places is None:
                    part.loc[part.iloc[:, -1].isna(), chosen[2]] = np.nan  # the line is cut off
                parts.append([part[place].array for place in chosen])
                bar(file.tell())
        except pd.errors.EmptyDataError as error:
            raise DataError(f"{path} is empty; expected lines of {expected}") from error
        except pd.errors.ParserError as error:
            number = int((re.findall(r"line (\d+)", str(error)) or ["1"])[0])
            raise unexpected(path, number, dict(filled_lines(path)).get(number, ""), expected) from error
    return [pd.api.types.union_categoricals([*column]) for column in zip(*parts, strict=True)], where


def _numbers(texts: "pd.Index[Any]") -> NDArray[np.float64]:
    """The numbers that texts are, which may have a decimal comma; NaN where they are none."""
    import pandas as pd

    plain = texts if pd.api.types.is_numeric_dtype(texts) else texts.astype(str).str.replace(",", ".")
    return pd.to_numeric(pd.Series(plain), errors="coerce").to_numpy(np.float64)


def _distinct(column: Any) -> "pd.Index[Any]":
    """The ids of a column in ascending order: as numbers if all are whole ones, else as texts."""
    import pandas as pd

    ids = pd.Index(pd.factorize(column)[1])
    numbers = _numbers(ids)
    whole = (numbers == np.floor(numbers)).all() and len(np.unique(numbers)) == len(ids)
    return pd.Index(numbers.astype(np.int64)).sort_values() if whole else ids.astype(str).sort_values()


def _with_positions(table: Table, users: "pd.Index[Any]", items: "pd.Index[Any]") -> Ratings:
    """Ratings with positions in `users` and `items` instead of ids."""
    import pandas as pd

    columns, where = table
    codes, values = pd.factorize(columns[2])
    rating = np.append(_numbers(pd.Index(values)), np.nan)[codes]  # the code of a missing value is -1
    faults, places = [(~np.isfinite(rating), _RATING)], []
    for what, column, listed in (("a user", columns[0], users), ("an item", columns[1], items)):
        codes, ids = pd.factorize(column)
        keys = pd.Index(_numbers(pd.Index(ids))) if listed.dtype.kind == "i" else pd.Index(ids).astype(str)
        places.append(np.append(listed.get_indexer(keys), -1).astype(np.int32)[codes])
        faults += [(codes < 0, _RATING), (places[-1] < 0, f"{what} that is in the {what.split()[1]} file")]
    if first := [(int(bad.argmax()), expected) for bad, expected in faults if bad.any()]:
        raise where(*min(first, key=lambda fault: fault[0]))
    return Ratings(places[0], places[1], rating.astype(np.float32))
