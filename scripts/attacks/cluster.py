"""What happens to studies on a cluster that others use, too, whose nodes differ, come and go.

Each node has a network, a host name and folders of its own where root runs this, and is a process of Ray's elsewhere,
where some cases are left out. Studies are of a script whose files only the head has, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tuner.trial import GB, MB

LINE = "{:<20} {:<8} {:>6} {}"
ROOT = Path(__file__).parents[2]
ALONE = os.geteuid() == 0  # whether nodes are alone in their namespaces
NAME = f"tn{os.getpid() % 100000}"
NET = f"10.{os.getpid() % 200 + 20}.0"
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
STUDY = """
import json, os, sys, time
import tuner

def train(config):
    import cmaes
    import beside.lazy
    held = bytearray(b"1") * 400_000_000
    (tuner.trial_dir() / "note.txt").write_text("from here")
    print("trains on", os.uname().nodename)
    for epoch in range((tuner.checkpoint() or {"epoch": 0})["epoch"], 5):
        time.sleep(config["seconds"])
        tuner.report(loss=config["x"] + 1 / (epoch + 1) + 0 * held[epoch], checkpoint={"epoch": epoch + 1})

if __name__ == "__main__":
    folder, trials, seconds, options = json.loads(sys.argv[1])
    configs = [{"x": float(number), "seconds": seconds} for number in range(trials)]
    kept = {"resume": folder} if os.path.exists(folder) else {"output": folder}
    tuner.run(train, config=configs, metric="loss", direction="minimize", report=False, **kept, **options)
