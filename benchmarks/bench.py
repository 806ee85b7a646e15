"""Times each case against the library that people would use instead, after comparing the outputs of both.

    python benchmarks/bench.py [--only encode,train] [--rounds 5]

Each side is a process with its own environment. Both prepare and warm up; then they alternate, so that the machine's
drift affects both, and the ratio is computed per round. Writes results/CASE.json and RESULTS.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from cases import CASES, Case

import data

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results"
_FOLDERS = {"On a CPU": RESULTS, "On CUDA": RESULTS / "cuda"}
BUILD = ROOT / "build" / "bench"


class Worker:
    """The process of a side.

    Args:
        python: The interpreter of its environment.
        script: A script in ours/ or peers/.
        log: File for its output.
    """

    def __init__(self, python: Path | str, script: Path, log: Path) -> None:
        self.log = log
        own = {"PYTHONPATH": str(HERE), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": ""}
        if script.parent.name == "ours" and os.environ.get("PYTHONPATH"):
            own["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
        environment = {key: value for key, value in (os.environ | own).items() if value}
        with log.open("w") as stream:
            self.process = subprocess.Popen(
                [str(python), str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env=environment,
            )

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a request, and return the answer.

        Raises:
            RuntimeError: The worker failed.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the process ended, and its log has the reason
            print(json.dumps({"do": do, **request}), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline() or "{}")
        if not answer or "error" in answer:
            raise RuntimeError(answer.get("error") or self.log.read_text()[-3000:])
        return answer

    def end(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()


class Pair:
    """The sides of a case, prepared and warm, with equal outputs.

    Raises:
        RuntimeError: A side failed, or the outputs differ.
    """

    def __init__(self, case: Case, folder: Path, sizes: Mapping[str, Any], venvs: Path) -> None:
        self.case = case
        known = {*case.options, *case.grows}
        self.options = {**case.options, **{name: size for name, size in sizes.items() if name in known}}
        script = HERE / "ours" / f"{case.ours[0]}.py"
        self.sides: dict[str, Worker] = {"ours": Worker(sys.executable, script, folder / "ours.log")}
        only = {"ours": case.only_ours, "theirs": case.only_theirs}
        if case.peer:
            script = HERE / "peers" / f"{case.theirs[0]}.py"
            python = venvs / case.venv / "bin" / "python"
            self.sides["theirs"] = Worker(python, script, folder / "theirs.log")
        functions = {"ours": case.ours[1], "theirs": case.theirs[1]}
        self.prepared = {}
        try:
            self._prepare(folder, functions, only)
        except BaseException:
            self.end()
            raise

    def _prepare(self, folder: Path, functions: Mapping[str, str], only: Mapping[str, Mapping[str, Any]]) -> None:
        for name, side in self.sides.items():
            (folder / name).mkdir()
            options = {**self.options, **only[name]}
            self.prepared[name] = side.ask(
                "prepare", side=functions[name], data=str(BUILD / "data"), folder=str(folder / name), options=options
            )
        for name, side in self.sides.items():
            side.ask("round", check=True)
            side.ask("save", file=str(folder / name / "output"))
        self.agreement = compared(self.case, folder)

    def round(self) -> dict[str, dict[str, float]]:
        """Run a round of each side."""
        return {name: side.ask("round") for name, side in self.sides.items()}

    @property
    def amount(self) -> int:
        """The number of units in a round."""
        return math.prod(self.options[name] for name in self.case.amount.split("*") if name)

    def end(self) -> None:
        """End both processes."""
        for side in self.sides.values():
            side.end()


def compared(case: Case, folder: Path) -> dict[str, float | None]:
    """Return the agreement of the outputs by the case's check, and its limit.

    Raises:
        RuntimeError: The outputs differ by more than the limit.
    """
    limit = case.tolerance
    if case.check == "none" or not case.peer:
        return {"found": None, "limit": limit}
    ours, theirs = (_read(folder / side / "output") for side in ("ours", "theirs"))
    if case.check == "cosine":
        norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
        agreement = float(((ours * theirs).sum(axis=1) / norms).min())
    elif case.check == "hits":
        assert len(ours) == len(theirs), (len(ours), len(theirs))
        pairs = zip(ours, theirs, strict=True)
        agreement = float(np.mean([len({*mine} & {*peer}) / max(len(peer), 1) for mine, peer in pairs]))
    elif case.check == "best":
        agreement, limit = ours["best"], theirs["best"] - case.tolerance
    elif isinstance(theirs, np.ndarray):
        agreement = float(np.abs(ours - theirs).max())
    else:
        agreement = max(abs(ours[name] - theirs[name]) for name in theirs)
    if agreement > limit if case.check == "difference" else agreement < limit:
        msg = f"{case.name}: the outputs differ: {case.check} is {agreement:.6f}, the limit is {limit:.6f}"
        raise RuntimeError(msg)
    both = {"theirs": round(theirs["best"], 6)} if case.check == "best" else {}
    return {"found": round(agreement, 6), "limit": round(limit, 6), **both}


def _read(output: Path) -> Any:
    array = output.with_suffix(".npy")
    return np.load(array) if array.exists() else json.loads(output.with_suffix(".json").read_text())


def measure(case: Case, rounds: int, sizes: Mapping[str, Any], venvs: Path, where: str | None) -> dict[str, Any]:
    """Time a case; the ratio is the peer's seconds over ours."""
    with tempfile.TemporaryDirectory(dir=where) as folder:
        pair = Pair(case, Path(folder), sizes, venvs)
        try:
            turns = [pair.round() for _ in range(rounds)]
        finally:
            pair.end()
    seconds = {name: [turn[name]["seconds"] for turn in turns] for name in pair.sides}
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    result: dict[str, Any] = {
        "case": case.name,
        "what": case.what,
        "peer": case.peer,
        "options": pair.options,
        **({"precision": "fp32"} if case.only_ours.get("precision") == "fp32" else {}),
        "unit": f"{case.unit}/s",
        "amount": pair.amount,
        "rates": {name: float(f"{pair.amount / value:.4g}") for name, value in middle.items()},
        "seconds": {name: [float(f"{value:.4g}") for value in values] for name, values in seconds.items()},
        "peak MB": {name: max(turn[name]["peak MB"] for turn in turns) for name in pair.sides},
        "target": case.target,
        "check": {"what": case.check, **pair.agreement},
        "settings": {"why": case.settings, "chosen": pair.prepared["theirs"]["settings"] if case.peer else {}},
        "versions": {name: side["versions"] for name, side in pair.prepared.items()},
    }
    if flops := pair.prepared["ours"]["flops"]:
        result["10^9 operations/s"] = {name: round(flops / value / 1e9, 1) for name, value in middle.items()}
    if case.peer:
        ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["theirs"], strict=True)]
        result["ratio"] = spread(ratios)
        result["reached"] = result["ratio"]["median"] >= case.target
    else:
        result["ratio"] = spread(seconds["ours"])
        result["reached"] = result["ratio"]["median"] <= case.target
    return result


