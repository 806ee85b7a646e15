"""`rkit train`, `rkit pretrain` and `rkit rerank train`: three programs and the loop they share."""

from retrievalkit.modules import make_callable

make_callable(__name__, "retrievalkit.train.train:train")
