"""The three MovieLens layouts are recognised and read, and a broken line is found."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tuner.datasets import movielens
from tuner.datasets.movielens import load_folder
from tuner.errors import DataError

REAL = Path(__file__).parents[2].parent / "shared/data/ml-100k"
Make = Callable[..., Path]
FLAGS = "|".join("01" + "0" * 17)


def folder(path: Path, **files: str) -> Path:
    for name, text in files.items():
        (path / name.replace("_", ".")).write_bytes(text.encode("latin-1"))
    return path


def ml_100k(path: Path, **changes: str) -> Path:
    files = {
        "u_user": "1|20|M|writer|x\n2|30|F|artist|x\n3|40|F|writer|x\n",
        "u_item": f"1|Café \x85|||u|{FLAGS}\n2|Heat|||u|{FLAGS}\n",
        "u_data": "".join(f"{user}\t{item}\t{user + item}\t8\n" for user in (1, 2, 3) for item in (1, 2)),
    }
    return folder(path, **(files | changes))


def ml_1m(path: Path, **changes: str) -> Path:
    files = {
        "users_dat": "1::F::1::10::48067\n2::M::56::16::70072\n",
        "movies_dat": "1::Café: Où?::Comedy\n7::Heat (1995)::Action|Crime\n",
        "ratings_dat": "1::7::5::9\n1::1::3::9\n2::7::4::9\n2::1::1::9\n",
    }
    return folder(path, **(files | changes))


def ml_latest(path: Path, **changes: str) -> Path:
    files = {
        "movies_csv": 'movieId,title,genres\n1,"American President, The",Drama|Comedy\n900,Heat,Drama\n',
        "ratings_csv": "userId,movieId,rating,timestamp\n1,900,4.5,9\n1,1,0.5,9\n5,900,3.0,9\n5,1,2.0,9\n",
    }
    return folder(path, **(files | changes))


def test_ml_100k_without_its_own_test_part_gives_a_fifth_of_u_data(tmp_path: Path) -> None:
    data = load_folder(ml_100k(tmp_path), seed=0)
    assert data.name == tmp_path.name
    assert len(data.train) + len(data.validation) == 5
    assert len(data.test) == 1
    assert np.allclose(data.user_features[:, 0], [-1.2247, 0, 1.2247], atol=1e-4)
    assert data.user_features[:, 1:].tolist() == [[0, 0, 1], [1, 1, 0], [1, 0, 1]]
    assert data.item_features.shape == (2, 19)
    assert data.item_features[0].tolist() == [0, 1] + [0] * 17


def test_the_test_part_is_the_same_whatever_the_seed(tmp_path: Path) -> None:
    users = "".join(f"{k + 1}|20|M|writer|x\n" for k in range(200))
    ratings = "".join(f"{k + 1}\t1\t{1 + k % 5}\t{k}\n" for k in range(200))
    path = ml_100k(tmp_path, u_user=users, u_data=ratings)
    one, two = load_folder(path, seed=1), load_folder(path, seed=2)
    assert np.array_equal(one.test.rating, two.test.rating)
    assert not np.array_equal(one.validation.rating, two.validation.rating)


def test_ml_100k_with_its_own_test_part_uses_it(tmp_path: Path) -> None:
    path = ml_100k(tmp_path, u1_base="1\t1\t5\t8\n2\t1\t4\t8\n", u1_test="3\t2\t1\t8\n1\t2\t2\t8\n")
    data = load_folder(path, seed=0)
    assert data.test.user.tolist() == [2, 0]
    assert data.test.rating.tolist() == [1, 2]
    assert data.num_items == 2, "an item that only the test part has keeps its row"


def test_ml_1m_ids_with_gaps_become_rows(tmp_path: Path) -> None:
    data = load_folder(ml_1m(tmp_path), seed=0)
    assert data.item_features.tolist() == [[0, 1, 0], [1, 0, 1]]
    assert data.user_features.tolist() == [[-1, 1, 1, 0], [1, 0, 0, 1]]
    everything = {
        (u, i) for p in (data.train, data.validation, data.test) for u, i in zip(p.user, p.item, strict=True)
    }
    assert everything == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_ml_latest_has_half_stars_quoted_titles_and_users_of_whom_nothing_is_known(tmp_path: Path) -> None:
    data = load_folder(ml_latest(tmp_path), seed=0)
    assert data.user_features.tolist() == [[1], [1]]
    assert data.item_features.tolist() == [[1, 1], [0, 1]]
    parts = (data.train, data.validation, data.test)
    assert sorted(np.concatenate([part.rating for part in parts])) == [0.5, 2.0, 3.0, 4.5]


@pytest.mark.parametrize("make", [ml_100k, ml_1m, ml_latest])
def test_windows_line_ends_a_byte_order_mark_and_a_missing_last_newline_change_nothing(
    make: Make, tmp_path: Path
) -> None:
    plain = load_folder(make(tmp_path), seed=0)
    for file in tmp_path.iterdir():
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().rstrip(b"\n").replace(b"\n", b"\r\n"))
    edited = load_folder(tmp_path, seed=0)
    assert np.array_equal(plain.user_features, edited.user_features)
    assert np.array_equal(plain.item_features, edited.item_features)
    assert plain.train.rating.tolist() == edited.train.rating.tolist()


def test_ml_10m_has_half_stars_and_no_file_of_users(tmp_path: Path) -> None:
    ratings = "1::7::5::9\n1::1::3.5::9\n6::7::4::9\n6::1::0.5::9\n"
    (ml_1m(tmp_path, ratings_dat=ratings) / "users.dat").unlink()
    data = load_folder(tmp_path, seed=0)
    assert data.user_features.tolist() == [[1.0], [1.0]]
    read = np.concatenate([part.rating for part in (data.train, data.validation, data.test)])
    assert sorted(read.tolist()) == [0.5, 3.5, 4.0, 5.0]


@pytest.mark.parametrize("time", ["nan", "inf"])
def test_a_rating_needs_no_true_time(time: str, tmp_path: Path) -> None:
    ml_100k(tmp_path, u_data=f"1\t1\t5\t{time}\n2\t1\t4\t8\n3\t2\t3\t8\n")
    assert len(load_folder(tmp_path, seed=0).test) == 1


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder; files of a byte are large, and the cache is beside it."""
    monkeypatch.setattr(movielens, "LARGE_FILE", 0)
    monkeypatch.setattr(movielens, "LINES", 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("make", [ml_100k, ml_1m, ml_latest])
def test_large_files_are_read_in_parts_and_mapped(make: Make, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = load_folder(make(large), seed=0)
    monkeypatch.setattr(movielens, "_loaded", None)
    again = load_folder(large, seed=0)
    monkeypatch.undo()
    plain = load_folder(large, seed=0)
    for data in (read, again):
        assert isinstance(data.train.user, np.memmap)
        assert isinstance(data.graph.col, np.memmap)
        assert data.graph.col.tolist() == plain.graph.col.tolist()
        assert data.test.rating.tolist() == plain.test.rating.tolist()


def test_users_that_have_changed_are_read_again(large: Path) -> None:
    before = load_folder(ml_1m(large), seed=0).user_features
    users = large / "users.dat"
    users.write_text(users.read_text().replace("::F::", "::M::"))
    assert load_folder(large, seed=0).user_features.tolist() != before.tolist()


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("1\t1\t5\t8\n2\t1\tx\t8\n", "line 2: expected user, item, rating"),
        ("1\t1\t5\t8\n\n2\t1\t5\n", "line 3"),
        ("\n", "is empty"),
    ],
)
def test_a_fault_of_a_large_file_is_found_by_line(lines: str, fault: str, large: Path) -> None:
    with pytest.raises(DataError, match=f"u.data,? {fault}"):
        load_folder(ml_100k(large, u_data=lines), seed=0)
    assert not (large.parent / "cache").exists()


