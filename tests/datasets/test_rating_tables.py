"""Ratings of any table that pandas reads, by the names of its columns."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tuner.datasets.movielens import load_ratings
from tuner.datasets.ratings import RatingData
from tuner.errors import DataError, ParameterError

RANDOM = np.random.default_rng(0)
PAIRS = RANDOM.permutation(20 * 9)[:60]
FRAME = pd.DataFrame({"when": "2005-04-02 23:53", "item": PAIRS % 9 + 1, "user": PAIRS // 9 + 1})
FRAME["rating"] = RANDOM.integers(1, 20, 60) / 2
USUAL = FRAME.rename(columns={"user": "userId", "item": "movieId"})
BOOKS = FRAME.assign(item="034" + FRAME["item"].astype(str) + "X")
BOOKS = BOOKS.rename(columns={"user": "User-ID", "item": "ISBN", "rating": "Book-Rating"})
OF_BOOKS = "item=ISBN,rating=Book-Rating"
Write = Callable[[Path], object]
FILES: dict[str, tuple[str, Write, str | None]] = {
    "another order": ("ratings.csv", lambda path: USUAL.to_csv(path, index=False), None),
    "tabs": ("r.tsv", lambda path: USUAL.to_csv(path, index=False, sep="\t"), None),
    "semicolons, decimal commas": ("r.csv", lambda path: USUAL.to_csv(path, index=False, sep=";", decimal=","), None),
    "Windows": (
        "r.csv",
        lambda path: USUAL.to_csv(path, index=False, lineterminator="\r\n", encoding="utf-8-sig"),
        None,
    ),
    "UTF-16": ("r.txt", lambda path: USUAL.to_csv(path, index=False, sep="\t", encoding="utf-16"), None),
    "gzip": ("r.csv.gz", lambda path: USUAL.to_csv(path, index=False), None),
    "zip": ("r.csv.zip", lambda path: USUAL.to_csv(path, index=False), None),
    "parquet": ("r.parquet", lambda path: USUAL.to_parquet(path), None),
    "lines of JSON": ("r.jsonl", lambda path: USUAL.to_json(path, orient="records", lines=True), None),
    "a list of JSON": ("r.json", lambda path: USUAL.to_json(path, orient="records"), None),
    "JSON, packed": ("r.json.gz", lambda path: USUAL.to_json(path, orient="records", lines=True), None),
    "columns of JSON": ("r.json", lambda path: USUAL.to_json(path), None),
    "an index of parquet": ("r.parquet", lambda path: USUAL.set_index("userId").to_parquet(path), None),
    "RecBole": (
        "x.inter",
        lambda path: (
            FRAME.rename(columns=lambda name: f"{name}_id:token" if name != "rating" else "rating:float")
            .rename(columns={"when_id:token": "timestamp:float"})
            .to_csv(path, index=False, sep="\t")
        ),
        None,
    ),
    "Book-Crossing": (
        "b.csv",
        lambda path: BOOKS.to_csv(path, index=False, sep=";", quoting=1, encoding="latin-1"),
        OF_BOOKS,
    ),
    "without names": (
        "r.csv",
        lambda path: USUAL.to_csv(path, index=False, header=False),
        "user=3,item=2,rating=4",
    ),
    "float ids": ("r.csv", lambda path: USUAL.astype({"userId": float}).to_csv(path, index=False), None),
}


def ratings_of(data: RatingData) -> list[tuple[int, int, float]]:
    parts = (data.train, data.validation, data.test)
    return sorted(
        row
        for part in parts
        for row in zip(part.user.tolist(), part.item.tolist(), part.rating.tolist(), strict=True)
    )


@pytest.mark.parametrize("whole", ["file", "folder"])
@pytest.mark.parametrize("kind", FILES)
def test_a_table_is_read_by_its_names(kind: str, whole: str, tmp_path: Path) -> None:
    name, write, columns = FILES[kind]
    write(tmp_path / name)
    data = load_ratings(str(tmp_path if whole == "folder" else tmp_path / name), seed=0, columns=columns)
    user, item = (FRAME[key].rank(method="dense").astype(int) - 1 for key in ("user", "item"))
    assert ratings_of(data) == sorted(zip(user.tolist(), item.tolist(), FRAME["rating"].tolist(), strict=True))
    assert (data.user_features.shape[1], data.item_features.shape[1]) == (1, 1)


def test_an_archive_of_several_files_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "ml.zip", "w") as archive:
        archive.writestr("ratings.csv", USUAL.to_csv(index=False))
        archive.writestr("movies.csv", "movieId,title,genres")
    with pytest.raises(DataError, match=r"ml\.zip cannot be read: Multiple files found in ZIP .*: unpack it"):
        load_ratings(str(tmp_path / "ml.zip"), seed=0)


def test_names_that_are_not_usual_are_asked_for(tmp_path: Path) -> None:
    BOOKS.to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(
        DataError, match=r"b.csv, line 1: .* no column is the item: when, ISBN, .*columns='item=NAME'"
    ):
        load_ratings(str(tmp_path / "b.csv"), seed=0)
    with pytest.raises(DataError, match=r"b.csv, line 1: .* but no column is book: when, ISBN, User-ID"):
        load_ratings(str(tmp_path / "b.csv"), seed=0, columns="item=book")
    for wrong in ("book", "book=ISBN", "item="):
        with pytest.raises(ParameterError, match="must name columns as in user=reader,item=ISBN,rating=3"):
            load_ratings(str(tmp_path / "b.csv"), seed=0, columns=wrong)
    with pytest.raises(ParameterError, match="has no effect on synthetic"):
        load_ratings("synthetic", seed=0, columns="item=ISBN")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("3,4,good,9", r"line 62: expected user, item, rating \(a number\)"),
        ("3,,4,9", "line 62: expected user, item, rating"),
        ("3,4,5,9,7", "line 62: expected user, item, rating"),
        ("3,4", "line 62: expected user, item, rating"),
    ],
)
def test_a_damaged_line_of_a_table_is_named(line: str, fault: str, tmp_path: Path) -> None:
    text = USUAL[["userId", "movieId", "rating", "when"]].to_csv(index=False)
    (tmp_path / "ratings.csv").write_text(f"{text}{line}\n")
    with pytest.raises(DataError, match=f"ratings.csv, {fault}.*, but got '{line}'"):
        load_ratings(str(tmp_path), seed=0)


def test_one_of_several_tables_must_be_named_and_what_is_no_table_is_told(tmp_path: Path) -> None:
    for name in ("one.csv", "two.csv"):
        USUAL.to_csv(tmp_path / name, index=False)
    with pytest.raises(DataError, match=r"give data the file with the ratings, one of one.csv, two.csv$"):
        load_ratings(str(tmp_path), seed=0)
    (tmp_path / "twice.csv").write_text("userId,movieId,rating,rating\n1,2,3,4\n")
    with pytest.raises(DataError, match=r"twice.csv, line 1: .* but 'rating' is there twice: userId, .*rating=NAME'"):
        load_ratings(str(tmp_path / "twice.csv"), seed=0)
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(DataError, match=r"empty.csv is empty; expected the header userId,movieId,rating"):
        load_ratings(str(tmp_path / "empty.csv"), seed=0)
    USUAL.to_feather(tmp_path / "r.feather")
    with pytest.raises(DataError, match=r"r.feather is not text"):
        load_ratings(str(tmp_path / "r.feather"), seed=0)
    (tmp_path / "r.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"r.parquet is no table of parquet that pandas reads"):
        load_ratings(str(tmp_path / "r.parquet"), seed=0)
