"""Which card a device's name stands for."""

from __future__ import annotations

import pytest

from tuner.estimation.cards import CARDS, LARGEST, find_card


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB MIG 1g.5gb", "A100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA RTX A6000", "A6000"),
        ("Quadro RTX 6000", "RTX 6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "RTX 4000 SFF Ada"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "RTX 3060 Laptop"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti SUPER"),
        ("Jetson AGX Orin", "Orin"),
    ],
)
def test_a_card_is_found_by_the_longest_name_that_fits(name: str, card: str) -> None:
    assert find_card(name) is CARDS[card]


@pytest.mark.parametrize("name", ["", "NVIDIA TITAN Xp", "AMD Instinct MI300X"])
def test_an_unknown_card_counts_as_the_largest(name: str) -> None:
    assert find_card(name) is LARGEST
