"""Duration of `rkit encode --ray` on a cluster with stragglers and lost workers, and sizes of vectors.

    python benchmarks/scale.py sizes                                        # bytes of each representation
    python benchmarks/scale.py simulate --passages 1e8 --workers 256 --rate 26 --lost-after 24
    python benchmarks/scale.py measure --model MODEL --output FOLDER        # a real run of 10^6, a node killed

The simulation follows the program: free workers encode shards in corpus order, another worker repeats the shard of a
lost worker, and the command writes shards as they finish. With `--waiting N`, shards are written in order and at most
N finished shards wait for an earlier shard, as in an early version, which left workers idle.
"""

from __future__ import annotations

import argparse
import filecmp
import heapq
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Cluster:
    """Parameters of the simulation.

    Attributes:
        passages: Number of texts.
        shard: Texts per shard.
        workers: Number of concurrent workers.
        rate: Texts per second of a worker.
        spread: Standard deviation of the logarithm of a shard's time (stragglers).
        start: Seconds in which a new worker loads the model.
        lost_after: Mean hours until a worker is lost; 0 = never. Lost workers are replaced.
        back_after: Seconds until a lost worker is replaced.
        write: Seconds to write a shard.
        waiting: Maximum number of finished shards that wait for an earlier shard; 0 = shards are written in any order.
    """

    passages: float = 1e6
    shard: int = 8_192
    workers: int = 2
    rate: float = 1_000.0
    spread: float = 0.1
    start: float = 10.0
    lost_after: float = 0.0
    back_after: float = 60.0
    write: float = 0.05
    waiting: int = 0


@dataclass
class Outcome:
    """The result: hours, the used share of the workers' time, and the number of repeated shards."""

    hours: float
    busy: float
    again: int


def simulate(cluster: Cluster, seed: int = 0) -> Outcome:
    """Simulate a run with a seed."""
    draw = random.Random(seed)
    shards = -(-int(cluster.passages) // cluster.shard)
    mean = cluster.shard / cluster.rate
    events = [(cluster.start, worker, -1) for worker in range(cluster.workers)]
    dies = [_lost(cluster, draw, 0.0) for _ in events]
    todo, following, written, again, useful = [], 0, 0, 0, 0.0
    finished: set[int] = set()
    idle: list[int] = []
    now = writer_free = 0.0
    while written < shards:
        now, worker, shard = heapq.heappop(events)
        if now >= dies[worker]:
            # The worker was lost meanwhile: a free worker repeats its shard.
            if shard >= 0:
                heapq.heappush(todo, shard)
                again += 1
            begins = dies[worker] + cluster.back_after + cluster.start
            dies[worker] = _lost(cluster, draw, begins)
            heapq.heappush(events, (max(begins, now), worker, -1))
            continue
        if shard >= 0:
            finished.add(shard)
            while (next_written := written if cluster.waiting else shard) in finished:
                finished.remove(next_written)
                writer_free = max(writer_free, now) + cluster.write
                written += 1
        idle.append(worker)
        while idle and (todo or _next(following, shards, written, cluster)):
            if todo:
                started = heapq.heappop(todo)
            else:
                started, following = following, following + 1
            seconds = mean * draw.lognormvariate(-(cluster.spread**2) / 2, cluster.spread)
            useful += seconds
            worker = idle.pop()
            heapq.heappush(events, (min(now + seconds, max(now, dies[worker])), worker, started))
    ended = max(now, writer_free)
    return Outcome(ended / 3600, shards * mean / (ended * cluster.workers), again)


def _next(following: int, shards: int, written: int, cluster: Cluster) -> bool:
    """Return True if another shard may start."""
    return following < shards and (not cluster.waiting or following < written + cluster.waiting + cluster.workers)


def _lost(cluster: Cluster, draw: random.Random, since: float) -> float:
    return since + draw.expovariate(1 / (3600 * cluster.lost_after)) if cluster.lost_after else float("inf")


REPRESENTATIONS = {  # vectors per passage, dimensions, bytes per number, other bytes
    "1 vector of 384, fp32": (1, 384, 4, 0),
    "1 vector of 768, fp32": (1, 768, 4, 0),
    "1 vector of 768, fp16": (1, 768, 2, 0),
    "1 vector of 768, int8, rescored": (1, 768, 1, 0),
    "1 vector of 768, binary, rescored": (1, 768, 1 / 8, 0),
    "1 vector of 768, PQ64": (1, 64, 1, 0),
    "8 viewers of 768, fp32": (8, 768, 4, 0),
    "8 viewers of 768, fp16": (8, 768, 2, 0),
    "sparse, 120 terms": (0, 0, 0, 120 * 8),
    "dense 768 + sparse, 120 terms": (1, 768, 4, 120 * 8),
    "late interaction, 80 tokens of 128, fp16": (80, 128, 2, 8),
}


def sizes() -> str:
    """Return a table of bytes on disk, as Markdown."""
    lines = ["| representation | bytes per passage | 10^6 | 10^8 | 10^10 |", "|---|---|---|---|---|"]
    for name, (vectors, numbers, width, others) in REPRESENTATIONS.items():
        each = vectors * numbers * width + others
        lines.append(
            "| " + " | ".join([name, f"{each:,.0f}", *(_bytes(each * 10**power) for power in (6, 8, 10))]) + " |"
        )
    return "\n".join(lines)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:,.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} PB"


