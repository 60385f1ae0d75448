"""The files of a study's folder.

results/<time>-<workload>-<mode>/
    attempts.jsonl            the journal: a line for each attempt as soon as it ends; other files follow it
    results.csv               a row for each trial, rewritten as a whole
    study.json                command, versions, seed, devices, plan
    suggestions.jsonl         what a search has suggested, a line for each before it runs
    best.pt                   the best trial's weights and configuration; best-<workload>.pt in a study of several
    checkpoints/              <trial_id>.pt of unfinished trials, and <trial_id>.prune
    epochs.jsonl              the reports of trials after their epochs, for curves and resumes
    machine.jsonl             the load of the study's machine over time, for the report only
    decisions.log             what was decided of which trial, when, and by which numbers
    tracebacks.log            the tracebacks of errors, if any
    trials/                   a folder for each trial that has written files of its own there
    logs/                     <trial_id>.log: what trials printed, if anything
    *.pickle                  traces for PyTorch's memory viewer, if ``tuner estimate --snapshot`` put any there
"""

ATTEMPTS = "attempts.jsonl"
RESULTS = "results.csv"
STUDY = "study.json"
SUGGESTIONS = "suggestions.jsonl"
BEST = "best.pt"
CHECKPOINTS = "checkpoints"
PRUNE = ".prune"  # the suffix of a file among the checkpoints that asks a running trial to end
EPOCHS = "epochs.jsonl"
MACHINE = "machine.jsonl"
DECISIONS = "decisions.log"
TRACEBACKS = "tracebacks.log"
SNAPSHOT = ".pickle"  # the suffix of a trace for PyTorch's memory viewer


def best_name(workload: str) -> str:
    """The file of a workload's best weights in a study of several workloads."""
    return f"best-{workload}.pt"
