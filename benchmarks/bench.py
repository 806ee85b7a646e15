"""Ours against what people would use instead: every case a pair in one run, outputs compared before a time counts.

    python benchmarks/bench.py [--only encode,train] [--rounds 5]

Each side is a process of its own, with its own environment. Both prepare and warm up; then they take turns, so that the
drift of the machine meets both, and the ratio is taken round by round. Writes results/CASE.json and RESULTS.md.
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
_FOLDERS = {"On the processor": RESULTS, "On CUDA": RESULTS / "cuda"}
BUILD = ROOT / "build" / "bench"


class Worker:
    """A side in its process.

    Args:
        python: The interpreter of its environment.
        script: ours.py or one of peers/.
        log: Where what it prints goes.
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
        """The answer to a request.

        Raises:
            RuntimeError: The worker failed.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it ended, and its log says why
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
    """The sides of a case, prepared and warm, with outputs that were found equal.

    Raises:
        RuntimeError: A side failed, or the outputs differ.
    """

    def __init__(self, case: Case, folder: Path, given: Mapping[str, Any], venvs: Path) -> None:
        self.case = case
        known = {*case.options, *case.grows}
        self.options = {**case.options, **{name: size for name, size in given.items() if name in known}}
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
        """A round of each."""
        return {name: side.ask("round") for name, side in self.sides.items()}

    @property
    def amount(self) -> int:
        """How much is done in a round."""
        return math.prod(self.options[name] for name in self.case.amount.split("*") if name)

    def end(self) -> None:
        """End both processes."""
        for side in self.sides.values():
            side.end()


def compared(case: Case, folder: Path) -> dict[str, float | None]:
    """The similarity of the outputs by the case's check, and its limit.

    Raises:
        RuntimeError: Not alike enough.
    """
    limit = case.tolerance
    if case.check == "none" or not case.peer:
        return {"found": None, "limit": limit}
    ours, theirs = (_read(folder / side / "output") for side in ("ours", "theirs"))
    if case.check == "cosine":
        norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
        found = float(((ours * theirs).sum(axis=1) / norms).min())
    elif case.check == "hits":
        assert len(ours) == len(theirs), (len(ours), len(theirs))
        pairs = zip(ours, theirs, strict=True)
        found = float(np.mean([len({*one} & {*two}) / max(len(two), 1) for one, two in pairs]))
    elif case.check == "best":
        found, limit = ours["best"], theirs["best"] - case.tolerance
    elif isinstance(theirs, np.ndarray):
        found = float(np.abs(ours - theirs).max())
    else:
        found = max(abs(ours[name] - theirs[name]) for name in theirs)
    if found > limit if case.check == "difference" else found < limit:
        msg = f"{case.name}: the outputs differ: {case.check} is {found:.6f}, and {limit:.6f} is the limit"
        raise RuntimeError(msg)
    both = {"theirs": round(theirs["best"], 6)} if case.check == "best" else {}
    return {"found": round(found, 6), "limit": round(limit, 6), **both}


def _read(output: Path) -> Any:
    array = output.with_suffix(".npy")
    return np.load(array) if array.exists() else json.loads(output.with_suffix(".json").read_text())


def measure(case: Case, rounds: int, given: Mapping[str, Any], venvs: Path, where: str | None) -> dict[str, Any]:
    """Time a case; the ratio is the peer's seconds over ours."""
    with tempfile.TemporaryDirectory(dir=where) as folder:
        pair = Pair(case, Path(folder), given, venvs)
        try:
            taken = [pair.round() for _ in range(rounds)]
        finally:
            pair.end()
    seconds = {name: [one[name]["seconds"] for one in taken] for name in pair.sides}
    middle = {name: statistics.median(some) for name, some in seconds.items()}
    found: dict[str, Any] = {
        "case": case.name,
        "what": case.what,
        "peer": case.peer,
        "options": pair.options,
        **({"precision": "fp32"} if case.only_ours.get("precision") == "fp32" else {}),
        "unit": f"{case.unit}/s",
        "amount": pair.amount,
        "rates": {name: float(f"{pair.amount / some:.4g}") for name, some in middle.items()},
        "seconds": {name: [float(f"{one:.4g}") for one in some] for name, some in seconds.items()},
        "peak MB": {name: max(one[name]["peak MB"] for one in taken) for name in pair.sides},
        "target": case.target,
        "check": {"what": case.check, **pair.agreement},
        "settings": {"why": case.settings, "chosen": pair.prepared["theirs"]["settings"] if case.peer else {}},
        "versions": {name: one["versions"] for name, one in pair.prepared.items()},
    }
    if flops := pair.prepared["ours"]["flops"]:
        found["10^9 operations/s"] = {name: round(flops / some / 1e9, 1) for name, some in middle.items()}
    if case.peer:
        ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["theirs"], strict=True)]
        found["ratio"] = spread(ratios)
        found["reached"] = found["ratio"]["median"] >= case.target
    else:
        found["ratio"] = spread(seconds["ours"])
        found["reached"] = found["ratio"]["median"] <= case.target
    return found


