"""weft for PyTorch: the backend "weft" of torch.distributed, and the C++ SDK."""
