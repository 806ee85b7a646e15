"""Hyperparameter search of `rkit tune`: trainings with different settings, evaluated on the same dev set.

Each combination of values is a trial: first the settings of `rkit train`, then the others in random order. A trial
stops after 40 or 80 % of its steps unless it is in the better half of the trials that reached this point (asynchronous
successive halving: Li et al., "A system for massively parallel hyperparameter tuning", 2020). Until the output is
complete, its hidden folder contains Optuna's journal of the trials and the best checkpoint so far.
"""

from __future__ import annotations

import itertools
import random
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from retrievalkit import storage
from retrievalkit.data.sources import InMemory
from retrievalkit.errors import InputError, MissingDependencyError, OptionError, RetrievalkitError
from retrievalkit.registry import options as option_fields
from retrievalkit.reporting.table import text_table
from retrievalkit.reporting.terminal import say
from retrievalkit.training import checkpoints
from retrievalkit.training.collective import Collective
from retrievalkit.training.options import TrainOptions, TuneOptions
from retrievalkit.training.retriever import RetrieverTraining
from retrievalkit.training.selection import NDCG
from retrievalkit.training.session import Manifest, run_training
from retrievalkit.training.train import train

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, TrialState
except ImportError:
    raise MissingDependencyError("optuna", "rkit tune", "'retrievalkit[tune]'") from None

_MULTIPLES = {"learning_rate": (1, 0.5, 2.5, 5), "temperature": (1, 0.4, 2), "epochs": (1, 0.5, 2)}
"""Default values to try, as multiples of those of `rkit train`."""

_JOURNAL, _TRIALS = "trials.journal", "trials"
_FORMS = {NDCG: "{:.4f}", "state": "{}", "seconds": "{:.0f}"}
_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.RUNNING: "out of time"}


class OutOfTime(Exception):  # noqa: N818 - the trial may be resumed
    """The time budget is spent."""


class TrialTraining(RetrieverTraining):
    """Training of a trial; stops when the trial is pruned or the budget is spent."""

    def __init__(self, options: TrainOptions, collective: Collective, trial: optuna.Trial, deadline: float) -> None:
        super().__init__(options, collective)
        self.trial = trial
        self.deadline = deadline
        # A trial that resumes from an earlier state evaluates some states twice.
        self.reported = max(trial.study.trials[trial.number].intermediate_values, default=0)

    def measured(self, share: float, value: float) -> None:
        """Report the dev value after a share of the steps."""
        percent = round(100 * share)
        if percent > self.reported:
            self.trial.report(value, percent)
            # Also for the last state, since the call records the value for later trials.
            if self.trial.should_prune() and share < 1:
                raise optuna.TrialPruned
        if share < 1 and time.monotonic() > self.deadline:
            raise OutOfTime


def search(options: TuneOptions) -> Manifest:
    """Run trials until the time is spent or all are done, write the best checkpoint, and return its manifest."""
    output = Path(options.output)
    own = {"epochs", "learning_rate", "output", "overwrite", "push", "resume"}
    shared = {name: getattr(options, name) for name in option_fields(TrainOptions) if name not in own}
    usual = RetrieverTraining(train.read(**shared, output=output))
    if not usual.measured_before:
        msg = "rkit tune compares trainings by nDCG@10 on dev questions. Add --dev EXAMPLES, and leave rank_from out."
        raise InputError(msg)
    choices = _choices(options, usual.described)
    identity = {"options": {**usual.described, "choices": choices}, "inputs": usual.inputs}
    del usual
    fingerprint = storage.fingerprint_value(identity)
    if options.resume and storage.kind_of(output) == "checkpoint":
        manifest = storage.read_manifest(output)
        if manifest.get("tuning", {}).get("fingerprint") == fingerprint:
            return manifest
    storage.check_output(output, overwrite=options.overwrite)
    checkpoints.prepare_partial(output, identity, resume=options.resume)
    with storage.write_folder(output, overwrite=options.overwrite, keep_partial=True) as folder:
        trials = Trials(folder, shared)
        trials.run(choices, options)
        storage.add_to_manifest(folder, tuning={"fingerprint": fingerprint, **trials.finish(options)})
        for name in (checkpoints.OPTIONS, checkpoints.RUN, _JOURNAL, _TRIALS):
            storage.discard(folder / name)
    return storage.read_manifest(output)