"""
MAKES_NETWORK = """
ip link add {bridge} type bridge
ip addr add {net}.1/24 dev {bridge}
ip link set {bridge} up
"""
JOINS_NETWORK = """
ip netns add {name}
ip link add {name} type veth peer name eth0 netns {name}
ip link set {name} master {bridge} up
ip -n {name} addr add {address}/24 dev eth0
ip -n {name} link set eth0 up
ip -n {name} link set lo up
"""
OWN_FOLDERS = """
hostname {name}
mount -t tmpfs none {place}
mkdir {place}/upper {place}/work {place}/tmp
mount -t overlay overlay -o lowerdir={root},upperdir={place}/upper,workdir={place}/work {root}
export HOME={place}/tmp TMPDIR={place}/tmp
cd {root}
"""
OLDER = "echo '# older' >> tuner/objective.py"
LACKING = f"rm -r {sys.prefix}/lib/python3*/site-packages/cmaes"
HOLDS = """
from ray.util import placement_group
node = [n["NodeID"] for n in ray.nodes() if n["Alive"]][-1]
assert placement_group([{"CPU": 1}], bundle_label_selector=[{"ray.io/node-id": node}]).wait(60)
"""


def commands(lines: str, **names: object) -> None:
    """Runs each line."""
    for line in lines.format(**names).strip().splitlines():
        subprocess.run(line.split(), check=True)


class Node:
    """A node with so much memory in GB and two CPUs, where these commands change what it has."""

    def __init__(self, nodes: Nodes, number: int, memory_gb: float, changes: str = "") -> None:
        self.name, self.alone = f"{NAME}-{number}", ALONE and number > 0  # the head has the machine's network
        self.address = f"{NET}.{number + 1}" if ALONE else "127.0.0.1"
        size = f"--num-cpus=2 --memory={int(memory_gb * GB)} --object-store-memory={80 * MB} --disable-usage-stats"
        ray = f"{Path(sys.executable).with_name('ray')} start --block --node-ip-address={self.address} {size}"
        quick = json.dumps(
            {"health_check_period_ms": 500, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 6}
        )
        whole = f"--head --port={nodes.port} --include-dashboard=false --temp-dir={nodes.place}/r"
        start, shell = f"exec {ray} --address={nodes.address}", "bash -ec"
        if not number:
            start = f"exec {ray} {whole} --system-config='{quick}'"
        elif self.alone:
            commands(JOINS_NETWORK, name=self.name, address=self.address, bridge=NAME)
            start = f"{OWN_FOLDERS.format(name=self.name, place=nodes.place, root=ROOT)}{changes}\n{start}"
            shell = f"ip netns exec {self.name} unshare --mount --uts {shell}"
        log = (nodes.place / f"{self.name}.log").open("w")
        self.process = subprocess.Popen([*shell.split(), start], stdout=log, stderr=log, start_new_session=True)

    def processes(self) -> list[psutil.Process]:
        """All of its processes."""
        if self.alone:
            ids = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True).stdout.split()
            with suppress(psutil.NoSuchProcess):
                return [psutil.Process(int(number)) for number in ids if psutil.pid_exists(int(number))]
        with suppress(psutil.NoSuchProcess):
            return [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        return []

    def lose(self) -> None:
        """Its network is cut, and it dies."""
        if self.alone:
            subprocess.run(["ip", "link", "del", self.name], check=False)
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        if self.alone:
            subprocess.run(["ip", "netns", "del", self.name], check=False)


class Nodes:
    """A cluster on this machine, still to ``begin``. Its nodes have some memory in GB; the first is its head."""

    def __init__(self, place: Path) -> None:
        self.place, self.port, self._number = place, 20000 + os.getpid() % 10000, 0
        self.others, self.drivers = list[Node](), list[subprocess.Popen[str]]()
        self.head: Node | None = None
        self.address = f"{NET}.1:{self.port}" if ALONE else f"127.0.0.1:{self.port}"
        (place / "code" / "beside").mkdir(parents=True)
        (place / "code" / "study.py").write_text(STUDY)
        (place / "code" / "beside" / "lazy.py").touch()
        if ALONE:
            commands(MAKES_NETWORK, bridge=NAME, net=NET)

    def begin(self, *memory_gb: float) -> None:
        """Starts all nodes."""
        self.head = Node(self, 0, memory_gb[0])
        until(lambda: "ray runtime started" in (self.place / f"{NAME}-0.log").read_text().lower(), 120)
        for size in memory_gb[1:]:
            self.add(size)
        until(lambda: self.alive() == len(memory_gb), 120)

    def add(self, memory_gb: float, changes: str = "") -> Node:
        """A node joins."""
        self._number += 1
        self.others.append(Node(self, self._number, memory_gb, changes))
        return self.others[-1]

    def lose(self, number: int = -1) -> None:
        """One of the other nodes dies."""
        self.others.pop(number).lose()

    def kill_worker(self, draw: random.Random) -> bool:
        """Kills a process of a study's on one of the other nodes, if there is any."""
        with suppress(psutil.Error, IndexError):  # it has ended by itself, or none is there
            own = [one for node in self.others for one in node.processes() if "tuner" in " ".join(one.cmdline())]
            draw.choice(own).kill()
            return True
        return False

    def end(self) -> None:
        """Ends all nodes."""
        for node in filter(None, (*self.others, self.head)):
            node.lose()
        self.others.clear()

    def start(self, name: str, trials: int, seconds: float = 1.0, **options: Any) -> subprocess.Popen[str]:
        """Begins a study there, or continues it."""
        told = json.dumps([str(self.place / name), trials, seconds, {"memory_gb": 0.9, **options}])
        with (self.place / name).with_suffix(".out").open("a") as out:
            driver = subprocess.Popen(
                [sys.executable, "study.py", told],
                cwd=self.place / "code",
                env={**os.environ, "RAY_ADDRESS": self.address, "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.drivers.append(driver)
        return driver

    def code(self, code: str) -> list[str]:
        """The command of a process that is connected to the cluster and runs this."""
        head = f"import ray, sys\nray.init({self.address!r}, log_to_driver=False, logging_level='ERROR')\n"
        return [sys.executable, "-c", head + code]

    @contextmanager
    def another_user(self, code: str) -> Iterator[None]:
        """Another process is connected to the cluster, and has run this."""
        command = self.code(code + "\nprint('ready', flush=True)\nsys.stdin.read()")
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            process.stdout.readline()
            yield
            process.communicate("")

    def ask(self, expression: str) -> float:
        """A number from the cluster."""
        return float(subprocess.check_output(self.code(f"print({expression})"), text=True).split()[-1])

    def alive(self, address: str = "") -> float:
        """The number of nodes that live for Ray, or of those with this address."""
        return self.ask(f"sum(n['Alive'] and {address!r} in ('', n['NodeManagerAddress']) for n in ray.nodes())")

    def rows(self, study: str, name: str = "attempts.jsonl") -> list[dict[str, Any]]:
        """The lines of a file of a study; none if there is none yet."""
        file = self.place / study / name
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def completed(self, study: str) -> list[str]:
        """The ids of trials, as often as they completed."""
        return [row["trial_id"] for row in self.rows(study) if row["status"] == "completed"]

    def used(self, study: str) -> set[str]:
        """The devices that have run trials."""
        return {row["device"] for row in self.rows(study)}

    def said(self, study: str) -> str:
        """What a study has printed."""
        return (self.place / f"{study}.out").read_text()

    def check(self, study: str, trials: int) -> None:
        """All trials have completed, and none has twice."""
        done = self.completed(study)
        assert len(done) == len({*done}) == trials, f"{len(done)} of {trials} completed: {self.said(study)[-300:]}"


def until(happened: Callable[[], object], seconds: float = 240) -> None:
    """Waits."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(1)


def busy_cpu(nodes: Nodes) -> str:
    with nodes.another_user(HOLDS):
        process = nodes.start("busy", 12)
        until(lambda: len(nodes.completed("busy")) >= 2)
    process.wait(300)
    nodes.check("busy", 12)
    return f"began beside another user's CPU; {len(nodes.used('busy'))} devices"


def two_users(nodes: Nodes) -> str:
    began = time.monotonic()
    nodes.start("one", 40, 3.0).wait(900)
    alone, began = time.monotonic() - began, time.monotonic()
    both = [nodes.start(name, 20, 3.0) for name in ("first", "second")]
    firsts = []
    for name in ("first", "second"):
        until(lambda name=name: nodes.completed(name))
        firsts.append(time.monotonic() - began)
    for process in both:
        process.wait(900)
    together = time.monotonic() - began
    for name, trials in {"one": 40, "first": 20, "second": 20}.items():
        nodes.check(name, trials)
    assert together <= 1.25 * alone, f"{together:.0f} s, alone {alone:.0f} s"
    return f"{together:.0f} s, 40 alone {alone:.0f} s; first ends after {firsts[0]:.0f} and {firsts[1]:.0f} s"


def small_nodes(nodes: Nodes) -> str:
    nodes.start("small", 8, 2.0, memory_gb=None).wait(300)
    nodes.check("small", 8)
    assert len(nodes.used("small")) == 3, nodes.used("small")
    return "8 trials with learned footprints used nodes of 16, 4 and 4 GB"


def small_joins(nodes: Nodes) -> str:
    nodes.lose()
    until(lambda: nodes.alive() == 2)
    process = nodes.start("joins", 24, memory_gb=None)
    until(lambda: len(nodes.completed("joins")) >= 2)
    nodes.add(3)
    process.wait(300)
    nodes.check("joins", 24)
    nodes.lose()
    nodes.add(4)
    assert len(nodes.used("joins")) == 3, nodes.said("joins")[-800:]
    return "a node of 3 GB that joined was used"


def left_out(nodes: Nodes, study: str, changes: str, text: str) -> str:
    """A node that differs takes no part, and a line says why."""
    if not ALONE:
        return "not run: nodes share their folders without root"
    differs = nodes.add(4, changes)
    until(lambda: nodes.alive(differs.address), 60)
    try:
        nodes.start(study, 8).wait(300)
    finally:
        nodes.lose()
    lines = [line.strip() for line in nodes.said(study).splitlines() if f"node {differs.address} is left out" in line]
    nodes.check(study, 8)
    assert lines and text in lines[0], nodes.said(study)[:800]
    assert len(nodes.used(study)) == 3 and not any(differs.address in name for name in nodes.used(study))
    return lines[0]


def older_tuner(nodes: Nodes) -> str:
    return left_out(nodes, "older", OLDER, "another tuner")


def missing_package(nodes: Nodes) -> str:
    assert Path(sys.prefix).is_relative_to(ROOT), "what lies elsewhere would be removed for everyone"
    return left_out(nodes, "lacking", LACKING, "no cmaes")


def own_folders(nodes: Nodes) -> str:
    """The script and the package that it imports lie on the head alone, as does the study's folder."""
    nodes.start("own", 12).wait(300)
    nodes.check("own", 12)
    folder = nodes.place / "own"
    for trial in nodes.completed("own"):
        assert (folder / "trials" / trial / "note.txt").read_text() == "from here"
        assert "trains on" in (folder / "logs" / f"{trial}.log").read_text()
    assert (folder / "best.pt").exists()
    hosts = {(folder / "logs" / f"{trial}.log").read_text().split()[2] for trial in nodes.completed("own")}
    assert len(hosts) > 1 or not ALONE, hosts
    return f"best.pt, 12 folders and 12 logs came back from {', '.join(sorted(hosts))}"


def driver_killed(nodes: Nodes) -> str:
    process = nodes.start("killed", 20)
    until(lambda: len(nodes.completed("killed")) >= 3)
    process.kill()
    done = {*nodes.completed("killed")}
    until(lambda: nodes.ask("ray.available_resources().get('CPU', 0)") == 6, 60)
    nodes.start("killed", 20).wait(300)
    nodes.check("killed", 20)
    assert done <= {*nodes.completed("killed")}
    return f"nothing stays reserved; {len(done)} had completed, and 20 have after a resume"


def node_lost_and_back(nodes: Nodes) -> str:
    process = nodes.start("lost", 16, 2.0)
    until(lambda: len(nodes.completed("lost")) >= 2)
    nodes.lose()
    until(lambda: "is lost" in nodes.said("lost"))
    nodes.add(4)
    process.wait(400)
    nodes.check("lost", 16)
    return f"16 completed on {len(nodes.used('lost'))} devices"


def kills(nodes: Nodes) -> str:
    """The driver, a node or a process there is killed, 30 times at random moments of one study after another."""
    draw, kept, tally = random.Random(0), dict[str, set[str]](), Counter[str]()
    study, process = "kills", nodes.start("kills", 40)
    while tally.total() < 30:
        if process.poll() is not None:
            if len(nodes.completed(study)) == 40:
                study = f"kills{tally.total()}"
            process = nodes.start(study, 40)
        time.sleep(draw.uniform(4, 14))
        kind = draw.choice(["driver", "node", "worker"])
        if kind == "driver":
            process.kill()
            process.wait()
        elif kind == "node":
            nodes.lose(draw.randrange(len(nodes.others)))
            nodes.add(4)
        elif not nodes.kill_worker(draw):
            continue
        tally[kind] += 1
        done = {*nodes.completed(study)}
        assert kept.get(study, set()) <= done, f"lost {kept[study] - done}"
        kept[study] = done
    process.wait(400)
    if len(nodes.completed(study)) < 40:
        nodes.start(study, 40).wait(400)
    for name, done in kept.items():
        nodes.check(name, 40)
        assert done <= {*nodes.completed(name)}
    return f"{dict(tally)}: {len(kept)} studies of 40 trials, none lost, none trained twice"


def head_killed(nodes: Nodes) -> str:
    process = nodes.start("head", 12, 3.0)
    until(lambda: any(line["epoch"] >= 2 for line in nodes.rows("head", "epochs.jsonl")))
    for one in nodes.head.processes() if nodes.head else ():
        if one.name().startswith("gcs_server"):
            one.kill()
    process.wait(240)
    text, last = nodes.said("head"), nodes.rows("head")
    said = [line for line in text.splitlines() if "does not answer" in line and "interrupted" not in line]
    assert len(said) == 1 and "continue with" in text, f"{said} {text[-300:]}"
    assert any(row["status"] == "interrupted" and row["epochs"] >= 2 for row in last)
    nodes.end()
    nodes.begin(16, 4, 4)
    nodes.start("head", 12, 3.0).wait(300)
    nodes.check("head", 12)
    return "one error, how to continue, and rows with the epochs that were done; 12 completed on a new cluster"


CASES = [busy_cpu, small_nodes, small_joins, older_tuner, missing_package, own_folders, node_lost_and_back]
CASES += [driver_killed, two_users, head_killed, kills]


def main() -> int:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", help=f"only these of {', '.join(case.__name__ for case in CASES)}")
    only, wrong = parser.parse_args().case, 0
    os.environ.update(TOKEN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # nodes are ended
    with tempfile.TemporaryDirectory(prefix="tc-") as place:
        nodes = Nodes(Path(place))
        try:
            nodes.begin(16, 4, 4)
            for case in [case for case in CASES if not only or case.__name__ in only]:
                began = time.monotonic()
                try:
                    said, verdict = case(nodes), "ok"
                except Exception as error:
                    said, verdict, wrong = f"{type(error).__name__}: {error}", "BAD", wrong + 1
                for driver in nodes.drivers:
                    driver.kill()
                print(LINE.format(case.__name__, verdict, f"{time.monotonic() - began:.0f} s", said), flush=True)
        finally:
            nodes.end()
            subprocess.run(["ip", "link", "del", NAME], check=False, capture_output=True)
    return min(1, wrong)


if __name__ == "__main__":
    sys.exit(main())