def spread(values: list[float]) -> dict[str, float]:
    """Return minimum, median and maximum."""
    return {name: round(of(values), 3) for name, of in (("min", min), ("median", statistics.median), ("max", max))}


def machine() -> dict[str, Any]:
    """Return the processor, its cores, the format of "auto", and the current rates of matrix products."""
    from retrievalkit.models.precision import auto_precision, default_device

    device = default_device()
    name = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), "?")
    if device.type == "cuda":
        name = torch_cuda().get_device_name()
    return {
        "processor": name,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "precision auto": auto_precision(device)[0],
        "matrix 10^9/s": _matrix_rates(),
    }


def _matrix_rates() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(sys.executable, HERE / "ours" / "models.py", Path(folder) / "log")
        worker.ask("prepare", side="matrix", data="", folder=folder, options={})
        worker.ask("round")
        worker.ask("save", file=f"{folder}/rates")
        worker.end()
        return json.loads(Path(folder, "rates.json").read_text())


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def commit() -> str:
    """Return the commit, with "-dirty" if anything except results has changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout

    results = (":!benchmarks/results", ":!benchmarks/RESULTS.md")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *results).strip()
    return (git("rev-parse", "--short=12", "HEAD").strip() or "unknown") + ("-dirty" if changed else "")


def torch_cuda() -> Any:
    """Import and return torch.cuda."""
    import torch

    return torch.cuda


def page() -> str:
    """Return all results as Markdown."""
    parts = ["# Results", "Written by bench.py; each row's commit, date, machine and versions are in its JSON file."]
    parts += [f"## {title}\n\n{table(folder)}" for title, folder in _FOLDERS.items()]
    if (curves := RESULTS / "curves.json").exists():
        parts.append(f"## Growth\n\n{growth(json.loads(curves.read_text())['curves'])}")
    return "\n\n".join(parts) + "\n"


def table(folder: Path) -> str:
    """The results in a folder as a table."""
    head = "case | task | peer | settings of the peer | ours | peer's rate | ratio (min to max) | target | met | "
    head += "agreement of outputs | 10^9 operations/s (share of the machine's) | peak MB, ours / peer"
    paths = [(case, folder / f"{case.name}.json") for case in CASES]
    rows = [_row(case, json.loads(path.read_text())) for case, path in paths if path.exists()]
    lines = [head.split(" | "), ["---"] * len(head.split(" | ")), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def growth(curves: Mapping[str, Any]) -> str:
    """Time and peak memory of our side by size (`curves.py`), as a table."""
    lines = [["case: option", "sizes", "seconds", "slope", "peak MB", "slope"], ["---"] * 6]
    for name, curve in curves.items():
        sizes, seconds, peaks = ([point[of] for point in curve["points"]] for of in ("size", "seconds", "peak MB"))
        shown = [" / ".join(f"{value:{form}}" for value in values) for values, form in
                 ((sizes, ","), (seconds, ".3g"), (peaks, ",.0f"))]  # fmt: skip
        slopes = curve["slopes"]
        lines.append([name, shown[0], shown[1], str(slopes["seconds"]), shown[2], str(slopes["peak MB"])])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(case: Case, result: Mapping[str, Any]) -> list[str]:
    rates, ratio, peak = result["rates"], result["ratio"], result["peak MB"]
    mark = "" if result["peer"] else " s"
    return [
        case.name,
        case.what,
        case.peer or "none",
        _settings(case.settings, result["settings"]["chosen"]),
        f"{rates['ours']:,} {result['unit']}",
        f"{rates['theirs']:,}" if "theirs" in rates else "",
        f"**{ratio['median']:.2f}**{mark} ({ratio['min']:.2f} to {ratio['max']:.2f})",
        f"{result['target']}{mark}",
        "yes" if result["reached"] else "no",
        _agreement(**result["check"]),
        _share(result),
        " / ".join(f"{value:,.0f}" for value in peak.values()),
    ]


def _settings(why: str, chosen: Mapping[str, Any]) -> str:
    """The peer's settings with their reasons, and the settings selected on the machine of the row."""
    return "; ".join(part for part in (why, ", ".join(f"{name} {value}" for name, value in chosen.items())) if part)


