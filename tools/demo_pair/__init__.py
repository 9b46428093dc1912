"""How the demo pair of dflash-mlx is made: see README.md in this folder."""
