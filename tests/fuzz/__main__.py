"""`python -m fuzz`: trials by number, one of them again, or a reproducer."""

import argparse
import json
import sys
from pathlib import Path

from fuzz import campaign
from fuzz.trial import Trial


def main():
    """Exit code 0 if no trial fails."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=60, help="after these no trial is begun")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="the number of a trial, or the file of a reproducer")
    parser.add_argument("--targets", default="", help="only targets with this word in their names")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-plugins", dest="plugins", action="store_false", help="nothing that needs Java or Milvus")
    parser.add_argument("--cases", type=Path, help="a folder of reproducers to try; writes cases.json")
    parser.add_argument("--report", type=Path, default=Path("build/fuzz"))
    given = parser.parse_args()
    with campaign.bench(plugins=given.plugins) as bench:
        chosen = campaign.targets(plugins=given.plugins, word=given.targets)
        if given.only is not None:
            path = Path(given.only)
            numbered = None if path.is_file() else bench.draw(given.seed, int(given.only), chosen)
            text, failed = _again(bench, numbered or Trial.of(json.loads(path.read_text())))
        else:
            settings = {"trials": given.trials, "seed": given.seed, "workers": given.workers, "minutes": given.minutes}
            found = campaign.run(bench, chosen, **settings)
            text, failed = campaign.write_report(given.report, *found, seed=given.seed), bool(found[0])
            if given.cases is not None:
                campaign.try_cases(bench, given.cases, given.report / "cases.json")
    sys.stdout.write(text.encode(errors="backslashreplace").decode())
    return failed


def _again(bench, trial):
    ended, failures, applied = bench.attempt(trial)
    used = f"{ended.seconds:.1f} s, {ended.memory >> 20} MB"
    told = f"{json.dumps(trial.to_json())[:2000]}\n{applied} edits applied; exit {ended.code}, {used}\n"
    told += f"{ended.out[-3000:]}{ended.err[-6000:]}\n{ended.stack[-3000:]}"
    return told + "".join(f"{one}\n" for one in failures), bool(failures)


if __name__ == "__main__":
    sys.exit(main())
