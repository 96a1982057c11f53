"""Kernels of our own for a GPU, in Triton. Import a file of this package on a machine with CUDA and Triton only.

All sums are taken in a fixed order, so results are the same in every run. What calls them has another way for other
machines, which is also what they are tested against: in Triton's interpreter (tests/test_kernels.py) and on a GPU.
"""
