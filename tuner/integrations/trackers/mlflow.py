"""MLflow: an experiment for the study, named after its folder, and a run for each trial."""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from tuner.errors import InputError, ParameterError, one_line, option
from tuner.integrations.trackers.adapter import Figures, Tracker, config_of, row_figures, row_texts
from tuner.machine.caps import environment
from tuner.records.attempts import Attempt
from tuner.trial import SUCCESSFUL, Trial

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

KEY = "tuner.run"  # the tag that identifies a trial's run
EXAMPLES = "a server such as http://127.0.0.1:5000, or sqlite:///mlflow.db"
SECRETS = ("password", "passwd", "pwd", "passcode", "token")  # query parameters of database drivers
# For the first request; by default MLflow waits up to 16 minutes.
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}


class MLflow(Tracker):
    """Writes to a server or a database with MLflow's own client."""

    package = "mlflow"

    def __init__(self, uri: str) -> None:
        super().__init__("mlflow")
        self._uri = _checked(uri)
        self._runs: dict[str, str] = {}  # MLflow's ids, by trial id

    def connect(self) -> None:
        """Requests an experiment, which also creates a missing database."""
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # two lines after each trial
        try:
            from mlflow.tracking import MlflowClient

            for noisy in ("mlflow", "alembic"):  # they log the creation of tables
                logging.getLogger(noisy).setLevel(logging.WARNING)
            self._client: MlflowClient = MlflowClient(tracking_uri=self._uri)
            with environment({name: value for name, value in PATIENCE.items() if name not in os.environ}):
                self._client.search_experiments(max_results=1)
        except Exception as error:
            reason = one_line(error).partition(". ")[0][:400]
            raise ParameterError("mlflow", self._uri, "cannot be used", f"{reason}; give {EXAMPLES}") from error

    def open(self, name: str, study_id: str, folder: Path) -> None:
        """Finds or creates the experiment."""
        self._study, self._study_id = name, study_id
        experiment = self._client.get_experiment_by_name(name)
        self._experiment = experiment.experiment_id if experiment else self._client.create_experiment(name)

    def begin(self, trial: Trial) -> None:
        """Continues the trial's run, or creates it."""
        key = f"{self._study_id}-{trial.trial_id}"
        runs = self._client.search_runs([self._experiment], f"tags.`{KEY}` = '{key}'")
        if runs:
            self._client.update_run(runs[0].info.run_id, "RUNNING")
        else:
            tags = {KEY: key, "tuner.study": self._study, "tuner.trial_id": trial.trial_id}
            title = f"{trial.trial_id} {trial.name}"
            runs = [self._client.create_run(self._experiment, run_name=title, tags=tags)]
        self._runs[trial.trial_id] = runs[0].info.run_id

    def log(self, trial_id: str, epoch: int, figures: Figures) -> None:
        """Adds an epoch's figures; the epoch is MLflow's step."""
        self._client.log_batch(self._runs[trial_id], _metrics(figures, epoch))

    def end(self, row: Attempt) -> None:
        """Adds the final figures, the status and the hyperparameters, of which MLflow keeps the first value."""
        from mlflow.entities import Param, RunTag

        run_id = self._runs.pop(row.trial_id)
        params_before, config = self._client.get_run(run_id).data.params, config_of(row)
        params = [Param(_plain(key), str(value)) for key, value in config.items() if _plain(key) not in params_before]
        tags = [RunTag(f"tuner.{key}", value) for key, value in row_texts(row).items()]
        self._client.log_batch(run_id, _metrics(row_figures(row), row.attempts), params, tags)
        failed = "KILLED" if row.status == "interrupted" else "FAILED"
        self._client.set_terminated(run_id, "FINISHED" if row.status in SUCCESSFUL else failed)


def _metrics(figures: Figures, step: int) -> list[Metric]:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    return [Metric(_plain(name), value, now, step) for name, value in figures.items()]


def _plain(name: str) -> str:
    """A name that MLflow accepts: ``val_recall_10`` for ``val_recall@10``."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _checked(uri: str) -> str:
    """The tracking URI without spaces around it; an empty one, or one with a password, raises ``InputError``."""
    if not isinstance(uri, str) or not uri.strip():
        raise ParameterError("mlflow", uri, f"give {EXAMPLES}")
    parts = urlsplit(uri)
    if parts.password is not None or any(key.lower() in SECRETS for key, _ in parse_qsl(parts.query)):
        raise InputError(
            f"{option('mlflow')}: the URI holds a password, which study.json would keep: leave it out and set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or what the database reads, such as PGPASSWORD"
        )
    return uri.strip()
