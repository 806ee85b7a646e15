"""Nasty values for edits and options."""

VALUES = (
    None, True, False, 0, 1, -1, 2, 2**31, 2**63, -(2**63) - 1, 2**64, 10**20, 0.5, -0.0, 1e308, "", " ", "0", "x",
    "nan", "../../../escape", "{outside}/escape", "a/b", ".", "..", "a\x00b", "\ud800",
    "\x1b[31mred\x1b]0;title\x07", "\ufeffx", "a\tb", "a\nb", "\u2028", "é" * 3000, [], {}, [[]], [None], {"a": {}},
    [1, 2, 3], ["x", "x"], {"": 0}, "{outside}/passwd", "/dev/zero", "/dev/stdin", "hf:no/such", "bert-base-uncased",
    "${v}", "!!python/object:os.system",
)  # fmt: skip
"""What values of JSON and YAML are replaced with; `{outside}` is a folder that nothing may write to."""

STRANGE = (
    {"$text": "NaN", "times": 1}, {"$text": "-Infinity", "times": 1}, {"$text": "1e400", "times": 1},
    {"$text": "9", "times": 5000}, {"$text": "[", "times": 100_000, "then": "]"}, {"$text": "[", "times": 200_000},
    {"$text": '{"a":', "times": 50_000}, {"$text": "01", "times": 1}, {"$text": "-", "times": 1},
    {"$text": "1" + "0" * 400, "times": 1}, {"$text": '{"a": 1, "a": 2}', "times": 1},
    {"$text": '"\\ud800"', "times": 1}, {"$text": '"\\u0000"', "times": 1}, {"$text": '"x', "times": 1},
    {"$text": '"y', "times": 100_000, "then": "z"},
)  # fmt: skip
"""JSON that no library writes, as `edits` writes it: a text, how often, and what follows as often."""

SNIPPETS = (
    ("\x00", 1), ("\r", 1), ("\t", 1), ("\n", 1), ("\n\n", 1), ('"', 1), ("'", 1), ("\\", 1), ("{", 1), ("}", 1),
    ("[", 1), (",", 1), (":", 1), (" ", 1), ("\x1b[2J", 1), ("\xff\xfe", 1), ("\xef\xbb\xbf", 1),
    ("\xed\xa0\x80", 1), ("\xc2\x85", 1), ("\xe2\x80\xa8", 1), ("\xe2\x80\x8b", 1), ("\xc0\x80", 1), ("NaN", 1),
    ("1e400", 1), ("-1", 1), ("0x10", 1), ("\x1a", 1), ("9", 5000), ("9", 25), ("[", 100_000), ("x", 200_000),
    ("\t", 1000), ("\n", 100_000), ("a b ", 100_000), ("{}", 1), ("\xf0\x9f\x98\x80", 1), ("\x0b", 1), ("\x0c", 1),
    ("\x1c", 1), ("../", 3), ("null", 1), ("- ", 1), ("${v}", 1),
)  # fmt: skip
"""What is put into texts, and how often; in latin-1."""

YAML = (
    "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)),
    "values: {" + ", ".join([f'v{n}: "${{v{n + 1}}}${{v{n + 1}}}"' for n in range(40)]) + ", v40: x}\n",
    "values: {v0: \"${v1}\", v1: \"${v0}\"}\n", "a: &a [*a]\n", "a: &a {b: *a}\n", "? [a, b]\n: c\n",
    "x: !!python/object/apply:os.system [id]\n", "%YAML 9.9\n---\n", "---\n---\n", "<<: *x\n", "<<: 1\n",
    "x: 2020-99-99\n", "x: 0o9\n", "x: .nan\n", "x: 1_0:99\n", "? {a: b}\n: 1\n", "!x y: 1\n", "1: 2\n", "~: 2\n",
    "x: !!binary 'a'\n", "x: !!set {a, b}\n", "x: !!timestamp 1\n", "\tx: 1\n", "x: \"\\uD800\"\n",
)  # fmt: skip
"""Recipes, or lines of them, that no reader should follow."""

HEADERS = {
    "shape": (
        "()", "(0,)", "(1,)", "(-1,)", "(-1, 32)", "(12, -32)", "(9223372036854775808,)", "(9223372036854775807, 2)",
        "(4611686018427387904, 4)", "(12, 32, 1)", "(1000000, 32)", "(12.5, 32)", "('a',)", "[12, 32]", "12", "(3, 4)",
        "(True, 1)", "None",
    ),
    "descr": (
        "'<f4'", "'>f4'", "'<f2'", "'<f8'", "'<i4'", "'>i4'", "'<i8'", "'<u4'", "'|i1'", "'|b1'", "'|O'", "'<U8'",
        "'<c8'", "'|V0'", "'|S0'", "[('a', '<f4')]", "'<M8[s]'", "'x'", "''", "7",
    ),
    "fortran_order": ("True", "False", "7", "None"),
    "version": ([2, 0], [3, 0], [9, 9], [0, 0]),
}  # fmt: skip
"""Entries of the headers of arrays."""

KINDS = (
    "corpus.jsonl", "queries.jsonl", "run.trec", "qrels.tsv", "examples.jsonl", "recipe.yaml", "weights.json",
    "vectors/ids.txt", "vectors/vectors-00000.npy", "weights/lexical-00000.npz", "checkpoint/retrievalkit.json",
    "checkpoint/manifest.json", "bert/config.json", "bert/model.safetensors", "flat", "vectors", "checkpoint",
    "sparse", "beir", "vectors/manifest.json",
)  # fmt: skip
"""Material of other kinds, to stand in a file's place."""

