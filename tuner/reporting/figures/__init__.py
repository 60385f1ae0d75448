"""The figures of a study, drawn once with plotly: the page embeds them, and a notebook shows the same.

    StudyView ──► Chart …  (a plotly figure with its finding in words)

``style.py`` has what all have in common. plotly is imported when a figure is drawn.
"""
