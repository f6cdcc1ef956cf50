"""Real tensor parallelism: all-reduces and sharded decode steps among several processes.

Each process is one worker with one GPU (nccl), or with CPU cores (gloo). Start it with torchrun;
``--help`` says more. What it measures feeds the same fits as single-GPU calibration.
"""
