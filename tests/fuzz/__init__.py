"""A fuzzer: real commands read damaged inputs, and must end with exit code 0, or with 2 and one message.

    make fuzz N=10000 SEED=1             trials; groups of failures, the smallest of each in build/fuzz/
    make fuzz SEED=1 ONLY=4711           one of these trials again, with its output
    make fuzz ONLY=build/fuzz/003.json   a reproducer

`material` makes a valid input of each kind, `targets` lists the commands that read them, `mutations` draws edits from
what is `nasty`, `edits` applies them, `process` runs a command in a fork of this process, and `verdict` judges it.
"""

import os

# Before numpy and torch are imported: no network, and one thread, since processes with threads cannot be forked.
os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
