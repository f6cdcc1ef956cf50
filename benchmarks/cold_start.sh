#!/usr/bin/env bash
# Whole-process time of the commands that people wait for. Needs hyperfine.
set -eu
hyperfine --warmup 3 --runs 40 -N \
  'lrkv-plan --help' \
  'lrkv-plan rank lrkv-paper-2.5b --budget 50%' \
  'lrkv-plan rank lrkv-paper-2.5b --budget 50% --format json' \
  'lrkv-plan cache deepseek-v3 --attention mla:512+64 --attention lrkv:55'
