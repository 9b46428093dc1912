"""Training of drafters: the target is frozen, and lends its features, embeddings and output head.

| file | purpose |
| --- | --- |
| `settings.py` | every number that can be chosen, with where its default is from |
| `rows.py`, `answers.py` | a file of prompts → token ids; the target's own answers, kept on disk |
| `defaults.py`, `mask_token.py`, `start.py` | config and first weights, from the target or a drafter |
| `batches.py` | sequences and anchors of every step, a function of the seed and the step alone |
| `forward.py`, `loss.py` | all blocks of a batch at once; the loss and what is measured with it |
| `step.py`, `state.py` | one compiled update; checkpoints that go on to the same curve |
| `evaluate.py`, `speed.py` | accuracy and τ on held-out prompts; where the time goes |
| `report.py`, `plot.py` | events, `metrics.jsonl`, the curves as a picture |
| `output.py` | the drafter as a folder in the published layout |
| `run.py`, `pace.py` | from sequences to a folder; time used and left |
| `loop.py` | all of it in order |

Knows nothing of terminals: progress goes to a callback.
"""
