"""Definitions, documentation and exports of source files, and public names."""

from __future__ import annotations

import pytest
from retrievalkit_pydoc.modules import documented, is_public, read_module


def package(**sources):
    """Create the modules of the package `pkg` from their sources; `__` in a name stands for a dot."""
    modules = {}
    for name, source in sources.items():
        dotted = name.replace("__", ".")
        is_package = any(other.startswith(f"{name}__") for other in sources)
        modules[dotted] = read_module(source, dotted, package=is_package)
    return modules


def names(modules):
    return dict(documented(modules))


def test_functions_classes_and_members():
    source = '''
def tune():
    """Doc of tune."""
async def bow():
    """Doc of bow."""
def _hidden():
    """Hidden."""
class Violin:
    """Doc of Violin."""
    def play(self):
        """Doc of play."""
    @property
    def pitch(self):
        """Doc of pitch."""
    def _rest(self):
        """Hidden."""
    class Bow:
        """Doc of Bow."""
class Cello:
    def __init__(self):
        """Doc of Cello."""
def bare(): ...
if True:
    def late():
        """Doc of late."""
try:
    import fast
except ImportError:
    def slow():
        """Doc of slow."""
'''
    assert names({"pkg": read_module(source, "pkg")}) == {
        **{f"pkg.{name}": f"Doc of {name}." for name in ("tune", "bow", "Violin", "Cello", "late", "slow")},
        **{f"pkg.Violin.{name}": f"Doc of {name}." for name in ("play", "pitch", "Bow")},
    }


DEFINES = 'def tune():\n    "Doc."\ndef other():\n    "Other."'


@pytest.mark.parametrize(
    "init",
    [
        "from ._impl import tune",
        "from pkg._impl import tune",
        "from ._impl import tune as tune\n__all__ = ['tune']",
        "from ._impl import *\n__all__ = ['tune']",
        "from . import _impl\n__all__ = []\n__all__ += ['tune']\ntune = _impl.tune",
        "from . import _impl\n__all__ = ['tune']\ntune = _impl.tune",
        "from ._impl import *\n__all__ = ['tu' + 'ne', *[]] + list(['tune'])",
        "if 1:\n    from ._impl import tune",
        "try:\n    from ._impl import tune\nexcept ImportError:\n    pass",
        "from ._impl import *\n__all__ = ['x']\n__all__.extend(['tune'])\n__all__.append('y')",
    ],
)
def test_ways_to_export_a_name(init):
    assert names(package(pkg=init, pkg___impl=DEFINES))["pkg.tune"] == "Doc."


CLASS = "class {0}:\n    'Doc.'\n    def fit(self):\n        'Fit.'\n"
TUNE, OTHER = {"pkg.tune": "Doc."}, {"pkg.other": "Other."}


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({"pkg": "from ._impl import *\n__all__ = ['tune']", "pkg___impl": DEFINES}, TUNE),
        (
            {
                "pkg": "from ._api import *\nfrom . import _api\n__all__ = _api.__all__.copy()",
                "pkg___api": "from ._impl import *\nfrom . import _impl\n__all__ = _impl.__all__",
                "pkg___impl": "__all__ = ['tune']\n" + DEFINES,
            },
            TUNE,
        ),
        ({"pkg": "from ._impl import *\n__all__ = [s for s in dir()]", "pkg___impl": DEFINES}, TUNE | OTHER),
        (
            {
                "pkg": "from .deep.mod import tune\nadjust = tune",
                "pkg__deep": "from .mod import tune, other",
                "pkg__deep__mod": DEFINES,
            },
            TUNE | {"pkg.deep.other": "Other."},
        ),
        ({"pkg": "", "pkg__mod": "from ._impl import tune", "pkg___impl": DEFINES}, {}),
        ({"pkg": "", "pkg__tests": DEFINES, "pkg___impl": DEFINES}, {}),
        (
            {"pkg": f"__all__ = ['norm']\n{CLASS.format('norm_gen')}norm = norm_gen()"},
            {"pkg.norm": "Doc.", "pkg.norm.fit": "Fit."},
        ),
        ({"pkg": f"__all__ = ['a', 'b']\n{CLASS.format('_Op')}a = _Op()\nb = _Op()"}, {}),
        ({"pkg": CLASS.format("_Op").replace("__", "") + "_inst = _Op()\nfit = _inst.fit"}, {"pkg.fit": "Fit."}),
        (
            {"pkg": "from .a import *", "pkg__a": "from .b import *", "pkg__b": f"from .a import *\nx = x\n{DEFINES}"},
            TUNE | OTHER,
        ),
    ],
)
def test_public_names(sources, expected):
    """The shortest path that exports a definition; of equally short paths, its own name."""
    assert names(package(**sources)) == expected


def test_private_paths_are_not_public():
    assert is_public("pkg.mod")
    assert not any(map(is_public, ("pkg._mod", "pkg.tests.mod", "pkg.test", "pkg.test_mod", "pkg.conftest")))


def test_documentation_in_another_module():
    source = '''
add_newdoc("pkg._core", "dot", """Doc of dot.""")
add_newdoc("pkg._core", "array", ("sort", """Doc of sort."""))
add_newdoc("pkg._core", "array", [("copy", "Doc of copy."), ("take", "Doc of take.")])
add_newdoc("airy", "Doc of airy.")
add_docstr(torch.abs, r"""Doc {x} of abs {{1}}.""".format(**arguments))
add_docstr_all("add_", "Doc" + " of add.")
exp.__doc__ = "Doc of exp."
log = _add_docstr(_C.log, "Doc of log.")
'''
    module = read_module(source, "pkg.special._docs")
    assert module.elsewhere == [
        ("pkg._core", "dot", "Doc of dot."),
        ("pkg._core", "array.sort", "Doc of sort."),
        ("pkg._core", "array.copy", "Doc of copy."),
        ("pkg._core", "array.take", "Doc of take."),
        ("pkg.special", "airy", "Doc of airy."),
        ("torch", "abs", "Doc {x} of abs {1}."),
        ("pkg.special", "Tensor.add_", "Doc of add."),
    ]
    assert module.docs == {"exp": "Doc of exp.", "log": "Doc of log."}


@pytest.mark.parametrize("source", ["def broken(:", "\0", "x = " + "(" * 500 + ")" * 500, "'\\d'", ""])
def test_any_source_can_be_read(source):
    assert read_module(source, "pkg").docs == {}
