"""What is installed, of what scns does without where it is not."""

import importlib.util

TRITON = importlib.util.find_spec("triton") is not None  # comes with torch for CUDA