@pytest.mark.parametrize(
    "line",
    ["1\t1\tgood\t8", "1\t1\t5", "1\t1\t5\t8\t9", "1.5\t1\t5\t8", "0\t1\t5\t8", "1\t1\tinf\t8", "1\t1\tnan\t8",
     "1\t\t5\t8", "99999999999\t1\t5\t8", "inf\t1\t5\t8"],
)  # fmt: skip
@pytest.mark.parametrize("before", [0, 2])
def test_the_first_broken_rating_is_shown_with_its_line_number(line: str, before: int, tmp_path: Path) -> None:
    lines = ["1\t1\t5\t8"] * before + [line, "2\t1\t5\t8", "broken too"]
    with pytest.raises(DataError) as caught:
        load_folder(ml_100k(tmp_path, u_data="\n".join(lines)), seed=0)
    assert re.search(
        rf"u.data, line {before + 1}: expected (user, item, rating|an? \w+ that is in)", str(caught.value)
    )
    assert repr(line) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "change", "message"),
    [
        (ml_100k, {"u_data": "\n1\t1\t5\t8\n1\t3\t5\t8\n"}, r"u.data, line 3: expected an item that is in"),
        (ml_100k, {"u_data": ""}, r"u.data is empty"),
        (ml_100k, {"u_user": "1|20|M|writer\n"}, r"u.user, line 1: expected id\|age\|M or F"),
        (ml_100k, {"u_user": "1|20|M|writer|x\n2|x|M|writer|x\n"}, r"u.user, line 2: .*'2\|x\|M\|writer\|x'"),
        (ml_100k, {"u_user": "1|20|X|writer|x\n"}, r"u.user, line 1"),
        (ml_100k, {"u_user": "\n"}, r"u.user is empty"),
        (ml_100k, {"u_item": f"1|A|||u|{FLAGS}|0\n"}, r"u.item, line 1: .*19 flags"),
        (
            ml_100k,
            {"u_item": f"1|A|||u|{FLAGS}\n1|B|||u|{FLAGS}\n"},
            r"u.item, line 2: .*a new id \(1 is used twice\)",
        ),
        (ml_1m, {"users_dat": "0::F::1::10::48067\n"}, r"users.dat, line 1: expected id::M or F::age"),
        (ml_1m, {"movies_dat": "1::A\n"}, r"movies.dat, line 1: expected id::title::genre"),
        (ml_1m, {"ratings_dat": "1:7:5:9\n"}, r"ratings.dat, line 1: .*separated by '::'"),
        (
            ml_latest,
            {"ratings_csv": "1,1,4.5,9\n"},
            r"ratings.csv, line 1: expected the header userId,movieId",
        ),
        (ml_latest, {"ratings_csv": "userId,movieId,rating,timestamp\n"}, r"ratings.csv is empty"),
        (
            ml_latest,
            {"ratings_csv": "userId,movieId,rating,timestamp\n1,2,3,4\n"},
            r"ratings.csv, line 2: .*item",
        ),
        (ml_latest, {"movies_csv": "movieId,title,genres\n1,The, End,Drama\n"}, r"movies.csv, line 2"),
    ],
)
def test_a_broken_file_is_named_with_line_and_expectation(
    make: Make, change: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        load_folder(make(tmp_path, **change), seed=0)


def test_a_missing_folder_format_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no folder '.*nowhere'; give"):
        load_folder(tmp_path / "nowhere", seed=0)
    with pytest.raises(DataError, match=r"neither u.data nor u1.base .*, ratings.dat .* or ratings.csv"):
        load_folder(tmp_path, seed=0)
    (ml_1m(tmp_path) / "movies.dat").unlink()
    with pytest.raises(DataError, match=r"movies.dat cannot be read: No such file"):
        load_folder(tmp_path, seed=0)


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real data in {REAL}")
def test_the_real_ml_100k_loads_whole_and_fast() -> None:
    start = time.perf_counter()
    data = load_folder(REAL, seed=0)
    assert time.perf_counter() - start < 2, "takes 0.1 s"
    assert (len(data.train), len(data.validation), len(data.test)) == (76_000, 4_000, 20_000)
    assert data.user_features.shape == (943, 23)
    assert data.item_features.shape == (1682, 19)
    # The global mean's RMSE on u1.test, shared/facts/movielens.md.
    known = np.concatenate([data.train.rating, data.validation.rating]).mean()
    assert np.sqrt(np.mean((data.test.rating - known) ** 2)) == pytest.approx(1.154, abs=1e-3)
