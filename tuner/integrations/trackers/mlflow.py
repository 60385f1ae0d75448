"""MLflow: an experiment for the study, named after its folder, and a run for each trial."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from tuner.errors import InputError, ParameterError, one_line, option
from tuner.integrations.trackers.base import (
    EPOCH,
    Figures,
    TrackedStudy,
    TrackedTrial,
    row_config,
    row_figures,
    row_texts,
)
from tuner.machine.caps import environment
from tuner.records.attempts import Attempt
from tuner.trial import SUCCESSFUL

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

KEY = "tuner.run"  # the tag that identifies a trial's run
CONNECT_SECONDS = 3.0
SQLITE = "sqlite:///"
EXAMPLES = "a server such as http://127.0.0.1:5000, or sqlite:///mlflow.db"
SECRETS = ("password", "passwd", "pwd", "passcode", "token")  # query parameters of database drivers
PORTS = {"http": 80, "https": 443}
# For the first request; by default MLflow waits up to 16 minutes.
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}


@dataclass
class _Known:
    """A run that this process has created or found."""

    run_id: str
    params: dict[str, str]
    epoch: int = 0


class MLflow:
    """Writes to a server or a database with MLflow's own client."""

    name = "mlflow"

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._runs: dict[str, _Known] = {}

    def connect(self) -> None:
        """Requests an experiment, which also creates a missing database."""
        _check_server(self._uri)
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # two lines after each trial
        try:
            from mlflow.tracking import MlflowClient

            for noisy in ("mlflow", "alembic"):  # they log the creation of tables
                logging.getLogger(noisy).setLevel(logging.WARNING)
            self._client: MlflowClient = MlflowClient(tracking_uri=self._uri)
            with environment({name: value for name, value in PATIENCE.items() if name not in os.environ}):
                self._client.search_experiments(max_results=1)
        except Exception as error:
            reason = one_line(error).partition(". ")[0][:300]
            raise ParameterError("mlflow", self._uri, "cannot be used", f"{reason}; give {EXAMPLES}") from error

    def open(self, study: TrackedStudy) -> None:
        """Finds or makes the experiment."""
        self._study = study
        found = self._client.get_experiment_by_name(study.name)
        if found and found.lifecycle_stage == "deleted":
            raise RuntimeError(f"the experiment {study.name} was deleted: restore it or rename the study's folder")
        self._experiment = found.experiment_id if found else self._client.create_experiment(study.name)

    def begin(self, tracked: TrackedTrial) -> None:
        """Continues the trial's run. If it has epochs that will be trained again, replaces it by one without them.

        MLflow keeps every value of a metric, so an epoch that is logged twice would appear twice.
        """
        trial_id = tracked.trial.trial_id
        params = {_plain(key): str(value) for key, value in tracked.hyperparameters.items()}
        known = self._runs.pop(trial_id, None) or self._find(tracked)
        if known and (known.params != params or known.epoch > tracked.epoch):
            self._client.delete_run(known.run_id)
            known = None
        if known:
            self._client.update_run(known.run_id, status="RUNNING")
            self._runs[trial_id] = known
            return
        tags = {
            KEY: self._key(trial_id),
            "tuner.study": self._study.name,
            "tuner.trial_id": trial_id,
            "tuner.workload": tracked.trial.workload,
            "tuner.name": tracked.trial.name,
            "tuner.device": tracked.device,
        }
        made = self._client.create_run(self._experiment, run_name=tracked.name, tags=tags)
        self._runs[trial_id] = _Known(made.info.run_id, params)
        self._batch(made.info.run_id, params=params)
        for epoch, figures in sorted(tracked.earlier.items()):
            self.log(trial_id, epoch, figures)

    def log(self, trial_id: str, epoch: int, figures: Figures) -> None:
        """Adds an epoch's figures; the epoch is MLflow's step."""
        known = self._runs[trial_id]
        known.epoch = epoch
        self._batch(known.run_id, figures, epoch)

    def end(self, row: Attempt) -> None:
        """Adds the final figures, the status, and a retry's changes of the configuration."""
        known = self._runs.pop(row.trial_id)
        late = {_plain(key): str(value) for key, value in row_config(row).items()}
        late = {key: value for key, value in late.items() if key not in known.params}
        tags = {f"tuner.{key}": value for key, value in row_texts(row).items()}
        # The step is the number of attempts: a resumed trial ends more than once, and MLflow shows the last.
        self._batch(known.run_id, row_figures(row), row.attempts, late, tags)
        interrupted = row.status == "interrupted"
        status = "FINISHED" if row.status in SUCCESSFUL else "KILLED" if interrupted else "FAILED"
        self._client.set_terminated(known.run_id, status)

    def close(self) -> None:
        """Nothing to do: everything has been sent."""

    def _batch(
        self,
        run_id: str,
        figures: Mapping[str, float] | None = None,
        step: int = 0,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        now = int(time.time() * 1000)
        self._client.log_batch(
            run_id,
            [Metric(_plain(name), value, now, step) for name, value in (figures or {}).items()],
            [Param(key, value) for key, value in (params or {}).items()],
            [RunTag(key, value) for key, value in (tags or {}).items()],
        )

    def _find(self, tracked: TrackedTrial) -> _Known | None:
        """The trial's run by an earlier process, if there is one."""
        found = self._client.search_runs(
            [self._experiment], f"tags.`{KEY}` = '{self._key(tracked.trial.trial_id)}'", max_results=1
        )
        if not found:
            return None
        run_id, data = found[0].info.run_id, found[0].data
        metric = next((name for name in data.metrics if name.startswith(EPOCH)), None)
        steps = [each.step for each in self._client.get_metric_history(run_id, metric)] if metric else []
        return _Known(run_id, dict(data.params), max(steps, default=0))

    def _key(self, trial_id: str) -> str:
        return f"{self._study.study_id}-{trial_id}"


def _plain(name: str) -> str:
    """A name that MLflow accepts: ``val_recall_10`` for ``val_recall@10``."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def check_uri(uri: object) -> str:
    """The tracking URI. An empty one, one with a password, or a file in a missing folder raises ``InputError``."""
    if not isinstance(uri, str) or not uri.strip():
        raise ParameterError("mlflow", uri, f"give {EXAMPLES}")
    parts = urlsplit(uri)
    if parts.password is not None or any(key.lower() in SECRETS for key, _ in parse_qsl(parts.query)):
        raise InputError(
            f"{option('mlflow')}: the URI holds a password, which study.json would keep: leave it out and set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or what the database reads, such as PGPASSWORD"
        )
    file = Path(uri.strip().removeprefix(SQLITE))
    if uri.strip().startswith(SQLITE) and not file.parent.is_dir():
        raise ParameterError("mlflow", uri, f"there is no folder {file.parent}; make it or give another")
    return uri.strip()


def _check_server(uri: str) -> None:
    """Rejects a server that does not answer, as MLflow would retry for minutes."""
    parts = urlsplit(uri)
    if parts.scheme not in PORTS:
        return
    try:
        address = parts.hostname or "", parts.port or PORTS[parts.scheme]
        socket.create_connection(address, CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        missing = f"nothing answers there ({reason})"
        raise ParameterError("mlflow", uri, missing, "is it the address of a server?") from error
