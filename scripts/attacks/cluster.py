"""What happens to studies on a cluster that others use, too, whose nodes differ, come and go.

It starts a Ray of three nodes on this machine, and runs studies of a function there, each in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tuner
from tuner.trial import GB, MB

EPOCHS, MB_OF_TRIAL = 5, 400
LINE = "{:<24} {:<4} {:>6} {}"


def train(config: dict[str, float]) -> None:
    """Holds memory, and takes its time."""
    held = bytearray(b"1") * (MB_OF_TRIAL * MB)
    for epoch in range(EPOCHS):
        time.sleep(config["seconds"])
        tuner.report(loss=config["x"] + 1 / (epoch + 1) + 0 * held[epoch])


def study(folder: str, trials: int, seconds: float, options: dict[str, Any]) -> None:
    """What a process of this program runs: a study."""
    configs = [{"x": float(number), "seconds": seconds} for number in range(trials)]
    kept = {"resume": folder} if Path(folder).exists() else {"output": folder}
    tuner.run(train, config=configs, metric="loss", direction="minimize", report=False, **kept, **options)


class Nodes:
    """A cluster on this machine whose nodes have this memory in GB, and each two CPUs."""

    def __init__(self, *memory_gb: float) -> None:
        from ray.cluster_utils import Cluster

        quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 6}
        head = {**self._of(memory_gb[0]), "include_dashboard": False, "_system_config": quick}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.others = [self.add(gb) for gb in memory_gb[1:]]
        self.cluster.wait_for_nodes()

    @staticmethod
    def _of(memory_gb: float) -> dict[str, int]:
        return {"num_cpus": 2, "memory": int(memory_gb * GB), "object_store_memory": 80 * MB}

    def add(self, memory_gb: float) -> Any:
        """A node joins."""
        return self.cluster.add_node(**self._of(memory_gb))

    def lose(self, node: Any) -> None:
        """A node dies."""
        self.cluster.remove_node(node, allow_graceful=False)

    def start(self, folder: Path, trials: int, seconds: float = 1.0, **options: Any) -> subprocess.Popen[str]:
        """Begins a study there."""
        told = json.dumps([str(folder), trials, seconds, {"memory_gb": 0.9, **options}])
        with folder.with_suffix(".out").open("a") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "scripts.attacks.cluster", told],
                env={**os.environ, "RAY_ADDRESS": self.cluster.address},
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
            )

    @contextmanager
    def another_user(self, code: str) -> Iterator[None]:
        """Another process is connected to the cluster, and has run this."""
        head = f"import ray, sys\nray.init({self.cluster.address!r}, log_to_driver=False, logging_level='ERROR')\n"
        command = [sys.executable, "-c", head + code + "\nprint('ready', flush=True)\nsys.stdin.read()"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            process.stdout.readline()
            yield
            process.communicate("")

    def free_cpus(self) -> float:
        """The CPUs that nobody has."""
        code = "print(ray.available_resources().get('CPU', 0))"
        head = f"import ray\nray.init({self.cluster.address!r}, log_to_driver=False, logging_level='ERROR')\n"
        return float(subprocess.check_output([sys.executable, "-c", head + code], text=True).split()[-1])


HOLDS = """
from ray.util import placement_group
node = [n["NodeID"] for n in ray.nodes() if n["Alive"]][-1]
assert placement_group([{"CPU": 1}], bundle_label_selector=[{"ray.io/node-id": node}]).wait(60)
"""


def rows(folder: Path, name: str = "attempts.jsonl") -> list[dict[str, Any]]:
    """The lines of a file of a study; none if there is none yet."""
    file = folder / name
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []


def until(happened: Callable[[], object], seconds: float = 240) -> None:
    """Waits."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(1)


def completed(folder: Path) -> list[str]:
    """The ids of trials, as often as they completed."""
    return [row["trial_id"] for row in rows(folder) if row["status"] == "completed"]


def used(folder: Path) -> set[str]:
    """The devices that have run trials."""
    return {row["device"] for row in rows(folder)}


