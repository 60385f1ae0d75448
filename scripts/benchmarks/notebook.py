"""docs/example.ipynb with what its cells show: runs it here, adds an image to each plot, and writes what it took.

GitHub shows no plotly figures, so each has a PNG beside it, which Chromium draws with plotly's own JavaScript. The
time in the text is that of the cell with the study.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from plotly.offline import get_plotlyjs
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "example.ipynb"
PLOT, IMAGE = "application/vnd.plotly.v1+json", "image/png"
WIDTH = 900  # of an image, in CSS pixels
STUDY = "tuner.tune_hyperparameters_parallel("  # in the cell whose time is told
TIME = re.compile(r"The study took \S+ seconds on \S+ CPU cores?(?: that other programs used as well)?")
BUSY = 0.5  # processes that wait for each core before the notebook runs
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1.5",
    "--window-size=1000,1200",
)
DRAW = """
const [figure, width, done] = arguments;
const { data, layout } = JSON.parse(figure);
const box = document.body.appendChild(Object.assign(document.createElement("div"), { id: "plot" }));
box.style.width = `${width}px`;
Plotly.newPlot(box, data, { ...layout, width }, { displayModeBar: false }).then(() => done(box.id));
"""


def main() -> int:
    """Runs the notebook and writes it."""
    notebook = nbformat.read(EXAMPLE, as_version=4)
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        seconds = run(notebook, Path(folder))
    said = f"The study took {seconds:.0f} seconds on {cores} CPU cores"
    said += " that other programs used as well" if load > BUSY * cores else ""
    for cell in notebook.cells:
        cell.source = TIME.sub(said, cell.source)
        cell.metadata.pop("execution", None)
    plots = [
        output.data for cell in notebook.cells for output in cell.get("outputs", []) if PLOT in output.get("data", {})
    ]
    with browser() as driver:
        for data in plots:
            data[IMAGE] = image(driver, data[PLOT])
    nbformat.validate(notebook)
    nbformat.write(notebook, EXAMPLE)
    print(f"{EXAMPLE.relative_to(ROOT)}: {said}, {len(plots)} plots, {EXAMPLE.stat().st_size / 1e3:.0f} kB")
    return 0


def run(notebook: Any, folder: Path) -> float:
    """Executes all cells in the folder. Returns the seconds that the cell with the study took."""
    os.environ |= {name: str(folder) for name in ("XDG_CACHE_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}
    began: dict[int, float] = {}
    took: dict[int, float] = {}
    client = NotebookClient(
        notebook,
        timeout=300,
        resources={"metadata": {"path": str(folder)}},
        on_cell_execute=lambda cell, cell_index: began.update({cell_index: time.monotonic()}),
        on_cell_executed=lambda cell, cell_index, execute_reply: took.update(
            {cell_index: time.monotonic() - began[cell_index]}
        ),
    )
    client.execute()
    (place,) = (place for place, cell in enumerate(notebook.cells) if STUDY in cell.source)
    return took[place]


def image(driver: Any, figure: object) -> str:
    """A figure as the base64 text of a PNG."""
    box = driver.find_element("id", driver.execute_async_script(DRAW, json.dumps(figure), WIDTH))
    found: str = box.screenshot_as_base64
    driver.execute_script("arguments[0].remove()", box)
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """A page with plotly's JavaScript in Chromium."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if not program or not driver:
        sys.exit("error: images of plots need chromium and chromedriver: install both")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        own = {**os.environ, "no_proxy": "localhost,127.0.0.1"}
        with webdriver.Chrome(options, Service(driver, env=own)) as page:
            page.get("data:text/html,<!doctype html><title>plots</title>")
            page.execute_script(get_plotlyjs())
            yield page


if __name__ == "__main__":
    sys.exit(main())
