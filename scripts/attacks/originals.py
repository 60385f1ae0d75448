"""The files that are damaged, undamaged: what users write, data of each kind, and what a study leaves."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from scripts.attacks.answers import answer_of, forked

LISTED = """\
defaults: {epochs: 1, batch_size: 500}
configurations:
  - {name: small, hidden_dim: 4, lr: 1e-3}
  - {name: wide one, hidden_dim: 8, dropout: 0.1}
  - hidden_dim: 16
  - {hidden_dim: 64, dropout: 0.2}
  - {hidden_dim: 32, epochs: 2}
"""
GRID = "[grid]\nhidden_dim = [4, 8]\nlr = [0.001, 0.01]\nepochs = [1]\n\n[defaults]\nbatch_size = 500\n"
SPACE = {
    "space": {
        "hidden_dim": {"choice": [4, 8]},
        "lr": {"loguniform": [1e-4, 1e-1]},
        "dropout": {"uniform": [0, 0.5], "step": 0.1},
        "num_layers": {"int": [1, 3], "if": {"hidden_dim": 8}},
        "epochs": 1,
    },
    "points": [{"hidden_dim": 4, "lr": 0.01}],
}
FOOTPRINT = """\
name = "encoder"
batch = "batch_size"
max_batch_size = 128
[variables]
negatives = 24
[keys]
batch_size = "loader.batch_size"
accumulation = "trainer.accumulate"
[[terms]]
part = "parameters"
gb = 0.2
[[terms]]
part = "activations"
gb = 0.0146
times = ["batch_size", "negatives"]
[stages."01"]
negatives = 8
[stages."02-05"]
negatives = 16
"""
TRANSFORMER = """\
[model]
model_embd = 256
model_layer = 4
model_head = 4
vocabulary = 1000
[training]
batch_size = 4
seq_len = 128
attention = "sdpa"
"""
EDITED_YAML = "# how we train\nloader:\n  batch_size: 4 # small\ntrainer: {accumulate: 1}\n"
EDITED_TOML = "[loader]\nbatch_size = 4 # small\n[trainer]\naccumulate = 1\n"
TRIALS = ["--config", "listed.yaml", "--data", "ml", "--in-process", "--epochs", "2", "--auto-memory"]


@dataclass(frozen=True)
class Target:
    """Files of which one is damaged, and commands that read it. ``{}`` is the damaged file."""

    name: str
    files: tuple[str, ...]  # below the folder of a try
    commands: tuple[str, ...]


STUDY = (
    "results study",
    "results study --json",
    "results study --sort=-val_rmse --where lr>0 --top 2",
    "report study --output report.html",
    "--resume study --in-process --time-limit 10",
    "--resume study --in-process --time-limit 10",
    "train --from study --output out/model --epochs 1",
    "export study --optuna sqlite:///out.db",
    "plan --config listed.yaml --data ml --like study",
)
TARGETS = (
    Target(
        "configurations",
        ("listed.yaml", "grid.toml", "listed.json"),
        (
            "plan --config {} --data ml",
            "estimate --config {} --data ml",
            "run --dry-run --config {} --data ml --auto-memory --skip-too-large",
            "run --config {} --data ml --in-process --limit 1 --epochs 1 --time-limit 5 --output out/study",
            "plan --config {} --data ml --gpu 8,16",
            "plan --config {} --data ml --seeds 2",
        ),
    ),
    Target(
        "spaces",
        ("space.json", "space.yaml"),
        (
            "run --dry-run --config {} --data ml --num-samples 3",
            "run --dry-run --space {} --data ml --num-samples 3 --auto-memory",
            "run --space {} --data ml --num-samples 2 --in-process --epochs 1 --time-limit 5 --output out/study",
            "run --space {} --data ml --search optuna --num-samples 2 --in-process --time-limit 5 --output out/study",
        ),
    ),
    Target(
        "data",
        ("ml/u.data", "ml/u.user", "ml/u.item", "latest/ratings.csv", "latest/movies.csv"),
        ("plan --data {folder} --limit 1", "estimate --data {folder} --limit 1"),
    ),
    Target(
        "trees",
        ("trees/a/0.swc", "trees/b/3.swc"),
        ("plan --workload gt-ssl --data trees --limit 1", "plan --workload gt-ssl --data trees --limit 1 --skip-bad"),
    ),
    Target("traffic", ("can/DoS.csv", "can/normal.csv"), ("plan --workload kd-gat --data can --limit 1",)),
    Target("attempts", ("study/attempts.jsonl",), STUDY),
    Target("epochs", ("study/epochs.jsonl",), (*STUDY[:6], STUDY[7])),
    Target("study", ("study/study.json",), STUDY),
    Target(
        "table",
        ("study/results.csv", "table.csv"),
        ("results {}", "results {} --csv", "results {} --columns lr,val_rmse"),
    ),
    Target("weights", ("study/checkpoints/t003.pt", "study/best.pt"), (STUDY[4],)),
    Target(
        "calibration",
        ("cache/tuner/calibration.json",),
        ("plan --config listed.yaml --data ml --auto-memory", "estimate --config listed.yaml --data ml", STUDY[4]),
    ),
    Target(
        "footprints",
        ("footprint.toml",),
        (
            "optimize --footprint {} --gpu-memory 16",
            "optimize --footprint {} --gpu-memory 16 --apply --config-path edited.yaml",
        ),
    ),
    Target("transformers", ("transformer.toml",), ("estimate {}", "estimate {} --json")),
    Target(
        "edited files",
        ("edited.yaml", "edited.toml"),
        (
            "optimize --footprint footprint.toml --gpu-memory 16 --apply --config-path {}",
            "optimize --footprint footprint.toml --gpu-memory 16 --apply --dry-run --config-path {}",
        ),
    ),
)


def environment_of(folder: Path) -> dict[str, str]:
    """The variables of a try: its own home, cache and folder for temporary files."""
    own = {"HOME": "home", "XDG_CACHE_HOME": "work/cache", "TMPDIR": "tmp"}
    kept = {name: value for name, value in os.environ.items() if name not in ("XDG_RUNTIME_DIR", "RAY_TMPDIR")}
    return {**kept, **{name: str(folder / place) for name, place in own.items()}, "OMP_NUM_THREADS": "1"}


def run_tune(words: list[str], folder: Path) -> None:
    """The command in this process, which has a child's life only."""
    import sys
    import tempfile

    from tuner.cli.main import main

    os.environ.clear()
    os.environ.update(environment_of(folder))
    tempfile.tempdir = None
    os.chdir(folder / "work")
    sys.argv = ["tune", *words]
    main()


