"""How the hyperparameters of a population changed while it was trained."""

from tuner.records.recorded_study import RecordedStudy
from tuner.reporting.figures.chart import Chart, plain
from tuner.reporting.figures.style import house_style, ranked
from tuner.reporting.texts import count_text
from tuner.values import in_table, value_key

TRAINED = ("paused", "completed")
SHOWN = 8  # the most hyperparameters
NAMED = 5  # the best trials, which are in the legend
HEIGHT = 190  # of each hyperparameter's plot, in CSS pixels


def schedules(study: RecordedStudy) -> Chart | None:
    """A line for each trial of a population: the values with which it was trained; None if it is none."""
    from plotly.subplots import make_subplots

    if not any(row.parent_checkpoint for row in study.attempts):
        return None
    changed = [
        key
        for key in dict.fromkeys(key for row in study.attempts for key in row.config)
        if len({value_key(row.config.get(key)) for row in study.attempts}) > 1
    ]
    if not changed:
        return Chart("Schedules", "No hyperparameter has changed.")
    shown = changed[:SHOWN]
    plot = make_subplots(len(shown), 1, shared_xaxes=True, vertical_spacing=0.18 / len(shown))
    for place, best in enumerate(study.rows):
        rows = [row for row in study.attempts if row.trial_id == best.trial_id and row.status in TRAINED]
        ends = [row.epochs for row in rows]
        epochs = [epoch for ends_of in zip([0, *ends[:-1]], ends, strict=True) for epoch in ends_of] if ends else []
        for number, key in enumerate(shown, 1):
            values = [in_table(row.config.get(key)) for row in rows for _ in range(2)]
            look = ranked(place if place < NAMED else None, NAMED)
            plot.add_scatter(
                row=number,
                col=1,
                mode="lines",
                x=epochs,
                y=values,
                **{**look, "showlegend": look["showlegend"] and number == 1},
                name=plain(study.trial_names[best.trial_id]),
                legendgroup=best.trial_id,
                customdata=[[best.trial_id]] * len(epochs),
                hovertemplate="%{fullData.name}<br>epoch %{x}: %{y}<extra></extra>",
            )
    for number, key in enumerate(shown, 1):
        scale = study.record.scales.get(key)
        plot.update_yaxes(title=plain(key), type=scale if scale in ("linear", "log") else None, row=number, col=1)
    taken = sum(row.parent_checkpoint.partition("@")[0] not in ("", row.trial_id) for row in study.attempts)
    text = "The values with which each trial was trained. "
    text += f"{count_text(taken, 'time')} a trial took over the checkpoint of another."
    if len(changed) > SHOWN:
        text += f" {SHOWN} of {len(changed)} hyperparameters are drawn."
    styled = house_style(plot, HEIGHT * len(shown) + 60, showlegend=True)
    styled.update_xaxes(title="epoch", tickformat="d", showgrid=False, row=len(shown), col=1)
    return Chart("Schedules", text, styled)
