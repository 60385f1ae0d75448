"""An Optuna objective with a conditional space: a perceptron or nearest neighbours on scikit-learn's digits."""

import optuna
import torch
from common import options
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

import tuner.optuna


def objective(trial):
    images, labels = load_digits(return_X_y=True)
    if trial.suggest_categorical("model", ["neighbours", "perceptron"]) == "neighbours":
        model = KNeighborsClassifier(trial.suggest_int("k", 1, 9))
        return model.fit(images[:1437], labels[:1437]).score(images[1437:], labels[1437:])
    images, labels = torch.tensor(images).float() / 16, torch.tensor(labels)
    hidden = trial.suggest_int("hidden", 16, 60_000, log=True)
    model = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.suggest_float("lr", 1e-4, 1e-2, log=True))
    for epoch in range(4):
        for part in torch.randperm(1437).split(720):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(images[1437:]).argmax(1) == labels[1437:]).float().mean().item()
        trial.report(accuracy, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return accuracy


if __name__ == "__main__":
    study = optuna.create_study(
        storage="sqlite:///optuna.db",
        study_name="digits",
        direction="maximize",
        load_if_exists=True,
    )
    if not study.trials:
        study.enqueue_trial({"model": "perceptron", "hidden": 60_000, "lr": 1e-4})
    tuner.optuna.optimize(study, objective, n_trials=10, **options(device_memory_gb=2.0))
