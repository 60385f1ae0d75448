"""How large and how quick a study's page is in Chromium: 2,000 trials of 20 hyperparameters and 50 epochs.

Medians of five, with the load of the machine: until the page is ready, which is when its table and the plots in view
are painted; and from a brush's movement until the table, the count and every plot in view show it. Exits with 1 if a
bar is missed.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.support.generated_study import write_study
from tuner.api.report import write_report

TRIALS, MORE, EPOCHS, TIMES = 2000, 15, 50, 5  # with the five that differ, 20 hyperparameters
MOST_PAGE, READY, BRUSH = 4e6, 2000.0, 100.0  # bytes, and milliseconds
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")
# Both end after the next frame: what was drawn has been painted by then.
READY_AT = """
const [done] = arguments;
const inView = (plot) => plot.getBoundingClientRect().top < innerHeight;
const ask = () => {
  const seen = Array.from(document.querySelectorAll(".plot")).filter(inView);
  const isDrawn = seen.every((plot) => plot.querySelector(".main-svg")) && document.querySelector("#trials tbody tr");
  if (document.readyState !== "complete" || !isDrawn) return requestAnimationFrame(ask);
  requestAnimationFrame(() => setTimeout(() => done(performance.now())));
};
ask();
"""
DRAWN = """
const brush = document.querySelector('.brush[aria-label="Select by lr"]');
brush.scrollIntoView({ block: "center" });
return plots.waiting.size;
"""
BRUSHED = """
const [share, done] = arguments;
const brush = document.querySelector('.brush[aria-label="Select by lr"]');
const { left, top, width, height } = brush.getBoundingClientRect();
const at = (kind, place) => {
  const where = { clientX: left + width / 2, clientY: top + place * height };
  brush.dispatchEvent(new PointerEvent(kind, { pointerId: 1, ...where }));
};
brush.setPointerCapture = () => {};
const before = selected;
const isShown = (plot) => plots.waiting.has(plot) || plot.marked === selected;
at("pointerup", 0.05);
at("pointerdown", 0.05);
const began = performance.now();
at("pointermove", share);
const ask = () => {
  if (selected === before || !Array.from(plots.seen).every(isShown)) return requestAnimationFrame(ask);
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
};
requestAnimationFrame(ask);
"""


def main() -> int:
    """Measures, prints a line each, and compares with the bars."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        write_study(Path(place) / "s", TRIALS, epochs=EPOCHS, more=MORE)
        page = write_report(Path(place) / "s")
        size = page.stat().st_size
        ready, brush = measured(page)
    print(
        f"{TRIALS:,} trials, {MORE + 5} hyperparameters, {EPOCHS} epochs; load {load:.1f} on {os.cpu_count()} cores"
    )
    for name, found, bar in (("bytes", size, MOST_PAGE), ("ready, ms", ready, READY), ("brush, ms", brush, BRUSH)):
        print(f"{name:10} {found:12,.0f} of {bar:,.0f}")
    return int(size > MOST_PAGE or ready > READY or brush > BRUSH)


def measured(page: Path) -> tuple[float, float]:
    """Medians of the milliseconds until the page is ready, and of those of a brush."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium") or shutil.which("google-chrome"))
    for flag in (*FLAGS, "--window-size=1400,900"):
        options.add_argument(flag)
    ready, brushes = list[float](), list[float]()
    service = Service(shutil.which("chromedriver"), env={**os.environ, "no_proxy": "localhost,127.0.0.1"})
    with webdriver.Chrome(options, service) as browser:
        browser.set_script_timeout(60)
        for share in range(1, TIMES + 1):
            browser.get(page.as_uri())
            ready.append(float(browser.execute_async_script(READY_AT)))
            browser.execute_script("drawAll()")
            browser.execute_script(DRAWN)
            browser.execute_async_script("setTimeout(arguments[0], 1500)")
            brushes.append(float(browser.execute_async_script(BRUSHED, 0.3 + share / 10)))
    print("ready, ms:", *(f"{took:.0f}" for took in ready))
    print("brush, ms:", *(f"{took:.0f}" for took in brushes))
    return statistics.median(ready), statistics.median(brushes)


if __name__ == "__main__":
    sys.exit(main())