def _choices(options: TuneOptions, described: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the values to try by setting: those of the options, else multiples of the values of `rkit train`."""
    loss, fixed = described["loss"], "temperature" in options.loss_options
    usual = {**described["training"], "temperature": None if fixed else loss["options"].get("temperature")}
    if options.temperature and usual["temperature"] is None:
        reason = "--set loss.temperature fixes it" if fixed else f"the loss '{loss['name']}' has none"
        msg = f"--temperature has no effect: {reason}. Leave it out."
        raise OptionError(msg)
    return {
        name: [*dict.fromkeys(getattr(options, name) or (float(f"{usual[name] * factor:.2g}") for factor in factors))]
        for name, factors in _MULTIPLES.items()
        if usual[name] is not None
    }


class Trials:
    """Trials of a search, in its output folder, with the options of `rkit train` that they share."""

    def __init__(self, folder: Path, shared: Mapping[str, Any]) -> None:
        self.folder = folder
        self.shared = shared
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(
            study_name="tune",
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(folder / _JOURNAL))),
            # Not earlier: near its peak, a learning rate that helps in the end often harms at first.
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=40, reduction_factor=2),
            direction="maximize",
            load_if_exists=True,
        )

    def run(self, choices: Mapping[str, Sequence[float]], options: TuneOptions) -> None:
        """Run the unfinished trials until the time is spent."""
        kinds: dict[str, BaseDistribution] = {name: CategoricalDistribution(values) for name, values in choices.items()}
        first, *others = (dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values()))
        random.Random(options.seed).shuffle(others)
        for number, settings in enumerate([first, *others]):
            left = options.seconds - sum(trial.user_attrs.get("seconds", 0) for trial in self.study.trials)
            if left <= 0:
                return
            if number == len(self.study.trials):
                started = optuna.create_trial(state=TrialState.RUNNING, params=settings, distributions=kinds)
                self.study.add_trial(started)
            trial = self.study.trials[number]
            if trial.state == TrialState.RUNNING:
                say(f"trial {number + 1} of at most {len(others) + 1}: {_named(settings)}", err=True)
                # Optuna itself would start a new trial instead of continuing an interrupted trial.
                self._run(optuna.Trial(self.study, trial._trial_id), time.monotonic() + left)

    def _run(self, trial: optuna.Trial, deadline: float) -> None:
        """Train until the end, or until the trial is pruned; at the deadline the trial stays unfinished."""
        started, place = time.monotonic(), self.folder / _TRIALS / str(trial.number)
        options = train.read(**self._options(trial.params), output=place, resume=True)
        value, state = None, TrialState.COMPLETE
        try:
            value = run_training(partial(TrialTraining, options, trial=trial, deadline=deadline), options)["dev"][
                "after"
            ][NDCG]
        except optuna.TrialPruned:
            state = TrialState.PRUNED
        except OutOfTime:
            return
        finally:
            trial.set_user_attr("seconds", trial.user_attrs.get("seconds", 0) + time.monotonic() - started)
        self.study.tell(trial, value, state)
        best = self._best()
        for path in place.parent.iterdir():
            if best is None or path.name != str(best.number):
                storage.discard(path)

    def _options(self, settings: Mapping[str, float]) -> dict[str, Any]:
        """Return the options of `rkit train` in a trial."""
        options = {**self.shared, **settings}
        if (temperature := options.pop("temperature", None)) is not None:
            options["loss_options"] = {**options["loss_options"], "temperature": temperature}
        return options

    def _best(self) -> FrozenTrial | None:
        """Return the complete trial with the highest nDCG@10; of equal trials, the first."""
        complete = self.study.get_trials(states=[TrialState.COMPLETE])
        return max(complete, key=lambda trial: trial.value or 0, default=None)

    def finish(self, options: TuneOptions) -> dict[str, Any]:
        """Copy the best checkpoint to the folder; return the trials, the command of the best trial, and a summary."""
        best, trials = self._best(), self.study.trials
        if best is None:
            done = f"the first stopped after {trials[0].last_step or 0} % of its steps"
            remedy = "Run the same command with --resume and a larger --budget, or train on fewer: --set limit=N"
            msg = f"no training was completed in {options.budget}: {done}. {remedy}"
            raise RetrievalkitError(msg)
        shutil.copytree(self.folder / _TRIALS / str(best.number), self.folder, dirs_exist_ok=True)
        dev = storage.read_manifest(self.folder)["dev"]
        before, after = dev["before"][NDCG], dev["after"][NDCG]
        names = [*best.params, NDCG, "state", "seconds"]
        figures: list[dict[str, Any]] = [{NDCG: before, "state": "untrained"}]
        for trial in trials:
            figures.append({**trial.params, NDCG: trial.value, "state": _STATES[trial.state], **trial.user_attrs})
        rows = [
            [_FORMS.get(name, "{:g}").format(row[name]) if row.get(name) is not None else "" for name in names]
            for row in figures
        ]
        table = text_table([[name.replace("_", " ") for name in names], *rows], right=range(len(names)))
        command = _typed({**self._options(best.params), "output": f"{options.output}-again"})
        questions = f"{dev['questions']:,} {'held-out' if dev['held_out'] else 'dev'} questions"
        result = f"the untrained model: no training has a higher {NDCG} on {questions}"
        if after > before:
            again = (
                "" if any(isinstance(value, InMemory) for value in self.shared.values()) else f", as with\n{command}"
            )
            result = f"{NDCG} on {questions} {before:.4f} -> {after:.4f} with {_named(best.params)}{again}"
        return {"trials": figures, "command": command, "summary": f"{table}\n{options.output}: {result}"}


def _named(settings: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items())


def _typed(values: Mapping[str, Any]) -> str:
    """Return the command line of `rkit train` with these options, without options at their defaults."""

    def words(name: str, value: Any) -> Iterator[str]:
        if isinstance(value, Mapping):
            for inner in value:
                yield from words(f"{name.removesuffix('_options')}.{inner}", value[inner])
        elif "." in name or isinstance(value, bool):
            yield from ("--set", f"{name}={_text(value)}")
        else:
            yield from (f"--{name.replace('_', '-')}", _text(value))

    known = option_fields(TrainOptions)
    changed = (words(name, value) for name, value in values.items() if value != known[name].default)
    return shlex.join(["rkit", "train", *itertools.chain(*changed)])


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value).removesuffix(".0")
