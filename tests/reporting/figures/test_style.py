"""The colours of figures."""

from __future__ import annotations

from tuner.reporting.figures.style import COLOURS, DARK, SHADES, shade


def test_every_light_colour_has_one_dark_counterpart() -> None:
    assert len({light for light, _ in COLOURS.values()}) == len(COLOURS)
    assert [DARK[light] for light, _ in COLOURS.values()] == [dark for _, dark in COLOURS.values()]
    shades = [shade(step / (SHADES - 1)) for step in range(SHADES)]
    assert (shades[0], shades[-1], len(set(shades))) == (COLOURS["best"][0], COLOURS["worst"][0], SHADES)
    assert {*shades} <= {*DARK}
