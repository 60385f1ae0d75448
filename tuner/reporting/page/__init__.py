"""A study as one HTML page that works offline.

    files of a folder ──► RecordedStudy ──► figures, tables ──► sections ──► document

``sections.py`` has the page's content, ``tables.py`` its tables, ``details.py`` what a trial's panel shows,
``standing.py`` how sure the first place is, and ``parts.py`` pieces of HTML. ``document.py`` adds styles and scripts,
with plotly's, and writes the file. In the browser, ``conditions.js`` selects trials, ``table.js`` shows the tables
and ``panel.js`` a trial; ``plots.js`` draws, marks and brushes, and ``page.js`` starts all and follows a
running study.
"""
