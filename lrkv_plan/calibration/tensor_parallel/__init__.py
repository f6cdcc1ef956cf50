"""Real tensor parallelism: all-reduces and sharded decode steps among several processes.

Each process is one worker with one GPU (nccl), or with CPU cores (gloo); torchrun starts them with
``lrkv-plan calibrate tensor-parallel``. What it measures feeds the same fits as one GPU's runs.
"""