_NUMBERS = (
    "0", "-1", "1", "2", "99999999999999999999", "1e3", "1e400", "nan", "inf", "-inf", "", " 1", "0.5", "1.0000001",
    "-0.0", "0x10", "1_000", "\u0661", "9" * 5000, "5 20", "5,20", "1000000", "2147483648", "\ud800",
)  # fmt: skip

_TEXTS = (
    "", " ", "\udcff", "\ud800", "\n", "a\tb", "\x1b[31mred", "..", "/", ".", "~", "a" * 300, "a" * 5000, "title",
    "(", "(.+)#", "(a+)+$", "*", "every=0", "every=1", "every=x", "france", "mean", "cls", "flat", "sparse", "bm25x",
    "contrastive+flops", "contrastive+", "+", "flat,flat", "rrf", "sum", "linear", "train", "corpus", "none", "zero",
    "é", "\u202e", "😀" * 50, "-", "--", "-x", "hf:", "hf:x", "pydoc:", "pydoc:nothing", "irds:", "package:",
    "package:x/y", "/dev/null", "/dev/stdin", "${x}",
)  # fmt: skip

_METRICS = (
    "nDCG@99999999999999999999", "nDCG@-1", "nDCG@0", "nDCG", "foo", "nDCG@10 nDCG@10", "P(rel=2)@5", "RR(rel=-1)",
    "nDCG(dcg='x')@3", "AP(", "R@1e3", "Judged@10", "__import__('os').getcwd()", "nDCG@10,RR", "P@" + "9" * 5000,
    "ERR@5", "NumRet", "SetP", "alpha_nDCG@3", "RBP(p=2)", "Success@3", "", " ", "\ud800", "Compat", "Bpref",
    "infAP", "IPrec@0.5", "IPrec@x", "NERR8@3", "@5", "nDCG@5@5", "(", "nDCG@\u0661", "Rprec", "NumQ", "Accuracy@2",
    "AP(rel=None)", "nDCG(gains={0:1,1:99})@5", "P(judged_only=7)@5", "nDCG@True", "R(rel=99999999999999999999)@5",
    "SDCG@5", "RR@10(rel=1)", "MRR@10", "MAP", "BPM",
)  # fmt: skip

_SETTINGS = (
    "", "=", "a", ".=1", "a.b.c=1", "indexer.block=0", "indexer.block=-1", "indexer.block=1",
    "indexer.block=99999999999999999999", "indexer.device=cuda", "indexer.device=x", "indexer.precision=fp16",
    "indexer..x=1", "indexer=1", "indexer.x=[[[[[[", "indexer.x={", "x=!!python/object/apply:os.system [id]",
    "pooler.layer=99", "pooler.layer=-99", "pooler.normalize=maybe", "pooler.normalize=1",
    "encoder.query_prefix=\ud800", "encoder.document_length=0", "encoder.document_length=99999",
    "encoder.trust_remote_code=true", "k=0", "k=-1", "k=99999999999999999999", "k=null", "k=[1,2]", "k=.nan",
    "vectors=.", "queries=nothing", "limit=0", "limit=-1", "seed=-1", "margin_relative=nan", "margin_absolute=inf",
    "sample=random", "sample=x", "positives=retrieved", "merge=pool", "flat.block=1", "sparse.block=3",
    "a=" + "[" * 5000, "x=" + "9" * 5000, "loss.temperature=0", "loss.temperature=nan", "loss.temperature=-1",
    "warmup_ratio=2", "weight_decay=x", "save_steps=0", "refresh.depth=1", "trainer.x=1", "=1", "a.=1",
    "encoder.lora_rank=-1", "encoder.revision=../x", "encoder.attention=x", "encoder.dropout=2",
    "pooler.dimension=0", "x: y", "k=*a", "k=&a [*a]",
)  # fmt: skip

OPTION_VALUES = {
    "number": _NUMBERS,
    "text": _TEXTS,
    "metric": _METRICS,
    "setting": _SETTINGS,
    "weights": (
        "", ",", "0.3,0.7", "1,1,1", "nan,1", "inf,inf", "0,0", "-1,1", "1e400,1", "a,b", "9" * 5000, "/dev/null",
        "/", ".", "\ud800", "1;1", "0.5",
    ),
    "place": (
        "out", "out.json", "out.html", "out.csv", "out.tex", "out.md", ".", "..", "", "a" * 300, "a/b/c/out",
        "\udcff", "out\n", "./out/", "out/.",
    ),
    "factory": (
        "factory=Flat", "factory=", "factory=x", "factory=HNSW32", "factory=IVF4,Flat", "factory=IVF9999,Flat",
        "factory=PQ99", "factory=PQ8", "factory=IVF-1,Flat", "factory=HNSW0", "factory=PCA99,Flat", "factory=LSH",
        "factory=HNSW999999999", "factory=SQ8", "factory=IDMap,Flat", "factory=\ud800", "parameters=nprobe=0",
        "parameters=x=1",
    ),
    "value": tuple(f"k={value}" for value in _NUMBERS),
}  # fmt: skip
"""Values of options by their kind. Nothing here leads out of the room: what is tried may be done."""

LINKS = (
    "aside", "aside", "nothing", "/dev/null", "/dev/zero", "{outside}/passwd", "/proc/self/environ", "/proc/self/mem",
    "{outside}", "{material}/corpus.jsonl",
)  # fmt: skip
"""What links lead to; "aside" is the same content."""