def busy_cpu(nodes: Nodes, place: Path) -> str:
    with nodes.another_user(HOLDS):
        process = nodes.start(place / "busy", 12)
        until(lambda: len(completed(place / "busy")) >= 2)
    process.wait(300)
    assert len(completed(place / "busy")) == 12
    return f"began beside another user's CPU; {len(used(place / 'busy'))} devices"


def two_users(nodes: Nodes, place: Path) -> str:
    began = time.monotonic()
    nodes.start(place / "one", 40, 3.0).wait(900)
    alone, began = time.monotonic() - began, time.monotonic()
    both = [nodes.start(place / name, 20, 3.0) for name in ("first", "second")]
    firsts = []
    for name in ("first", "second"):
        until(lambda name=name: completed(place / name))
        firsts.append(time.monotonic() - began)
    for process in both:
        process.wait(900)
    together = time.monotonic() - began
    assert [len(completed(place / name)) for name in ("one", "first", "second")] == [40, 20, 20]
    assert together <= 1.25 * alone, f"{together:.0f} s, alone {alone:.0f} s"
    return f"{together:.0f} s, 40 alone {alone:.0f} s; first ends after {firsts[0]:.0f} and {firsts[1]:.0f} s"


def small_nodes(nodes: Nodes, place: Path) -> str:
    nodes.start(place / "small", 8, 2.0, memory_gb=None).wait(300)
    assert len(completed(place / "small")) == 8 and len(used(place / "small")) == 3, used(place / "small")
    return "8 trials with learned footprints used all three"


def driver_killed(nodes: Nodes, place: Path) -> str:
    process = nodes.start(place / "killed", 20)
    until(lambda: len(completed(place / "killed")) >= 3)
    process.kill()
    done = set(completed(place / "killed"))
    until(lambda: nodes.free_cpus() == 6, 60)
    nodes.start(place / "killed", 20).wait(300)
    assert sorted(completed(place / "killed")) == sorted(set(completed(place / "killed"))), "trained twice"
    assert len(completed(place / "killed")) == 20 and done <= set(completed(place / "killed"))
    return f"nothing stays reserved; {len(done)} had completed, and 20 have after a resume"


def node_lost_and_back(nodes: Nodes, place: Path) -> str:
    process = nodes.start(place / "lost", 16, 2.0)
    until(lambda: len(completed(place / "lost")) >= 2)
    nodes.lose(nodes.others.pop())
    until(lambda: "is lost" in (place / "lost.out").read_text())
    nodes.others.append(nodes.add(4))
    process.wait(400)
    assert sorted(completed(place / "lost")) == sorted(set(completed(place / "lost"))), "trained twice"
    assert len(completed(place / "lost")) == 16
    return f"16 completed on {len(used(place / 'lost'))} devices"


def head_killed(nodes: Nodes, place: Path) -> str:
    process = nodes.start(place / "head", 12, 3.0)
    until(lambda: any(line["epoch"] >= 2 for line in rows(place / "head", "epochs.jsonl")))
    nodes.cluster.head_node.kill_gcs_server()
    process.wait(240)
    text, last = (place / "head.out").read_text(), rows(place / "head")
    said = [line for line in text.splitlines() if "does not answer" in line and "interrupted" not in line]
    assert len(said) == 1 and "continue with" in text, f"{said} {text[-300:]}"
    assert any(row["status"] == "interrupted" and row["epochs"] >= 2 for row in last)
    return "one error, how to continue, and rows with the epochs that were done"


CASES = [busy_cpu, small_nodes, node_lost_and_back, driver_killed, two_users, head_killed]


def main() -> int:
    """Prints a line for each case."""
    wrong, only = 0, sys.argv[1:]
    nodes = Nodes(16, 4, 4)
    with tempfile.TemporaryDirectory(prefix="tuner-cluster-") as place:
        for case in [case for case in CASES if not only or case.__name__ in only]:
            began = time.monotonic()
            try:
                said, verdict = case(nodes, Path(place)), "ok"
            except Exception as error:
                said, verdict, wrong = f"{type(error).__name__}: {error}", "BAD", wrong + 1
            print(LINE.format(case.__name__, verdict, f"{time.monotonic() - began:.0f} s", said), flush=True)
    nodes.cluster.shutdown()
    return min(1, wrong)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("["):
        study(*json.loads(sys.argv[1]))
    else:
        sys.exit(main())
