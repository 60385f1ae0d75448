"""The user's settings of PyTorch's CUDA allocator, from both environment variables that have them."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tuner.errors import InputError
from tuner.trial import MB

# torch 2.0 to 2.13 reads the first one. Newer releases read the second one, too, but only where the first is absent.
ALLOCATOR_VARIABLE, NEW_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
# In MB, with the least that torch allows (c10/core/AllocatorConfig.cpp).
SIZES = {"large_segment_size_mb": 11, "max_split_size_mb": 20, "max_non_split_rounding_mb": 20}
WITHOUT_EFFECT = ("pinned_", "release_lock_on_")  # what begins so does not change how much of a GPU is reserved
INTERVALS = 16  # of ``roundup_power2_divisions``: from 1, 2, 4, ... MB on


@dataclass(frozen=True)
class AllocatorSettings:
    """The settings that decide how much the caching allocator reserves, under torch's names, with its defaults."""

    expandable_segments: bool = False
    large_segment_size_bytes: int = 20 * MB
    max_split_size_bytes: int = 2**63  # no limit
    max_non_split_rounding_bytes: int = 20 * MB
    garbage_collection_threshold: float = 0.0  # a share of the capacity; 0 for none
    roundup_power2_divisions: tuple[int, ...] = ()  # of each interval; 0 and 1 round no size
    note: str = ""  # on what is set and is not simulated


DEFAULTS = AllocatorSettings()


def allocator_settings(expandable_segments: bool = False) -> AllocatorSettings:
    """The user's settings, with this option. A value that torch does not take raises ``InputError``."""
    return _parsed(tuple(_merged(expandable_segments).items()))


def allocator_environment(expandable_segments: bool) -> dict[str, str]:
    """The environment variable by which a process of any supported torch has these settings."""
    text = _text(_merged(expandable_segments).items())
    only_new = NEW_VARIABLE in os.environ and ALLOCATOR_VARIABLE not in os.environ
    return {NEW_VARIABLE if only_new else ALLOCATOR_VARIABLE: text} if text else {}


def allocator_key(expandable_segments: bool) -> str:
    """A text that is equal for settings that reserve as much; empty for torch's defaults."""
    items = sorted(_merged(expandable_segments).items())
    return _text(
        item for item in items if item[1] not in ("False", "native") and not item[0].startswith(WITHOUT_EFFECT)
    )


def _text(items: Iterable[tuple[str, str]]) -> str:
    return ",".join(f"{name}:{value}" for name, value in items)


def _merged(expandable_segments: bool) -> dict[str, str]:
    """The settings of both variables as texts by name. Where both have one, that of the older variable counts."""
    texts = (os.environ.get(name, "") for name in (NEW_VARIABLE, ALLOCATOR_VARIABLE))
    items = [item for text in texts for item in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", re.sub(r"\s", "", text))]
    merged = {name: value for name, _, value in (item.partition(":") for item in items)}
    return merged | ({"expandable_segments": "True"} if expandable_segments else {})


@cache
def _parsed(items: tuple[tuple[str, str], ...]) -> AllocatorSettings:
    values: dict[str, Any] = {}
    others = []
    for name, value in items:
        try:
            if name in SIZES:
                values[name.replace("_mb", "_bytes")] = _checked(int(value), int(value) >= SIZES[name]) * MB
            elif name == "expandable_segments":
                values[name] = {"True": True, "False": False}[value]
            elif name == "garbage_collection_threshold":
                values[name] = _checked(float(value), 0 < float(value) < 1)
            elif name == "roundup_power2_divisions":
                values[name] = _divisions(value)
            elif (name, value) != ("backend", "native") and not name.startswith(WITHOUT_EFFECT):
                others.append((name, value))
        except (ValueError, KeyError):
            rule = f"{name}:{value}: torch's CUDA allocator takes no such value: correct it or leave it out"
            raise InputError(f"{ALLOCATOR_VARIABLE} or {NEW_VARIABLE}: {rule}") from None
    note = f"settings of the allocator that are not simulated: {_text(others)}" if others else ""
    return AllocatorSettings(**values, note=note)


def _divisions(text: str) -> tuple[int, ...]:
    """The divisions of each interval: ``4`` for all, or ``[256:1,512:2,>:4]`` (``parseRoundUpPower2Divisions``)."""
    if not text.startswith("["):
        return (_power_of_2(text),) * INTERVALS
    found, last = [0] * INTERVALS, -1
    for begin, _, value in (pair.partition(":") for pair in text.strip("[]").split(",")):
        number = 0 if value == "0" else _power_of_2(value)
        if begin == ">":
            found[max(0, last) + 1 :] = [number] * (INTERVALS - 1 - max(0, last))
        else:  # the first one counts for those before it, too
            place = min(_power_of_2(begin).bit_length(), INTERVALS) - 1
            found[0 if last < 0 else place : place + 1] = [number] * (place + 1 if last < 0 else 1)
            last = place
    return tuple(found)


def _power_of_2(text: str) -> int:
    return int(_checked(int(text), int(text) > 0 and not int(text) & (int(text) - 1)))


def _checked(value: float, is_right: bool) -> Any:
    if not is_right:
        raise ValueError
    return value
