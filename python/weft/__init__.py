"""weft for PyTorch: a backend of torch.distributed, and one of torch.distributed.rpc (docs/pytorch.md)."""
