"""The temporary storage of CUB's radix sort, which CUDA sorts positions with.

CUB's ``DeviceRadixSort`` (dispatch_radix_sort.cuh) takes a second buffer for the keys and one for the values, each
rounded up to 256 bytes, and a histogram of 256 counts for every 8 bits of a key and every tile of elements. How large
a tile is, CUB's tuning says for the sizes of key and value. These tiles were found by the sizes that torch 2.11 asks
for.
"""

from __future__ import annotations

from tuner.estimation.tracing.corrections.temporaries import up

ALIGNMENT = 256
HISTOGRAM_BYTES = 256 * 4
ONE_TILE = 2048  # about so many elements are sorted by one block, without a buffer
TILES = {(8, 8): 4608, (4, 8): 5376, (8, 0): 5760, (4, 0): 5760}  # by the bytes of a key and a value


def sort_pairs_bytes(number: int, key_bytes: int, bits: int | None = None) -> int:
    """The storage for keys with an int64 each; ``bits`` of a key are sorted by, if not all."""
    if number <= ONE_TILE:
        return 1
    tile = TILES[8 if key_bytes == 8 else 4, 8]
    return _aligned(number * key_bytes) + _aligned(number * 8) + _histograms(number, tile, bits or 8 * key_bytes)


def sort_keys_bytes(number: int, bits: int) -> int:
    """The storage for keys alone, beside the second buffer of the keys."""
    return 1 if number <= ONE_TILE else _histograms(number, TILES[8, 0], bits)


def _histograms(number: int, tile: int, bits: int) -> int:
    passes = up(bits, 8)
    return HISTOGRAM_BYTES * (2 * passes + up(number, tile)) + 2 * ALIGNMENT - 1


def _aligned(size: int) -> int:
    return up(size, ALIGNMENT) * ALIGNMENT