def _agreement(what: str, found: float | None, limit: float, theirs: float | None = None) -> str:
    if found is None:
        return ""
    return f"{what} {found:.6g}" + ("" if theirs is None else f", peer {theirs:.6g}")


def _share(result: Mapping[str, Any]) -> str:
    """Our rate of operations, and its share of the machine's rate in the format of the case."""
    if "10^9 operations/s" not in result:
        return ""
    done, about = result["10^9 operations/s"]["ours"], result["machine"]
    return f"{done:,.0f} ({done / about['matrix 10^9/s'][result.get('precision', about['precision auto'])]:.0%})"


def main() -> None:
    """Measure the cases, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="comma-separated names of cases")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--venvs", type=Path, default=ROOT, help="folder of the peers' environments")
    parser.add_argument("--folder", help="parent of temporary folders")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=NUMBER", help="other sizes")
    parser.add_argument("--gpu", action="store_true", help="measure on CUDA; without a GPU, measure nothing")
    parser.add_argument("--dry", action="store_true", help="print results without writing them")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name] or [case.name for case in CASES]
    if unknown := set(wanted) - {case.name for case in CASES}:
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}. Known: {', '.join(case.name for case in CASES)}")
    results = RESULTS / "cuda" if options.gpu else RESULTS
    if not options.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch_cuda().is_available():
        print("no CUDA device: nothing was measured")
        return
    sizes = {name: int(number) for name, _, number in (setting.partition("=") for setting in options.set)}
    source = data.write(BUILD / "data", options.venvs)
    about = {"machine": machine(), "commit": commit(), "data": source}
    print(json.dumps(about["machine"]), flush=True)
    failed = []
    for case in CASES:
        if case.name not in wanted:
            continue
        try:
            result = measure(case, options.rounds, sizes, options.venvs, options.folder)
        except RuntimeError as error:
            print(f"{case.name} FAILED: {error}", file=sys.stderr, flush=True)
            failed.append(case.name)
            continue
        result |= {"date": time.strftime("%Y-%m-%d %H:%M"), **about}
        print("| " + " | ".join(_row(case, result)) + " |", flush=True)
        if not options.dry:
            results.mkdir(exist_ok=True, parents=True)
            (results / f"{case.name}.json").write_text(json.dumps(result, indent=1) + "\n")
            (HERE / "RESULTS.md").write_text(page())
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
