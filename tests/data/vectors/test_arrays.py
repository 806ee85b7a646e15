"""Arrays from untrusted files: wrong headers are refused."""

from __future__ import annotations

import io
import itertools
import struct
import zipfile

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit.data.vectors.arrays import check_finite, open_array
from retrievalkit.data.vectors.csr import MappedCsr, spread
from retrievalkit.errors import ArtifactError


def saved(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def headed(shape, dtype="'<i4'", *, content=b"\0" * 16, order="False"):
    """Create an .npy file with this header."""
    text = f"{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


@pytest.mark.parametrize("shape", [(), (4,), (0,), (2, 3), (0, 5)])
@pytest.mark.parametrize("dtype", ["<i4", "<i8", "<f2", "<f4"])
def test_arrays_that_numpy_saves_are_mapped(tmp_path, shape, dtype):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    opened = open_array(tmp_path / "a.npy", (dtype,), len(shape))
    np.testing.assert_array_equal(opened, array)
    assert opened.dtype == array.dtype


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        saved(np.zeros(4, dtype=np.int32))[:-1],
        saved(np.zeros(4, dtype=np.int32)) + b"\0",
        saved(np.zeros(4, dtype=np.float32)),
        saved(np.zeros((2, 2), dtype=np.int32)),
        saved(np.asfortranarray(np.zeros((2, 2), dtype=np.int32))),
        headed("(-4,)"),
        headed(f"({2**63},)"),
        headed(f"({2**62},)"),
        headed("(5,)"),
        headed("(2, 2,)"),
        headed("(4,)", "'>i4'"),
        headed("(2,)", "'|O'"),
        headed("(2,)", "[('a', '<i4'), ('b', '<i4')]"),
        headed("(4,)", order="True"),
        headed("4"),
        headed("(4,) * 9"),
        headed("(" * 5000),
        headed(f"({'9' * 5000},)"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path, content):
    """Wrong type, shape or size: nothing is evaluated, and nothing outside the file is read."""
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"^(it does not start|it is an array|an array|Exceeds the limit)"):
        open_array(tmp_path / "a.npy", ("<i4",), 1)


MATRIX = scipy.sparse.csr_matrix(np.array([[0, 1, 2], [0, 0, 0], [3, 0, 4]], dtype=np.float32))


def archive(folder, **changes):
    """Write the matrix like scipy, with some members replaced."""
    arrays = {"indices": MATRIX.indices, "indptr": MATRIX.indptr, "format": np.array(b"csr"), "data": MATRIX.data}
    arrays |= {"shape": np.array(MATRIX.shape)} | changes
    with zipfile.ZipFile(folder / "m.npz", "w") as written:
        for name, array in arrays.items():
            written.writestr(f"{name}.npy", array if isinstance(array, bytes) else saved(array))
    return folder / "m.npz"


@pytest.mark.parametrize(
    "changes",
    [
        {"indptr": np.array([0, 2, 2, 900_000], dtype=np.int32)},
        {"indptr": np.array([0, 5, 2, 4], dtype=np.int32)},
        {"indptr": np.array([0, -5, 2, 4], dtype=np.int32)},
        {"indptr": np.array([1, 2, 2, 4], dtype=np.int32)},
        {"indptr": np.array([0, 2, 4], dtype=np.int32)},
        {"indptr": np.array([], dtype=np.int32), "shape": np.array([-1, 3])},
        {"indices": np.array([1, 2, 0], dtype=np.int32)},
        {"indices": np.array([1, 2, 0, 2], dtype=np.float32)},
        {"indices": headed("(4000,)")},
        {"data": np.ones(4)},
        {"data": headed(f"({2**62},)", "'<f4'")},
        {"shape": np.array([3, -3])},
        {"shape": np.array([3, 2**40])},
        {"shape": np.array([3, 3, 3])},
        {"format": np.array(b"csc")},
    ],
)
def test_a_matrix_that_does_not_fit_is_refused(tmp_path, changes):
    with pytest.raises(ValueError, match=r".") as caught:
        MappedCsr(archive(tmp_path, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"indices": np.array([1, 2, 0, 3], dtype=np.int32)},
        {"indices": np.array([1, 2, -1, 2], dtype=np.int32)},
        {"data": np.array([1, np.nan, 1, 1], dtype=np.float32)},
    ],
)
def test_columns_and_weights_are_checked_when_they_are_read(tmp_path, changes):
    """A column outside the vocabulary would be written outside an array."""
    mapped = MappedCsr(archive(tmp_path, **changes))
    for read in (lambda: mapped.rows(0, 3), lambda: mapped.take(np.array([2, 0]))):
        with pytest.raises(ArtifactError, match=r"m\.npz' cannot be read .it holds numbers"):
            read()


@pytest.mark.parametrize("place", ["local", "central"])
def test_wrong_zip_tables_are_refused(tmp_path, place):
    """Random bytes in the tables of the archive are refused or have no effect."""
    scipy.sparse.save_npz(tmp_path / "m.npz", MATRIX, compressed=False)
    content, random = (tmp_path / "m.npz").read_bytes(), np.random.default_rng(0)
    signature = b"PK\x03\x04" if place == "local" else b"PK\x01\x02"
    starts = [at for at in range(len(content)) if content.startswith(signature, at)]
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(3):
            damaged[int(random.choice(starts)) + int(random.integers(4, 46))] = int(random.integers(256))
        (tmp_path / "m.npz").write_bytes(damaged)
        try:
            read = MappedCsr(tmp_path / "m.npz").rows(0, 3)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, ArtifactError):
            continue
        np.testing.assert_array_equal(read.toarray(), MATRIX.toarray())


def test_a_compressed_matrix_is_refused(tmp_path):
    scipy.sparse.save_npz(tmp_path / "m.npz", MATRIX, compressed=True)
    with pytest.raises(ValueError, match="is not stored uncompressed"):
        MappedCsr(tmp_path / "m.npz")


@pytest.mark.parametrize("matrix", [MATRIX, scipy.sparse.random(40, 9, 0.3, "csr", np.float32), 0 * MATRIX])
def test_rows_of_a_matrix_in_a_file(tmp_path, matrix):
    rows = matrix.shape[0]
    scipy.sparse.save_npz(tmp_path / "m.npz", matrix, compressed=False)
    mapped = MappedCsr(tmp_path / "m.npz")
    assert mapped.shape == matrix.shape
    for start, end in ((0, rows), (rows // 3, rows // 2), (1, 1)):
        np.testing.assert_array_equal(mapped.rows(start, end).toarray(), matrix[start:end].toarray())
    for wanted in ([rows - 1, 0, 0, rows // 2], np.arange(0)):
        np.testing.assert_array_equal(mapped.take(np.array(wanted)).toarray(), matrix[wanted].toarray())


@settings(max_examples=50, deadline=None)
@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=9), data=st.data())
def test_spread_lists_the_elements_of_runs(counts, data):
    starts = np.cumsum([0, *counts])
    wanted = np.array(data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=9)), dtype=np.int64)
    places, new = spread(starts, wanted)
    parts = [list(range(starts[run], starts[run + 1])) for run in wanted]
    assert places.tolist() == [place for part in parts for place in part]
    assert [places[start:end].tolist() for start, end in itertools.pairwise(new)] == parts


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_numbers_that_are_not_finite_are_refused(dtype):
    """Infinities of either sign and NaN; the largest and the smallest numbers are finite."""
    check_finite(np.array([0, np.finfo(dtype).max, np.finfo(dtype).min, np.finfo(dtype).tiny], dtype=dtype))
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="not finite"):
            check_finite(np.array([[1, 2], [value, 3]], dtype=dtype))
