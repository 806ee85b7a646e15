"""Two indexers that keep the contract, and indexers that break it in one way each. A plugin, by RKIT_PLUGIN_FILES."""

import json
import math
import re
from typing import ClassVar

import numpy as np

from retrievalkit import hookimpl
from retrievalkit.contracts import Indexer
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import DataError, UnsupportedError


class Sound(Indexer):
    """Brute force over vectors."""

    indexes = "vectors"

    def build(self, source, index_dir):
        rows, counts, ids = self.read(source)
        np.save(index_dir / "rows.npy", rows)
        np.save(index_dir / "starts.npy", np.cumsum([0, *counts[:-1]]))
        (index_dir / "ids.json").write_text(json.dumps(ids))
        return {"texts": len(source)}

    def read(self, source):
        if source.vocabulary:
            msg = "it holds weights."
            raise UnsupportedError(msg)
        blocks = list(source.blocks(1000))
        rows = np.concatenate([np.asarray(block.vectors, dtype=np.float32) for block in blocks])
        return rows, np.concatenate([block.counts for block in blocks]), list(source.ids)

    def open(self, index_dir):
        self.rows, self.starts = np.load(index_dir / "rows.npy"), np.load(index_dir / "starts.npy")
        self.ids = json.loads((index_dir / "ids.json").read_text())

    def all_scores(self, queries):
        products = np.einsum("qmd,rd->qmr", queries.vectors.numpy(), self.rows)
        best = np.maximum.reduceat(products, self.starts, axis=2)
        if queries.vector_mask is not None:
            best = best * queries.vector_mask.numpy()[..., None]
        return best.sum(axis=1).astype(np.float32)

    def order(self, scores):
        return np.argsort(-scores, axis=1, kind="stable")

    def search(self, queries, k):
        scores = self.all_scores(queries)
        order = self.order(scores)[:, :k]
        return [[self.ids[text] for text in row] for row in order], list(np.take_along_axis(scores, order, axis=1))

    def scores(self, queries, ids):
        row_of = {one: row for row, one in enumerate(self.ids)}
        found = [[row_of.get(one, -1) for one in some] for some in ids]
        padded = np.pad(self.all_scores(queries), ((0, 0), (0, 1)), constant_values=np.nan)
        return [scores[rows] for scores, rows in zip(padded, found, strict=False)]


class ShiftedAtShards(Sound):
    def read(self, source):
        rows, counts, ids = super().read(source)
        blocks = list(source.blocks(1000))
        shifted = [ids[block.first + (number > 0) * 1 :][: block.texts] for number, block in enumerate(blocks)]
        flat = [one for part in shifted for one in part]
        return rows, counts, (flat + ids)[: len(ids)]


class KeptInMemory(Sound):
    def build(self, source, index_dir):
        self.rows, counts, self.ids = self.read(source)
        self.starts = np.cumsum([0, *counts[:-1]])
        (index_dir / "built").write_text("yes")
        return {"texts": len(source)}

    def open(self, index_dir):
        assert (index_dir / "built").exists()


class KeptInTheClass(Sound):
    kept: ClassVar[dict] = {}

    def build(self, source, index_dir):
        rows, counts, ids = self.read(source)
        self.kept[len(self.kept)] = rows, np.cumsum([0, *counts[:-1]]), ids
        (index_dir / "number").write_text(str(len(self.kept) - 1))
        return {"texts": len(source)}

    def open(self, index_dir):
        self.rows, self.starts, self.ids = self.kept[int((index_dir / "number").read_text())]


class PointsToTheSource(Sound):
    def build(self, source, index_dir):
        (index_dir / "source").write_text(str(source.folder))
        return {"texts": len(source)}

    def open(self, index_dir):
        store = VectorStore((index_dir / "source").read_text())
        self.rows, counts, self.ids = self.read(store)
        self.starts = np.cumsum([0, *counts[:-1]])


class AbsolutePath(Sound):
    def build(self, source, index_dir):
        (index_dir / "settings.json").write_text(json.dumps({"rows": str((index_dir / "rows.npy").absolute())}))
        return super().build(source, index_dir)

    def open(self, index_dir):
        super().open(index_dir)
        self.rows = np.load(json.loads((index_dir / "settings.json").read_text())["rows"])


class FirstVectorOnly(Sound):
    def open(self, index_dir):
        super().open(index_dir)
        self.rows, self.starts = self.rows[self.starts], np.arange(len(self.starts))


class Cosine(Sound):
    def all_scores(self, queries):
        return super().all_scores(queries) / np.linalg.norm(self.rows[self.starts], axis=1)


class TiesById(Sound):
    def order(self, scores):
        return np.array([np.lexsort((np.array(self.ids), -row)) for row in scores]).reshape(scores.shape)


class TiesBackwards(Sound):
    def order(self, scores):
        return scores.shape[1] - 1 - np.argsort(-scores[:, ::-1], axis=1, kind="stable")


class DoubleScores(Sound):
    def search(self, queries, k):
        ids, scores = super().search(queries, k)
        return ids, [one.astype(np.float64) for one in scores]


class CutsK(Sound):
    def search(self, queries, k):
        return super().search(queries, min(k, 100))


class NotANumber(Sound):
    def all_scores(self, queries):
        length = queries.vectors.norm(dim=-1, keepdim=True).numpy().max(axis=1)
        with np.errstate(all="ignore"):
            return super().all_scores(queries) / length * length


class WorstFirst(Sound):
    def search(self, queries, k):
        ids, scores = super().search(queries, k)
        return [one[::-1] for one in ids], [one[::-1] for one in scores]


