"""The user's settings of PyTorch's CUDA allocator: both variables, merged, as torch reads them."""

from __future__ import annotations

import pytest

from tuner.errors import InputError
from tuner.machine.allocator_settings import (
    AllocatorSettings,
    allocator_environment,
    allocator_key,
    allocator_settings,
)
from tuner.trial import MB

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OLD, raising=False)
    monkeypatch.delenv(NEW, raising=False)


def test_nothing_of_the_users_is_dropped_for_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (allocator_environment(False), allocator_environment(True)) == ({}, {OLD: "expandable_segments:True"})
    monkeypatch.setenv(NEW, "garbage_collection_threshold:0.8, roundup_power2_divisions:[256:1,>:4]")
    whole = "garbage_collection_threshold:0.8,roundup_power2_divisions:[256:1,>:4]"
    assert allocator_environment(True) == {NEW: f"{whole},expandable_segments:True"}
    monkeypatch.setenv(OLD, "max_split_size_mb:64,garbage_collection_threshold:0.6")
    merged = whole.replace("0.8", "0.6") + ",max_split_size_mb:64"
    assert allocator_environment(False) == {OLD: merged}
    assert allocator_environment(True) == {OLD: f"{merged},expandable_segments:True"}


def test_settings_are_read_as_torch_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert allocator_settings() == AllocatorSettings()
    monkeypatch.setenv(OLD, "max_split_size_mb:64,garbage_collection_threshold:0.6,pinned_num_register_threads:8")
    monkeypatch.setenv(NEW, "large_segment_size_mb:32,max_non_split_rounding_mb:40,expandable_segments:False")
    sizes = {"large_segment_size_bytes": 32 * MB, "max_non_split_rounding_bytes": 40 * MB}
    expected = AllocatorSettings(True, max_split_size_bytes=64 * MB, garbage_collection_threshold=0.6, **sizes)
    assert allocator_settings(True) == expected


@pytest.mark.parametrize(
    ("text", "divisions"),  # as torch 2.11 has them afterwards
    [
        ("4", [4] * 16),
        ("[256:1,512:2,1024:4,>:8]", [1] * 9 + [2, 4] + [8] * 5),
        ("[64:8,256:4]", [8] * 7 + [0, 4] + [0] * 7),
        ("[>:8]", [0] + [8] * 15),
    ],
)
def test_divisions_are_those_of_torch(text: str, divisions: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NEW, f"roundup_power2_divisions:{text}")
    assert allocator_settings().roundup_power2_divisions == tuple(divisions)


def test_what_is_not_simulated_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OLD, "backend:cudaMallocAsync,new_in_torch_3:1,pinned_use_background_threads:True")
    said = "settings of the allocator that are not simulated: backend:cudaMallocAsync,new_in_torch_3:1"
    assert allocator_settings().note == said


@pytest.mark.parametrize(
    "wrong",
    [
        "max_split_size_mb:19",
        "max_split_size_mb:a",
        "garbage_collection_threshold:1",
        "expandable_segments:true",
        "roundup_power2_divisions:[3:2]",
        "roundup_power2_divisions:3",
        "large_segment_size_mb:10",
        "max_split_size_mb",
    ],
)
def test_what_torch_refuses_is_refused_in_a_line(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OLD, f"{wrong},backend:native")
    with pytest.raises(InputError, match=rf"{OLD} or {NEW}: {wrong.split(':')[0]}:.*: correct it or leave it out"):
        allocator_settings()


def test_settings_that_reserve_as_much_have_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (allocator_key(False), allocator_key(True)) == ("", "expandable_segments:True")
    monkeypatch.setenv(
        OLD, "backend:native,max_split_size_mb:64,expandable_segments:False,pinned_num_register_threads:8"
    )
    monkeypatch.setenv(NEW, "garbage_collection_threshold:0.6")
    assert allocator_key(False) == "garbage_collection_threshold:0.6,max_split_size_mb:64"
