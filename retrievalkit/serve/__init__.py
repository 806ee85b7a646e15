"""The service behind `rkit serve`: open indexes over HTTP and to language models' agents, and a page to search them.

A request becomes a task; tasks that may be answered together are, by the programs that the command line runs
(`batching`, `collection`). Needs the packages of the extra `serve`.
"""

from retrievalkit.modules import make_callable

make_callable(__name__, "retrievalkit.api.serving:serve")
