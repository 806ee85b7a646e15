"""The fuzzer detects every kind of failure."""

import pytest

from fuzz.process import Ended
from fuzz.targets import BY_NAME
from fuzz.trial import Trial, Whole
from fuzz.verdict import Changes, judge

TRACE = """Traceback (most recent call last):
  File "/x/retrievalkit/index.py", line 7, in build
    open()
  File "/lib/numpy/core.py", line 1, in load
KeyError: 'files'
"""
EDIT = {"op": "splice", "file": "ids.txt", "at": 0, "cut": 1, "put": "x"}
TOLD = "Error: 'flat/ids.txt' was altered.\n"


def kinds(code=2, err=TOLD, *, target="search flat", edits=(EDIT,), seconds=1.0, memory=0, out="", **rest):
    """Return the kinds of failures of a result."""
    changes = {name: frozenset(rest.pop(name, ())) for name in ("written", "inputs", "outside", "temporary")}
    changed = Changes(**changes, results=rest.pop("results", ("whole",)))
    ended = Ended(code, out, err, seconds, memory, rest.pop("stack", ""), **rest)
    trial = Trial(target, "flat", tuple(edits))
    whole = Whole("Note: usual.\nstrange but usual 7\n", ("whole",))
    found = judge(ended, target=BY_NAME[target], trial=trial, whole=whole, changes=changed)
    return [(one.kind, one.place) for one in found]


@pytest.mark.parametrize(
    ("ending", "found"),
    [
        ({}, None),
        ({"code": 0, "err": "Note: x.\nmine 3/7 questions (42 %)\nstrange but usual 8\n"}, None),
        ({"code": 0, "err": "", "results": ("other",), "edits": (EDIT, {"op": "seal"})}, None),
        ({"code": 1, "err": TRACE}, ("traceback", "retrievalkit/index.py:7 build KeyError")),
        ({"code": -11, "err": "", "stack": TRACE}, ("signal", "11 retrievalkit/index.py:7 build")),
        ({"code": -9, "err": "", "stack": TRACE, "timed_out": True}, ("time", "retrievalkit/index.py:7 build")),
        ({"code": 1, "err": "Error: disk 7\n"}, ("exit code", "1 Error: disk #\n")),
        ({"memory": 3 << 30}, ("memory", "elsewhere")),
        ({"err": f"{TOLD}Error: more\n"}, ("message", "2 messages: Error: more")),
        ({"err": "Error: no.\n"}, ("message names no file", "Error: no.")),
        ({"err": f"x.py:3: UserWarning: 7\n{TOLD}"}, ("warning of another library", "x.py:#: UserWarning: #")),
        ({"code": 0, "err": "odd\n"}, ("warning of another library", "odd")),
        ({"code": 0, "err": "", "results": ("other",)}, ("another result in silence", "search flat: splice ids.txt")),
        ({"written": ["out.trec"]}, ("left files", "search flat: out.trec")),
        ({"code": 0, "err": "", "written": [".out.partial"]}, ("left files", "search flat: .out.partial")),
        ({"inputs": ["flat/ids.txt"]}, ("changed an input", "search flat: flat/ids.txt")),
        ({"outside": ["escape"]}, ("wrote outside", "escape")),
        ({"temporary": ["tmp/x7"]}, ("left temporary files", "tmp/x#")),
        ({"code": 0, "err": "", "out": "\x1b[31m"}, ("control characters printed", "search flat '\\x1b'")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_each_failure_is_seen(ending, found):
    """Grouped by place; None: refusals, equal results, and other results with another manifest are correct."""
    assert found in (kinds(**ending) or [None])


def test_control_characters_that_a_user_typed_may_be_printed():
    """Other control characters may not."""
    changes = Changes(*[frozenset()] * 4, results=("whole",))
    for typed, expected in (("a\x0bb", []), ("ab", ["control characters printed"])):
        trial = Trial("options of index", options=("-o", typed))
        ended = Ended(0, "a\x0bb: 12 texts", "", 1.0, 0)
        found = judge(ended, target=BY_NAME[trial.target], trial=trial, whole=Whole("", ()), changes=changes)
        assert [one.kind for one in found] == expected
