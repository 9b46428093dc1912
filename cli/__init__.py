"""The command line, installed as `dflash_mlx.cli`: it consumes events and knows no tensors."""
