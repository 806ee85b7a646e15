"""Looks for a smaller trial that fails in the same way: fewer edits, fewer bytes."""

MOST_ATTEMPTS = 40


def shrink(trial, fails):
    """The smallest trial found for which `fails` still holds; tries at most `MOST_ATTEMPTS`."""
    left = MOST_ATTEMPTS
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(trial):
            left -= 1
            if left < 0:
                return trial
            if fails(candidate):
                trial, smaller = candidate, True
                break
    return trial


def _candidates(trial):
    kind = type(trial)
    for number in range(len(trial.edits)):
        if len(trial.edits) > 1:
            yield kind(trial.target, trial.damaged, (*trial.edits[:number], *trial.edits[number + 1 :]), trial.options)
    for number in range(0, len(trial.options), 2):
        if len(trial.options) > 2:
            yield kind(
                trial.target, trial.damaged, trial.edits, (*trial.options[:number], *trial.options[number + 2 :])
            )
    for number, edit in enumerate(trial.edits):
        for other in _smaller(edit):
            yield kind(
                trial.target, trial.damaged, (*trial.edits[:number], other, *trial.edits[number + 1 :]), trial.options
            )


def _smaller(edit):
    if edit["op"] == "splice":
        put, times, cut = edit["put"], edit.get("times", 1), edit["cut"]
        if times > 1:
            yield edit | {"times": times // 2}
        if len(put) > 1:
            # What is overwritten stays as long as it was.
            half = len(put) // 2
            same = cut == len(put)
            yield edit | {"put": put[:half], "cut": half if same else cut}
            yield edit | {
                "put": put[half:],
                "cut": len(put) - half if same else cut,
                "at": edit["at"] + (half if same else 0),
            }
        if cut and cut > 1 and cut != len(put):
            yield edit | {"cut": cut // 2}
    value = edit.get("value")
    if edit["op"] == "set":
        if isinstance(value, dict) and value.get("times", 1) > 1:
            yield edit | {"value": value | {"times": value["times"] // 2}}
        if isinstance(value, str) and len(value) > 2:
            yield edit | {"value": value[: len(value) // 2]}
