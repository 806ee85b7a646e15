"""The classes of the Python API that build and search: `rk.Index`, `rk.Hybrid` and `rk.Retriever`."""
