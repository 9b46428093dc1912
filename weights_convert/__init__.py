"""PyTorch safetensors → a folder of MLX weights, installed as `dflash_mlx.weights_convert`.

| file | purpose |
| --- | --- |
| `recipe.py` | which bits, from the options |
| `source.py` | what a folder is, where it came from, which files beside the weights belong to it |
| `tensors.py`, `layout.py` | headers → the parameters of a drafter, whatever prefix, packing or shards |
| `plan.py` | per tensor what becomes of it, and how many bytes that is |
| `reader.py`, `quantize.py`, `writer.py` | rows in, rows out: nothing holds a whole tensor |
| `staging.py` | nothing under the final name until all is there |
| `streamed.py`, `verify.py`, `verify_target.py` | the proof |
| `target.py` | targets: mlx-lm's own conversion |
| `report.py`, `card.py` | `conversion.json`, `README.md` |
| `convert.py` | all of it in order |

Knows nothing of terminals: progress goes to a callback.
"""
