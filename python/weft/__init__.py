"""weft for PyTorch: a backend of torch.distributed, and one of torch.distributed.rpc (docs/pytorch.md)."""

import os

# For find_package(weft) in CMake: the wheel contains the C++ libraries, too.
cmake_prefix_path = os.path.dirname(os.path.abspath(__file__))