def spread(values: list[float]) -> dict[str, float]:
    """Least, median and most."""
    return {name: round(of(values), 3) for name, of in (("min", min), ("median", statistics.median), ("max", max))}


def machine() -> dict[str, Any]:
    """Processor, cores, the format that "auto" means and the rates of matrix products, measured now."""
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
    """The commit, and "-dirty" where something but results was changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout

    results = (":!benchmarks/results", ":!benchmarks/RESULTS.md")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *results).strip()
    return (git("rev-parse", "--short=12", "HEAD").strip() or "unknown") + ("-dirty" if changed else "")


def torch_cuda() -> Any:
    """torch.cuda, imported only where it is asked."""
    import torch

    return torch.cuda


def page() -> str:
    """All results, as Markdown."""
    parts = ["# Results", "Written by bench.py; each row's commit, date, machine and versions are in its JSON file."]
    parts += [f"## {title}\n\n{table(folder)}" for title, folder in _FOLDERS.items()]
    return "\n\n".join(parts) + "\n"


def table(folder: Path) -> str:
    """The results in a folder as a table."""
    head = ["case", "what", "peer", "settings of the peer", "ours", "theirs", "ratio (min to max)", "target", "reached"]
    head += ["alike", "10^9/s", "peak MB"]
    lines = [head, ["---"] * len(head)]
    order = {case.name: row for row, case in enumerate(CASES)}
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    for one in sorted((one for one in found if one.get("case") in order), key=lambda one: order[one["case"]]):
        lines.append(_row(one))
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def _row(one: Mapping[str, Any]) -> list[str]:
    rates, ratio, peak = one["rates"], one["ratio"], one["peak MB"]
    mark = "" if one["peer"] else " s"
    return [
        one["case"],
        one["what"],
        one["peer"] or "none",
        _settings(**one["settings"]),
        f"{rates['ours']:,} {one['unit']}",
        f"{rates['theirs']:,}" if "theirs" in rates else "",
        f"**{ratio['median']:.2f}**{mark} ({ratio['min']:.2f} to {ratio['max']:.2f})",
        f"{one['target']}{mark}",
        "yes" if one["reached"] else "no",
        _alike(**one["check"]),
        _share(one),
        " / ".join(f"{some:,.0f}" for some in peak.values()),
    ]


def _settings(why: str, chosen: Mapping[str, Any]) -> str:
    """Why the peer's settings are its best, and those that were chosen on the machine of the row."""
    return "; ".join(part for part in (why, ", ".join(f"{name} {value}" for name, value in chosen.items())) if part)


def _alike(what: str, found: float | None, limit: float, theirs: float | None = None) -> str:
    if found is None:
        return ""
    return f"{what} {found:.6g}" + ("" if theirs is None else f", theirs {theirs:.6g}")


def _share(one: Mapping[str, Any]) -> str:
    """Our rate of operations, and its share of the machine's in the format of the case."""
    if "10^9 operations/s" not in one:
        return ""
    done, about = one["10^9 operations/s"]["ours"], one["machine"]
    return f"{done:,.0f} ({done / about['matrix 10^9/s'][one.get('precision', about['precision auto'])]:.0%})"


def main() -> None:
    """Run what was asked for, and write results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names of cases, between commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--venvs", type=Path, default=ROOT, help="where .venv-bench and .venv-bench-late are")
    parser.add_argument("--folder", help="where temporary folders are made")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=NUMBER", help="other sizes")
    parser.add_argument("--gpu", action="store_true", help="on CUDA; where there is none, nothing is measured")
    parser.add_argument("--dry", action="store_true", help="print, and write no result")
    given = parser.parse_args()
    wanted = [name for name in given.only.split(",") if name] or [case.name for case in CASES]
    if unknown := set(wanted) - {case.name for case in CASES}:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(case.name for case in CASES)}")
    results = RESULTS / "cuda" if given.gpu else RESULTS
    if not given.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch_cuda().is_available():
        print("there is no CUDA device here: nothing was measured")
        return
    sizes = {name: int(number) for name, _, number in (one.partition("=") for one in given.set)}
    source = data.write(BUILD / "data", given.venvs)
    about = {"machine": machine(), "commit": commit(), "data": source}
    print(json.dumps(about["machine"]), flush=True)
    failed = []
    for case in CASES:
        if case.name not in wanted:
            continue
        try:
            found = measure(case, given.rounds, sizes, given.venvs, given.folder)
        except RuntimeError as error:
            print(f"{case.name} FAILED: {error}", file=sys.stderr, flush=True)
            failed.append(case.name)
            continue
        found |= {"date": time.strftime("%Y-%m-%d %H:%M"), **about}
        print("| " + " | ".join(_row(found)) + " |", flush=True)
        if not given.dry:
            results.mkdir(exist_ok=True, parents=True)
            (results / f"{case.name}.json").write_text(json.dumps(found, indent=1) + "\n")
            (HERE / "RESULTS.md").write_text(page())
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
