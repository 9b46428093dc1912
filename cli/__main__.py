"""`python -m dflash_mlx.cli`."""

from .app import main

main()