def write(folder: Path) -> None:
    """Writes all files, and trains the study: its third trial is interrupted, and its first two have ended."""
    draw = random.Random(0)
    for place in ("work/ml", "work/latest", "work/trees/a", "work/trees/b", "work/can", "home", "tmp", "victim"):
        (folder / place).mkdir(parents=True)
    work = folder / "work"
    (work / "victim").mkdir()
    for place in (folder, work):
        (place / "victim.pt").write_text("kept\n")
        (place / "victim" / "kept.txt").write_text("kept\n")
    files: Mapping[str, str] = {
        "listed.yaml": LISTED,
        "grid.toml": GRID,
        "listed.json": json.dumps(yaml.safe_load(LISTED.replace("1e-3", "0.001"))),
        "space.json": json.dumps(SPACE),
        "space.yaml": yaml.safe_dump(SPACE),
        "footprint.toml": FOOTPRINT,
        "transformer.toml": TRANSFORMER,
        "edited.yaml": EDITED_YAML,
        "edited.toml": EDITED_TOML,
    }
    for name, text in files.items():
        (work / name).write_text(text)
    pairs = draw.sample(range(600), 400)
    rated = [(pair // 20 + 1, pair % 20 + 1, draw.randint(1, 5)) for pair in pairs]
    (work / "ml/u.data").write_text("".join(f"{user}\t{item}\t{stars}\t0\n" for user, item, stars in rated))
    people = [f"{user}|{20 + user}|{'MF'[user % 2]}|{('artist', 'writer')[user % 2]}|0\n" for user in range(1, 31)]
    (work / "ml/u.user").write_text("".join(people))
    flags = {item: "|".join("01"[item % 2] * 19) for item in range(1, 21)}
    (work / "ml/u.item").write_text("".join(f"{n}|Film {n}|01-Jan-1995||url|{flags[n]}\n" for n in flags))
    (work / "latest/ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n" + "".join(f"{user},{item},{stars}.0,0\n" for user, item, stars in rated)
    )
    films = "".join(f'{item},"Film, {item} (1995)",{("Drama", "Comedy|War")[item % 2]}\n' for item in flags)
    (work / "latest/movies.csv").write_text("movieId,title,genres\n" + films)
    for number in range(12):
        text = ["# a tree", "1 1 0 0 0 1 -1"]
        text += [
            f"{n} 3 {draw.gauss(0, 9):.2f} {n}.5 {-n} 0.5 {draw.randrange(max(1, n - 5), n)}" for n in range(2, 40)
        ]
        (work / f"trees/{'ab'[number % 2]}/{number}.swc").write_text("\n".join(text) + "\n")
    for name, flag in (("normal", "R"), ("DoS", "T")):
        rows = []
        for n in range(1200):
            frame = f"{1000 + n / 1000:.6f},{draw.choice((0x100, 0x2B0, 0x43F)):04x}"
            data = ",".join(f"{draw.randrange(256):02x}" for _ in range(8))
            rows.append(f"{frame},8,{data},{flag if n % 7 == 0 else 'R'}\n")
        (work / f"can/{name}.csv").write_text("".join(rows))
    _train(folder)


def _train(folder: Path) -> None:
    words = ["run", *TRIALS, "--output", "study"]
    answer = answer_of(forked(lambda: run_tune(words, folder), folder, 60), False)
    study = folder / "work/study"
    if answer.code:
        raise RuntimeError(f"the study that is to be damaged: {answer.text()}")
    (folder / "work/table.csv").write_bytes((study / "results.csv").read_bytes())
    journal = (study / "attempts.jsonl").read_text().splitlines(keepends=True)
    (study / "attempts.jsonl").write_text("".join(line for line in journal if '"t003"' not in line))
    (study / "checkpoints").mkdir(exist_ok=True)
    (study / "checkpoints/t003.pt").write_bytes((study / "best.pt").read_bytes())
    for name in ("out", "err"):
        (folder / name).unlink()