def measure(model: str, passages: int, output: Path) -> None:
    """Encode in a process, on two local nodes, and with a node killed half-way, to compare with the simulation."""
    import ray
    from ray.cluster_utils import Cluster as LocalCluster

    output.mkdir(parents=True, exist_ok=True)
    corpus = output / "corpus.jsonl"
    if not corpus.exists():
        _write(corpus, passages)
    encode = ["encode", model, corpus, "--precision", "fp32", "--output"]
    seconds = {"one process": _timed(*encode, output / "one")}
    nodes = LocalCluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 200 << 20})
    for _ in range(2):
        lost = nodes.add_node(num_cpus=1, object_store_memory=200 << 20)
    ray_at = ["--ray", nodes.address]
    seconds["two nodes"] = _timed(*encode, output / "two", *ray_at)
    staging = output / ".killed.partial"
    died: list[float] = []

    def kill() -> None:
        while len(list(staging.glob("shard-*.json"))) < passages // Cluster.shard // 2:
            time.sleep(0.1)
        nodes.remove_node(lost, allow_graceful=False)
        died.append(time.monotonic())

    threading.Thread(target=kill, daemon=True).start()
    started = time.monotonic()
    seconds["a node killed"] = _timed(*encode, output / "killed", *ray_at)
    seconds["until the kill"] = round(died[0] - started, 1)
    nodes.shutdown()
    ray.shutdown()
    same = [_same(output / "one", output / other) for other in ("two", "killed")]
    print(json.dumps({"passages": passages, "seconds": seconds, "same bytes": all(same)}))


def _same(folder: Path, other: Path) -> bool:
    return all(filecmp.cmp(path, other / path.name, shallow=False) for path in folder.glob("vectors-*"))


def _timed(*words: object) -> float:
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "retrievalkit", *map(str, words)], check=True)
    return round(time.monotonic() - started, 1)


def _write(path: Path, passages: int) -> None:
    draw = random.Random(0)
    words = ["ray", "shard", "node", "index", "vector", "passage", "query", "worker", "corpus", "model", "token"]
    with path.open("w", encoding="utf-8") as stream:
        for number in range(passages):
            text = " ".join(draw.choices(words, k=draw.randint(5, 30)))
            stream.write(json.dumps({"_id": f"p{number}", "text": text}) + "\n")


def main() -> None:
    """Run a command and print its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("sizes")
    simulated = commands.add_parser("simulate")
    for field in fields(Cluster):
        simulated.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    simulated.add_argument("--runs", type=int, default=20)
    measured = commands.add_parser("measure")
    measured.add_argument("--model", required=True)
    measured.add_argument("--passages", type=int, default=1_000_000)
    measured.add_argument("--output", type=Path, required=True)
    options = vars(parser.parse_args())
    command = options.pop("command")
    if command == "sizes":
        print(sizes())
    elif command == "measure":
        measure(**options)
    else:
        print(described(Cluster(**{key: value for key, value in options.items() if key != "runs"}), options["runs"]))


def described(cluster: Cluster, runs: int) -> str:
    """Return the median and the range over some runs."""
    outcomes = sorted((simulate(cluster, seed) for seed in range(runs)), key=lambda outcome: outcome.hours)
    hours = [outcome.hours for outcome in outcomes]
    return (
        f"{statistics.median(hours):.2f} h ({hours[0]:.2f} to {hours[-1]:.2f}), "
        f"{statistics.median(outcome.busy for outcome in outcomes):.0%} of the workers' time used, "
        f"{statistics.median(outcome.again for outcome in outcomes):.0f} shards repeated"
    )


if __name__ == "__main__":
    main()