class FindsTwice(Sound):
    def search(self, queries, k):
        ids, scores = super().search(queries, k)
        missing = max(0, k - len(self.ids))
        return [one + one[-1:] * missing for one in ids], [np.pad(one, (0, missing), mode="edge") for one in scores]


class OtherAlone(Sound):
    def all_scores(self, queries):
        scores = super().all_scores(queries)
        return scores.astype(np.float16).astype(np.float32) if len(scores) == 1 else scores


class UnknownIsZero(Sound):
    def scores(self, queries, ids):
        return [np.nan_to_num(one) for one in super().scores(queries, ids)]


class OtherScale(Sound):
    def scores(self, queries, ids):
        return [one / 2 for one in super().scores(queries, ids)]


class LowersIds(Sound):
    def read(self, source):
        rows, counts, ids = super().read(source)
        return rows, counts, [one.lower().strip() for one in ids]


class SplitsIds(Sound):
    def open(self, index_dir):
        super().open(index_dir)
        self.ids = ",".join(self.ids).split(",")


class SharedByTheClass(Sound):
    def open(self, index_dir):
        super().open(index_dir)
        type(self).latest = self.rows

    def all_scores(self, queries):
        self.rows = self.latest
        return super().all_scores(queries)


class WritesIntoTheSource(Sound):
    def build(self, source, index_dir):
        (source.folder / "cache.npy").write_bytes(b"cached")
        return super().build(source, index_dir)


class SquareSize(Sound):
    def build(self, source, index_dir):
        rows, _, _ = self.read(source)
        np.save(index_dir / "neighbours.npy", rows @ rows.T)
        return super().build(source, index_dir)


class RemembersAnswers(Sound):
    answers: ClassVar[list] = []

    def search(self, queries, k):
        ids, scores = super().search(queries, k)
        self.answers.append([(list(one), two.tolist()) for one, two in zip(ids, scores, strict=False)])
        return ids, scores


class CountsInWords(Sound):
    def build(self, source, index_dir):
        return {"texts": f"{super().build(source, index_dir)['texts']} texts"}


class SqueezesOne(Sound):
    def open(self, index_dir):
        super().open(index_dir)
        self.rows = self.rows.squeeze()


class NeedsAQuery(Sound):
    def search(self, queries, k):
        scores = np.stack([self.all_scores(queries.rows(slice(row, row + 1)))[0] for row in range(len(queries))])
        order = self.order(scores)[:, :k]
        return [[self.ids[text] for text in row] for row in order], list(np.take_along_axis(scores, order, axis=1))


class WritesAManifest(Sound):
    def build(self, source, index_dir):
        counts = super().build(source, index_dir)
        (index_dir / "manifest.json").write_text(json.dumps({"ids": list(source.ids)}))
        (index_dir / "ids.json").unlink()
        return counts

    def open(self, index_dir):
        (index_dir / "ids.json").write_text(json.dumps(json.loads((index_dir / "manifest.json").read_text())["ids"]))
        super().open(index_dir)


class ForgetsDeleted(Sound):
    def open_joined(self, read):
        store = read()
        self.rows, counts, self.ids = self.read(store)
        self.ids = self.ids[1:] + self.ids[:1]
        self.starts = np.cumsum([0, *counts[:-1]])
        return True


class SoundTexts(Indexer):
    """Terms that are rare count more."""

    indexes = "texts"

    def words(self, text):
        return re.findall(r"\w+", text.lower())

    def build(self, source, index_dir):
        texts = {one.id: self.words(f"{one.title} {one.text}") for one in source}
        if not texts:
            msg = "there is nothing to index."
            raise DataError(msg)
        (index_dir / "texts.json").write_text(json.dumps(texts))
        return {"texts": len(texts)}

    def open(self, index_dir):
        self.texts = json.loads((index_dir / "texts.json").read_text())
        counts = {}
        for words in self.texts.values():
            for word in set(words):
                counts[word] = counts.get(word, 0) + 1
        self.weights = {word: math.log(1 + len(self.texts) / count) for word, count in counts.items()}

    def terms(self, query, words):
        return {word: self.weights[word] for word in sorted(set(self.words(query)) & set(words))}

    def search(self, queries, k):
        ids, scores = [], []
        for query in queries:
            sums = [(name, sum(self.terms(query, words).values())) for name, words in self.texts.items()]
            best = sorted((one for one in sums if one[1] > 0), key=lambda one: -one[1])[:k]
            ids.append([name for name, _ in best])
            scores.append(np.array([score for _, score in best], dtype=np.float32))
        return ids, scores

    def contributions(self, query, ids):
        return [self.terms(query, self.texts[one]) for one in ids]


class Nonsense(SoundTexts):
    def search(self, queries, k):
        ids, scores = super().search(queries, k)
        return [sorted(one) for one in ids], scores


class WithoutTitles(SoundTexts):
    def build(self, source, index_dir):
        (index_dir / "texts.json").write_text(json.dumps({one.id: self.words(one.text) for one in source}))
        return {"texts": len(source)}


class NeedsAWord(SoundTexts):
    def words(self, text):
        found = super().words(text)
        return found if found[0] else []


class WrongTerms(SoundTexts):
    def contributions(self, query, ids):
        return [dict.fromkeys(terms, 1.0) for terms in super().contributions(query, ids)]


def snake(name):
    return "".join("_" + one.lower() if one.isupper() else one for one in name).lstrip("_")


@hookimpl
def register_indexers(register):
    for one in list(globals().values()):
        if isinstance(one, type) and issubclass(one, Indexer) and one is not Indexer:
            register(snake(one.__name__), f"broken_indexers:{one.__name__}")
