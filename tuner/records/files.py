"""The files of a study's folder.

results/<time>-<workload>-<mode>/
    attempts.jsonl            one line an attempt, the moment it ends: the truth
    attempts.jsonl.corrupt    what a kill left of a line, if it did
    results.csv               one row a trial, rewritten as a whole
    study.json                command, versions, seed, devices, plan
    best.pt                   the best trial's weights and configuration; of several workloads best-<workload>.pt each
    checkpoints/              <trial_id>.pt of trials that have not ended for good, and <trial_id>.prune
    epochs.jsonl              what trials said after their epochs; for curves, and no part of the results
    tracebacks.log            the full text of errors, if there were any
"""

ATTEMPTS = "attempts.jsonl"
RESULTS = "results.csv"
STUDY = "study.json"
BEST = "best.pt"
CHECKPOINTS = "checkpoints"
PRUNE = ".prune"  # ends the name of a file among the checkpoints that asks a running trial to end
EPOCHS = "epochs.jsonl"
TRACEBACKS = "tracebacks.log"
TRAIN = "train.json"  # in the place of study.json, in the folder of a model that was trained again


def best_name(workload: str) -> str:
    """The file of a workload's best weights, in a study of several."""
    return f"best-{workload}.pt"
