"""The search of `rkit tune`: trainings with different settings, all measured on the same dev questions.

Each combination of the values to try is a trial: first the settings of `rkit train`, then the others at random. A
trial stops after a quarter of its steps unless it is in the better half of all trials at that point, and likewise after
a half (asynchronous successive halving: Li et al., "A system for massively parallel hyperparameter tuning", 2020). Until
the output is complete, its hidden folder holds Optuna's journal of the trials and the best checkpoint so far.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrievalkit import storage
from retrievalkit.errors import InputError, MissingDependencyError, OptionError, RetrievalkitError
from retrievalkit.registry import options as option_fields
from retrievalkit.reporting.table import text_table
from retrievalkit.reporting.terminal import say
from retrievalkit.training import checkpoints
from retrievalkit.training.retriever import RetrieverTraining
from retrievalkit.training.session import Manifest, run_training
from retrievalkit.training.train import TrainOptions, train
from retrievalkit.training.tune import TuneOptions

try:
    import optuna
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState
except ImportError:
    raise MissingDependencyError("optuna", "rkit tune", "'retrievalkit[tune]'") from None

Settings = dict[str, float]
"""The values of a trial by name: learning_rate, temperature, epochs."""

_MEASURE = "nDCG@10"
_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.RUNNING: "out of time"}
_FORMS = {_MEASURE: ".4f", "seconds": ".0f"}
_FACTORS = {"learning_rate": (1, 0.5, 2.5, 5), "temperature": (1, 0.4, 2), "epochs": (1, 0.5, 2)}
_JOURNAL, _TRIALS = "trials.journal", "trials"


class OutOfTime(Exception):  # noqa: N818 - no error: the trial stays as it is
    """The budget is spent."""


class TrialTraining(RetrieverTraining):
    """The training of a trial, which stops when the trial is pruned or the budget is spent."""

    def __init__(self, options: TrainOptions, trial: optuna.Trial, deadline: float) -> None:
        super().__init__(options)
        self.trial = trial
        self.deadline = deadline
        # A trial that is resumed from an earlier state measures some states twice.
        self.reported = max(trial.study.trials[trial.number].intermediate_values, default=0)

    def measured(self, share: float, value: float) -> None:
        """Report the dev measure after a share of the steps."""
        percent = round(100 * share)
        if percent > self.reported:
            self.trial.report(-value, percent)
            # This records the value for later trials, too.
            if self.trial.should_prune() and share < 1:
                raise optuna.TrialPruned
        if share < 1 and time.monotonic() > self.deadline:
            raise OutOfTime


def search(options: TuneOptions) -> Manifest:
    """Run trials until the time is spent or all are done, and write the best one's checkpoint.

    Returns:
        The manifest of the checkpoint.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
        RetrievalkitError: No trial was completed in time.
    """
    output = Path(options.output)
    shared = {one.name: getattr(options, one.name) for one in dataclasses.fields(TrainOptions)}
    for name in ("epochs", "learning_rate", "output", "overwrite", "resume"):
        del shared[name]
    usual = RetrieverTraining(train.read(**shared, output=output))
    if usual.dev is None:
        msg = "rkit tune compares trainings on dev questions, and there are none. Add --dev EXAMPLES."
        raise InputError(msg)
    choices = _choices(options, usual.described)
    identity = json.loads(json.dumps({"options": {**usual.described, "choices": choices}, "inputs": usual.inputs}))
    if options.resume and storage.kind_of(output) == usual.kind:
        manifest = storage.read_manifest(output)
        if manifest.get("tuning", {}).get("identity") == identity:
            return manifest
    storage.check_output(output, overwrite=options.overwrite)
    checkpoints.prepare_partial(output, identity, resume=options.resume)
    with storage.write_folder(output, overwrite=options.overwrite, keep_partial=True) as folder:
        trials = Trials(shared, choices, usual.described["loss"], folder)
        del usual
        trials.run(options)
        manifest = trials.finish(options, identity)
        for name in (checkpoints.OPTIONS, checkpoints.RUN, _JOURNAL, _TRIALS):
            storage.discard(folder / name)
    return manifest


class Trials:
    """The trials of a search, in the folder that is written.

    Args:
        shared: The options of `rkit train` that all trials share.
        choices: The values to try, by setting.
        loss: The description of the loss.
        folder: The folder.
    """

    def __init__(
        self, shared: Mapping[str, Any], choices: Mapping[str, Sequence[float]], loss: Mapping[str, Any], folder: Path
    ) -> None:
        self.shared = shared
        self.choices = choices
        self.loss = loss
        self.folder = folder
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(
            study_name="tune",
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(folder / _JOURNAL))),
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=25, reduction_factor=2),
            direction="maximize",
            load_if_exists=True,
        )

    def run(self, options: TuneOptions) -> None:
        """Run the trials that are not finished, in order, until the time is spent."""
        kinds = {name: optuna.distributions.CategoricalDistribution(values) for name, values in self.choices.items()}
        combinations = [dict(zip(self.choices, one, strict=True)) for one in itertools.product(*self.choices.values())]
        others = combinations[1:]
        random.Random(options.seed).shuffle(others)
        for number, settings in enumerate([combinations[0], *others]):
            left = options.seconds - sum(one.user_attrs.get("seconds", 0) for one in self.study.trials)
            if left <= 0:
                return
            if number == len(self.study.trials):
                running = optuna.create_trial(state=TrialState.RUNNING, params=settings, distributions=kinds)
                self.study.add_trial(running)
            frozen = self.study.trials[number]
            if frozen.state == TrialState.RUNNING:
                say(f"trial {number + 1} of at most {len(combinations)}: {_named(settings)}", err=True)
                # Another trial of the same number, which optuna would start, could not continue this one.
                self._run(optuna.Trial(self.study, frozen._trial_id), time.monotonic() + left)

    def _run(self, trial: optuna.Trial, deadline: float) -> None:
        """Train to the end, or until the trial is pruned or the time is spent; then it stays as it is."""
        started = time.monotonic()
        place = self.folder / _TRIALS / str(trial.number)
        options = train.read(**self._options(trial.params), output=place, resume=True)
        try:
            manifest = run_training(lambda: TrialTraining(options, trial, deadline), options)
        except optuna.TrialPruned:
            state, value = TrialState.PRUNED, None
        except OutOfTime:
            state, value = TrialState.RUNNING, None
        else:
            state, value = TrialState.COMPLETE, _dev(manifest)["after"][_MEASURE]
        trial.set_user_attr("seconds", trial.user_attrs.get("seconds", 0) + time.monotonic() - started)
        if state == TrialState.RUNNING:
            return
        self.study.tell(trial, value, state)
        best = self._best()
        for path in place.parent.iterdir():
            if best is None or path.name != str(best.number):
                storage.discard(path)

    def _best(self) -> optuna.trial.FrozenTrial | None:
        """The first of the trials with the highest figure; None if none is complete."""
        complete = self.study.get_trials(states=[TrialState.COMPLETE])
        return max(complete, key=lambda one: one.value, default=None)

    def _options(self, settings: Mapping[str, float]) -> dict[str, Any]:
        """The options of `rkit train` with the settings of a trial."""
        options = {**self.shared, **settings}
        if (temperature := options.pop("temperature", None)) is not None:
            given = self.shared["loss_options"]
            options["loss_options"] = _with_temperature(given, self.loss["options"], temperature)
        return options

    def finish(self, options: TuneOptions, identity: Mapping[str, Any]) -> Manifest:
        """Put the best checkpoint into the folder, with the table of trials in its manifest.

        Raises:
            RetrievalkitError: No trial is complete.
        """
        best = self._best()
        if best is None:
            percent = self.study.trials[0].last_step or 0
            msg = (
                f"no training was completed in {options.budget}: the first was stopped after {percent} % of its steps. "
                "Repeat the command with --resume and a larger --budget, or train on fewer examples: --set limit=N."
            )
            raise RetrievalkitError(msg)
        shutil.copytree(self.folder / _TRIALS / str(best.number), self.folder, dirs_exist_ok=True)
        dev = _dev(storage.read_manifest(self.folder))
        before, after = dev["before"][_MEASURE], dev["after"][_MEASURE]
        command = _typed({**self._options(best.params), "output": f"{options.output}-again"})
        rows = [
            {**dict.fromkeys(self.choices), _MEASURE: before, "state": "untrained", "seconds": None},
            *(
                {**one.params, _MEASURE: one.value, "state": _STATES[one.state], "seconds": one.user_attrs["seconds"]}
                for one in self.study.trials
            ),
        ]
        questions = f"{dev['questions']:,} {'held-out' if dev['held_out'] else 'dev'} questions"
        if after > before:
            result = (
                f"{options.output}: {_MEASURE} on {questions} {before:.4f} -> {after:.4f} with {_named(best.params)}. "
                f"The same training:\n{command}"
            )
        else:
            result = f"{options.output}: the untrained model, as no training has a higher {_MEASURE} on {questions}"
        tuning = {"identity": identity, "trials": rows, "command": command, "summary": f"{_table(rows)}\n{result}"}
        storage.add_to_manifest(self.folder, tuning=tuning)
        return storage.read_manifest(self.folder)


def _dev(manifest: Mapping[str, Any]) -> dict[str, Any]:
    after = {_MEASURE: -manifest["selection"]["value"]}
    return manifest.get("dev", {"questions": 0, "held_out": False, "before": {_MEASURE: -9.0}, "after": after})


def _choices(options: TuneOptions, described: Mapping[str, Any]) -> dict[str, list[float]]:
    """The values to try by setting: those of the options, else multiples of what `rkit train` uses.

    Raises:
        OptionError: There are temperatures, and the loss has none, or --set fixes it.
    """
    loss, training = described["loss"], described["training"]
    usual = {name: training[name] for name in ("learning_rate", "epochs")}
    if not any("temperature" in one for one in _sections(options.loss_options)):
        known = (one.get("temperature") for one in _sections(loss["options"]))
        usual["temperature"] = next((one for one in known if one is not None), None)
    if options.temperature and usual.get("temperature") is None:
        msg = f"--temperature has no effect: the loss '{loss['name']}' has none, or --set fixes it. Leave one out."
        raise OptionError(msg)
    return {
        name: [*dict.fromkeys(getattr(options, name) or (float(f"{value * factor:.2g}") for factor in factors))]
        for name, factors in _FACTORS.items()
        if (value := usual.get(name)) is not None
    }


def _with_temperature(given: Mapping[str, Any], described: Mapping[str, Any], temperature: float) -> dict[str, Any]:
    """The options of a loss with a temperature; of a sum, that of each loss that has one."""
    if "temperature" in described:
        return {**given, "temperature": temperature}
    parts = {part for part, own in described.items() if isinstance(own, Mapping) and "temperature" in own}
    return {**given, **{part: {**given.get(part, {}), "temperature": temperature} for part in parts}}


def _sections(loss_options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The options of a single loss, and of each loss of a sum."""
    return [loss_options, *(own for own in loss_options.values() if isinstance(own, Mapping))]


def _typed(values: Mapping[str, Any]) -> str:
    """The command line of `rkit train` with these options, without those that are at their defaults."""

    def settings(section: str, own: Mapping[str, Any]) -> Iterator[str]:
        for name, value in own.items():
            if isinstance(value, Mapping):
                yield from settings(f"{section}.{name}", value)
            else:
                yield from ("--set", f"{section}.{name}={_text(value)}")

    words = ["rkit", "train"]
    known = option_fields(TrainOptions)
    for name, value in values.items():
        if name.endswith("_options"):
            words += settings(name.removesuffix("_options"), value)
        elif value != known[name].default:
            flag = isinstance(value, bool)
            words += ["--set", f"{name}={_text(value)}"] if flag else [f"--{name.replace('_', '-')}", _text(value)]
    return shlex.join(words)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _named(settings: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items())


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The trials, the untrained model first."""
    cells = [
        ["" if value is None else f"{value:{_FORMS.get(name, 'g')}}" if isinstance(value, float) else str(value)
         for name, value in row.items()]
        for row in rows
    ]  # fmt: skip
    return text_table([[name.replace("_", " ") for name in rows[0]], *cells], right=range(len(_FACTORS) + 1))
