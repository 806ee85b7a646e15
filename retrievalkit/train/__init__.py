"""`rkit train`, `rkit pretrain` and `rkit rerank train`: three programs and the loop they share."""
