"""The figures of a study, made with plotly for the page and for notebooks.

    RecordedStudy ──► Chart …  (a plotly figure with a caption that states the result)

Optuna draws what compares trials (``optuna_figures.py``). ``style.py`` has the common style. ``chart.py`` imports
plotly when a figure is drawn.
"""
